package h2

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/http2/hpack"
)

// newTestDecoder returns a decoder as a connection has it.
func newTestDecoder() decoder {
	return decoder{methodPath: methodPath, static: newStaticTable(methodPath), maxBytes: maxTableBytes}
}

// decodeBlock returns the fields of a block as lines "name: value".
func decodeBlock(d *decoder, block []byte) ([]string, error) {
	var fields []string
	d.begin(block)
	for {
		f, err := d.next()
		if err != nil {
			return nil, err
		}
		if f == nil {
			return fields, nil
		}
		fields = append(fields, lines([]field{*f})...)
	}
}

func lines(fields []field) []string {
	var list []string
	for _, f := range fields {
		list = append(list, fmt.Sprintf("%s: %s", f.name, f.value))
	}
	return list
}

// table returns the dynamic table as lines, the newest field first.
func (d *decoder) table() []string {
	list := lines(d.dynamic[d.evicted:])
	slices.Reverse(list)
	return list
}

// checkTable checks that the size of the dynamic table is the sum of its fields, and within its bound.
func (d *decoder) checkTable(t *testing.T) {
	t.Helper()
	sum := 0
	for _, f := range d.dynamic[d.evicted:] {
		sum += f.size()
	}
	if sum != d.dynamicBytes || sum > d.maxBytes || d.maxBytes > maxTableBytes {
		t.Fatalf("the table has %d bytes, counts %d, and may have %d", sum, d.dynamicBytes, d.maxBytes)
	}
}

// TestDecoderRFC decodes the examples of RFC 7541 appendix C. A table of 256 bytes is what C.5 and C.6 use.
func TestDecoderRFC(t *testing.T) {
	t.Parallel()
	requests := []string{
		":method: GET|:scheme: http|:path: /|:authority: www.example.com",
		":method: GET|:scheme: http|:path: /|:authority: www.example.com|cache-control: no-cache",
		":method: GET|:scheme: https|:path: /index.html|:authority: www.example.com|custom-key: custom-value",
	}
	requestTables := []string{
		":authority: www.example.com",
		"cache-control: no-cache|:authority: www.example.com",
		"custom-key: custom-value|cache-control: no-cache|:authority: www.example.com",
	}
	const where = "location: https://www.example.com"
	responses := []string{
		":status: 302|cache-control: private|date: Mon, 21 Oct 2013 20:13:21 GMT|" + where,
		":status: 307|cache-control: private|date: Mon, 21 Oct 2013 20:13:21 GMT|" + where,
		":status: 200|cache-control: private|date: Mon, 21 Oct 2013 20:13:22 GMT|" + where +
			"|content-encoding: gzip|set-cookie: foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1",
	}
	responseTables := []string{
		where + "|date: Mon, 21 Oct 2013 20:13:21 GMT|cache-control: private|:status: 302",
		":status: 307|" + where + "|date: Mon, 21 Oct 2013 20:13:21 GMT|cache-control: private",
		"set-cookie: foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1|content-encoding: gzip|date: Mon, 21 Oct " +
			"2013 20:13:22 GMT",
	}
	for _, test := range []struct {
		section        string
		blocks         []string
		fields, tables []string
		maxBytes       int
	}{
		{
			"C.2.1",
			[]string{"400a637573746f6d2d6b65790d637573746f6d2d686561646572"},
			[]string{"custom-key: custom-header"},
			[]string{"custom-key: custom-header"},
			4096,
		},
		{"C.2.2", []string{"040c2f73616d706c652f70617468"}, []string{":path: /sample/path"}, []string{""}, 4096},
		{"C.2.3", []string{"100870617373776f726406736563726574"}, []string{"password: secret"}, []string{""}, 4096},
		{"C.2.4", []string{"82"}, []string{":method: GET"}, []string{""}, 4096},
		{"C.3", []string{
			"828684410f7777772e6578616d706c652e636f6d",
			"828684be58086e6f2d6361636865",
			"828785bf400a637573746f6d2d6b65790c637573746f6d2d76616c7565",
		}, requests, requestTables, 4096},
		{"C.4", []string{
			"828684418cf1e3c2e5f23a6ba0ab90f4ff",
			"828684be5886a8eb10649cbf",
			"828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf",
		}, requests, requestTables, 4096},
		{"C.5", []string{
			"4803333032580770726976617465611d4d6f6e2c203231204f637420323031332032303a31333a323120474d54" +
				"6e1768747470733a2f2f7777772e6578616d706c652e636f6d",
			"4803333037c1c0bf",
			"88c1611d4d6f6e2c203231204f637420323031332032303a31333a323220474d54c05a04677a69707738666f6f3d4153444a4b48514b425a584f5157454f50495541" +
				"585157454f49553b206d61782d6167653d333630303b2076657273696f6e3d31",
		}, responses, responseTables, 256},
		{"C.6", []string{
			"488264025885aec3771a4b6196d07abe941054d444a8200595040b8166e082a62d1bff6e919d29ad171863c78f0b97c8e9ae82ae43d3",
			"4883640effc1c0bf",
			"88c16196d07abe941054d444a8200595040b8166e084a62d1bffc05a839bd9ab77ad94e7821dd7f2e6c7b335dfdfcd5b3960d5af27087f3672c1ab270fb5291f95" +
				"87316065c003ed4ee5b1063d5007",
		}, responses, responseTables, 256},
	} {
		t.Run(test.section, func(t *testing.T) {
			t.Parallel()
			d := newTestDecoder()
			d.maxBytes = test.maxBytes
			for i, text := range test.blocks {
				block, err := hex.DecodeString(text)
				if err != nil {
					t.Fatal(err)
				}
				fields, err := decodeBlock(&d, block)
				if got := strings.Join(fields, "|"); err != nil || got != test.fields[i] {
					t.Errorf("block %d has the fields %s, %v, not %s", i, got, err, test.fields[i])
				}
				if got := strings.Join(d.table(), "|"); got != test.tables[i] {
					t.Errorf("after block %d the table is %s, not %s", i, got, test.tables[i])
				}
				d.checkTable(t)
			}
		})
	}
}

