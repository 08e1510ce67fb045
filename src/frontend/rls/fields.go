package rls

import "google.golang.org/protobuf/encoding/protowire"

// These are added to number<<3 in Fields.Tag.
const (
	VarintType = uint64(protowire.VarintType)
	BytesType  = uint64(protowire.BytesType)
)

// Fields iterates over the fields of the protobuf message Message. Next sets Tag to the number and the type of a field,
// as number<<3 | type, and Number or Bytes to its value. Bytes points into the message.
type Fields struct {
	Message []byte // what Next has not read.
	Tag     uint64
	Number  uint64
	Bytes   []byte
	Err     error // set if Next returned false because the message is malformed.
}

// Next reads the next field. It returns false at the end of the message and after an error.
func (f *Fields) Next() bool {
	if len(f.Message) == 0 {
		return false
	}
	number, kind, n := protowire.ConsumeTag(f.Message)
	if n >= 0 {
		f.Tag, f.Message = protowire.EncodeTag(number, kind), f.Message[n:]
		switch uint64(kind) {
		case VarintType:
			f.Number, n = protowire.ConsumeVarint(f.Message)
		case BytesType:
			f.Bytes, n = protowire.ConsumeBytes(f.Message)
		default:
			n = protowire.ConsumeFieldValue(number, kind, f.Message)
		}
	}
	if n < 0 {
		f.Err = errMalformedProtobuf
		return false
	}
	f.Message = f.Message[n:]
	return true
}
