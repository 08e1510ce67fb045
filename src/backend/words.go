package backend

import (
	"fmt"
	"slices"
)

// Words are the words that rule files use for the values of a type, from 0 on.
type Words[T ~uint8] struct {
	Setting string // the name of the setting in rule files
	names   []string
}

// NewWords returns the words of a setting. The value n has names[n].
func NewWords[T ~uint8](setting string, names ...string) Words[T] { return Words[T]{setting, names} }

// Of returns the word of v.
func (w *Words[T]) Of(v T) string {
	if w.has(v) {
		return w.names[v]
	}
	return fmt.Sprintf("%s %d", w.Setting, uint8(v))
}

func (w *Words[T]) has(v T) bool { return int(v) < len(w.names) }

// Parse returns the value with that word.
func (w *Words[T]) Parse(word string) (v T, ok bool) {
	i := slices.Index(w.names, word)
	return T(max(i, 0)), i >= 0
}

// Names returns all words.
func (w *Words[T]) Names() []string { return slices.Clone(w.names) }