// TestDecoderErrors decodes blocks that are not valid, each after a block that adds two fields.
func TestDecoderErrors(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ name, block string }{
		{"index 0", "80"},
		{"index beyond both tables", "c0"},
		{"name index beyond both tables", "7f0100"},
		{"index without its end", "ff"},
		{"index with five more bytes", "ff8080808000"},
		{"literal without a name", "40"},
		{"literal without a value", "400161"},
		{"name longer than the block", "400261"},
		{"value longer than the block", "4001610262"},
		{"Huffman code with EOS", "400161" + "84ffffffff"},
		{"Huffman padding of 8 bits", "400161" + "821fff"},
		{"Huffman padding of zeros", "400161" + "8118"},
		{"table larger than the setting", "3fe21f"},
		{"size of the table after a field", "823e"},
		{"size of the table without its end", "3f"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			d := newTestDecoder()
			if _, err := decodeBlock(&d, []byte("\x40\x01a\x01b\x40\x01c\x01d")); err != nil {
				t.Fatal(err)
			}
			block, err := hex.DecodeString(test.block)
			if err != nil {
				t.Fatal(err)
			}
			if fields, err := decodeBlock(&d, block); err != error(errCompression) {
				t.Errorf("fields %q, error %v", fields, err)
			}
		})
	}
}

