package h2

import (
	"encoding/binary"
	"slices"

	"golang.org/x/net/http2/hpack"
)

// field is one header field. Name and value are valid until the next header block begins.
type field struct {
	name, value []byte
	meaning     meaning
}

// fieldOverhead is what RFC 7541 section 4.1 adds to the length of a field.
const fieldOverhead = 32

func (f *field) size() int { return len(f.name) + len(f.value) + fieldOverhead }

const (
	maxTableBytes = 4096 // maxTableBytes is the size of the dynamic table: the default of SETTINGS_HEADER_TABLE_SIZE.
	// maxKeptTexts is how many bytes of texts a decoder keeps between two header blocks.
	maxKeptTexts = 4 * maxTableBytes
	// maxLiteralBytes bounds the literal fields of a block. Each costs time for its length, and three bytes can stand for 4 KB.
	maxLiteralBytes = 1 << 20
	staticFields    = 61
)

var errCompression = connError(codeCompression, "a header block is not valid HPACK")

// decoder decodes the header blocks of a connection (RFC 7541). Create it with newDecoder. It copies a
// text only if the text is compressed or enters the dynamic table.
type decoder struct {
	classify func(name, value []byte) meaning
	static   *[staticFields]field
	// dynamic[evicted:] is the dynamic table, the newest field last.
	dynamic      []field
	evicted      int
	dynamicBytes int // dynamicBytes is the size of the dynamic table; at most maxBytes, which the client chooses.
	maxBytes     int
	// texts has texts of the dynamic table and of the current block. It only grows within a block, so
	// that all fields of the block stay valid. spareTexts is memory for the next moveTexts.
	texts, spareTexts []byte
	block             []byte // block is the rest of the header block.
	decoded           field  // decoded is the last literal field.
	mayResize         bool   // mayResize is set before the first field of a block.
	isRepeatable      bool   // isRepeatable says that the block so far has no literals, so that decoding it again gives the same texts.
	literalBytes      int    // literalBytes is the size of the literal fields of the block so far.
}

func newDecoder(static *[staticFields]field, classify func(name, value []byte) meaning) decoder {
	return decoder{classify: classify, static: static, maxBytes: maxTableBytes}
}

// newStaticTable returns the static table of RFC 7541 appendix A with the meanings of its fields.
func newStaticTable(classify func(name, value []byte) meaning) *[staticFields]field {
	var indices [staticFields]byte
	for i := range indices {
		indices[i] = 0x81 + byte(i)
	}
	fields, _ := hpack.NewDecoder(0, nil).DecodeFull(indices[:]) // Indices of the static table are always valid.
	table := new([staticFields]field)
	for i, f := range fields {
		table[i] = field{[]byte(f.Name), []byte(f.Value), classify([]byte(f.Name), []byte(f.Value))}
	}
	return table
}

// begin starts a header block. Fields of earlier blocks become invalid.
func (d *decoder) begin(block []byte) {
	d.block, d.mayResize, d.isRepeatable, d.literalBytes = block, true, true, 0
	if len(d.texts) > maxKeptTexts {
		d.moveTexts(d.spareTexts)
	}
}

// shrink frees the memory that only further blocks would need.
func (d *decoder) shrink() {
	d.dynamic, d.evicted = slices.Clone(d.dynamic[d.evicted:]), 0
	d.moveTexts(make([]byte, 0, d.dynamicBytes))
	d.spareTexts, d.block, d.decoded = nil, nil, field{} // The last two refer to a read buffer.
}

// moveTexts copies the texts of the dynamic table to the memory of texts. The memory of d.texts becomes spare.
func (d *decoder) moveTexts(texts []byte) {
	texts = slices.Grow(texts[:0], d.dynamicBytes) // The buffer must not move while fields refer to it.
	for i := d.evicted; i < len(d.dynamic); i++ {
		f := &d.dynamic[i]
		start := len(texts)
		texts = append(append(texts, f.name...), f.value...)
		mid := start + len(f.name)
		f.name, f.value = texts[start:mid:mid], texts[mid:len(texts):len(texts)]
	}
	d.texts, d.spareTexts = texts, d.texts
	if cap(d.spareTexts) > 2*maxKeptTexts {
		d.spareTexts = nil
	}
}

// next decodes the next field of the block. It returns nil at the end of the block. The field is
// valid until the next call, its texts until the next block.
func (d *decoder) next() (*field, error) {
	for len(d.block) > 0 {
		first := d.block[0]
		if first&0xe0 == 0x20 { // Dynamic table size update, section 6.3.
			size, err := d.integer(5)
			if err != nil || !d.mayResize || size > maxTableBytes {
				return nil, errCompression
			}
			d.maxBytes, d.isRepeatable = size, false
			d.evict(0)
			continue
		}
		d.mayResize = false
		switch {
		case first&0x80 != 0: // Indexed field, section 6.1.
			return d.indexed(7)
		case first&0x40 != 0: // Literal with incremental indexing, section 6.2.1.
			return d.literal(6, true)
		default: // Literal without indexing or never indexed, sections 6.2.2 and 6.2.3.
			return d.literal(4, false)
		}
	}
	return nil, nil
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

// literal reads a field whose name is an index with a prefix of that many bits, or 0 and a text. If
// insert is set, it adds the field to the dynamic table.
func (d *decoder) literal(prefix uint, insert bool) (_ *field, err error) {
	f := &d.decoded
	d.isRepeatable = false // The texts may be in the read buffer.
	if d.block[0]&(1<<prefix-1) == 0 {
		d.block = d.block[1:]
		f.name, err = d.text(insert)
	} else {
		var entry *field
		if entry, err = d.indexed(prefix); err == nil {
			f.name = entry.name // The text stays valid within the block, so it is never copied: one byte could copy 4 KB.
		}
	}
	if err != nil {
		return nil, err
	}
	if f.value, err = d.text(insert); err != nil {
		return nil, err
	}
	if d.literalBytes += f.size(); d.literalBytes > maxLiteralBytes {
		return nil, connError(codeEnhanceYourCalm, "a header block has too many literals")
	}
	f.meaning = d.classify(f.name, f.value)
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

// text reads a string (section 5.2). If keep is set, the text is in d.texts, else it may be a part of the block.
func (d *decoder) text(keep bool) ([]byte, error) {
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
	start := len(d.texts)
	switch {
	case compressed:
		if _, err := hpack.HuffmanDecode(d, s); err != nil {
			return nil, errCompression
		}
	case keep:
		d.texts = append(d.texts, s...)
	default:
		return s, nil
	}
	return d.texts[start:len(d.texts):len(d.texts)], nil
}

// Write appends p to d.texts, for hpack.HuffmanDecode.
func (d *decoder) Write(p []byte) (int, error) {
	d.texts = append(d.texts, p...)
	return len(p), nil
}

// insert adds f to the dynamic table. A field larger than the table empties it (section 4.4).
func (d *decoder) insert(f *field) {
	size := f.size()
	d.evict(size)
	if size <= d.maxBytes {
		d.dynamic = append(d.dynamic, *f)
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
