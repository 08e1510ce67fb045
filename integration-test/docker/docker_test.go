package docker

import (
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"
)

const repository = "../.."

var (
	full       = flag.Bool("full", false, "build and run the image with a real engine; takes several minutes")
	engineFlag = flag.String("engine", "", `own: start an engine, though this machine has one; "": only if it has none`)
)

func TestDocker(t *testing.T) {
	if !*full {
		t.Skip("make docker-check runs this: it builds and runs the image with a real Docker")
	}
	var e *engine
	if dir := os.Getenv(insideVariable); dir != "" {
		e = startEngine(t, dir)
	} else if *engineFlag != "own" {
		e = machinesEngine(t)
	}
	if e == nil {
		runIsolated(t)
		return
	}
	source := checkout(t)
	t.Run("build", func(t *testing.T) { e.testBuild(t, source) })
	if t.Failed() {
		return
	}
	t.Run("hardened", func(t *testing.T) { e.testHardened(t, image) })
	t.Run("unhealthy", e.testUnhealthy)
	t.Run("divvy", e.testDivvy)
	t.Run("README", func(t *testing.T) { e.testReadme(t, source) })
	t.Run("make image", func(t *testing.T) { e.testLocal(t, source) })
	t.Run("ci", func(t *testing.T) { e.testCI(t, source) })
	for _, file := range []string{"docker-compose.yml", "docker-compose-example.yml"} {
		t.Run(file, func(t *testing.T) { e.testCompose(t, source, file) })
	}
	t.Run("arm64", func(t *testing.T) { e.testARM64(t, source) })
	t.Run("reproducible", func(t *testing.T) { e.testReproducible(t, source) })
}

// What TestDocker reads from the documents can be read, also without an engine.
func TestPlan(t *testing.T) {
	t.Parallel()
	for _, name := range standInNames(t) {
		standInFor(t, name)
	}
	if rows := tableRows(t); len(rows) < 7 {
		t.Errorf("README.md: %d rows with a request to Envoy", len(rows))
	}
	ciCommands(t)
	readmeCommand(t)
	for file, want := range map[string]int{"docker-compose.yml": 5, "docker-compose-example.yml": 1} {
		if blocks := blocksIn(t, filepath.Join(repository, file)); len(blocks) != want || len(blocks[0].lines) < 2 {
			t.Errorf("%s: commands %q, want %d that start services", file, blocks, want)
		}
	}
}

// checkout returns a directory with a copy of the files that the image and the compose files need, which a test may
// change.
func checkout(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "ratelimit")
	for _, name := range []string{
		"Dockerfile", ".dockerignore", "docker-compose.yml", "docker-compose-example.yml",
		"Makefile", "go.mod", "go.sum", "api", "src", "examples", "deploy/ci",
	} {
		from := os.DirFS(repository)
		info, err := fs.Stat(from, name)
		if err != nil {
			t.Fatal(err)
		}
		if info.IsDir() {
			if from, err = fs.Sub(from, name); err != nil {
				t.Fatal(err)
			}
			err = os.CopyFS(filepath.Join(dir, name), from)
		} else {
			err = copyFile(filepath.Join(dir, name), from, name)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func copyFile(to string, from fs.FS, name string) error {
	text, err := fs.ReadFile(from, name)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	return os.WriteFile(to, text, 0o644)
}

// step prints how long a step took, since the whole takes minutes.
func step(t *testing.T, what string) func() {
	start := time.Now()
	return func() { t.Logf("%s: %v", what, time.Since(start).Round(time.Second)) }
}
