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
	// Type is the syntax of values: text, word, bool, list, map, regexp, or a type of numbers such as port.
	Type    string
	Default string // Default is empty for the zero value of the field.
	Meaning string

	bounds string // for a number, such as "1 to 100" or "10ms or more, or 0"; for a word, the words it may be, such as "tcp, udp"
}

// Each line of these tables has four columns, separated by tabs: name, type with bounds, default and meaning. A line that starts
// with # starts a section.
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

// typeHints says what to write for values of each type. hint and bounds are for variables without bounds of their own.
var typeHints = map[string]struct{ what, hint, bounds string }{
	"bool":     {"true or false", "", ""},
	"map":      {"key:value, separated by commas, with one colon in each", "", ""},
	"port":     {"a port number", ", 0 to 65535", "0 to 65535"},
	"count":    {"a whole number", " above 0", "1 or more"},
	"integer":  {"a whole number", "", ""},
	"bytes":    {"a number of bytes", "", "1 or more"},
	"number":   {"a number", " such as 0.8", ""},
	"duration": {"a duration", " with its unit, such as 500ms, 30s, 1h30m", "0s or more"},
}

// fix returns what to write instead of a refused value, such as "write true or false".
func (v Variable) fix() string {
	t := typeHints[v.Type]
	switch {
	case v.Type == "word":
		return "write one of " + v.bounds
	case v.bounds != "":
		return "write " + t.what + ", " + v.bounds
	}
	return "write " + t.what + t.hint
}

// fill sets the fields of the struct that target points to, from the variables in table.
func (r *reader) fill(target any, table []Variable) {
	fields := make(map[string]reflect.Value)
	addFields(fields, reflect.ValueOf(target).Elem(), "")
	for _, v := range table {
		if field, ok := fields[v.Name]; ok {
			r.set(field, v)
		}
	}
}

// addFields adds the fields of a struct to fields, by the name of their variable. The name is prefix and the tag `env`. The tag of a
// field that is a struct extends the prefix.
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

// upstreamNames has the variables of the gRPC port whose names are those of envoyproxy/ratelimit, by the names that they would have
// if they were like those of other ports.
var upstreamNames = map[string]string{
	"GRPC_TLS_CERT":          "GRPC_SERVER_TLS_CERT",
	"GRPC_TLS_KEY":           "GRPC_SERVER_TLS_KEY",
	"GRPC_TLS_CLIENT_CACERT": "GRPC_CLIENT_TLS_CACERT",
	"GRPC_TLS_CLIENT_SAN":    "GRPC_CLIENT_TLS_SAN",
}

// set sets field to the value of v, or to the default if the value is missing, empty or refused. It warns of an empty value that the
// default replaces, and records a problem for a refused value. For the type text, an empty value is a value.
func (r *reader) set(field reflect.Value, v Variable) {
	v.Default = cmp.Or(r.defaultByName[v.Name], v.Default)
	if v.Default != "" {
		_ = v.assign(field, v.Default) // returns no error: a test assigns all defaults
	}
	text, isSet := r.env[v.Name]
	switch {
	case text == "" && v.Type != "text":
		if isSet && v.Default != "" {
			r.warn("%s is set but empty; its default %s is used", v.Name, v.Default)
		}
	case !isSet, text == "off" && v.Type == "port" && v.Default == "": // "off" is the default of an optional port
	case v.assign(field, text) != nil:
		r.problem(v.Name, text, v.fix())
		r.hasRefusedValue[v.Name] = true
	}
}

// errRefused is returned for a refused value. Users see Variable.fix instead of it.
var errRefused = errors.New("refused")

// assign sets field to the value of text. If text does not have the type of v or is out of its bounds, it returns an error and does
// not change field.
func (v Variable) assign(field reflect.Value, text string) error {
	bounds := cmp.Or(v.bounds, typeHints[v.Type].bounds)
	if v.Type == "word" {
		words := strings.Split(bounds, ", ")
		i := slices.IndexFunc(words, func(w string) bool { return strings.EqualFold(w, text) })
		if i < 0 {
			return errRefused
		}
		text, bounds = words[i], ""
	}
	value, number, err := parse(text, field.Interface())
	if err == nil && bounds != "" {
		err = checkBounds(bounds, number, field.Interface())
	}
	if err == nil {
		field.Set(reflect.ValueOf(value))
	}
	return err
}

// checkBounds returns an error unless number is within bounds, such as "1 to 100" or "10ms or more, or 0". The numbers in bounds are
// written as values of the type of zero.
func checkBounds(bounds string, number float64, zero any) error {
	bounds, or0 := strings.CutSuffix(bounds, ", or 0")
	low, high, both := strings.Cut(strings.TrimSuffix(bounds, " or more"), " to ")
	_, least, err := parse(low, zero)
	most := math.MaxFloat64
	if both && err == nil {
		_, most, err = parse(high, zero)
	}
	if err == nil && !(or0 && number == 0) && !(number >= least && number <= most) { // NaN is refused, too
		err = errRefused
	}
	return err
}

// parse returns the value of text in the type of zero. If it is a number, number is the same; a duration is one of nanoseconds. Whole
// numbers may start with 0x, 0b or 0, as in envoyproxy/ratelimit.
func parse(text string, zero any) (value any, number float64, err error) {
	switch zero.(type) {
	case string:
		value = text
	case bool:
		value, err = strconv.ParseBool(text)
	case int:
		n, err := strconv.ParseInt(text, 0, 32)
		return int(n), float64(n), err
	case int64:
		n, err := strconv.ParseInt(text, 0, 64)
		return n, float64(n), err
	case float32:
		n, err := strconv.ParseFloat(text, 32)
		return float32(n), n, err
	case time.Duration:
		d, err := time.ParseDuration(text)
		return d, float64(d), err
	case []string:
		value = list(text)
	case map[string]string:
		value, err = pairs(text)
	default:
		err = fmt.Errorf("no variable has the type %T", zero)
	}
	return value, 0, err
}

// list returns the items of text, which commas separate. It removes blanks around items, and empty items.
func list(text string) (items []string) {
	for item := range strings.SplitSeq(text, ",") {
		if item = strings.TrimSpace(item); item != "" {
			items = append(items, item)
		}
	}
	return items
}

// pairs reads "key:value,key:value". It returns an error if a key is empty or a value contains a colon.
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
