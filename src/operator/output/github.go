package output

import (
	"fmt"
	"strings"
)

// gitHubText escapes the text of a workflow command of GitHub; gitHubValue escapes its parameters, such as the file
// name.
var (
	gitHubText  = strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A")
	gitHubValue = strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A", ":", "%3A", ",", "%2C")
)

// Annotation is a text that GitHub shows at a line of a file. The zero values of File, Line and Col mean that there is
// none.
type Annotation struct {
	Severity  string // "notice", "warning" or "error".
	File      string // a path below the directory of the checkout.
	Line, Col int    // Line and Col start at 1.
	Text      string
}

// String returns the workflow command that makes the annotation: one line, whatever the texts are.
func (a Annotation) String() string {
	var place []string
	if a.File != "" {
		place = append(place, "file="+gitHubValue.Replace(a.File))
	}
	if a.Line > 0 {
		place = append(place, fmt.Sprintf("line=%d", a.Line))
	}
	if a.Col > 0 {
		place = append(place, fmt.Sprintf("col=%d", a.Col))
	}
	command := a.Severity
	if len(place) > 0 {
		command += " " + strings.Join(place, ",")
	}
	return "::" + command + "::" + gitHubText.Replace(a.Text)
}
