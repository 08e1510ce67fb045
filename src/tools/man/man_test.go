package man

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"ratelimit/src/tools/command"
)

// example returns a program with one command, whose help text has all kinds of lines.
func example() *cobra.Command {
	root := &cobra.Command{
		Use: "ratelimit", Short: "A service", Long: "ratelimit answers.",
		Example: "  ratelimit cut -n 1",
	}
	cut := command.New(`cut FILE
Cut a file

cut reads FILE.
'quoted' lines and
.dotted lines are text:

Files:
  SIZE_<NAME>  count  1        most bytes, a\b
  NAME         text   (empty)  the name
  a literal  line
Paragraph.

Examples:
  ratelimit cut --big x
  .hidden
`, nil, func(*cobra.Command, []string) error { return nil })
	cut.Flags().Bool("big", false, "cut big files")
	cut.Flags().IntP("count", "n", 7, "`LINES` to cut")
	cut.Flags().String("secret", "", "not shown")
	_ = cut.Flags().MarkHidden("secret") // The flag is there.
	root.AddCommand(cut, &cobra.Command{Use: "old", Hidden: true, Run: func(*cobra.Command, []string) {}},
		Command("v1.2.3"))
	return root
}

func TestPage(t *testing.T) {
	t.Parallel()
	cut, _, err := example().Find([]string{"cut"})
	if err != nil {
		t.Fatal(err)
	}
	const want = `.TH "RATELIMIT-CUT" "1" "" "ratelimit v1.2.3" "User Commands"
.SH "NAME"
ratelimit-cut \- Cut a file
.SH "SYNOPSIS"
\fBratelimit cut\fR FILE [flags]
.SH "DESCRIPTION"
cut reads FILE.
\(aqquoted\(aq lines and
\&.dotted lines are text:
.PP
Files:
.TP
\fBSIZE_<NAME>\fR
count, default 1: most bytes, a\eb
.TP
\fBNAME\fR
text, default (empty): the name
.PP
.RS "4"
.nf
a literal  line
.fi
.RE
.PP
Paragraph.
.SH "OPTIONS"
.TP
\fB\-\-big\fR
cut big files
.TP
\fB\-n, \-\-count\fR \fILINES\fR
LINES to cut (default 7)
.TP
\fB\-h, \-\-help\fR
help for cut
.SH "EXIT STATUS"
.TP
\fB0\fR
The command succeeded.
.TP
\fB1\fR
It failed; the reason is on stderr. The description names exceptions.
.TP
\fB2\fR
The command or its input is invalid.
.SH "EXAMPLES"
.RS "4"
.nf
ratelimit cut \-\-big x
\&.hidden
.fi
.RE
.SH "SEE ALSO"
\fBratelimit\fR(1)
`
	if got := Page(cut, "v1.2.3"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// The command writes a page for the program and for each command that is not hidden, into a directory that it makes.
func TestCommand(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "new/man")
	root := example()
	root.SetArgs([]string{"man", dir})
	if err := root.Execute(); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(dir + "/*")
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.ReplaceAll(strings.Join(files, " "), dir+"/",
		""); got != "ratelimit-cut.1 ratelimit-man.1 ratelimit.1" {
		t.Errorf("pages: %s", got)
	}
	page, err := os.ReadFile(filepath.Join(dir, "ratelimit.1"))
	if want := ".SH \"COMMANDS\"\n.TP\n\\fBcut\\fR\nCut a file\n"; err != nil || !strings.Contains(string(page), want) {
		t.Errorf("%v, no %s in\n%s", err, want, page)
	}
	for _, args := range [][]string{{"man"}, {"man", dir, dir}, {"man", dir + "/ratelimit.1/none"}} {
		root := example()
		root.SetArgs(args)
		root.SilenceErrors, root.SilenceUsage = true, true
		if err := root.Execute(); err == nil {
			t.Errorf("%q: no error", args)
		}
	}
}