// TestDecoderBomb decodes blocks of 64 KB whose references stand for much more. The decoder must not copy what they
// refer to, and must refuse lists that would only cost time.
func TestDecoderBomb(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("n", maxTableBytes-fieldOverhead)
	seed := append(appendText([]byte{0x40}, long), 0) // The name fills the table.
	for _, test := range []struct {
		name, unit string
	}{
		{"indexed field", "\xbe"},
		{"indexed name", "\x0f\x2f\x00"},
		{"never indexed with indexed name", "\x1f\x2f\x00"},
		{"inserted with indexed name", "\x7e\x00"},
		{"Huffman code of the shortest texts", "\x00\x81\x1f\x81\x1f"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			d := newTestDecoder()
			if _, err := decodeBlock(&d, seed); err != nil || len(d.table()) != 1 {
				t.Fatalf("the name is not in the table: %v", err)
			}
			d.begin([]byte(strings.Repeat(test.unit, maxBlockBytes/len(test.unit))))
			classified, isIndexed := 0, test.unit[0]&0x80 != 0
			for f, err := d.next(); f != nil && err == nil; f, err = d.next() {
				classified += f.size()
			}
			if classified > maxLiteralBytes && !isIndexed { // An indexed field has been classified when it was inserted.
				t.Errorf("of a block of %d bytes, %d bytes were classified", maxBlockBytes, classified)
			}
			if n := cap(d.texts); n > 4*maxBlockBytes {
				t.Errorf("a block of %d bytes left texts of %d bytes", maxBlockBytes, n)
			}
			if n := cap(d.dynamic); n > 4*maxTableBytes/fieldOverhead {
				t.Errorf("the dynamic table has room for %d fields", n)
			}
		})
	}
}

// TestDecoderMemory decodes 2,000 blocks that use the dynamic table, so that its texts move and are freed many times.
// Some blocks have a compressed value that is too long for the table.
func TestDecoderMemory(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("long", 10_000)
	d, random := newTestDecoder(), rand.New(rand.NewPCG(1, 2))
	var b bytes.Buffer
	e := hpack.NewEncoder(&b)
	for range 2000 {
		b.Reset()
		var want []string
		for range random.IntN(20) {
			f := hpack.HeaderField{
				Name:  fmt.Sprint("name-", random.IntN(20)),
				Value: strings.Repeat(string(rune('a'+random.IntN(26))), random.IntN(100)),
			}
			if random.IntN(300) == 0 {
				f.Value = long
			}
			if err := e.WriteField(f); err != nil {
				t.Fatal(err)
			}
			want = append(want, f.Name+": "+f.Value)
		}
		if random.IntN(400) == 0 {
			d.shrink()
		}
		if got, err := decodeBlock(&d, b.Bytes()); err != nil || !slices.Equal(got, want) {
			t.Fatalf("the fields are %q, %v, not %q", got, err, want)
		}
		d.checkTable(t)
		if n := cap(d.texts); n > 2*(len(long)+2*maxKeptTexts) {
			t.Fatalf("the decoder has texts of %d bytes", n)
		}
	}
}

// oddities are what makes a valid block for one of two decoders invalid for the other.
type oddities struct {
	longInteger bool // an integer with more than four further bytes: not for ours.
	lateResize  bool // a size update after a field: not for ours; x/net allows it while the table is empty.
	resizes     int  // counts size updates. x/net does not allow the second one, unless the table is empty.
}

// findOddities walks over the representations of a block, as far as they are complete.
func findOddities(block []byte) (o oddities) {
	pos, sawField := 0, false
	integer := func(prefix int) (n int) {
		if pos >= len(block) {
			return 0
		}
		n = int(block[pos]) & (1<<prefix - 1)
		pos++
		if n < 1<<prefix-1 {
			return n
		}
		for i := 0; pos < len(block); i++ {
			b := block[pos]
			pos++
			o.longInteger = o.longInteger || i == 4
			if n += int(b&0x7f) << min(7*i, 40); b&0x80 == 0 {
				break
			}
		}
		return n
	}
	for pos < len(block) && !o.longInteger {
		first := block[pos]
		texts := 2
		switch {
		case first&0xe0 == 0x20:
			o.resizes++
			o.lateResize = o.lateResize || sawField
			integer(5)
			continue
		case first&0x80 != 0:
			integer(7)
			texts = 0
		case first&0x40 != 0 && integer(6) != 0, first&0x40 == 0 && integer(4) != 0:
			texts = 1
		}
		sawField = true
		for range texts {
			pos += integer(7)
		}
	}
	return o
}

