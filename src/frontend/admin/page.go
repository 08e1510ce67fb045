package admin

import (
	"embed"
	"io/fs"
	"net/http"
	"path"
	"strings"
)

// pageFiles are the files of the operator's page. The browser loads them as they are.
//
//go:embed page
var pageFiles embed.FS

// pageIndex is the file that / answers to a browser.
const pageIndex = "page/index.html"

// pagePolicy allows the page to load its own files and to talk to its own server, and nothing else. The page
// cannot insert text as HTML, which matters because callers choose the names of subjects.
const pagePolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"frame-ancestors 'none'; base-uri 'none'; form-action 'self'; require-trusted-types-for 'script'; trusted-types 'none'"

var pageContentTypes = map[string]string{
	".html": "text/html; charset=utf-8",
	".css":  "text/css; charset=utf-8",
	".js":   "text/javascript; charset=utf-8",
	".svg":  "image/svg+xml",
	"":      "text/plain; charset=utf-8",
}

// addPageFiles adds a handler for each of pageFiles but the index.
func addPageFiles(mux *http.ServeMux) {
	// It fails only if the embedded files cannot be read.
	_ = fs.WalkDir(pageFiles, "page", func(name string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && name != pageIndex {
			mux.Handle("/"+name, allowMethods(pageFile(name)))
		}
		return err
	})
}

func pageFile(name string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Type", pageContentTypes[path.Ext(name)])
		h.Set("Content-Security-Policy", pagePolicy)
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cache-Control", "no-store") // An old script must not meet a new service.
		content, err := pageFiles.ReadFile(name)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		_, _ = w.Write(content) // Write fails only if the client has gone.
	})
}

// forBrowsers passes requests that accept HTML to page and all others to text.
func forBrowsers(page, text http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Vary", "Accept")
		if strings.Contains(r.Header.Get("Accept"), "text/html") {
			page.ServeHTTP(w, r)
			return
		}
		text.ServeHTTP(w, r)
	})
}
