package fleet

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"watchcore.test/http/internal/world"
)

const (
	objects   = "/apis/" + world.Group + "/" + world.Version + "/"
	notOlder  = "&resourceVersionMatch=NotOlderThan"
	exact     = "&resourceVersionMatch=Exact"
	streaming = "&watch=1&sendInitialEvents=true&allowWatchBookmarks=true" + notOlder
)

var tooLarge = regexp.MustCompile(`^Timeout: Too large resource version: (\d+), current: (\d+)$`)

// A probe asks one server that is behind for a revision that it does not have.
type probe struct {
	server   *member
	revision int64
	refusals sync.WaitGroup
	mutex    sync.Mutex
	failures []error

	// A watch from that revision on, and what it said while the server was behind.
	watch io.ReadCloser
	lines *bufio.Reader
	first chan result
}

type result struct {
	line []byte
	err  error
}

// probe begins to ask. Each request waits as long as the server lets it.
func (f *Fleet) probe(ctx context.Context, server *member, revision int64) *probe {
	p := &probe{server: server, revision: revision, first: make(chan result, 1)}
	at := fmt.Sprintf("?resourceVersion=%d", revision)
	some := world.Keys(f.Writer.History.State("gizmos/", revision))[0]
	for _, target := range []string{
		"widgets" + at, "widgets" + at + notOlder, "widgets" + at + exact, "widgets" + at + "&limit=3",
		"widgets" + at + notOlder + "&labelSelector=color%3Dred", "namespaces/lab/widgets" + at, some + at,
		"widgets" + at + streaming,
	} {
		p.refusals.Go(func() { p.note(target, p.refused(ctx, target)) })
	}
	// etcd does not say to this server which revision is the newest.
	p.refusals.Go(func() { p.note("the newest", p.unanswered(ctx, "widgets")) })
	f.refusals += 9
	response, err := ask(ctx, server.URL+objects+"widgets"+at+"&watch=1&allowWatchBookmarks=true")
	if err != nil {
		p.note("watch", err)
		return p
	}
	p.watch, p.lines = response.Body, bufio.NewReader(response.Body)
	if response.StatusCode != http.StatusOK {
		p.note("watch", fmt.Errorf("refused: %s", response.Status))
	}
	go func() {
		line, err := p.lines.ReadBytes('\n')
		p.first <- result{line, err}
	}()
	return p
}

func (p *probe) note(what string, err error) {
	if err != nil {
		p.mutex.Lock()
		p.failures = append(p.failures, fmt.Errorf("a server behind revision %d, asked for %s: %w", p.revision, what, err))
		p.mutex.Unlock()
	}
}

// whileBehind waits for the refusals, and says what was wrong with them. The server is still behind.
func (p *probe) whileBehind(ctx context.Context) error {
	p.refusals.Wait()
	if p.watch == nil {
		return errors.Join(p.failures...)
	}
	shown, err := p.server.shows(ctx)
	if err == nil && shown >= p.revision {
		err = fmt.Errorf("it shows revision %d", shown)
	}
	p.note("what there is", err)
	select {
	case first := <-p.first:
		p.note("watch", fmt.Errorf("it was told before there was anything: %q, %v", first.line, first.err))
	default:
	}
	return errors.Join(p.failures...)
}

// afterwards waits for what the watch is told first: something above the revision that it was asked from.
func (p *probe) afterwards(ctx context.Context) error {
	defer context.AfterFunc(ctx, func() { p.watch.Close() })()
	first := <-p.first
	if first.err != nil {
		return fmt.Errorf("a watch that waited for revision %d: %w", p.revision, first.err)
	}
	var event struct {
		Type   string
		Object metav1.PartialObjectMetadata
	}
	if err := json.Unmarshal(bytes.TrimSpace(first.line), &event); err != nil {
		return err
	}
	revision, err := strconv.ParseInt(event.Object.ResourceVersion, 10, 64)
	if err != nil || revision < p.revision || event.Type == "ERROR" {
		return fmt.Errorf("a watch that waited for revision %d was told first: %s", p.revision, first.line)
	}
	return nil
}

// close ends the watch.
func (p *probe) close() {
	if p.watch != nil {
		p.watch.Close()
	}
}

// refused is how a request is not answered with 504 as Kubernetes says it.
func (p *probe) refused(ctx context.Context, target string) error {
	status, header, err := p.status(ctx, target)
	if err != nil {
		return err
	}
	if err := timeout(status, header); err != nil {
		return err
	}
	words := tooLarge.FindStringSubmatch(status.Message)
	if words == nil || words[1] != strconv.FormatInt(p.revision, 10) {
		return fmt.Errorf("the message is %q", status.Message)
	}
	shown, err := p.server.shows(ctx)
	if err == nil && words[2] != strconv.FormatInt(shown, 10) {
		err = fmt.Errorf("it says that it is at %s, and shows %d", words[2], shown)
	}
	causes := status.Details.Causes
	want := metav1.StatusCause{Type: metav1.CauseTypeResourceVersionTooLarge, Message: "Too large resource version"}
	if len(causes) != 1 || causes[0] != want {
		err = errors.Join(err, fmt.Errorf("its causes are %v", causes))
	}
	return err
}

func (p *probe) unanswered(ctx context.Context, target string) error {
	status, header, err := p.status(ctx, target)
	if err != nil {
		return err
	}
	return timeout(status, header)
}

// timeout is how a Status is no timeout of Kubernetes. A header is nil where the Status came in a watch.
func timeout(status *metav1.Status, header http.Header) error {
	if status.Kind != "Status" || status.APIVersion != "v1" || status.Status != metav1.StatusFailure ||
		status.Code != http.StatusGatewayTimeout || status.Reason != metav1.StatusReasonTimeout ||
		status.Details == nil || status.Details.RetryAfterSeconds != 1 {
		return fmt.Errorf("no timeout: %+v", status)
	}
	if header != nil && header.Get("Retry-After") != "1" {
		return fmt.Errorf("Retry-After is %q", header.Get("Retry-After"))
	}
	return nil
}

// status is the Status of a refusal, or of the only event of a watch.
func (p *probe) status(ctx context.Context, target string) (*metav1.Status, http.Header, error) {
	response, err := ask(ctx, p.server.URL+objects+target)
	if err != nil {
		return nil, nil, err
	}
	defer response.Body.Close()
	// A watch that goes on after its first event is read no further.
	var body json.RawMessage
	if err := json.NewDecoder(response.Body).Decode(&body); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", response.Status, err)
	}
	var event struct {
		Type   string
		Object json.RawMessage
	}
	header := response.Header
	if json.Unmarshal(body, &event) == nil && event.Type == "ERROR" {
		body, header = event.Object, nil
	} else if response.StatusCode != http.StatusGatewayTimeout {
		return nil, nil, fmt.Errorf("%s: %.300s", response.Status, body)
	}
	var status metav1.Status
	return &status, header, json.Unmarshal(body, &status)
}

// shows is the revision of what a server shows to who takes anything.
func (m *member) shows(ctx context.Context) (int64, error) {
	response, err := ask(ctx, m.URL+objects+"widgets?"+url.Values{"resourceVersion": {"0"}, "limit": {"1"}}.Encode())
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	var list metav1.PartialObjectMetadataList
	if err := json.NewDecoder(response.Body).Decode(&list); err != nil {
		return 0, err
	}
	return strconv.ParseInt(list.ResourceVersion, 10, 64)
}
