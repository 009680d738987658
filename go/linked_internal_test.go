package watchcore

import (
	"strings"
	"testing"
)

func TestLinkedNamesTheHeader(t *testing.T) {
	if !strings.HasSuffix(Linked, " "+Version()) || isStatic != strings.HasPrefix(Linked, "static linux/") {
		t.Fatalf("Linked is %q, the library's version %s", Linked, Version())
	}
}

func TestMisfits(t *testing.T) {
	for _, c := range []struct {
		header, library string
		static, fits    bool
	}{
		{"0.1.0", "0.1.0", true, true},
		{"0.1.0", "0.1.1", true, false},
		{"0.1.1", "0.1.0", true, false},
		{"0.1.0", "0.1.0", false, true},
		{"0.9.0", "0.10.0", false, true},
		{"0.1.0", "1.0.0", false, true},
		{"0.10.0", "0.9.9", false, false},
		{"0.1.1", "0.1.0", false, false},
	} {
		why := misfit(c.header, c.library, c.static)
		if (why == "") != c.fits {
			t.Errorf("header %s, library %s, static %t: %q", c.header, c.library, c.static, why)
		}
		if why != "" && (!strings.Contains(why, c.header) || !strings.Contains(why, c.library)) {
			t.Errorf("the message does not name both versions: %s", why)
		}
	}
}