// FuzzDecoder decodes blocks with our decoder and with that of x/net, on one connection. A block is preceded by its
// length in two bytes; the first bit of the length lets the decoder shrink before the block.
func FuzzDecoder(f *testing.F) {
	addBlocks := func(blocks ...string) {
		var data []byte
		for _, b := range blocks {
			data = append(append(data, byte(len(b)>>8), byte(len(b))), b...)
		}
		f.Add(data)
	}
	var b bytes.Buffer
	e := hpack.NewEncoder(&b)
	var blocks []string
	for i := range 40 {
		b.Reset()
		if i%7 == 6 {
			e.SetMaxDynamicTableSize(uint32(4096 >> (i % 5)))
		}
		for j := range 5 {
			_ = e.WriteField(hpack.HeaderField{
				Name: fmt.Sprint("x-name-", j*i%9), Value: strings.Repeat(fmt.Sprint(i), 20*j),
				Sensitive: j == 3,
			})
		}
		blocks = append(blocks, b.String())
	}
	addBlocks(blocks...)
	addBlocks("\x82\x86\x84\x41\x0fwww.example.com", "\x82\x86\x84\xbe", "\x20\x82\xbe")
	addBlocks("\x40\x01a\x01b\x7e\x01c\x7e\x01d", "\x20\x3f\xe1\x1f\x40\x00\x00\xbe", "\x0f\x2f\x00")
	addBlocks("\x3f\x80\x80\x80\x80\x00", "\x82\x20")
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 8<<10 {
			return // Long input finds no more.
		}
		ours, theirs := newTestDecoder(), hpack.NewDecoder(maxTableBytes, nil)
		for len(data) >= 2 {
			n := min(int(data[0]&0x7f)<<8|int(data[1]), len(data)-2)
			shrinks, block := data[0]&0x80 != 0, data[2:2+n]
			data = data[2+n:]
			if shrinks {
				ours.shrink()
			}
			got, err := decodeBlock(&ours, block)
			fields, oracleErr := theirs.DecodeFull(block)
			listed := uint32(0)
			for _, f := range fields {
				listed += f.Size()
			}
			o := findOddities(block)
			switch {
			case (err == nil) == (oracleErr == nil):
			case err != nil && (o.longInteger || o.lateResize || listed > maxLiteralBytes), oracleErr != nil && o.resizes > 1:
				return
			default:
				t.Fatalf("block %x: our error is %v, that of x/net %v", block, err, oracleErr)
			}
			if err != nil {
				return
			}
			var want []string
			for _, f := range fields {
				want = append(want, f.Name+": "+f.Value)
			}
			if !slices.Equal(got, want) {
				t.Fatalf("block %x: our fields are %q, those of x/net %q", block, got, want)
			}
			ours.checkTable(t)
		}
	})
}

// BenchmarkDecoder decodes the header block of a call: from a client that indexes all fields, and with literals that
// are new in each.
func BenchmarkDecoder(b *testing.B) {
	var buf bytes.Buffer
	e := hpack.NewEncoder(&buf)
	encode := func(fields ...string) []byte {
		buf.Reset()
		for i := 0; i < len(fields); i += 2 {
			_ = e.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]})
		}
		return bytes.Clone(buf.Bytes())
	}
	regular := requestFields(methodPath, "user-agent", "benchmark")
	first, again := encode(regular...), encode(regular...)
	fresh := append(slices.Clone(again),
		"\x40\x0btraceparent\x3700-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"...)
	for _, bench := range []struct {
		name  string
		block []byte
	}{{"indexed", again}, {"fresh", fresh}} {
		b.Run(bench.name, func(b *testing.B) {
			d := newTestDecoder()
			if _, err := decodeBlock(&d, first); err != nil {
				b.Fatal(err)
			}
			block := bench.block
			b.ReportAllocs()
			for b.Loop() {
				d.begin(block)
				for f, err := d.next(); f != nil; f, err = d.next() {
					if err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}
