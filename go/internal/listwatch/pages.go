package listwatch

import (
	"errors"
	"fmt"
)

// emptyPages is how many empty pages may follow each other: a server that filters returns some.
const emptyPages = 1000

// Gather requests all pages of a list, each with the token of the one before. Gather returns the
// revision of the state and Synced, or the failure. A page without a revision has that of the
// others. With hasState, a list without a revision is an error, even if it is empty.
func Gather(hasState bool, ask func(token string) (items int, revision uint64, next string, err error)) (uint64, Input) {
	broken := func(format string, args ...any) (uint64, Input) {
		return 0, Input{Kind: BrokenPages, Err: fmt.Errorf(format, args...)}
	}
	var state uint64
	asked := map[string]bool{} // the tokens so far: a token that comes twice would make the list endless
	for token, all, empty := "", 0, 0; ; {
		items, revision, next, err := ask(token)
		if empty++; items > 0 {
			empty = 0
		}
		switch all += items; {
		case token != "" && CodeOf(err) == 410:
			return broken("the state of the first page is gone: %w", err)
		case err != nil:
			return 0, Input{Kind: Failed, Err: err}
		case revision != 0 && state != 0 && revision != state:
			return broken("the pages of a list are of several revisions: %d, %d", state, revision)
		case next != "" && empty == emptyPages:
			return broken("%d pages of a list have no item, and more are to come", emptyPages)
		case asked[next]:
			return broken("the pages of a list have no end: the token %q came twice", next)
		}
		if state = max(state, revision); next != "" {
			token, asked[next] = next, true
			continue
		}
		if state == 0 && (hasState || all > 0) {
			return 0, Input{Kind: Failed, Err: errors.New("the list has no revision: a watch cannot begin behind it")}
		}
		return state, Input{Kind: Synced}
	}
}
