package push

import (
	"fmt"
	"testing"
)

// Names are kept while they are in use, and no longer.
func TestMogrifiedNamesAreForgotten(t *testing.T) {
	n := dogStatsD{mogrifiers: []Mogrifier{mogrifier(t, "^(.)", "$1", nil)}}
	for flush := range 5 {
		n.find("always")
		for i := range 1000 {
			n.find(fmt.Sprint(flush, i))
		}
		n.end(nil)
		if kept := len(n.now) + len(n.old); kept > 2002 {
			t.Fatalf("flush %d: %d names kept", flush, kept)
		}
	}
	if n.find("always").name != "a" {
		t.Error("not mogrified")
	}
}
