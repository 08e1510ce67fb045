package conformance

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"io"
	"log"
	"net"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	_ "google.golang.org/grpc/encoding/gzip" // One of the compressions that are tested.
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/emptypb"

	"ratelimit/src/frontend/h2"
)

// The service of connectconformance. Its generated types are in a package that others cannot import, so messages are
// parsed here.
const (
	conformanceService = "connectrpc.conformance.v1.ConformanceService"
	conformanceTypes   = "type.googleapis.com/connectrpc.conformance.v1."
)

// value is one value of a field of a message: a number, or bytes.
type value struct {
	number uint64
	bytes  []byte
}

// parse returns the fields of a message, each with all its values. It ignores what is malformed.
func parse(b []byte) map[protowire.Number][]value {
	fields := make(map[protowire.Number][]value)
	for len(b) > 0 {
		field, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			break
		}
		var v value
		size := protowire.ConsumeFieldValue(field, kind, b[n:])
		if size < 0 {
			break
		}
		switch kind {
		case protowire.VarintType:
			v.number, _ = protowire.ConsumeVarint(b[n:])
		case protowire.BytesType:
			v.bytes, _ = protowire.ConsumeBytes(b[n:])
		}
		fields[field] = append(fields[field], v)
		b = b[n+size:]
	}
	return fields
}

// only returns the last value of a field, or nothing.
func only(values []value) value {
	if len(values) == 0 {
		return value{}
	}
	return values[len(values)-1]
}

func appendBytes(b []byte, field protowire.Number, v []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, field, protowire.BytesType), v)
}

func appendNumber(b []byte, field protowire.Number, v uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), v)
}

// runConformanceServer is a server as connectconformance starts it: a ServerCompatRequest on stdin says what is needed,
// and a ServerCompatResponse on stdout where the server listens. SIGTERM ends it.
func runConformanceServer(args []string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	var length uint32
	if err := binary.Read(os.Stdin, binary.BigEndian, &length); err != nil {
		return err
	}
	text := make([]byte, length)
	if _, err := io.ReadFull(os.Stdin, text); err != nil {
		return err
	}
	request := parse(text)
	limit := int(only(request[6]).number)
	cfg := h2.Config{
		Path:       "/" + conformanceService + "/Unary",
		Decide:     decideConformance,
		IsLarge:    hasErrorOrMetadata,
		ConnConfig: h2.ConnConfig{MaxMessageBytes: limit},
	}
	handle(&cfg, conformanceHandler(limit))
	if args[0] == "handled" {
		cfg.Path = ""
	}
	var certificate []byte
	if only(request[4]).number != 0 {
		credentials := parse(only(request[7]).bytes)
		certificate = only(credentials[1]).bytes
		var err error
		if cfg.TLS, err = conformanceTLS(certificate, only(credentials[2]).bytes, only(request[5]).bytes); err != nil {
			return err
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	response := appendBytes(nil, 1, []byte("127.0.0.1"))
	response = appendNumber(response, 2, uint64(l.Addr().(*net.TCPAddr).Port))
	response = appendBytes(response, 3, certificate)
	if _, err := os.Stdout.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(response))),
		response...)); err != nil {
		return err
	}
	s := newServer(cfg, log.Printf)
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	<-ctx.Done()
	patience, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	s.Shutdown(patience)
	return <-served
}

// conformanceTLS returns the configuration for a certificate and its key. If clientCert is set, clients must show it.
func conformanceTLS(cert, key, clientCert []byte) (*tls.Config, error) {
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, err
	}
	cfg := &tls.Config{Certificates: []tls.Certificate{pair}, NextProtos: []string{"h2"}}
	if len(clientCert) > 0 {
		cfg.ClientAuth, cfg.ClientCAs = tls.RequireAndVerifyClientCert, x509.NewCertPool()
		if !cfg.ClientCAs.AppendCertsFromPEM(clientCert) {
			return nil, errors.New("the certificate of the client is not PEM")
		}
	}
	return cfg, nil
}

