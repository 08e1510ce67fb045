package testfiles

import (
	"os"
	"testing"
)

// Read returns the contents of the file at path. It fails the test if it cannot be read.
func Read(tb testing.TB, path string) []byte {
	tb.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		tb.Fatal(err)
	}
	return data
}

// Write makes data the contents of the file at path, which only this user may read if it is new.
func Write[T ~string | ~[]byte](tb testing.TB, path string, data T) {
	tb.Helper()
	if err := os.WriteFile(path, []byte(data), 0o600); err != nil {
		tb.Fatal(err)
	}
}
