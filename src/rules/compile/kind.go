package compile

// ValueKind is the type of a value in a rule file.
type ValueKind uint8

const (
	KindText ValueKind = iota
	KindInt
	KindBigInt
	KindFloat
	KindBool
	KindNull
	KindMap
	KindList
)

// String returns the kind in the words of messages.
func (k ValueKind) String() string {
	return [...]string{
		"text", "a whole number", "a number of more than 64 bits", "a floating-point number",
		"true or false", "nothing", "a map", "a list",
	}[k]
}
