package memory

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
)

// A snapshot is magic, the version of its format in 4 bytes, and chunks. A chunk has the length of its data, a checksum
// and the data. The checksum is a CRC-32C of all data up to and including this chunk, so a chunk that is missing or
// elsewhere is found, too. A chunk of length 0 is the last one. All numbers are little-endian.
//
// Version 1 has no counters with holds, and has a random bit where a slot or a name says that it is one. Versions 1 and
// 2 do not say what fixed windows have refused.
const (
	magic              = "ratelimit counters\n\x00"
	snapshotVersion    = 3
	chunkHeaderBytes   = 8
	maxChunkBytes      = 64 << 10 // the length of the longest chunk with its header.
	snapshotStartBytes = len(magic) + 4
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// chunkWriter writes a stream of bytes as chunks.
type chunkWriter struct {
	out      io.Writer
	checksum uint32
	chunk    []byte // chunkHeaderBytes bytes for the header, and the data.
	err      error  // the first error of out. All later calls do nothing.
}

// newChunkWriter writes the start of a snapshot to out.
func newChunkWriter(out io.Writer) *chunkWriter {
	w := &chunkWriter{out: out, chunk: make([]byte, chunkHeaderBytes, maxChunkBytes)}
	start := binary.LittleEndian.AppendUint32([]byte(magic), snapshotVersion)
	w.checksum = crc32.Checksum(start, castagnoli)
	_, w.err = out.Write(start)
	return w
}

// add appends data to the stream.
func (w *chunkWriter) add(data []byte) {
	for len(data) > 0 && w.err == nil {
		n := copy(w.chunk[len(w.chunk):cap(w.chunk)], data)
		w.chunk, data = w.chunk[:len(w.chunk)+n], data[n:]
		if len(w.chunk) == cap(w.chunk) {
			w.flush()
		}
	}
}

// flush writes the data that was not written yet as a chunk. Without data that is the last chunk.
func (w *chunkWriter) flush() {
	if w.err != nil {
		return
	}
	data := w.chunk[chunkHeaderBytes:]
	w.checksum = crc32.Update(w.checksum, castagnoli, data)
	binary.LittleEndian.PutUint32(w.chunk, uint32(len(data)))
	binary.LittleEndian.PutUint32(w.chunk[4:], w.checksum)
	_, w.err = w.out.Write(w.chunk)
	w.chunk = w.chunk[:chunkHeaderBytes]
}

// close writes all data and the last chunk, and returns the first error.
func (w *chunkWriter) close() error {
	if len(w.chunk) > chunkHeaderBytes {
		w.flush()
	}
	w.flush()
	return w.err
}

// chunkReader is an io.Reader of the stream that a chunkWriter wrote. It returns only bytes whose checksum is right.
type chunkReader struct {
	in       io.Reader
	checksum uint32
	chunk    [maxChunkBytes]byte
	unread   []byte // the part of chunk that was not returned yet.
	offset   int64  // how many bytes were read from in.
	ended    bool   // set after the last chunk.
	version  uint32 // of the format.
}

// errTruncated is the error of a snapshot that lacks its end.
var errTruncated = errors.New("it is truncated")

// newChunkReader reads the start of a snapshot. It returns an error if in is no snapshot, or has another version.
func newChunkReader(in io.Reader) (*chunkReader, error) {
	r := &chunkReader{in: in}
	start := r.chunk[:snapshotStartBytes]
	if n, err := io.ReadFull(in, start); err != nil && err != io.ErrUnexpectedEOF && err != io.EOF {
		return nil, err
	} else if n < len(start) || string(start[:len(magic)]) != magic {
		return nil, errors.New("it is no snapshot of counters")
	}
	r.offset, r.checksum = int64(len(start)), crc32.Checksum(start, castagnoli)
	r.version = binary.LittleEndian.Uint32(start[len(magic):])
	if r.version == 0 || r.version > snapshotVersion {
		return nil, fmt.Errorf("it has version %d of the format, and this program reads versions 1 to %d", r.version,
			snapshotVersion)
	}
	return r, nil
}

// Read implements io.Reader.
func (r *chunkReader) Read(p []byte) (int, error) {
	if len(r.unread) == 0 {
		if err := r.readChunk(); err != nil {
			return 0, err
		}
	}
	n := copy(p, r.unread)
	r.unread = r.unread[n:]
	return n, nil
}

// readChunk reads the next chunk. It returns io.EOF after the last one.
func (r *chunkReader) readChunk() error {
	if r.ended {
		return io.EOF
	}
	header := r.chunk[:chunkHeaderBytes]
	if err := r.fill(header); err != nil {
		return err
	}
	length, checksum := int(binary.LittleEndian.Uint32(header)), binary.LittleEndian.Uint32(header[4:])
	if length > maxChunkBytes-chunkHeaderBytes {
		return r.damaged()
	}
	data := r.chunk[:length]
	if err := r.fill(data); err != nil {
		return err
	}
	r.checksum = crc32.Update(r.checksum, castagnoli, data)
	if r.checksum != checksum {
		return r.damaged()
	}
	if r.unread = data; length > 0 {
		return nil
	}
	r.ended = true
	if n, _ := r.in.Read(r.chunk[:1]); n > 0 {
		return fmt.Errorf("it goes on after its end at byte %d", r.offset)
	}
	return io.EOF
}

// fill reads all of p from the file.
func (r *chunkReader) fill(p []byte) error {
	n, err := io.ReadFull(r.in, p)
	r.offset += int64(n)
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return fmt.Errorf("%w: it ends at byte %d", errTruncated, r.offset)
	}
	return err
}

// damaged returns the error of a wrong checksum.
func (r *chunkReader) damaged() error {
	return fmt.Errorf("it is damaged: the checksum before byte %d is wrong", r.offset)
}
