package editor

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// deadline is the time that the server has for an answer, also on a busy machine.
const deadline = 60 * time.Second

// languageClient is an editor's end of the Language Server Protocol: JSON-RPC over the standard streams of the server.
type languageClient struct {
	in       io.Writer
	messages chan message // of the server.
	lastID   int
}

type message struct {
	Version string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id,omitempty"`
	Method  string          `json:"method,omitempty"`
	Params  json.RawMessage `json:"params,omitempty"`
	Result  json.RawMessage `json:"result,omitempty"`
	Error   json.RawMessage `json:"error,omitempty"`
}

type position struct {
	Line      int `json:"line"`
	Character int `json:"character"`
}

type diagnostic struct {
	Range   struct{ Start position }
	Message string
	Source  string
}

// startServer starts a language server and sends it the initialize request. The test stops the server when it ends.
func startServer(t *testing.T, args ...string) *languageClient {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	c := &languageClient{in: in, messages: make(chan message, 1000)}
	go c.receive(bufio.NewReader(out))
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // It has no state to save.
		_ = cmd.Wait()
	})
	c.call(t, "initialize", map[string]any{"processId": nil, "rootUri": nil, "capabilities": map[string]any{}}, nil)
	c.send(t, message{Method: "initialized", Params: []byte("{}")})
	// Without the list of schemas, which is on the web. Rule files are YAML 1.1.
	settings := map[string]any{"settings": map[string]any{"yaml": map[string]any{
		"schemaStore": map[string]any{"enable": false}, "yamlVersion": "1.1", "completion": true, "validate": true,
	}}}
	c.send(t, message{Method: "workspace/didChangeConfiguration", Params: encode(t, settings)})
	return c
}

func encode(t *testing.T, v any) json.RawMessage {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func (c *languageClient) send(t *testing.T, m message) {
	t.Helper()
	m.Version = "2.0"
	data := encode(t, m)
	if _, err := fmt.Fprintf(c.in, "Content-Length: %d\r\n\r\n%s", len(data), data); err != nil {
		t.Fatalf("%s: %v", m.Method, err)
	}
}

// receive reads messages until the server ends.
func (c *languageClient) receive(out *bufio.Reader) {
	defer close(c.messages)
	for {
		size := 0
		for {
			line, err := out.ReadString('\n')
			if err != nil {
				return
			}
			if line = strings.TrimSpace(line); line == "" {
				break
			}
			if text, ok := strings.CutPrefix(line, "Content-Length: "); ok {
				_, _ = fmt.Sscan(text, &size) // A wrong size shows as a message that is not JSON.
			}
		}
		data := make([]byte, size)
		var m message
		if _, err := io.ReadFull(out, data); err != nil || json.Unmarshal(data, &m) != nil {
			return
		}
		c.messages <- m
	}
}

// await returns the first message for which wanted is true. It answers the server's own requests with null, or with
// what settings says.
func (c *languageClient) await(t *testing.T, what string, wanted func(message) bool) message {
	t.Helper()
	timeout := time.After(deadline)
	for {
		select {
		case m, ok := <-c.messages:
			switch {
			case !ok:
				t.Fatalf("the server ended before %s", what)
			case wanted(m):
				return m
			case m.Method != "" && m.ID != nil:
				c.send(t, message{ID: m.ID, Result: []byte("null")})
			}
		case <-timeout:
			t.Fatalf("no %s in %s", what, deadline)
		}
	}
}

// call sends a request and decodes the result.
func (c *languageClient) call(t *testing.T, method string, params, result any) {
	t.Helper()
	c.lastID++
	id := fmt.Sprint(c.lastID)
	c.send(t, message{ID: []byte(id), Method: method, Params: encode(t, params)})
	m := c.await(t, "answer to "+method, func(m message) bool { return m.Method == "" && string(m.ID) == id })
	if m.Error != nil {
		t.Fatalf("%s: %s", method, m.Error)
	}
	if result != nil {
		if err := json.Unmarshal(m.Result, result); err != nil {
			t.Fatalf("%s: %v in %s", method, err, m.Result)
		}
	}
}

// open opens a document, which need not be a file, and returns what the server then says of it.
func (c *languageClient) open(t *testing.T, path, text string) (found []diagnostic) {
	t.Helper()
	c.lastID++
	uri := "file://" + path
	c.send(t, message{Method: "textDocument/didOpen", Params: encode(t, map[string]any{
		"textDocument": map[string]any{"uri": uri, "languageId": "yaml", "version": c.lastID, "text": text},
	})})
	var published struct {
		URI         string
		Diagnostics []diagnostic
	}
	c.await(t, "diagnostics of "+path, func(m message) bool {
		return m.Method == "textDocument/publishDiagnostics" && json.Unmarshal(m.Params, &published) == nil &&
			published.URI == uri
	})
	return published.Diagnostics
}

func (c *languageClient) close(t *testing.T, path string) {
	t.Helper()
	uri := "file://" + path
	c.send(t, message{
		Method: "textDocument/didClose",
		Params: encode(t, map[string]any{"textDocument": map[string]any{"uri": uri}}),
	})
	// The server takes back what it said of the document.
	c.await(t, "the end of "+path, func(m message) bool {
		return m.Method == "textDocument/publishDiagnostics" && strings.Contains(string(m.Params), uri)
	})
}

// diagnostics returns what the server finds wrong in a text.
func (c *languageClient) diagnostics(t *testing.T, path, text string) []diagnostic {
	t.Helper()
	found := c.open(t, path, text)
	c.close(t, path)
	return found
}

// completions returns what the server offers at the end of a text, and whether it has a description.
func (c *languageClient) completions(t *testing.T, path, text string) map[string]bool {
	t.Helper()
	c.open(t, path, text)
	defer c.close(t, path)
	line := text[strings.LastIndex(text, "\n")+1:]
	var list struct {
		Items []struct {
			Label         string
			Documentation json.RawMessage
		}
	}
	c.call(t, "textDocument/completion", map[string]any{
		"textDocument": map[string]any{"uri": "file://" + path}, "position": position{strings.Count(text, "\n"), len(line)},
	}, &list)
	offered := make(map[string]bool)
	for _, item := range list.Items {
		offered[item.Label] = len(item.Documentation) > len(`""`)
	}
	return offered
}
