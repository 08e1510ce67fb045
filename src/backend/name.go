package backend

import "bytes"

// AppendKeyOfName appends the Hit.Key to dst of a counter that Editor.ResetPrefixes found: its name without a hash tag,
// and without what identifies its limit and window. Keys end with `_`, but for those with Hit.StoresRemaining.
//
//	d_user_eve_1767225600               d_user_eve_
//	{d_user_eve_}action_pay_|gc:1.5     d_user_eve_action_pay_
//	d_user_eve_ (1m0s fixed_window)     d_user_eve_
func AppendKeyOfName(dst, name []byte) []byte {
	switch end := markerStart(name); {
	case end >= 0:
		name = name[:end]
	case bytes.HasSuffix(name, []byte(")")):
		if end := bytes.LastIndex(name, []byte(" (")); end >= 0 {
			name = name[:end]
		}
	default:
		if end := bytes.LastIndexByte(name, '_'); isNumber(name[end+1:]) {
			name = name[:end+1]
		}
	}
	if tagged, isTagged := bytes.CutPrefix(name, []byte("{")); isTagged {
		tag, rest, _ := bytes.Cut(tagged, []byte("}"))
		return append(append(dst, tag...), rest...)
	}
	return append(dst, name...)
}

// markerStart returns where the last | is that follows a key or a hash tag; -1 for none.
func markerStart(name []byte) int {
	for i := len(name) - 1; i > 0; i-- {
		if name[i] == '|' && (name[i-1] == '_' || name[i-1] == '}') {
			return i
		}
	}
	return -1
}

func isNumber(text []byte) bool {
	return len(text) > 0 && len(bytes.Trim(text, "0123456789")) == 0
}
