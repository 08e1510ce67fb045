package rules

// Keys writes descriptors as the keys that stores count under:
//
//	<prefix><domain>_<key>_<value>_<key>_<value>_
//
// The values are the request's. On a level that shares its threshold the
// pattern stands for them.
//
// In an ordered list they are always escaped, and tell which limit it is by what
// its rule matches, counts by and allows:
//
//	<prefix><domain>_:<key>_<pattern>_:<key>_<value>_:<requests>/<period>_<algorithm>_
//
// In a tree of limits they are the words, always escaped, down to the level:
//
//	<prefix><domain>_<word>_<word>_
type Keys struct {
	// Prefix stands in front of every key, as it is.
	Prefix string
	// Escape keeps different descriptors apart. Without it all parts are written
	// as they are, which is what envoyproxy/ratelimit does: [a=x_b_y] and
	// [a=x][b=y] are one key then.
	//
	// With it the bytes %_{}|: and control characters are written as %5F and so
	// on, in domain, keys and values: each part ends at the next `_`. A level
	// that shares its threshold is written with a `:`, which no value has, as
	// <key>_<key of the rule>:<value of the rule>_, so that the pattern is
	// neither some request's value nor another rule's pattern.
	Escape bool
	// Divvy writes the keys of first-hit windows in ordered lists as Button's
	// divvy does, where that has such keys at all: without a prefix, and nothing
	// escaped. A canary then shares the counter of its twin.
	//
	//	divvy:<key>=<pattern> <key>=<pattern>:<value>:<requests>:<seconds>
	Divvy bool
}

// AsDivvy reports whether Append writes r's keys as divvy does.
func (k *Keys) AsDivvy(r *Rule) bool {
	return k.Divvy && r != nil && r.Listed != nil && r.Listed.key != nil && r.Listed.key.divvyHead != ""
}

// Append appends the key of a descriptor of d, and returns with it how many
// bytes of the key, prefix, domain and first entry, belong together: see
// algorithm.Hit.Tag. In an ordered list those are all but the limit, so that
// several limits of one rule belong together. r is the rule that entries led to, or that of a level on
// the way, whose key is made of the entries down to it; nil for a limit that
// came with the request.
func (k *Keys) Append(dst []byte, d *Domain, r *Rule, entries []Entry) (key []byte, tag int) {
	if k.AsDivvy(r) {
		return r.Listed.key.appendDivvy(dst, r.Listed.Per, entries)
	}
	if r != nil && r.Listed != nil && r.Listed.key != nil {
		return r.Listed.key.append(dst, k.Prefix, d, r.Listed.Per, entries)
	}
	if r != nil && r.words != nil {
		return r.appendWords(dst, k.Prefix, d, entries)
	}
	if r != nil && len(r.Path) < len(entries) {
		entries = entries[:len(r.Path)]
	}
	start := len(dst)
	dst = append(dst, k.Prefix...)
	escape := k.Escape || d.list != nil
	if escape {
		dst = append(dst, d.escaped...)
	} else {
		dst = append(dst, d.Name...)
	}
	dst = append(dst, '_')
	tag = len(dst) - start
	shared := r != nil && r.shared
	for i := range entries {
		e := &entries[i]
		dst = part(dst, e.Key, escape)
		dst = append(dst, '_')
		switch {
		case !shared || !r.Path[i].ShareThreshold:
			dst = part(dst, e.Value, escape)
		case escape:
			dst = append(appendEscaped(dst, r.Path[i].Key()), ':')
			dst = appendEscaped(dst, r.Path[i].Value())
		default:
			dst = append(dst, r.Path[i].pattern(e.Key)...)
		}
		dst = append(dst, '_')
		if i == 0 {
			tag = len(dst) - start
		}
	}
	return dst, tag
}

// append appends the key of a limit in an ordered list.
func (o *orderedKey) append(dst []byte, prefix string, d *Domain, per []string, entries []Entry) (key []byte, tag int) {
	start := len(dst)
	dst = append(dst, prefix...)
	dst = append(dst, d.escaped...)
	dst = append(dst, '_')
	dst = append(dst, o.head...)
	for i, key := range per {
		dst = append(dst, o.per[i]...)
		dst = appendEscaped(dst, valueOf(entries, key))
		dst = append(dst, '_')
	}
	tag = len(dst) - start
	return append(dst, o.tail...), tag
}

// appendDivvy appends the key that divvy has for it. All of it belongs together.
func (o *orderedKey) appendDivvy(dst []byte, per []string, entries []Entry) (key []byte, tag int) {
	start := len(dst)
	dst = append(dst, o.divvyHead...)
	if len(per) > 0 {
		dst = append(dst, valueOf(entries, per[0])...)
	}
	dst = append(dst, o.divvyTail...)
	return dst, len(dst) - start
}

// valueOf is the value of the last entry with the key; nil if there is none.
func valueOf(entries []Entry, key string) []byte {
	for i := len(entries) - 1; i >= 0; i-- {
		if string(entries[i].Key) == key {
			return entries[i].Value
		}
	}
	return nil
}

func part(dst, text []byte, escape bool) []byte {
	if escape {
		return appendEscaped(dst, text)
	}
	return append(dst, text...)
}

// reserved are the bytes that a part of an escaped key does not have: what the
// format and Redis' hash tags are made of, and what a terminal would act on.
var reserved = func() (set [256]bool) {
	for c := range 0x20 {
		set[c] = true
	}
	for _, c := range "\x7f%_{}|:" {
		set[c] = true
	}
	return set
}()

func appendEscaped[T string | []byte](dst []byte, text T) []byte {
	const hex = "0123456789ABCDEF"
	from := 0
	for i := range len(text) {
		if c := text[i]; reserved[c] {
			dst = append(dst, text[from:i]...)
			dst = append(dst, '%', hex[c>>4], hex[c&15])
			from = i + 1
		}
	}
	return append(dst, text[from:]...)
}

func escaped(text string) string { return string(appendEscaped(nil, text)) }
