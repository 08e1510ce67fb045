package action

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"

	"ratelimit/testbed/testfiles"
)

// composite is a composite action, as action.yml has it.
type composite struct {
	Inputs  map[string]struct{ Default string }
	Outputs map[string]struct{ Value string }
	Runs    struct{ Steps []step }
}

// step is a step of an action or of a workflow.
type step struct {
	ID, Name, If, Uses, Run, Shell string
	With, Env                      map[string]string
}

func readYAML(t *testing.T, name string, into any) {
	t.Helper()
	if err := yaml.Unmarshal([]byte(read(t, path(t, name))), into); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
}

var expression = regexp.MustCompile(`\$\{\{ *([\w.-]+) *\}\}`)

// expand replaces expressions of GitHub by values. A name without a value is a mistake in this test or in the action.
func expand(t *testing.T, text string, values map[string]string) string {
	t.Helper()
	return expression.ReplaceAllStringFunc(text, func(found string) string {
		name := expression.FindStringSubmatch(found)[1]
		value, ok := values[name]
		if !ok && !strings.HasPrefix(name, "steps.") {
			t.Errorf("%s has no value", name)
		}
		return value
	})
}

// holds evaluates an `if` that compares names with names and texts.
func holds(t *testing.T, condition string, values map[string]string) bool {
	t.Helper()
	for part := range strings.SplitSeq(condition, " && ") {
		switch word := strings.Fields(part); {
		case condition == "" || part == "always()":
		case len(word) == 3 && (word[1] == "==" || word[1] == "!="):
			value := func(word string) string {
				if text, ok := strings.CutPrefix(word, "'"); ok {
					return strings.TrimSuffix(text, "'")
				}
				return expand(t, "${{"+word+"}}", values)
			}
			if (value(word[0]) == value(word[2])) != (word[1] == "==") {
				return false
			}
		default:
			t.Fatalf("if: %s: this test does not know %q", condition, part)
		}
	}
	return true
}

// run runs the steps of the action with these inputs in a checkout, and returns what they printed and the outputs.
// values are those of GitHub, by name.
func (c *composite) run(t *testing.T, checkout string, inputs,
	github map[string]string,
) (r result, outputs map[string]string) {
	t.Helper()
	temporary, values := t.TempDir(), maps.Clone(github)
	values["runner.temp"], values["github.action_path"] = temporary, path(t, ".")
	for name, in := range c.Inputs {
		values["inputs."+name] = expand(t, in.Default, values)
	}
	for name, value := range inputs {
		if _, ok := c.Inputs[name]; !ok {
			t.Errorf("action.yml has no input %s", name)
		}
		values["inputs."+name] = value
	}
	for i, s := range c.Runs.Steps {
		if !holds(t, s.If, values) || r.code != 0 && !strings.Contains(s.If, "always()") {
			continue
		}
		output, script := filepath.Join(temporary, fmt.Sprint("output", i)), filepath.Join(temporary, fmt.Sprint("script", i))
		env := map[string]string{
			"GITHUB_ACTIONS": "true", "GITHUB_OUTPUT": output,
			"GITHUB_STEP_SUMMARY": filepath.Join(temporary, "summary"),
		}
		for name, value := range s.Env {
			env[name] = expand(t, value, values)
		}
		if s.Shell != "bash" {
			t.Errorf("the shell of step %d is %q", i, s.Shell)
		}
		testfiles.Write(t, script, s.Run)
		did := call(t, checkout, env, "bash", "--noprofile", "--norc", "-eo", "pipefail", script)
		r.out, r.code = r.out+did.out, max(r.code, did.code)
		text, _ := os.ReadFile(output) // There is none without outputs.
		for line := range strings.Lines(string(text)) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
			values["steps."+s.ID+".outputs."+name] = value
		}
	}
	outputs = make(map[string]string)
	for name, out := range c.Outputs {
		outputs[name] = expand(t, out.Value, values)
	}
	summary, _ := os.ReadFile(filepath.Join(temporary, "summary")) // There is none without a comparison.
	outputs["summary"] = string(summary)
	return r, outputs
}

// Each input is used, each has a description, and expressions stand in variables only: in a script they would be code.
func TestActionFile(t *testing.T) {
	t.Parallel()
	var c composite
	readYAML(t, "action.yml", &c)
	text := read(t, path(t, "action.yml"))
	for name := range c.Inputs {
		if !regexp.MustCompile(`inputs\.` + name + `\b`).MatchString(text[strings.Index(text, "\nruns:"):]) {
			t.Errorf("no step uses the input %s", name)
		}
	}
	if descriptions := strings.Count(text, "\n    description: "); descriptions != len(c.Inputs)+len(c.Outputs) {
		t.Errorf("%d descriptions of %d inputs and %d outputs", descriptions, len(c.Inputs), len(c.Outputs))
	}
	for _, s := range c.Runs.Steps {
		if strings.Contains(s.Run, "${{") {
			t.Errorf("a script has an expression:\n%s", s.Run)
		}
	}
	if !strings.Contains(read(t, path(t, "docs/changing-rules.md")), "(../action.yml)") {
		t.Error("docs/changing-rules.md does not link to action.yml, which describes the inputs and outputs")
	}
}
