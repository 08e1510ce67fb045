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

	"ratelimit/src/settings/units"
)

// Variable is one environment variable.
type Variable struct {
	Section, Name string
	// Type is the syntax of values: text, word, bool, list, map, regexp, or a type of numbers such as port.
	Type    string
	Default string // empty for the zero value of the field.
	Meaning string

	// for a number, such as "1 to 100" or "10ms or more, or 0"; for a word, the words it may be, such as "tcp, udp"
	bounds string
	// instead says what replaces a number or word that is not within bounds: "nearest" is the nearest bound, "default" the
	// default, and with "none" the port is not opened. It is empty if such a value ends the start. Variables of
	// envoyproxy/ratelimit have it if that serves with such a value.
	instead string
}

// Each line of these tables has four columns, separated by tabs: name, type with bounds, default and meaning. A line
// that starts with # starts a section. "duration 10ms or more, else nearest" replaces 1ms by 10ms with a warning, see
// Variable.instead.
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
		v.Type, v.instead, _ = strings.Cut(columns[1], ", else ")
		v.Type, v.bounds, _ = strings.Cut(v.Type, " ")
		if v.Type == "word" {
			v.Meaning += ": " + v.bounds
		}
		table = append(table, v)
	}
	return table
}

// typeHints says what to write for values of each type. hint, bounds and example are for variables without bounds of
// their own.
var typeHints = map[string]struct {
	what, hint, bounds, example string
	units                       []units.Unit
}{
	"bool":    {what: "true or false"},
	"map":     {what: "key:value, separated by commas, with one colon in each"},
	"port":    {what: "a port number", hint: ", 0 to 65535", bounds: "0 to 65535"},
	"count":   {what: "a whole number", hint: " above 0", bounds: "1 or more"},
	"integer": {what: "a whole number", bounds: "-2147483648 or more"},
	"bytes":   {what: "a number of bytes", bounds: "1 or more", example: "64MiB", units: units.OfBytes},
	"number":  {what: "a number", example: "0.8", units: units.OfShare},
	"rate":    {what: "a whole number per second", bounds: "0 or more", units: units.OfRate},
	"duration": {
		what: "a duration", hint: " with its unit", bounds: "0s or more", example: "30s", units: units.OfDuration,
	},
	"seconds":      {what: "a whole number of seconds", bounds: "0 or more", units: units.OfDuration},
	"milliseconds": {what: "a whole number of milliseconds", bounds: "0 or more", units: units.OfDuration},
}

