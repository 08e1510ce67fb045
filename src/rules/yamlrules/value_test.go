package yamlrules

import (
	"fmt"
	"strings"
	"testing"

	"ratelimit/src/rules/compile"
)

// written is a value in one line, with the types of scalars and the lines and
// columns of keys.
func written(v *Value) string {
	var list []string
	switch v.Kind {
	case compile.KindMap:
		for i := range v.Fields {
			f := &v.Fields[i]
			list = append(list, fmt.Sprintf("%s@%d:%d=%s", f.Name, f.Line, f.Col, written(&f.Value)))
		}
		return "{" + strings.Join(list, " ") + "}"
	case compile.KindList:
		for i := range v.Items {
			list = append(list, written(&v.Items[i]))
		}
		return "[" + strings.Join(list, " ") + "]"
	case compile.KindNull:
		return "nothing"
	case compile.KindInt:
		return fmt.Sprintf("%s(%d)", v.Text, v.Int)
	case compile.KindBool:
		return fmt.Sprintf("%s(%t)", v.Text, v.Bool)
	case compile.KindText:
		return v.Text
	default:
		return v.Text + "(" + v.Kind.String() + ")"
	}
}

func TestReadValue(t *testing.T) {
	for _, tt := range []struct{ text, want string }{
		{
			"a: 1\nb: yes\nc: 'yes'\nd: 010\ne: 1.5\nf:\ng: [x, 2]\n",
			"{a@1:1=1(1) b@2:1=yes(true) c@3:1=yes d@4:1=010(8) e@5:1=1.5(a floating-point number) f@6:1=nothing g@7:1=[x 2(2)]}",
		},
		{
			"a: &x {b: 1, c: 2}\nd: *x\ne: {<<: *x, c: 3}\n",
			"{a@1:1={b@1:8=1(1) c@1:14=2(2)} d@2:1={b@1:8=1(1) c@1:14=2(2)} e@3:1={c@3:13=3(3) b@1:8=1(1)}}",
		},
		{"a: {<<: [{b: 1}, {b: 2, c: 3}]}", "{a@1:1={b@1:11=1(1) c@1:25=3(3)}}"},
		{"1: a\nyes: b\n", "{1@1:1=a yes@2:1=b}"},
		{"- 1\n-\n", "[1(1) nothing]"},
		{"text", "text"},
	} {
		v, problems := ReadValue("a.yaml", []byte(tt.text))
		if len(problems) > 0 {
			t.Errorf("%q: %v", tt.text, problems)
			continue
		}
		if got := written(v); got != tt.want {
			t.Errorf("%q:\n got %s\nwant %s", tt.text, got, tt.want)
		}
	}
	for _, empty := range []string{"", "# nothing\n", "---\n"} {
		if v, problems := ReadValue("a.yaml", []byte(empty)); v != nil && !v.IsNull() || len(problems) > 0 {
			t.Errorf("%q: %v %v", empty, v, problems)
		}
	}
	for _, tt := range []struct{ text, want string }{
		{"a: [", "a.yaml:1:4: not YAML"},
		{"a: 1\na: 2\nb: 1\nb: 1\n", "a.yaml:2:1: the key \"a\" is here twice; remove one of them\na.yaml:4:1: the key " +
			"\"b\" is here twice"},
		{"[a]: 1", "a.yaml:1:1: a key is a list, not text"},
		{"a: &a [*a]", "contains itself"},
		{"a: {<<: 1}", "`<<` needs a map"},
		{"a: 1\n---\nb: 1\n", "only the first document of a file is read"},
		{"\xff", "not UTF-8"},
		{"a: !!binary /w==", "bytes that are not UTF-8"},
		{laughs(), "the aliases of the file stand for more than"},
	} {
		_, problems := ReadValue("a.yaml", []byte(tt.text))
		if !strings.Contains(problems.Error(), tt.want) {
			t.Errorf("%q: got %v, want %s", tt.text, problems, tt.want)
		}
	}
}

// laughs is nine lists, each nine times the one before.
func laughs() string {
	var b strings.Builder
	item := "x"
	for c := 'a'; c <= 'i'; c++ {
		fmt.Fprintf(&b, "%c: &%c [%s]\n", c, c, strings.Repeat(item+", ", 9))
		item = "*" + string(c)
	}
	return b.String()
}
