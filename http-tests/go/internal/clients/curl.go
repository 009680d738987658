package clients

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"strconv"

	"watchcore.test/http/internal/history"
	"watchcore.test/http/internal/world"
)

// A fetcher asks for a URL and gives what comes, as it comes.
type fetcher func(ctx context.Context, url string) (io.ReadCloser, error)

// Curl starts curl in the loop that Kubernetes' documentation describes: list, watch from the list's revision, resume
// from the last revision seen, list anew when that is gone. Without curl in PATH the same loop asks with Go's own client.
func Curl(ctx context.Context, url, plural string) (*Client, error) {
	name, fetch := "curl", fetcher(byCurl)
	if _, err := exec.LookPath("curl"); err != nil {
		name, fetch = "Go's client instead of curl", byGo
	}
	return byLines(ctx, name, url, plural, fetch)
}

// Plain starts the same loop with Go's own client.
func Plain(ctx context.Context, url, plural string) (*Client, error) {
	return byLines(ctx, "plain watcher", url, plural, byGo)
}

func byLines(ctx context.Context, name, url, plural string, fetch fetcher) (*Client, error) {
	return loop(ctx, name, url, plural, func(ctx context.Context, query string) (messages, error) {
		body, err := fetch(ctx, url+path(plural)+query)
		if err != nil {
			return nil, err
		}
		return &lines{body: body, reader: bufio.NewReaderSize(body, 64<<10)}, nil
	}, fetch)
}

func path(plural string) string {
	return "/apis/" + world.Group + "/" + world.Version + "/" + plural
}

type process struct {
	io.Reader
	command *exec.Cmd
}

func (p process) Close() error {
	_ = p.command.Process.Kill()
	return p.command.Wait()
}

func byCurl(ctx context.Context, url string) (io.ReadCloser, error) {
	command := exec.CommandContext(ctx, "curl", "--silent", "--show-error", "--no-buffer", "--noproxy", "*", url)
	out, err := command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	return process{out, command}, command.Start()
}

func byGo(ctx context.Context, url string) (io.ReadCloser, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	if media := response.Header.Get("Content-Type"); media != "application/json" {
		response.Body.Close()
		return nil, fmt.Errorf("%s of %s: no server, but a proxy before it", response.Status, media)
	}
	return response.Body, nil
}

// messages are the events of one watch, until it ends.
type messages interface {
	Next() ([]byte, error)
	Close() error
}

type lines struct {
	body   io.ReadCloser
	reader *bufio.Reader
}

func (l *lines) Next() ([]byte, error) {
	line, err := l.reader.ReadBytes('\n')
	// A line without its end is what a killed server left behind: no event.
	return line, err
}

func (l *lines) Close() error { return l.body.Close() }

// loop starts a client that lists with fetch and watches with watch, whose query names the revision.
func loop(
	ctx context.Context, name, url, plural string,
	watch func(ctx context.Context, query string) (messages, error), fetch fetcher,
) (*Client, error) {
	log := newLog(name, plural, "", Lists)
	c, ctx := start(ctx, log)
	c.run(func() error {
		revision := int64(0)
		for {
			var err error
			if revision == 0 {
				revision, err = list(ctx, log, plural, url+path(plural), fetch)
			}
			if err == nil && revision != 0 {
				revision, err = follow(ctx, log, plural, revision, watch)
			}
			if err != nil && ctx.Err() == nil {
				return err
			}
			if !pause(ctx) {
				return nil
			}
		}
	})
	return c, nil
}

// list reads all pages of a list: its revision, or 0 where the server does not answer.
func list(ctx context.Context, log *history.Log, plural, url string, fetch fetcher) (int64, error) {
	items := map[string]int64{}
	token := ""
	for {
		body, err := fetch(ctx, url+"?limit=1000&continue="+token)
		if err != nil {
			return 0, nil
		}
		bytes, err := io.ReadAll(body)
		_ = body.Close()
		if err != nil || len(bytes) == 0 {
			return 0, nil
		}
		var page struct {
			Kind     string
			Code     int
			Metadata metadataOf
			Items    []struct{ Metadata metadataOf }
		}
		if err := json.Unmarshal(bytes, &page); err != nil {
			// A server that was killed in the middle of a list.
			return 0, nil
		}
		if page.Kind == "Status" {
			if page.Code == 429 || page.Code == 410 || page.Code == 503 || page.Code == 504 {
				return 0, nil
			}
			return 0, fmt.Errorf("the list was refused: %s", bytes)
		}
		for _, item := range page.Items {
			items[item.Metadata.key(plural)] = item.Metadata.revision()
		}
		if token = page.Metadata.Continue; token == "" {
			log.List(page.Metadata.revision(), items)
			return page.Metadata.revision(), nil
		}
	}
}

// follow reads one watch to its end: where to resume, or 0 where that is gone.
func follow(
	ctx context.Context, log *history.Log, plural string, revision int64,
	watch func(ctx context.Context, query string) (messages, error),
) (int64, error) {
	log.Resume()
	events, err := watch(ctx, "?watch=1&allowWatchBookmarks=1&resourceVersion="+strconv.FormatInt(revision, 10))
	if err != nil {
		return revision, nil
	}
	defer func() { _ = events.Close() }()
	for {
		line, err := events.Next()
		if err != nil {
			return log.Resumable(), nil
		}
		if refusal := statusOf(line); refusal != 0 {
			if refusal == 429 || refusal == 503 {
				return log.Resumable(), nil
			}
			return 0, fmt.Errorf("the watch was refused: %s", line)
		}
		if err := read(log, plural, line); err != nil {
			if errors.As(err, &expired{}) {
				return 0, nil
			}
			return 0, err
		}
	}
}

// statusOf is the code of a Status that came instead of an event.
func statusOf(line []byte) int {
	if !bytes.Contains(line, []byte(`"kind":"Status"`)) || bytes.HasPrefix(line, []byte(`{"type"`)) {
		return 0
	}
	var status struct{ Code int }
	_ = json.Unmarshal(line, &status)
	return status.Code
}