// fix returns what to write instead of text, a refused value of field: "write a duration with its unit, such as 5s".
func (v Variable) fix(text string, field reflect.Value) string {
	t, scratch := typeHints[v.Type], reflect.New(field.Type()).Elem()
	hasOtherForm := !errors.Is(v.assign(scratch, text), errOutOfBounds)
	switch {
	case v.Type == "word":
		return "write one of " + v.bounds
	case v.bounds != "":
		t.hint, t.example = ", "+v.bounds, ""
	case !hasOtherForm && v.Type == "duration":
		t.hint, t.example = ", "+t.bounds, ""
	}
	if !hasOtherForm && strings.Trim(text, "0123456789.") != "" { // The bounds tell what is wrong.
		t.units = nil
	}
	return units.Advice(t.what+t.hint, text, t.example, t.units,
		func(form string) bool { return v.assign(scratch, form) == nil })
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

// addFields adds the fields of a struct to fields, by the name of their variable. The name is prefix and the tag `env`.
// The tag of a field that is a struct extends the prefix.
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

// upstreamNames has the variables of the gRPC port whose names are those of envoyproxy/ratelimit, by the names that
// they would have if they were like those of other ports.
var upstreamNames = map[string]string{
	"GRPC_TLS_CERT":          "GRPC_SERVER_TLS_CERT",
	"GRPC_TLS_KEY":           "GRPC_SERVER_TLS_KEY",
	"GRPC_TLS_CLIENT_CACERT": "GRPC_CLIENT_TLS_CACERT",
	"GRPC_TLS_CLIENT_SAN":    "GRPC_CLIENT_TLS_SAN",
}

// set sets field to the value of v, or to the default if the value is missing, empty or refused. It warns of an empty
// value that the default replaces, and records a problem for a refused value. For the type text, an empty value is a
// value.
func (r *reader) set(field reflect.Value, v Variable) {
	v.Default = cmp.Or(r.defaultByName[v.Name], v.Default)
	if v.Default != "" {
		_ = v.assign(field, v.Default) // returns no error: a test assigns all defaults
	}
	text, isSet := r.env[v.Name]
	switch {
	case text == "" && v.Type != "text":
		if isSet && v.Default != "" {
			r.warnEmpty(v.Name, v.Default)
		}
	case !isSet, text == "off" && v.Type == "port" && v.Default == "": // "off" is the default of an optional port
	default:
		r.setValue(field, v, text)
	}
}

func (r *reader) setValue(field reflect.Value, v Variable, text string) {
	switch err := v.assign(field, text); {
	case err == nil:
	case v.instead == "" || !errors.Is(err, errOutOfBounds) &&
		!strings.HasPrefix(v.Name, "OTEL_"): // OpenTelemetry ignores wrong values
		r.problem(v.Name, text, v.fix(text, field))
		r.hasRefusedValue[v.Name] = true
	case v.instead == "none":
		r.forgive(v.Name, text, v.fix(text, field), "that port is not opened")
	case v.instead == "default" && v.Default == "":
		r.forgive(v.Name, text, v.fix(text, field), "it is ignored")
	default:
		replacement := v.replacement(text, field.Interface())
		_ = v.assign(field, replacement) // returns no error: a test assigns all replacements
		r.forgive(v.Name, text, v.fix(text, field), replacement+" is used")
	}
}

// Users see Variable.fix instead of these errors.
var (
	errRefused     = errors.New("refused")       // returned for a value that does not have the type of its variable.
	errOutOfBounds = errors.New("out of bounds") // returned for a value with the right type.
)

// assign sets field to the value of text. If text does not have the type of v or is out of its bounds, it returns an
// error and does not change field.
func (v Variable) assign(field reflect.Value, text string) error {
	bounds := cmp.Or(v.bounds, typeHints[v.Type].bounds)
	if v.Type == "word" {
		words := strings.Split(bounds, ", ")
		i := slices.IndexFunc(words, func(w string) bool { return strings.EqualFold(w, text) })
		if i < 0 {
			return errOutOfBounds
		}
		text, bounds = words[i], ""
	}
	value, number, err := v.parse(text, field.Interface())
	if err == nil && bounds != "" {
		err = v.checkBounds(bounds, number, field.Interface())
	}
	if err == nil {
		field.Set(reflect.ValueOf(value))
	}
	return err
}

// checkBounds returns errOutOfBounds unless number is within bounds, see cutBounds. The numbers in bounds are written
// as values of the type of zero.
func (v Variable) checkBounds(bounds string, number float64, zero any) error {
	low, high, or0 := cutBounds(bounds, zero)
	_, least, err := v.parse(low, zero)
	most := math.MaxFloat64
	if high != "" && err == nil {
		_, most, err = v.parse(high, zero)
	}
	if err == nil && !(or0 && number == 0) && !(number >= least && number <= most) { // NaN is out of bounds, too
		err = errOutOfBounds
	}
	return err
}

// cutBounds returns the parts of bounds such as "1 to 100" or "10ms or more, or 0". high is empty if there is no upper
// bound.
func cutBounds(bounds string, zero any) (low, high string, or0 bool) {
	bounds, or0 = strings.CutSuffix(bounds, ", or 0")
	low, high, _ = strings.Cut(strings.TrimSuffix(bounds, " or more"), " to ")
	if _, isInt := zero.(int); isInt && high == "" {
		high = strconv.Itoa(math.MaxInt32)
	}
	return low, high, or0
}

// replacement returns what replaces text, a value of the type of zero that is out of bounds. See instead. NaN has no
// nearest bound.
func (v Variable) replacement(text string, zero any) string {
	low, high, or0 := cutBounds(cmp.Or(v.bounds, typeHints[v.Type].bounds), zero)
	_, number, _ := v.parse(text, zero)
	_, least, _ := v.parse(low, zero)
	switch {
	case v.instead == "default" || math.IsNaN(number):
		return v.Default
	case or0 && number <= 0:
		return "0"
	case number > least:
		return high
	}
	return low
}

// withoutUnit returns the number in text in the unit of its type: 4096 for 4KiB in bytes, 90 for 90/s in a rate, 0.8
// for 80%. Texts of other forms stay as they are.
func (v Variable) withoutUnit(text string) string {
	n, err := 0.0, errRefused
	switch percent, isPercent := strings.CutSuffix(text, "%"); {
	case v.Type == "bytes":
		if size, err := units.Bytes(text); err == nil {
			return strconv.FormatInt(size, 10)
		}
	case v.Type == "rate":
		n, err = units.PerSecond(text)
	case v.Type == "seconds", v.Type == "milliseconds":
		unit := map[string]time.Duration{"seconds": time.Second, "milliseconds": time.Millisecond}[v.Type]
		var d time.Duration
		d, err = units.Duration(text)
		n = float64(d) / float64(unit)
	case v.Type == "number" && isPercent:
		n, err = strconv.ParseFloat(percent, 64)
		n /= 100
	}
	if err != nil {
		return text
	}
	return strconv.FormatFloat(n, 'f', -1, 64)
}

// parse returns the value of text in the type of zero. If it is a number, number is the same; a duration is one of
// nanoseconds. Whole numbers may start with 0x, 0b or 0, as in envoyproxy/ratelimit.
func (v Variable) parse(text string, zero any) (value any, number float64, err error) {
	text = v.withoutUnit(text)
	switch zero.(type) {
	case string:
		value = text
	case bool:
		value, err = strconv.ParseBool(text)
	case int:
		n, err := strconv.ParseInt(text, 0, 64) // checkBounds refuses more than 32 bits
		return int(n), float64(n), err
	case int64:
		n, err := strconv.ParseInt(text, 0, 64)
		return n, float64(n), err
	case float32:
		n, err := strconv.ParseFloat(text, 32)
		return float32(n), n, err
	case time.Duration:
		d, err := units.Duration(text)
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

// pairs reads "key:value,key:value". It returns an error if a value contains a colon.
func pairs(text string) (map[string]string, error) {
	m := make(map[string]string)
	for pair := range strings.SplitSeq(text, ",") {
		key, value, ok := strings.Cut(pair, ":")
		if !ok || strings.Contains(value, ":") {
			return nil, errRefused
		}
		m[key] = value
	}
	return m, nil
}
