package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
)

// etcd is an endpoint of etcd's JSON gateway, so that this program needs no client library.
type etcd string

// put writes a key, and returns the revision of the change.
func (e etcd) put(ctx context.Context, key, value string) (uint64, error) {
	return e.post(ctx, "/v3/kv/put", map[string][]byte{"key": []byte(key), "value": []byte(value)})
}

// remove deletes a key; an absent key changes nothing.
func (e etcd) remove(ctx context.Context, key string) (uint64, error) {
	return e.post(ctx, "/v3/kv/deleterange", map[string][]byte{"key": []byte(key)})
}

// clear deletes every key of a prefix.
func (e etcd) clear(ctx context.Context, prefix string) (uint64, error) {
	end := []byte(prefix)
	end[len(end)-1]++
	return e.post(ctx, "/v3/kv/deleterange", map[string][]byte{"key": []byte(prefix), "range_end": end})
}

func (e etcd) post(ctx context.Context, path string, body map[string][]byte) (uint64, error) {
	text, err := json.Marshal(body)
	if err != nil {
		return 0, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, string(e)+path, bytes.NewReader(text))
	if err != nil {
		return 0, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, err
	}
	if response.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("%s: %s: %s", path, response.Status, answer)
	}
	var parsed struct {
		Header struct {
			Revision string `json:"revision"`
		} `json:"header"`
	}
	if err := json.Unmarshal(answer, &parsed); err != nil {
		return 0, err
	}
	return strconv.ParseUint(parsed.Header.Revision, 10, 64)
}
