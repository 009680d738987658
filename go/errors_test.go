package watchcore_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"watchcore"
)

// The numbers are those of every language.
func TestCodes(t *testing.T) {
	for _, row := range []struct {
		code   watchcore.Code
		number int
		name   string
		retry  bool
		fatal  bool
		status int
	}{
		{watchcore.ErrInvalidArgument, 1, "INVALID_ARGUMENT", false, false, 400},
		{watchcore.ErrNotFound, 2, "NOT_FOUND", false, false, 404},
		{watchcore.ErrNotReady, 3, "NOT_READY", true, false, 503},
		{watchcore.ErrTimeout, 4, "TIMEOUT", true, false, 504},
		{watchcore.ErrClosed, 5, "CLOSED", false, true, 503},
		{watchcore.ErrBusy, 6, "BUSY", true, false, 409},
		{watchcore.ErrUnsupported, 7, "UNSUPPORTED", false, false, 501},
		{watchcore.ErrOutOfOrder, 8, "OUT_OF_ORDER", false, false, 409},
		{watchcore.ErrCompacted, 10, "COMPACTED", false, false, 410},
		{watchcore.ErrLagged, 11, "LAGGED", false, false, 410},
		{watchcore.ErrFutureRevision, 12, "FUTURE_REVISION", true, false, 504},
		{watchcore.ErrResynced, 13, "RESYNCED", false, false, 410},
		{watchcore.ErrUnauthenticated, 20, "UNAUTHENTICATED", false, false, 401},
		{watchcore.ErrPermissionDenied, 21, "PERMISSION_DENIED", true, false, 403}, // slowly
		{watchcore.ErrUnavailable, 22, "UNAVAILABLE", true, false, 503},
		{watchcore.ErrResourceExhausted, 23, "RESOURCE_EXHAUSTED", true, false, 429},
		{watchcore.ErrPanic, 90, "PANIC", false, true, 500},
		{watchcore.ErrInternal, 91, "INTERNAL", false, true, 500},
	} {
		want(t, "number of "+row.name, int(row.code), row.number)
		want(t, "name", row.code.Name(), row.name)
		want(t, "status of "+row.name, row.code.HTTPStatus(), row.status)
		want(t, "retryable "+row.name, row.code.Retryable(), row.retry)
		want(t, "fatal "+row.name, row.code.Fatal(), row.fatal)
		var taken *watchcore.Error
		if !errors.As(fmt.Errorf("mine: %w", &watchcore.Error{Code: row.code}), &taken) {
			t.Fatalf("%s is no *watchcore.Error", row.name)
		}
		want(t, "an error's retryable "+row.name, taken.Retryable(), row.code.Retryable())
		want(t, "an error's fatal "+row.name, taken.Fatal(), row.fatal)
		if text := row.code.Error(); !strings.HasPrefix(text, "watchcore: ") || len(text) < 20 {
			t.Errorf("text of %s: %q", row.name, text)
		}
		wrapped := fmt.Errorf("mine: %w", &watchcore.Error{Code: row.code, Message: "m"})
		wantError(t, row.name, wrapped, row.code)
		if errors.Is(wrapped, watchcore.Code(1000)) {
			t.Errorf("%s is any code", row.name)
		}
	}
	want(t, "an unknown code", watchcore.Code(1000).Name(), "UNKNOWN")
}

func TestErrorText(t *testing.T) {
	_, writer := embedded(t)
	check(t, writer.Apply(5, watchcore.Put("/a", "")))
	err := writer.Apply(5, watchcore.Put("/a", ""))
	if text := err.Error(); !strings.HasPrefix(text, "watchcore: ") || !strings.Contains(text, "5") {
		t.Fatalf("the text does not say what was asked: %q", text)
	}
}

func TestOptionsOfCaches(t *testing.T) {
	for name, config := range map[string]watchcore.Config{
		"negative":            {Capacity: -1},
		"negative bytes":      {CapacityBytes: -1},
		"negative key":        {MaxKeyBytes: -1},
		"negative value":      {MaxValueBytes: -1},
		"no attribute":        {Fields: []watchcore.Attribute{{}}},
		"no index":            {Indexes: []watchcore.Index{{}}},
		"events without age":  {KeepEvents: 5},
		"an age that is none": {KeepAge: time.Microsecond},
	} {
		cache, err := watchcore.New(config)
		wantError(t, name, err, watchcore.ErrInvalidArgument)
		want(t, name, cache, nil)
	}
	nobody := []string{"http://127.0.0.1:1"}
	for name, etcd := range map[string]watchcore.EtcdConfig{
		"Open without etcd":    {},
		"Open of no endpoint":  {Username: "a", Password: "b"},
		"Open of a bad one":    {Endpoints: []string{"not a url"}},
		"Open with a bad page": {Endpoints: nobody, PageSize: -1},
		"Open with bad times":  {Endpoints: nobody, DialTimeout: -5e9},
	} {
		cache, err := watchcore.Open(bounded(t), etcd, watchcore.Config{})
		wantError(t, name, err, watchcore.ErrInvalidArgument)
		want(t, name, cache, nil)
	}
	if watchcore.Version() == "" {
		t.Fatal("no version")
	}
}
