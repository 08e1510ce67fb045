package credentials

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"
)

// CommandConfig describes a program that prints a token.
type CommandConfig struct {
	// Line is the program and its arguments, separated by blanks. Text in single or double quotes is one argument. No
	// shell reads it.
	Line string
	// User is the user of tokens that are printed without one.
	User string
	// Environ is the environment of the program, a list of NAME=value.
	Environ []string
	// OnReport, if set, is called after each run.
	OnReport func(Report)
}

// Command is a Source whose tokens a program prints.
type Command struct {
	*Keeper[Token]
	cfg   CommandConfig
	words []string // the program and its arguments
}

// NewCommand returns a Command. It does not run the program yet.
func NewCommand(cfg CommandConfig) (*Command, error) {
	words, err := splitLine(cfg.Line)
	if err != nil {
		return nil, err
	}
	if _, err := exec.LookPath(words[0]); err != nil {
		return nil, err
	}
	c := &Command{cfg: cfg, words: words}
	c.Keeper = NewKeeper(c.mint, cfg.OnReport)
	return c, nil
}

// Token implements Source.
func (c *Command) Token(ctx context.Context) (Token, error) {
	t, _, err := c.Get(ctx)
	return t, err
}

// Renewed implements Source.
func (c *Command) Renewed(expires time.Time) (Token, bool) {
	t, until, ok := c.Peek()
	return t, ok && (until.IsZero() || until.After(expires))
}

func splitLine(line string) (words []string, err error) {
	var word strings.Builder
	quote, inWord := rune(0), false
	for _, r := range line {
		switch {
		case r == quote:
			quote = 0
		case quote != 0:
			word.WriteRune(r)
		case r == '"' || r == '\'':
			quote, inWord = r, true
		case r == ' ' || r == '\t':
			if inWord {
				words = append(words, word.String())
				word.Reset()
			}
			inWord = false
		default:
			word.WriteRune(r)
			inWord = true
		}
	}
	if inWord {
		words = append(words, word.String())
	}
	switch {
	case quote != 0:
		return nil, fmt.Errorf("a quote %c is not closed", quote)
	case len(words) == 0 || words[0] == "":
		return nil, errors.New("it names no program")
	}
	return words, nil
}

const (
	// maxOutputBytes bounds what a program may print.
	maxOutputBytes = 64 << 10
	// killWait is how long a program that was killed may keep its output open, by programs that it started.
	killWait = time.Second
)

// execInfo tells plugins of Kubernetes which form is expected. Some do not run without it.
const execInfo = `KUBERNETES_EXEC_INFO={"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1",` +
	`"spec":{"interactive":false}}`

// mint runs the program. Its errors have nothing of what it printed, which may be a secret.
func (c *Command) mint(ctx context.Context) (Token, time.Time, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cmd := exec.CommandContext(ctx, c.words[0], c.words[1:]...)
	cmd.Env = append(append([]string{}, c.cfg.Environ...), execInfo)
	cmd.WaitDelay = killWait
	killWithChildren(cmd)
	out, complaints := boundedBuffer{overflow: cancel}, boundedBuffer{overflow: func() {}}
	cmd.Stdout, cmd.Stderr = &out, &complaints
	err := cmd.Run()
	switch {
	case out.isFull:
		return Token{}, time.Time{}, fmt.Errorf("the program printed more than %d bytes and was killed", maxOutputBytes)
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return Token{}, time.Time{}, fmt.Errorf("the program did not end within %v and was killed", fetchTimeout)
	case err != nil && len(complaints.kept) > 0:
		return Token{}, time.Time{}, fmt.Errorf("the program failed: %w; what it wrote to stderr is not logged, as it may "+
			"have a secret: run it by hand", err)
	case err != nil:
		return Token{}, time.Time{}, fmt.Errorf("the program failed: %w", err)
	}
	t, err := readToken(out.kept)
	if t.User == "" {
		t.User = c.cfg.User
	}
	return t, t.Expires, err
}

// boundedBuffer keeps at most maxOutputBytes, and calls overflow when there is more. It has no method but Write, since
// io.Copy prefers ReadFrom, which bounds nothing.
type boundedBuffer struct {
	kept     []byte
	isFull   bool
	overflow func()
}

// Write never fails, so that a program that writes too much is killed rather than hangs.
func (b *boundedBuffer) Write(p []byte) (int, error) {
	n := len(p)
	if room := maxOutputBytes - len(b.kept); n > room {
		p = p[:room]
		b.isFull = true
		b.overflow()
	}
	b.kept = append(b.kept, p...)
	return n, nil
}

// printed has the fields of both forms: ExecCredential of Kubernetes, and what a credential_process of AWS prints.
type printed struct {
	Kind   string `json:"kind"`
	Status struct {
		Token               string `json:"token"`
		ExpirationTimestamp string `json:"expirationTimestamp"`
	} `json:"status"`

	Version         int    `json:"Version"`
	AccessKeyID     string `json:"AccessKeyId"`
	SecretAccessKey string `json:"SecretAccessKey"`
	SessionToken    string `json:"SessionToken"`
	Expiration      string `json:"Expiration"`
}

func readToken(output []byte) (Token, error) {
	var p printed
	if err := json.Unmarshal(output, &p); err != nil { // err may quote a part of the token.
		return Token{}, fmt.Errorf("the program printed %d bytes that are not the JSON of an ExecCredential of Kubernetes or of "+
			"a credential_process of AWS", len(output))
	}
	t, expires := Token{Password: p.Status.Token}, p.Status.ExpirationTimestamp
	switch {
	case p.Kind == "ExecCredential" && t.Password == "":
		return Token{}, errors.New("the program printed an ExecCredential without status.token")
	case p.Kind == "ExecCredential":
	case p.Version != 1 || p.SecretAccessKey == "":
		return Token{}, errors.New(`the program printed JSON with neither "kind": "ExecCredential" nor "Version": 1 and ` +
			`"SecretAccessKey"`)
	case p.SessionToken != "":
		return Token{}, errors.New("the program printed keys of AWS, which are no password of Redis: for ElastiCache and " +
			"MemoryDB set …AWS_IAM_AUTH")
	default:
		t, expires = Token{User: p.AccessKeyID, Password: p.SecretAccessKey}, p.Expiration
	}
	if expires == "" {
		return t, nil
	}
	at, err := time.Parse(time.RFC3339, expires)
	if err != nil {
		return Token{}, errors.New("the program printed an expiry that is not a time such as 2006-01-02T15:04:05Z")
	}
	t.Expires = at
	return t, nil
}
