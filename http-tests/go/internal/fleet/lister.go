package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"watchcore.test/http/internal/history"
	"watchcore.test/http/internal/world"
)

// A lister lists again and again, each time at the next server: with each resourceVersion that a list may have, whole and in
// pages. Each answer is compared with what happened.
type lister struct {
	f      *Fleet
	plural string

	turn           int
	lists, refused int
	// Lists with resourceVersion=0: their number, how many were older than one before, and their highest revision.
	any, older int
	highest    int64
}

// next lists in the next way.
func (l *lister) next(ctx context.Context) error {
	// etcd has this one, so a list of the newest state has it, too.
	known := l.f.Writer.History.Last("")
	at := strconv.FormatInt(known, 10)
	ways := []url.Values{
		{"resourceVersion": {"0"}},
		{},
		{"limit": {"50"}},
		{"resourceVersion": {at}},
		{"resourceVersion": {at}, "resourceVersionMatch": {"NotOlderThan"}},
		{"resourceVersion": {at}, "resourceVersionMatch": {"Exact"}},
	}
	query := ways[l.turn%len(ways)]
	l.turn++
	asked := query.Encode()
	revision, items, err := l.list(ctx, query)
	if err == nil && items != nil {
		err = l.compare(ctx, revision, items)
		switch {
		case query.Get("resourceVersion") == "0":
			l.anything(revision)
		case revision < known, query.Get("resourceVersionMatch") == "Exact" && revision != known:
			err = errors.Join(err, fmt.Errorf("it is of revision %d", revision))
		}
	}
	if err != nil {
		return fmt.Errorf("a list of %s?%s when etcd had revision %d: %w", l.plural, asked, known, err)
	}
	return nil
}

// anything counts a list that was to be of any revision.
func (l *lister) anything(revision int64) {
	l.any++
	if revision < l.highest {
		l.older++
	}
	l.highest = max(l.highest, revision)
}

// compare says how a list is not etcd's state of its revision.
func (l *lister) compare(ctx context.Context, revision int64, items map[string]int64) error {
	// etcd answers others before it answers the writer.
	err := world.Until(ctx, "the writer notes what it wrote", func() error {
		if last := l.f.Writer.History.Last(""); last < revision {
			return fmt.Errorf("it is at %d, not yet at %d", last, revision)
		}
		return nil
	})
	if err != nil {
		return err
	}
	l.lists++
	if difference := history.Difference(items, l.f.Writer.History.State(l.plural+"/", revision)); difference != "" {
		return fmt.Errorf("it is not the state of revision %d: %s", revision, difference)
	}
	return nil
}

// list reads all pages of a list, each from the next server. Without items it was refused: a server that is behind, is not
// ready, or does not have a revision any more; or there was no answer.
func (l *lister) list(ctx context.Context, query url.Values) (int64, map[string]int64, error) {
	items := map[string]int64{}
	for {
		response, err := ask(ctx, l.f.url+objects+l.plural+"?"+query.Encode())
		if err != nil {
			return 0, nil, nil
		}
		var list metav1.PartialObjectMetadataList
		err = json.NewDecoder(response.Body).Decode(&list)
		response.Body.Close()
		switch response.StatusCode {
		case http.StatusOK:
		case http.StatusGatewayTimeout, http.StatusServiceUnavailable, http.StatusGone, http.StatusTooManyRequests, http.StatusBadGateway:
			l.refused++
			return 0, nil, nil
		default:
			return 0, nil, errors.New(response.Status)
		}
		if err != nil {
			// The server was killed in the middle of its answer.
			return 0, nil, nil
		}
		revision, err := strconv.ParseInt(list.ResourceVersion, 10, 64)
		if err != nil {
			return 0, nil, err
		}
		for _, item := range list.Items {
			key := l.plural + "/" + item.Name
			if item.Namespace != "" {
				key = l.plural + "/" + item.Namespace + "/" + item.Name
			}
			if items[key], err = strconv.ParseInt(item.ResourceVersion, 10, 64); err != nil {
				return 0, nil, err
			}
		}
		if list.Continue == "" {
			return revision, items, nil
		}
		query.Set("continue", list.Continue)
	}
}
