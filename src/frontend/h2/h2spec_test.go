package h2

import (
	"encoding/xml"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"ratelimit/testbed/harness"
)

// h2specCases is how many cases h2spec 2.2.1 has.
const h2specCases = 146

// TestH2spec runs the conformance tests of h2spec, which tools/go.mod pins. All cases must pass. h2spec skips some if
// the server does not bound its streams, or answers with nothing.
func TestH2spec(t *testing.T) {
	t.Parallel()
	for _, withTLS := range []bool{false, true} {
		t.Run(fmt.Sprintf("TLS=%t", withTLS), func(t *testing.T) {
			t.Parallel()
			cfg, flags := Config{Handler: http.HandlerFunc(answerAtEnd), ConnConfig: ConnConfig{MaxStreams: 100}}, []string(nil)
			if withTLS {
				cfg.TLS, flags = serverTLS(t, harness.NewCertificates(t)), []string{"-t", "-k"}
			}
			runH2spec(t, startServer(t, cfg).addr, flags)
		})
	}
}

// answerAtEnd answers a request after its body: an answer before its end is legal, but h2spec does not expect it.
func answerAtEnd(w http.ResponseWriter, r *http.Request) {
	if _, err := io.Copy(io.Discard, r.Body); err == nil {
		_, _ = io.WriteString(w, "an answer") // The client may leave meanwhile.
	}
}

// runH2spec runs all cases of h2spec against a server, and checks its report.
func runH2spec(t *testing.T, addr string, flags []string) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "report.xml")
	args := append([]string{"-C", "../../../tools", "tool", "h2spec", "-S", "-h", host, "-p", port, "-j", file}, flags...)
	output, err := exec.Command("go", args...).CombinedOutput() // It also fails if a case fails.
	content, missing := os.ReadFile(file)
	if missing != nil && os.Getenv("CI") != "true" {
		t.Skipf("h2spec does not run here, without CI=true: %v\n%s", err, output)
	}
	var report struct {
		Suites []struct {
			Package string `xml:"package,attr"`
			Cases   []struct {
				Name    string    `xml:"classname,attr"`
				Failure *struct{} `xml:"failure"`
				Error   *struct{} `xml:"error"`
				Skipped *struct{} `xml:"skipped"`
			} `xml:"testcase"`
		} `xml:"testsuite"`
	}
	if err := xml.Unmarshal(content, &report); err != nil {
		t.Fatalf("the report: %v\n%s", err, output)
	}
	n := 0
	for _, suite := range report.Suites {
		for _, c := range suite.Cases {
			n++
			switch {
			case c.Failure != nil || c.Error != nil:
				t.Errorf("%s: %s: failed", suite.Package, c.Name)
			case c.Skipped != nil:
				t.Errorf("%s: %s: skipped", suite.Package, c.Name)
			}
		}
	}
	if n != h2specCases || t.Failed() {
		t.Errorf("%d cases, want %d\n%s", n, h2specCases, output)
	}
}
