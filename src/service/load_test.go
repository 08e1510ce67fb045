package service

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/sirupsen/logrus"

	"ratelimit/src/rules/filerules"
	"ratelimit/src/service/logging"
	"ratelimit/testbed/limitertest"
)

// The log of a load is bounded, however many rules there are.
func TestLogOfManyRules(t *testing.T) {
	t.Parallel()
	var text strings.Builder
	text.WriteString("domain: d\ndescriptors:\n")
	for i := range maxDescriptorsLogged + 5 {
		fmt.Fprintf(&text, "- {key: user, value: u%d, rate_limit: {unit: day, requests_per_unit: 1}}\n", i)
	}
	set := limitertest.Load(t, []filerules.File{{Name: "a.yaml", Data: []byte(text.String())}})
	var out bytes.Buffer
	log := logrus.New()
	log.SetOutput(&out)
	log.SetLevel(logrus.DebugLevel)
	(&ruleSources{foundation: &foundation{log: &logging.Loggers{Logger: log}}}).logRules(set)
	const want = maxDescriptorsLogged + 2 // with the domain, and the line about more
	if n := strings.Count(out.String(), "\n"); n != want ||
		!strings.Contains(out.String(), "/rlconfig on the debug port shows all") {
		t.Errorf("%d lines, want %d", n, want)
	}
}
