// Package browser opens pages in a real Chromium. It needs chromium on the PATH; without it a test is skipped, or
// fails with CI=true.
package browser

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"ratelimit/testbed/harness"
)

// ScreenshotDir is the environment variable that names the directory for screenshots. Without it they are not kept.
const ScreenshotDir = "SCREENSHOT_DIR"

// programs are the names that Chromium has on different systems.
var programs = []string{"chromium", "chromium-browser", "google-chrome"}

// Browser is a running Chromium.
type Browser struct{ ctx context.Context }

// Start starts a Chromium, which ends with the test.
func Start(t testing.TB) *Browser {
	t.Helper()
	ctx, end := chromedp.NewContext(context.Background(), chromedp.WithAllocatorOptions(
		chromedp.ExecPath(program(t)), chromedp.NoSandbox, chromedp.DisableGPU, chromedp.UserDataDir(t.TempDir())))
	t.Cleanup(func() {
		_ = chromedp.Cancel(ctx) // Cancel waits for the end of the browser. It fails if the browser has ended.
		end()
	})
	if err := chromedp.Do(ctx); err != nil {
		t.Fatalf("starting the browser: %v", err)
	}
	return &Browser{ctx}
}

func program(t testing.TB) string {
	for _, name := range programs {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	return harness.Program(t, programs[0], "chromium")
}

// Page is a tab of a browser.
type Page struct {
	t   testing.TB
	ctx context.Context

	mu       sync.Mutex // guards the fields below.
	host     string     // the host and port that the page may request.
	problems []string
}

// Open opens address in a new tab of width pixels.
func (b *Browser) Open(t testing.TB, address string, width int64) *Page {
	t.Helper()
	parsed, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	p := &Page{t: t, host: parsed.Host}
	ctx, end := chromedp.NewContext(b.ctx, chromedp.WithListener(p.record))
	t.Cleanup(end)
	p.ctx = ctx
	if err := chromedp.Do(ctx); err != nil { // It opens the tab, which would otherwise end with the first deadline.
		t.Fatal(err)
	}
	if _, err := chromedp.Call(ctx, network.Enable, network.EnableParams{}); err != nil {
		t.Fatal(err)
	}
	var options []chromedp.EmulateViewportOption
	if width < 600 {
		options = append(options, chromedp.EmulateMobile)
	}
	p.do(chromedp.EmulateViewport(width, 900, options...), chromedp.Navigate(address))
	return p
}

// record keeps what a page must not do: throw, write a warning or an error to the console, violate its policy, or ask
// another host.
func (p *Page) record(event any) {
	var problem string
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		problem = "exception: " + e.ExceptionDetails.Text
		if thrown := e.ExceptionDetails.Exception; thrown != nil {
			problem += " " + thrown.Description
		}
	case *runtime.EventConsoleAPICalled:
		if e.Type == runtime.ConsoleAPICalledTypeError || e.Type == runtime.ConsoleAPICalledTypeWarning {
			problem = fmt.Sprintf("console: %s", e.Args[0].Value)
		}
	case *log.EventEntryAdded:
		if e.Entry.Level == log.EntryLevelError || e.Entry.Level == log.EntryLevelWarning {
			problem = fmt.Sprintf("log: %s: %s %s", e.Entry.Source, e.Entry.Text, e.Entry.URL)
		}
	case *network.EventRequestWillBeSent:
		p.mu.Lock()
		host := p.host
		p.mu.Unlock()
		if u, err := url.Parse(e.Request.URL); err != nil || u.Host != host && u.Scheme != "data" && u.Scheme != "chrome" {
			problem = "request of another host: " + e.Request.URL
		}
	}
	if problem != "" {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.problems = append(p.problems, problem)
	}
}

// Problems returns what the page did that it must not do, without problems that contain one of expected.
func (p *Page) Problems(expected ...string) (problems []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
next:
	for _, problem := range p.problems {
		for _, text := range expected {
			if strings.Contains(problem, text) {
				continue next
			}
		}
		problems = append(problems, problem)
	}
	return problems
}

// do runs actions and fails the test if they take longer than harness.Deadline.
func (p *Page) do(actions ...chromedp.Action[chromedp.Void]) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, harness.Deadline)
	defer cancel()
	if err := chromedp.Do(ctx, actions...); err != nil {
		p.t.Fatalf("the browser: %v", err)
	}
}

// result returns the result of an action and fails the test if it takes longer than harness.Deadline.
func result[T any](p *Page, action chromedp.Action[T]) T {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, harness.Deadline)
	defer cancel()
	value, err := chromedp.Run(ctx, action)
	if err != nil {
		p.t.Fatalf("the browser: %v", err)
	}
	return value
}

// Text returns the value of a JavaScript expression as text.
func (p *Page) Text(expression string) string {
	p.t.Helper()
	return result(p, chromedp.Evaluate[string]("String("+expression+")"))
}

// Await waits until a JavaScript expression is true, for at most harness.Deadline, and returns how long that took.
func (p *Page) Await(expression string) time.Duration {
	p.t.Helper()
	begin := time.Now()
	err := harness.Retry(harness.Deadline, func() error {
		if got := p.Text(expression); got != "true" {
			return errors.New("it is " + got)
		}
		return nil
	})
	if err != nil {
		p.t.Fatalf("after %v, %s: %v; problems: %q", harness.Deadline, expression, err, p.Problems())
	}
	return time.Since(begin)
}

// Do runs JavaScript statements. They may use await.
func (p *Page) Do(statements string) {
	p.t.Helper()
	result(p, chromedp.Evaluate[string]("(async () => {"+statements+"; return ''})()", chromedp.EvalAwaitPromise))
}

// Type replaces the text of the input that the selector finds, as a person would.
func (p *Page) Type(selector, text string) {
	p.t.Helper()
	p.Do(fmt.Sprintf("const input = document.querySelector(%q); input.focus(); input.select()", selector))
	p.Press(text)
}

// Press presses keys, such as "\t".
func (p *Page) Press(keys string) {
	p.t.Helper()
	p.do(chromedp.KeyEvent(keys))
}

// Click clicks the first element that the selector finds, wherever it is. A mouse could miss an element that an update
// moves.
func (p *Page) Click(selector string) {
	p.t.Helper()
	p.Do(fmt.Sprintf("document.querySelector(%q).click()", selector))
}

// PreferDark makes the page think that the user prefers a dark or a light page.
func (p *Page) PreferDark(dark bool) {
	p.t.Helper()
	value := "light"
	if dark {
		value = "dark"
	}
	params := emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{
		Name:  "prefers-color-scheme",
		Value: value,
	}}}
	if _, err := chromedp.Call(p.ctx, emulation.SetEmulatedMedia, params); err != nil {
		p.t.Fatal(err)
	}
}

// Screenshot writes the page as NAME.png to the directory that ScreenshotDir names. whole adds what one would have to
// scroll to.
func (p *Page) Screenshot(name string, whole bool) {
	p.t.Helper()
	dir := os.Getenv(ScreenshotDir)
	if dir == "" {
		return
	}
	capture := chromedp.CaptureScreenshot()
	if whole {
		capture = chromedp.FullScreenshot(100)
	}
	image := result(p, capture)
	file := filepath.Join(dir, name+".png")
	if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(file, image, 0o600)); err != nil {
		p.t.Fatal(err)
	}
	p.t.Logf("screenshot: %s", file)
}
