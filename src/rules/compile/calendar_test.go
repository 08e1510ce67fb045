package compile

import (
	"archive/zip"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestZoneNames checks that each name can be loaded, and that the list has all names of the database that Go puts into
// the binary.
func TestZoneNames(t *testing.T) {
	t.Parallel()
	if !slices.IsSorted(zoneNames) {
		t.Error("zones.txt is not sorted")
	}
	for _, name := range zoneNames {
		if _, err := time.LoadLocation(name); err != nil {
			t.Error(err)
		}
	}
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		t.Skip("no Go command, whose zone database is compared:", err)
	}
	database, err := zip.OpenReader(filepath.Join(strings.TrimSpace(string(root)), "lib", "time", "zoneinfo.zip"))
	if err != nil {
		t.Skip("Go's installation has no zone database to compare with:", err)
	}
	defer func() { _ = database.Close() }()
	var names []string
	for _, f := range database.File {
		if !strings.HasSuffix(f.Name, "/") && f.Name != "Factory" {
			names = append(names, f.Name)
		}
	}
	slices.Sort(names)
	if !slices.Equal(names, zoneNames) {
		t.Errorf("zones.txt differs from lib/time/zoneinfo.zip; write these names into it:\n%s", strings.Join(names, "\n"))
	}
}

func TestNearestZone(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ name, want string }{
		{"europe/berlin", "Europe/Berlin"},
		{"Berlin", "Europe/Berlin"},
		{"Europe/Berln", "Europe/Berlin"},
		{"America/New York", "America/New_York"},
		{"New_Yrok", ""}, // a city alone must be spelt right
		{"utc", "UTC"},
		{"Local", ""},
		{"", ""},
		{"+01:00", ""},
	} {
		if got := nearestZone(test.name); got != test.want {
			t.Errorf("%q: %q, want %q", test.name, got, test.want)
		}
	}
}
