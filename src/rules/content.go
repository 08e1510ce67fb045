package rules

import (
	"reflect"
	"slices"
	"strings"
)

// contentComparer compares what rule files say: domains and rules without their positions and indexes. A new field of a
// rule is compared without a change here. Its zero value is ready to use. It remembers equal pointers from one call to
// the next, because rules share calendars and limits.
type contentComparer struct {
	equal map[[2]uintptr]bool // pointers to equal contents, or to contents that are being compared
}

var positionType = reflect.TypeFor[Pos]()

// isEqual reports whether a and b, pointers of one type, have the same content.
func (c *contentComparer) isEqual(a, b any) bool {
	if c.equal == nil {
		c.equal = make(map[[2]uintptr]bool)
	}
	if c.isEqualValue(reflect.ValueOf(a), reflect.ValueOf(b)) {
		return true
	}
	clear(c.equal) // Some of them were equal only if a and b are.
	return false
}

// isEqualValue compares two values of one type. It calls no methods, so that it can read unexported fields.
func (c *contentComparer) isEqualValue(a, b reflect.Value) bool {
	switch a.Kind() {
	case reflect.Pointer:
		pair := [2]uintptr{a.Pointer(), b.Pointer()}
		if pair[0] == pair[1] || c.equal[pair] {
			return true
		}
		if a.IsNil() || b.IsNil() {
			return false
		}
		c.equal[pair] = true
		return c.isEqualValue(a.Elem(), b.Elem())
	case reflect.Struct:
		return c.isEqualStruct(a, b)
	case reflect.Slice, reflect.Array:
		if a.Len() != b.Len() {
			return false
		}
		for i := range a.Len() {
			if !c.isEqualValue(a.Index(i), b.Index(i)) {
				return false
			}
		}
		return true
	case reflect.Map:
		if a.Len() != b.Len() {
			return false
		}
		for all := a.MapRange(); all.Next(); {
			if other := b.MapIndex(all.Key()); !other.IsValid() || !c.isEqualValue(all.Value(), other) {
				return false
			}
		}
		return true
	case reflect.Interface:
		if a.IsNil() || b.IsNil() {
			return a.IsNil() && b.IsNil()
		}
		return a.Elem().Type() == b.Elem().Type() && c.isEqualValue(a.Elem(), b.Elem())
	case reflect.Func, reflect.Chan, reflect.UnsafePointer:
		return a.IsNil() && b.IsNil()
	}
	return a.Equal(b)
}

// uncomparedFields are the fields of rules and domains that do not change what counters have: the index in a Set, the
// owner, how a replica counts, and who is told. Exact and leased replicas share their counters, and none admits more
// than the limit.
var uncomparedFields = []string{"Index", "Owner", "Counting", "OnContention", "WhyExact", "Notify"}

// isEqualStruct compares all fields but positions, uncomparedFields, and caches, which hold atomic values.
func (c *contentComparer) isEqualStruct(a, b reflect.Value) bool {
	t := a.Type()
	if t == positionType || strings.HasPrefix(t.PkgPath(), "sync") {
		return true
	}
	isRules := t == reflect.TypeFor[Rule]() || t == reflect.TypeFor[Domain]()
	for i := range t.NumField() {
		if isRules && slices.Contains(uncomparedFields, t.Field(i).Name) {
			continue
		}
		if !c.isEqualValue(a.Field(i), b.Field(i)) {
			return false
		}
	}
	return true
}
