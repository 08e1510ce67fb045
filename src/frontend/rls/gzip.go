package rls

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	grpcmetadata "google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"ratelimit/src/frontend/connlimit"
)

const (
	gzipName         = "gzip"
	maxExpansion     = 16      // how many times as long a message may be unpacked. Envoy's get less than 10 times as long.
	minExpandedBytes = 8 << 10 // how long it may be in any case: short ones with equal descriptors expand to more.
)

var errExpandsTooMuch = fmt.Errorf("the message is more than %d times as long as its compressed form", maxExpansion)

// gzipDecompressor unpacks the messages of calls with grpc-encoding gzip. It belongs to one server: a compressor that
// is registered with grpc-go would serve all clients and servers of the process, and unpack 4 KB into 4 MiB.
type gzipDecompressor struct {
	maxBytes int // the length of the longest message.
	// an element for each message that is being unpacked, and has not been charged to its connection.
	slots   chan struct{}
	readers sync.Pool // *gzip.Reader values.
}

func newGzipDecompressor(maxBytes int) *gzipDecompressor {
	return &gzipDecompressor{maxBytes: maxBytes, slots: make(chan struct{}, runtime.GOMAXPROCS(0))}
}

// Type returns the value of grpc-encoding.
func (d *gzipDecompressor) Type() string { return gzipName }

// Do unpacks the message in r, a *mem.Reader of grpc-go, which answers its errors with INTERNAL and their text.
func (d *gzipDecompressor) Do(r io.Reader) ([]byte, error) {
	in, ok := r.(interface{ Remaining() int })
	if !ok {
		return nil, errors.New("the length of a compressed message is not known")
	}
	d.slots <- struct{}{}
	defer func() { <-d.slots }()
	size := in.Remaining()
	limit := d.maxExpanded(size)
	z, ok := d.readers.Get().(*gzip.Reader)
	if !ok {
		z = new(gzip.Reader)
	}
	if err := z.Reset(r); err != nil {
		return nil, err
	}
	var out bytes.Buffer
	out.Grow(min(2*size, limit) + bytes.MinRead)
	n, err := out.ReadFrom(io.LimitReader(z, int64(limit)+1))
	switch {
	case err != nil:
		return nil, err
	case n > int64(limit) && limit < d.maxBytes:
		return nil, errExpandsTooMuch
	}
	d.readers.Put(z)
	return out.Bytes(), nil // grpc-go refuses what is longer than maxBytes.
}

// maxExpanded returns how long a message of that many bytes may be when it is unpacked.
func (d *gzipDecompressor) maxExpanded(size int) int {
	return min(max(maxExpansion*size, minExpandedBytes), d.maxBytes)
}

// prepareCompression lets a call be compressed with gzip, and refuses other encodings before any message is read.
// Answers are not compressed: most are shorter than the header of gzip.
func prepareCompression(ctx context.Context) (isCompressed bool, _ error) {
	stream := grpc.ServerTransportStreamFromContext(ctx)
	in, ok := stream.(interface{ RecvCompress() string })
	if !ok {
		return false, nil
	}
	switch name := in.RecvCompress(); name {
	case "", encoding.Identity:
		return false, nil
	case gzipName:
		return true, grpc.SetSendCompressor(ctx, encoding.Identity)
	default:
		if err := stream.SetHeader(grpcmetadata.Pairs("grpc-accept-encoding", encoding.Identity+","+gzipName)); err != nil {
			return false, fmt.Errorf("rls: refusing grpc-encoding %q: %w", name, err)
		}
		return false, status.Errorf(codes.Unimplemented, "grpc-encoding %q is not supported: use %s, or no compression (%s)",
			name, gzipName, encoding.Identity)
	}
}

// holdExpanded charges v, the unpacked message of a call, to its connection, as the connection's server did with the
// compressed form. It returns how many bytes the caller must release.
func holdExpanded(account *connlimit.MemoryAccount, v any) (held int64, err error) {
	switch in := v.(type) {
	case *callMemory:
		held = int64(in.receivedMessage.Len())
	case proto.Message:
		held = int64(proto.Size(in))
	}
	if !account.HoldBytes(held) {
		return 0, ErrTooMuchMemory
	}
	return held, nil
}