// conformanceHandler returns a gRPC server with the unary methods. It reads messages of at most limit bytes.
func conformanceHandler(limit int) *grpc.Server {
	service := &grpc.ServiceDesc{ServiceName: conformanceService, HandlerType: (*any)(nil)}
	for _, name := range []string{"Unary", "IdempotentUnary"} {
		service.Methods = append(service.Methods, grpc.MethodDesc{
			MethodName: name,
			Handler: func(_ any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
				var m emptypb.Empty // It keeps all fields of the message as unknown fields.
				if err := decode(&m); err != nil {
					return nil, err
				}
				answer, err := answerConformance(ctx, name, m.ProtoReflect().GetUnknown())
				m.ProtoReflect().SetUnknown(answer)
				return &m, err
			},
		})
	}
	g := newGRPC(grpc.MaxRecvMsgSize(limit))
	g.RegisterService(service, nil)
	return g
}

// answerConformance answers a call of a method as its message demands: after a delay, with metadata, and with data or
// an error. Either carries a description of the request.
func answerConformance(ctx context.Context, method string, message []byte) ([]byte, error) {
	response := parse(only(parse(message)[1]).bytes)
	if header, trailer := readMetadata(response[1]), readMetadata(response[4]); len(header)+len(trailer) > 0 {
		if err := errors.Join(grpc.SetHeader(ctx, header), grpc.SetTrailer(ctx, trailer)); err != nil {
			return nil, err
		}
	}
	select {
	case <-time.After(time.Duration(only(response[6]).number) * time.Millisecond):
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	received, _ := metadata.FromIncomingContext(ctx)
	info := appendMetadata(nil, received)
	if deadline, ok := ctx.Deadline(); ok {
		info = appendNumber(info, 2, uint64(time.Until(deadline).Milliseconds()))
	}
	request, err := proto.Marshal(&anypb.Any{TypeUrl: conformanceTypes + method + "Request", Value: message})
	if err != nil {
		return nil, err
	}
	info = appendBytes(info, 3, request)
	if failure := response[3]; failure != nil {
		var s spb.Status // Its fields have the numbers of those of an error of connectconformance.
		if err := proto.Unmarshal(only(failure).bytes, &s); err != nil {
			return nil, err
		}
		s.Details = append(s.Details, &anypb.Any{TypeUrl: conformanceTypes + "ConformancePayload.RequestInfo", Value: info})
		return nil, status.ErrorProto(&s)
	}
	return appendBytes(nil, 1, appendBytes(appendBytes(nil, 1, only(response[2]).bytes), 2, info)), nil
}

// readMetadata returns the metadata that a list of headers describes. Binary values are in base64.
func readMetadata(headers []value) metadata.MD {
	md := make(metadata.MD)
	for _, h := range headers {
		header := parse(h.bytes)
		name := strings.ToLower(string(only(header[1]).bytes))
		for _, v := range header[2] {
			text := string(v.bytes)
			if decoded, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(text, "=")); err == nil &&
				strings.HasSuffix(name, "-bin") {
				text = string(decoded)
			}
			md.Append(name, text)
		}
	}
	return md
}

// appendMetadata is the inverse of readMetadata. The headers are values of field 1.
func appendMetadata(b []byte, md metadata.MD) []byte {
	for name, values := range md {
		header := appendBytes(nil, 1, []byte(name))
		for _, text := range values {
			if strings.HasSuffix(name, "-bin") {
				text = base64.RawStdEncoding.EncodeToString([]byte(text))
			}
			header = appendBytes(header, 2, []byte(text))
		}
		b = appendBytes(b, 1, header)
	}
	return b
}

// hasErrorOrMetadata reports whether a message demands an answer with details of an error or with metadata. A handler
// answers these.
func hasErrorOrMetadata(message []byte) bool {
	response := parse(only(parse(message)[1]).bytes)
	return len(response[1])+len(response[3])+len(response[4]) > 0
}

// decideConformance answers the other calls.
func decideConformance(b *h2.Batch) {
	for i, call := range b.Calls {
		ctx, cancel := b.Context(), context.CancelFunc(func() {})
		if call.Timeout > 0 {
			ctx, cancel = context.WithDeadline(ctx, b.Received.Add(call.Timeout))
		}
		answer, err := answerConformance(ctx, "Unary", call.Message)
		cancel()
		if err != nil {
			s := status.Convert(err)
			b.Fail(i, int(s.Code()), s.Message())
			continue
		}
		b.Reply(i, answer)
	}
}
