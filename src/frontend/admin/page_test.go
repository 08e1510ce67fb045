package admin

import (
	"crypto/sha256"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"path"
	"regexp"
	"strings"
	"testing"

	"ratelimit/src/limiter"
	"ratelimit/src/operator"
)

// getWith requests a page with headers: a name, its value, and so on.
func getWith(h http.Handler, path string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, path, nil)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func TestPageIsForBrowsers(t *testing.T) {
	t.Parallel()
	h := pagesWith(newFakeFigures().source())
	for _, tt := range []struct{ accept, want string }{
		{"text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", "text/html; charset=utf-8"},
		{"*/*", "text/plain; charset=utf-8"},
		{"", "text/plain; charset=utf-8"},
		{"application/json", "text/plain; charset=utf-8"},
	} {
		w := getWith(h, "/", "Accept", tt.accept)
		if got := w.Header().Get("Content-Type"); w.Code != 200 || got != tt.want || w.Header().Get("Vary") != "Accept" {
			t.Errorf("Accept: %s: got %d %v", tt.accept, w.Code, w.Header())
		}
	}
	if w := get(h, "/"); !strings.Contains(w.Body.String(),
		"/: this list; in a browser, the operator's page\n/api/denials: ") {
		t.Errorf("the list of pages:\n%s", w.Body)
	}
	if w := getWith(pagesWith(nil), "/", "Accept",
		"text/html"); w.Header().Get("Content-Type") != "text/plain; charset=utf-8" {
		t.Errorf("without figures: %v", w.Header())
	}
}

// Each file has a content type and a policy under which nothing but the page's own files runs.
func TestPageFiles(t *testing.T) {
	t.Parallel()
	h := pagesWith(newFakeFigures().source())
	files := 0
	err := fs.WalkDir(pageFiles, "page", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		files++
		address := "/" + name
		if name == pageIndex {
			if w := get(h, address); w.Code != 404 {
				t.Errorf("%s has an address of its own: %d", address, w.Code)
			}
			address = "/"
		}
		w := getWith(h, address, "Accept", "text/html")
		header := w.Header()
		if _, known := pageContentTypes[path.Ext(name)]; !known || w.Code != 200 || header.Get("Content-Type") == "" {
			t.Errorf("%s: %d %v", address, w.Code, header)
		}
		if header.Get("Content-Security-Policy") != pagePolicy || header.Get("X-Content-Type-Options") != "nosniff" ||
			header.Get("Referrer-Policy") != "no-referrer" || header.Get("Cache-Control") != "no-store" {
			t.Errorf("%s: %v", address, header)
		}
		return nil
	})
	if err != nil || files < 5 {
		t.Errorf("%d files, %v", files, err)
	}
	for _, bad := range []string{
		"/page", "/page/", "/page/none.js", "/page/uplot-1.6.32/", "/page/../admin.go",
		"/page/%2e%2e/admin.go",
	} {
		if w := get(h, bad); w.Code == 200 {
			t.Errorf("%s: got %d", bad, w.Code)
		}
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/page/page.js", nil))
	if w.Code != 405 {
		t.Errorf("POST: got %d", w.Code)
	}
}

// The page loads only files that exist, inserts no text as HTML and names no other host.
func TestPageSources(t *testing.T) {
	t.Parallel()
	h := pagesWith(newFakeFigures().source())
	reference := regexp.MustCompile(`(?:src|href)="(page/[^"]+)"|from "\./([^"]+)"`)
	forbidden := regexp.MustCompile(
		`innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|https?://(?:www\.w3\.org/2000/svg")?| style="| on[a-z]+="`)
	err := fs.WalkDir(pageFiles, "page", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || strings.Contains(name, "uplot") {
			return err
		}
		text, err := pageFiles.ReadFile(name)
		if err != nil {
			return err
		}
		for _, found := range reference.FindAllStringSubmatch(string(text), -1) {
			address := "/" + found[1]
			if found[2] != "" {
				address = "/page/" + found[2]
			}
			if w := get(h, address); w.Code != 200 {
				t.Errorf("%s loads %s: %d", name, address, w.Code)
			}
		}
		for _, bad := range forbidden.FindAllString(string(text), -1) {
			if !strings.HasSuffix(bad, `svg"`) {
				t.Errorf("%s contains %s", name, bad)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// The plot library is as published: uPlot 1.6.32 on npm, with its licence.
func TestPlotLibraryIsUnchanged(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"LICENSE":           "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
		"uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
		"uPlot.min.css":     "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
	} {
		content, err := pageFiles.ReadFile("page/uplot-1.6.32/" + name)
		if got := fmt.Sprintf("%x", sha256.Sum256(content)); err != nil || got != want {
			t.Errorf("%s: SHA-256 %s, want %s; %v", name, got, want, err)
		}
	}
}

// Pages of other origins reach no page of the port and hold no place of a listener; a link leads to the operator's
// page.
func TestSameOrigin(t *testing.T) {
	t.Parallel()
	h := everyPage()
	for site, want := range map[string]int{
		"": 200, "none": 200, "same-origin": 200, "same-site": 403, "cross-site": 403,
		"other": 403,
	} {
		if w := getWith(h, "/api/state", "Sec-Fetch-Site", site); w.Code != want {
			t.Errorf("%q: got %d %s", site, w.Code, w.Body)
		}
	}
	pages := regexp.MustCompile(`(?m)^(/\S*): `).FindAllStringSubmatch(getWith(h, "/", "Accept", "*/*").Body.String(), -1)
	if len(pages) < 15 {
		t.Fatalf("the list has %d pages", len(pages))
	}
	for _, page := range append(pages, []string{"", "/page.js"}, []string{"", "/missing"}, []string{"", "/metrics"}) {
		w := getWith(h, page[1], "Sec-Fetch-Site", "cross-site")
		if w.Code != 403 || w.Header().Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: got %d %s, %v", page[1], w.Code, w.Body, w.Header())
		}
	}
	for path, want := range map[string]int{"/": 200, "/stats": 403, "/debug/pprof/profile": 403} {
		w := getWith(h, path, "Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document")
		if w.Code != want {
			t.Errorf("a link to %s: got %d", path, w.Code)
		}
	}
	if w := getWith(h, "/", "Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest",
		"iframe"); w.Code != 403 {
		t.Errorf("a frame: got %d", w.Code)
	}
}

// No browser takes an answer of the port for a script or for HTML.
func TestNoSniff(t *testing.T) {
	t.Parallel()
	h := everyPage()
	for _, path := range []string{
		"/", "/rlconfig", "/stats", "/stats?format=json", "/readyz", "/explain", "/candidate",
		"/api/state", "/missing", "/page.js", "/debug/pprof/",
	} {
		if w := getWith(h, path, "Accept", "*/*"); w.Header().Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: %d, %v", path, w.Code, w.Header())
		}
	}
}

// everyPage returns all pages of the port.
func everyPage() http.Handler {
	write := func(w io.Writer) error {
		_, err := io.WriteString(w, "<script>alert(1)</script>")
		return err
	}
	return DebugPages{
		WriteRules: write, WriteRulesYAML: write,
		SortedFigures: func(func(string, int64) bool) {}, Components: func() []operator.Component { return nil },
		Limiter: limiter.New(limiter.Config{}),
		Figures: newFakeFigures().source(), ChangeCounters: new(fakeCounters).Change, Record: new(fakeRecordings).Record,
		PprofEnabled: true,
	}.Handler()
}
