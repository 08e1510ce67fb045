package h2

import (
	"encoding/binary"
	"slices"
	"unsafe"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// field is one header field.
type field struct {
	name, value []byte
	meaning     meaning
}

// fieldBytes is the size of a field without its texts.
const fieldBytes = int(unsafe.Sizeof(field{}))

// fieldOverhead is what RFC 7541 section 4.1 adds to the length of a field.
const fieldOverhead = 32

func (f *field) size() int { return len(f.name) + len(f.value) + fieldOverhead }

// texts is memory of names and values.
type texts []byte

// add copies a text to the end.
func (t *texts) add(text []byte) []byte {
	start := len(*t)
	*t = append(*t, text...)
	return (*t)[start:len(*t):len(*t)]
}

// Write appends p, for hpack.HuffmanDecode.
func (t *texts) Write(p []byte) (int, error) {
	*t = append(*t, p...)
	return len(p), nil
}

const (
	maxTableBytes = 4096              // the size of the dynamic table: the default of SETTINGS_HEADER_TABLE_SIZE.
	maxKeptTexts  = 3 * maxTableBytes // how many bytes of texts a decoder has before it frees unused ones.
	staticFields  = 61                // the length of the static table.
	// maxLiteralBytes bounds the literal fields of a block. Each costs time for its length, and three bytes can stand for
	// 4 KB.
	maxLiteralBytes = 1 << 20
)

var errCompression = connError(http2.ErrCodeCompression, "a header block is not valid HPACK")

// decoder decodes the header blocks of a connection (RFC 7541). It copies only texts that are compressed or enter the
// table.
type decoder struct {
	methodPath   string // Config.Path.
	static       *[staticFields]field
	dynamic      []field // dynamic[evicted:] is the dynamic table, the newest field last.
	evicted      int
	dynamicBytes int    // the size of the dynamic table; at most maxBytes, which the client chooses.
	maxBytes     int    // maxTableBytes at first.
	texts        texts  // the texts of the dynamic table in its order, others between them, and texts of decoded.
	block        []byte // the rest of the header block.
	decoded      field  // the last literal field.
	mayResize    bool   // set before the first field of a block.
	isRepeatable bool   // true if the block so far has not changed the dynamic table.
	literalBytes int    // the size of the literal fields of the block so far.
}

// newStaticTable returns the static table of RFC 7541 appendix A with the meanings of its fields.
func newStaticTable(methodPath string) *[staticFields]field {
	var indices [staticFields]byte
	for i := range indices {
		indices[i] = 0x81 + byte(i)
	}
	fields, _ := hpack.NewDecoder(0, nil).DecodeFull(indices[:]) // Indices of the static table are always valid.
	table := new([staticFields]field)
	for i, f := range fields {
		name, value := []byte(f.Name), []byte(f.Value)
		table[i] = field{name, value, classify(name, value, methodPath)}
	}
	return table
}

// keptBytes returns the size of the memory of d.
func (d *decoder) keptBytes() int { return cap(d.texts) + cap(d.dynamic)*fieldBytes }

// begin starts a header block.
func (d *decoder) begin(block []byte) {
	d.block, d.mayResize, d.isRepeatable, d.literalBytes = block, true, true, 0
}

// shrink frees the memory that only further blocks would need.
func (d *decoder) shrink() {
	d.dynamic, d.evicted = slices.Clone(d.dynamic[d.evicted:]), 0
	d.moveTexts(make([]byte, 0, d.dynamicBytes))
}

// end ends a header block. The decoder then refers neither to the block nor to many texts that are not in the dynamic
// table.
func (d *decoder) end() {
	d.block, d.decoded = nil, field{}
	d.freeTexts()
}

// freeTexts frees texts that are not in the dynamic table, if there are many.
func (d *decoder) freeTexts() {
	memory := d.texts
	if len(memory) <= maxKeptTexts && cap(memory) <= 2*maxKeptTexts {
		return
	}
	if cap(memory) > 2*maxKeptTexts { // A very long text was decoded.
		memory = nil
	}
	d.moveTexts(memory)
}

// moveTexts moves the texts of the dynamic table to memory, which may be that of d.texts: no text moves to the right.
func (d *decoder) moveTexts(memory []byte) {
	d.texts = memory[:0]
	for i := d.evicted; i < len(d.dynamic); i++ {
		f := &d.dynamic[i]
		f.name, f.value = d.texts.add(f.name), d.texts.add(f.value)
	}
}

// next decodes the next field of the block; nil at its end. The field and its texts are valid until the next call.
func (d *decoder) next() (*field, error) {
	for len(d.block) > 0 && d.block[0]&0xe0 == 0x20 { // Dynamic table size update, section 6.3.
		size, err := d.integer(5)
		if err != nil || !d.mayResize || size > maxTableBytes {
			return nil, errCompression
		}
		d.maxBytes, d.isRepeatable = size, false
		d.evict(0)
	}
	d.mayResize = false
	switch {
	case len(d.block) == 0:
		return nil, nil
	case d.block[0]&0x80 != 0: // Indexed field, section 6.1.
		return d.indexed(7)
	case d.block[0]&0x40 != 0: // Literal with incremental indexing, section 6.2.1.
		return d.literal(6, true)
	default: // Literal without indexing or never indexed, sections 6.2.2 and 6.2.3.
		return d.literal(4, false)
	}
}

// indexed reads an index with a prefix of that many bits, and returns its field of either table.
func (d *decoder) indexed(prefix uint) (*field, error) {
	i, err := d.integer(prefix)
	switch {
	case err != nil || i == 0 || i > staticFields+len(d.dynamic)-d.evicted:
		return nil, errCompression
	case i <= staticFields:
		return &d.static[i-1], nil
	}
	return &d.dynamic[staticFields+len(d.dynamic)-i], nil
}

// literal reads a field whose name is an index with a prefix of that many bits, or 0 and a text. insert adds it to the
// table.
func (d *decoder) literal(prefix uint, insert bool) (_ *field, err error) {
	d.freeTexts()
	f := &d.decoded
	if d.block[0]&(1<<prefix-1) == 0 {
		d.block = d.block[1:]
		f.name, err = d.text()
	} else {
		var entry *field
		if entry, err = d.indexed(prefix); err == nil {
			f.name = entry.name
		}
	}
	if err != nil {
		return nil, err
	}
	if f.value, err = d.text(); err != nil {
		return nil, err
	}
	if d.literalBytes += f.size(); d.literalBytes > maxLiteralBytes {
		return nil, connError(http2.ErrCodeEnhanceYourCalm, "a header block has too many literals")
	}
	f.meaning = classify(f.name, f.value, d.methodPath)
	if insert {
		d.insert(f)
	}
	return f, nil
}

// integer reads an integer with a prefix of that many bits (section 5.1) and at most four further bytes.
func (d *decoder) integer(prefix uint) (int, error) {
	mask := uint64(1)<<prefix - 1
	i := uint64(d.block[0]) & mask
	d.block = d.block[1:]
	if i < mask {
		return int(i), nil
	}
	rest, n := binary.Uvarint(d.block[:min(len(d.block), 4)])
	if n <= 0 {
		return 0, errCompression
	}
	d.block = d.block[n:]
	return int(mask + rest), nil
}

// text reads a string (section 5.2). The text is a part of the block, or is in d.texts.
func (d *decoder) text() ([]byte, error) {
	if len(d.block) == 0 {
		return nil, errCompression
	}
	compressed := d.block[0]&0x80 != 0
	n, err := d.integer(7)
	if err != nil || n > len(d.block) {
		return nil, errCompression
	}
	s := d.block[:n:n]
	d.block = d.block[n:]
	if !compressed {
		return s, nil
	}
	start := len(d.texts)
	if _, err := hpack.HuffmanDecode(&d.texts, s); err != nil {
		return nil, errCompression
	}
	return d.texts[start:len(d.texts):len(d.texts)], nil
}

// insert adds f to the dynamic table. A field larger than the table empties it (section 4.4).
func (d *decoder) insert(f *field) {
	d.isRepeatable = false
	size := f.size()
	d.evict(size)
	if size <= d.maxBytes {
		d.dynamic = append(d.dynamic, field{d.texts.add(f.name), d.texts.add(f.value), f.meaning})
		d.dynamicBytes += size
	}
}

// evict removes the oldest fields until there is room for size bytes.
func (d *decoder) evict(size int) {
	for ; d.evicted < len(d.dynamic) && d.dynamicBytes+size > d.maxBytes; d.evicted++ {
		d.dynamicBytes -= d.dynamic[d.evicted].size()
	}
	if d.evicted >= maxTableBytes/fieldOverhead { // No table has more fields, so that each is moved once.
		d.dynamic, d.evicted = slices.Delete(d.dynamic, 0, d.evicted), 0
	}
}

// appendField appends a field that does not enter the dynamic table of the client (section 6.2.2).
func appendField(b []byte, name, value string) []byte {
	return appendText(appendText(append(b, 0), name), value)
}

// appendText appends a string without compression (section 5.2).
func appendText(b []byte, s string) []byte {
	const mask = 1<<7 - 1
	if len(s) < mask {
		b = append(b, byte(len(s)))
	} else {
		b = binary.AppendUvarint(append(b, mask), uint64(len(s)-mask))
	}
	return append(b, s...)
}
