package top

import "strings"

// key is a key of the keyboard that the live view knows.
type key int

const (
	keyQuit key = iota + 1
	keySortAdmitted
	keySortDenied
	keySortName
	keyMinute
	keyHour
	keyUp
	keyDown
	keyPageUp
	keyPageDown
	keyFirst
	keyLast
)

// plainKeys are keys that a terminal sends as one character. \x03 is Ctrl-C, which is no signal while the terminal sends keys at once.
var plainKeys = map[byte]key{
	'q': keyQuit, 'Q': keyQuit, '\x03': keyQuit,
	'a': keySortAdmitted, 'd': keySortDenied, 'n': keySortName, 'm': keyMinute, 'h': keyHour,
	'k': keyUp, 'j': keyDown, 'b': keyPageUp, ' ': keyPageDown, 'g': keyFirst, 'G': keyLast,
}

// sequenceKeys are keys that a terminal sends as ESC, [ or O, and one of these.
var sequenceKeys = map[string]key{
	"A": keyUp, "B": keyDown, "5~": keyPageUp, "6~": keyPageDown,
	"H": keyFirst, "1~": keyFirst, "7~": keyFirst, "F": keyLast, "4~": keyLast, "8~": keyLast,
}

// maxSequenceBytes is how long an incomplete sequence may get before it is dropped.
const maxSequenceBytes = 16

// decodeKeys returns the keys in what a terminal has sent, without those that mean nothing here. rest is the start of a sequence that
// has not arrived as a whole; the caller puts it before what arrives next.
func decodeKeys(sent string) (keys []key, rest string) {
	for sent != "" {
		if sent[0] != '\x1b' {
			if k, known := plainKeys[sent[0]]; known {
				keys = append(keys, k)
			}
			sent = sent[1:]
			continue
		}
		if len(sent) == 1 {
			return keys, sent
		}
		if sent[1] != '[' && sent[1] != 'O' { // the key Escape, and another key after it
			sent = sent[1:]
			continue
		}
		end := 2 + strings.IndexFunc(sent[2:], func(r rune) bool { return r >= '@' && r <= '~' })
		if end < 2 {
			if len(sent) > maxSequenceBytes {
				return keys, ""
			}
			return keys, sent
		}
		if k, known := sequenceKeys[sent[2:end+1]]; known {
			keys = append(keys, k)
		}
		sent = sent[end+1:]
	}
	return keys, ""
}
