package measured

import (
	"os"
	"path/filepath"
	"testing"
)

func TestMarkdown(t *testing.T) {
	t.Parallel()
	got := Markdown([][]string{{"a", "b"}, {"1|2", "3"}})
	if want := "| a | b |\n|---|---|\n| 1\\|2 | 3 |"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestCPUModel(t *testing.T) {
	t.Parallel()
	for info, want := range map[string]string{
		"processor\t: 0\nmodel\t\t: 17\nmodel name\t: A CPU: fast\n\nmodel name : B\n": "A CPU: fast",
		"processor : 0\nBogoMIPS : 50\n":                                               "",
		"":                                                                             "",
	} {
		if got := cpuModel([]byte(info)); got != want {
			t.Errorf("%q: %q, want %q", info, got, want)
		}
	}
}

func TestWriteFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := WriteFiles(dir, "x", "{{.Cores}} cores", Machine{Cores: 2}, [][]string{{"a", "b,c"}}); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"x.md": "2 cores", "x.csv": "a,\"b,c\"\n"} {
		if got, err := os.ReadFile(filepath.Join(dir, name)); string(got) != want || err != nil {
			t.Errorf("%s: %q, %v, want %q", name, got, err, want)
		}
	}
}
