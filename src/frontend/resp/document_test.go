package resp

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"ratelimit/src/limiter"
	"ratelimit/src/rules/filerules"
	"ratelimit/testbed/limitertest"
	"ratelimit/testbed/testfiles"
)

// inWords writes the reply that text starts with as redis-cli does, and returns the rest of text. indent is the space
// before all lines but the first.
func inWords(text, indent string) (words, rest string) {
	line, rest, _ := strings.Cut(text, "\r\n")
	n, _ := parseInteger([]byte(line[1:]))
	switch line[0] {
	case '-':
		return "(error) " + line[1:] + "\n", rest
	case ':':
		return fmt.Sprintf("(integer) %d\n", n), rest
	case '$':
		return fmt.Sprintf("%q\n", rest[:n]), rest[n+2:]
	case '*':
		for i := range n {
			var item string
			item, rest = inWords(rest, indent+"   ")
			if i > 0 {
				words += indent
			}
			words += fmt.Sprintf("%d) %s", i+1, item)
		}
		return words, rest
	}
	return line + "\n", rest
}

// The sessions of docs/resp.md get the replies that are there.
func TestDocument(t *testing.T) {
	t.Parallel()
	read := func(name string) string {
		text := testfiles.Read(t, "../../../docs/"+name)
		return string(text)
	}
	page := read("resp.md")
	api := regexp.MustCompile("(?s)```yaml\n(domain: api.*?)```").FindStringSubmatch(page)
	tree := regexp.MustCompile("(?s)```yaml\n(schema:.*?)```").FindStringSubmatch(read("rules.md"))
	set := limitertest.Load(t, []filerules.File{
		{Name: "api.yaml", Data: []byte(api[1])},
		{Name: "limits.yaml", Data: []byte(tree[1])},
	})
	l := limiter.New(limiter.Config{Backend: newStore(t)})
	l.UseRules(set)
	s, sessions := build(t, Config{Limiter: l}), 0
	for _, block := range regexp.MustCompile("(?s)```redis\n(.*?)```").FindAllStringSubmatch(page, -1) {
		for _, step := range strings.Split(block[1], "> ")[1:] {
			command, want, _ := strings.Cut(step, "\n")
			if got, _ := inWords(play(s, elsewhere, []byte(command+"\r\n")), ""); got != want {
				t.Errorf("%s:\n got %s\nwant %s", command, got, want)
			}
			sessions++
		}
	}
	if sessions < 8 {
		t.Errorf("%d examples", sessions)
	}
}
