package awsiam

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// request is what SigV4 signs here: a GET without a body, of which the host is the only signed header.
type request struct {
	host, region, service string
	query                 map[string]string
	life                  time.Duration // whole seconds
}

const emptyBodySHA256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

// presign returns the URL of r with its signature in the query, without a scheme:
// https://docs.aws.amazon.com/IAM/latest/UserGuide/create-signed-request.html
func (r *request) presign(k keys, now time.Time) string {
	const algorithm = "AWS4-HMAC-SHA256"
	at := now.UTC().Format("20060102T150405Z")
	day := at[:8]
	scope := strings.Join([]string{day, r.region, r.service, "aws4_request"}, "/")
	query := maps.Clone(r.query)
	if query == nil {
		query = make(map[string]string)
	}
	query["X-Amz-Algorithm"] = algorithm
	query["X-Amz-Credential"] = k.id + "/" + scope
	query["X-Amz-Date"] = at
	query["X-Amz-Expires"] = strconv.Itoa(int(r.life / time.Second))
	query["X-Amz-SignedHeaders"] = "host"
	if k.session != "" {
		query["X-Amz-Security-Token"] = k.session
	}
	text := canonicalQuery(query)
	canonical := strings.Join([]string{"GET", "/", text, "host:" + r.host, "", "host", emptyBodySHA256}, "\n")
	hash := sha256.Sum256([]byte(canonical))
	signed := strings.Join([]string{algorithm, at, scope, hex.EncodeToString(hash[:])}, "\n")
	key := []byte("AWS4" + k.secret)
	for _, part := range []string{day, r.region, r.service, "aws4_request", signed} {
		key = hmacSHA256(key, part)
	}
	return r.host + "/?" + text + "&X-Amz-Signature=" + hex.EncodeToString(key)
}

func hmacSHA256(key []byte, text string) []byte {
	h := hmac.New(sha256.New, key)
	_, _ = h.Write([]byte(text)) // It never returns an error.
	return h.Sum(nil)
}

// canonicalQuery returns the query in the order of its encoded names.
func canonicalQuery(query map[string]string) string {
	encoded, pairs := make(map[string]string), make([]string, 0, len(query))
	for name, value := range query {
		encoded[escape(name)] = escape(value)
	}
	for _, name := range slices.Sorted(maps.Keys(encoded)) {
		pairs = append(pairs, name+"="+encoded[name])
	}
	return strings.Join(pairs, "&")
}

// escape percent-encodes all bytes of text but letters, digits and -._~. url.QueryEscape makes a blank a plus.
func escape(text string) string { return strings.ReplaceAll(url.QueryEscape(text), "+", "%20") }
