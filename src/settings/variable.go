package settings

import (
	"cmp"
	_ "embed"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Variable is one environment variable.
type Variable struct {
	Section, Name string
	// Type is the syntax of values: text, word, bool, list, map, regexp, or a key of numbers.
	Type    string
	Default string // empty: the zero value of the field
	Meaning string

	bounds string // of a number: "1 to 100", "10ms or more, or 0"; of a word: "tcp, udp"
}

// Each line of these tables has four columns, separated by tabs: name, type with bounds, default
// and meaning. A line that starts with # starts a section.
var (
	//go:embed settings.txt
	settingsText string
	//go:embed divvy.txt
	divvyText string
)

// Table returns the variables of Read in the order of the documentation.
func Table() []Variable { return parseTable(settingsText) }

// DivvyTable returns divvy's own variables, which only ReadDivvy reads.
func DivvyTable() []Variable { return parseTable(divvyText) }

func parseTable(text string) (table []Variable) {
	section := ""
	for line := range strings.Lines(text) {
		columns := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(columns) != 4 {
			section = cmp.Or(strings.Trim(line, "# \n"), section)
			continue
		}
		v := Variable{Section: section, Name: columns[0], Default: columns[2], Meaning: columns[3]}
		v.Type, v.bounds, _ = strings.Cut(columns[1], " ")
		if v.Type == "word" {
			v.Meaning += ": " + v.bounds
		}
		table = append(table, v)
	}
	return table
}

// numbers has the types of numbers. what and hint are for errors; hint is for variables without
// bounds of their own, which have the bounds of the type.
var numbers = map[string]struct{ what, hint, bounds string }{
	"port":     {"a port number", ", 0 to 65535", "0 to 65535"},
	"count":    {"a whole number", " above 0", "1 or more"},
	"integer":  {"a whole number", "", ""},
	"bytes":    {"a number of bytes", "", "1 or more"},
	"number":   {"a number", " such as 0.8", ""},
	"duration": {"a duration", " with its unit, such as 500ms, 30s, 1h30m", "0s or more"},
}

// fix returns what to write instead of a refused value, such as "write true or false".
func (v Variable) fix() string {
	number, isNumber := numbers[v.Type]
	switch {
	case v.Type == "bool":
		return "write true or false"
	case v.Type == "word":
		return "write one of " + v.bounds
	case isNumber && v.bounds != "":
		return "write " + number.what + ", " + v.bounds
	case isNumber:
		return "write " + number.what + number.hint
	}
	return pairsFix
}

// fill sets the fields of to, which points to a struct, to the values of the variables in table.
func (r *reader) fill(to any, table []Variable) {
	fields := make(map[string]reflect.Value)
	addFields(fields, reflect.ValueOf(to).Elem(), "")
	for _, v := range table {
		if field, ok := fields[v.Name]; ok {
			r.set(field, v)
		}
	}
}

// addFields adds the fields of a struct to fields, by the name of their variable. The name is
// prefix and the tag `env`. The tag of a field that is a struct extends the prefix.
func addFields(fields map[string]reflect.Value, of reflect.Value, prefix string) {
	for f, field := range of.Fields() {
		name, tagged := f.Tag.Lookup("env")
		if name = prefix + name; field.Kind() == reflect.Struct {
			addFields(fields, field, name)
		} else if tagged {
			fields[cmp.Or(upstreamNames[name], name)] = field
		}
	}
}

// upstreamNames has the variables of the gRPC port whose names differ from those of other ports,
// because envoyproxy/ratelimit has them. The keys are the names that they would have.
var upstreamNames = map[string]string{
	"GRPC_TLS_CERT":          "GRPC_SERVER_TLS_CERT",
	"GRPC_TLS_KEY":           "GRPC_SERVER_TLS_KEY",
	"GRPC_TLS_CLIENT_CACERT": "GRPC_CLIENT_TLS_CACERT",
	"GRPC_TLS_CLIENT_SAN":    "GRPC_CLIENT_TLS_SAN",
}

// set sets field to the value of v. If the value is missing, empty or refused, it sets the
// default. It warns of an empty value that the default replaces, and records a problem for a
// refused value. For the type text, an empty value is a value.
func (r *reader) set(field reflect.Value, v Variable) {
	v.Default = cmp.Or(r.defaults[v.Name], v.Default)
	if v.Default != "" {
		_ = v.assign(field, v.Default) // a test assigns all defaults
	}
	text, set := r.lookup(v.Name)
	switch {
	case text == "" && v.Type != "text":
		if set && v.Default != "" {
			r.warn("%s is set but empty; its default %s is used", v.Name, v.Default)
		}
	case !set, text == "off" && v.Type == "port" && v.Default == "": // an optional port
	case v.assign(field, text) != nil:
		r.problem(v.Name, text, v.fix())
		r.unreadable[v.Name] = true
	}
}

// errRefused is returned for a refused value. Users see Variable.fix instead of it.
var errRefused = errors.New("refused")

// assign sets field to the value of text. If text does not have the type of v or is out of its
// bounds, it returns an error and does not change field.
func (v Variable) assign(field reflect.Value, text string) error {
	if v.Type == "word" {
		words := strings.Split(v.bounds, ", ")
		i := slices.IndexFunc(words, func(w string) bool { return strings.EqualFold(w, text) })
		if i < 0 {
			return errRefused
		}
		text = words[i]
	}
	value := reflect.New(field.Type())
	n, err := parse(text, value.Interface())
	if bounds := cmp.Or(v.bounds, numbers[v.Type].bounds); err == nil && v.Type != "word" && bounds != "" {
		err = within(bounds, n, reflect.New(field.Type()).Interface())
	}
	if err == nil {
		field.Set(value.Elem())
	}
	return err
}

// within returns an error unless n is within bounds, such as "1 to 100" or "10ms or more, or 0".
// scratch points to a variable of the type in which bounds are written; within changes it.
func within(bounds string, n float64, scratch any) error {
	bounds, or0 := strings.CutSuffix(bounds, ", or 0")
	low, high, both := strings.Cut(strings.TrimSuffix(bounds, " or more"), " to ")
	least, err := parse(low, scratch)
	most := math.MaxFloat64
	if both && err == nil {
		most, err = parse(high, scratch)
	}
	if err == nil && !(or0 && n == 0) && !(n >= least && n <= most) { // refuses NaN too
		err = errRefused
	}
	return err
}

// parse sets *to to the value of text. If it is a number, n is the same number; a duration is
// one of nanoseconds. Whole numbers may start with 0x, 0b or 0, as in envoyproxy/ratelimit.
func parse(text string, to any) (n float64, err error) {
	switch to := to.(type) {
	case *string:
		*to = text
	case *bool:
		*to, err = strconv.ParseBool(text)
	case *int:
		var whole int64
		whole, err = strconv.ParseInt(text, 0, 32)
		*to, n = int(whole), float64(whole)
	case *int64:
		*to, err = strconv.ParseInt(text, 0, 64)
		n = float64(*to)
	case *float32:
		n, err = strconv.ParseFloat(text, 32)
		*to = float32(n)
	case *time.Duration:
		*to, err = time.ParseDuration(text)
		n = float64(*to)
	case *[]string:
		*to = list(text)
	case *map[string]string:
		*to, err = pairs(text)
	default:
		err = fmt.Errorf("no variable has the type %T", to)
	}
	return n, err
}

// list returns the items of text, which commas separate. It removes blanks around items, and
// empty items.
func list(text string) (items []string) {
	for item := range strings.SplitSeq(text, ",") {
		if item = strings.TrimSpace(item); item != "" {
			items = append(items, item)
		}
	}
	return items
}

const pairsFix = "write key:value, separated by commas, with one colon in each"

// pairs reads "key:value,key:value". It returns an error if a key is empty or a value contains a
// colon.
func pairs(text string) (map[string]string, error) {
	m := make(map[string]string)
	for pair := range strings.SplitSeq(text, ",") {
		key, value, ok := strings.Cut(pair, ":")
		if !ok || key == "" || strings.Contains(value, ":") {
			return nil, errRefused
		}
		m[key] = value
	}
	return m, nil
}
