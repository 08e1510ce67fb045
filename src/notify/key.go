package notify

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
)

// Key signs messages as the specification "Standard Webhooks" says.
type Key []byte

// keyPrefix may stand before a key.
const keyPrefix = "whsec_"

// minKeyBytes is the length of the shortest Key.
const minKeyBytes = 16

// ParseKeys returns the keys in text: in base64, with or without `whsec_`, with commas between them. An error does not
// have the text.
func ParseKeys(text string) (keys []Key, err error) {
	const fix = "write what `openssl rand -base64 32` prints"
	for part := range strings.SplitSeq(text, ",") {
		if part = strings.TrimSpace(part); part == "" {
			continue
		}
		key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(part, keyPrefix))
		if err != nil {
			return nil, errors.New("it is not base64: " + fix)
		}
		if len(key) < minKeyBytes {
			return nil, fmt.Errorf("a key has %d bytes, and %d are the least: "+fix, len(key), minKeyBytes)
		}
		keys = append(keys, key)
	}
	return keys, nil
}

// signature returns the header webhook-signature: a signature by each key, so that a receiver may know either key
// while it is replaced.
func signature(keys []Key, id, timestamp string, body []byte) string {
	var list []string
	for _, k := range keys {
		mac := hmac.New(sha256.New, k)
		_, _ = fmt.Fprintf(mac, "%s.%s.%s", id, timestamp, body) // A hash never fails.
		list = append(list, "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
	}
	return strings.Join(list, " ")
}
