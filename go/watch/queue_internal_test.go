package watch

import "testing"

// Where the log has moved over accepted events, the next one that is still there says all that was lost before it.
func TestForgottenEventsAreLostBeforeTheNext(t *testing.T) {
	var a accepted
	a.look(3, 2, 4)                     // 0 and 1 had left the log: lost before 2
	a.look(6, 2, 4)                     // 2 to 5 are accepted
	if gone := a.forget(4); gone != 2 { // 2 and 3 have left meanwhile
		t.Fatalf("%d accepted events were forgotten in place of 2", gone)
	}
	if r, ok := a.first(); !ok || r != (run{4, 6, 4}) || a.count != 2 {
		t.Fatalf("%+v of %d events, in place of 4 and 5 behind 4 lost ones", r, a.count)
	}
	if gone := a.forget(9); gone != 2 || a.count != 0 || a.lost != 6 {
		t.Fatalf("%d were forgotten, %d are left, %d are lost before what comes", gone, a.count, a.lost)
	}
}
