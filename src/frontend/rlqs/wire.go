package rlqs

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"ratelimit/src/quota"
	"ratelimit/src/rules"
)

// These bound what one BucketId may hold.
const (
	maxBucketIDBytes = 4 << 10
	maxBucketEntries = 64
)

var (
	errMalformed = errors.New("not a RateLimitQuotaUsageReports: malformed protobuf")
	errEmptyID   = errors.New("a usage has no bucket_id, or an empty one")
)

// reportReader reads the usages of a RateLimitQuotaUsageReports. Its texts point into the message.
type reportReader struct {
	unread []byte
	domain []byte // domain is the last one that was read.

	bucketID        []byte
	allowed, denied uint64
	err             error // err is set if next returned false because the message is malformed.
}

// domainField returns the domain of a RateLimitQuotaUsageReports, or nothing if it has none or is malformed.
func domainField(message []byte) (domain []byte) {
	_ = eachField(message, func(number protowire.Number, _ uint64, text []byte) {
		if number == 1 && text != nil {
			domain = text
		}
	})
	return domain
}

// next reads the next usage. It returns false at the end of the message and after an error.
func (r *reportReader) next() bool {
	for len(r.unread) > 0 && r.err == nil {
		number, _, text, n := consumeField(r.unread)
		if n < 0 {
			r.err = errMalformed
			return false
		}
		r.unread = r.unread[n:]
		switch {
		case text == nil: // A number, which no field of the message is.
		case number == 1:
			r.domain = text
		case number == 2:
			r.bucketID, r.allowed, r.denied = nil, 0, 0
			r.err = eachField(text, func(number protowire.Number, value uint64, text []byte) {
				switch {
				case number == 1 && text != nil:
					r.bucketID = text
				case number == 3 && text == nil:
					r.allowed = value
				case number == 4 && text == nil:
					r.denied = value
				}
			})
			switch {
			case r.err != nil:
				return false
			case len(r.bucketID) > maxBucketIDBytes:
				r.err = fmt.Errorf("a bucket_id has %d bytes, at most %d are allowed", len(r.bucketID), maxBucketIDBytes)
				return false
			}
			return true
		}
	}
	return false
}

// entries returns the entries of the BucketId, sorted by key. Of several entries with one key the last one counts.
func (r *reportReader) entries() ([]rules.Entry, error) {
	var list []rules.Entry
	err := eachField(r.bucketID, func(number protowire.Number, _ uint64, text []byte) {
		if number != 1 || text == nil {
			return
		}
		var e rules.Entry
		if err := eachField(text, func(number protowire.Number, _ uint64, text []byte) {
			switch {
			case text == nil:
			case number == 1:
				e.Key = text
			case number == 2:
				e.Value = text
			}
		}); err != nil {
			r.err = err
		}
		if i := slices.IndexFunc(list, func(other rules.Entry) bool { return bytes.Equal(other.Key, e.Key) }); i >= 0 {
			list[i] = e
		} else if len(list) <= maxBucketEntries {
			list = append(list, e)
		}
	})
	switch {
	case err != nil:
		return nil, err
	case r.err != nil:
		return nil, r.err
	case len(list) == 0:
		return nil, errEmptyID
	case len(list) > maxBucketEntries:
		return nil, fmt.Errorf("a bucket_id has more than %d entries", maxBucketEntries)
	}
	slices.SortFunc(list, func(a, b rules.Entry) int { return bytes.Compare(a.Key, b.Key) })
	return list, nil
}

// eachField calls do for each field of a message: with the value of a number, or the bytes of a text or
// message, which are nil for a number.
func eachField(message []byte, do func(number protowire.Number, value uint64, text []byte)) error {
	for len(message) > 0 {
		number, value, text, n := consumeField(message)
		if n < 0 {
			return errMalformed
		}
		message = message[n:]
		do(number, value, text)
	}
	return nil
}

// consumeField reads a field. n is its length, or negative if it is malformed. Fields of fixed length have the number 0.
func consumeField(message []byte) (number protowire.Number, value uint64, text []byte, n int) {
	number, kind, tagLen := protowire.ConsumeTag(message)
	if tagLen < 0 {
		return 0, 0, nil, tagLen
	}
	switch rest := message[tagLen:]; kind {
	case protowire.VarintType:
		value, n = protowire.ConsumeVarint(rest)
	case protowire.BytesType:
		text, n = protowire.ConsumeBytes(rest)
	default:
		number, n = 0, protowire.ConsumeFieldValue(number, kind, rest)
	}
	if n < 0 {
		return 0, 0, nil, n
	}
	return number, value, text, tagLen + n
}

// bucketActionField is the number of RateLimitQuotaResponse.bucket_action.
const bucketActionField = 1

// refillTime is the fill_interval of token buckets in seconds, ten years: the units of an assignment are all that a proxy gets.
const refillTime = 10 * 365 * 24 * 3600

// appendActions appends what carries out a to the elements of RateLimitQuotaResponse.bucket_action.
//
// Units are a token bucket that starts full and does not refill. Envoy 1.40 keeps its tokens if the same settings come again, so that an
// extension adds none; the nanoseconds of fill_interval have no effect on the rate, and hold the serial number. A bucket with other
// settings starts as full as the one before it was. So new units follow a DENY_ALL, after which the bucket starts full. Envoy applies
// both before the next request.
func appendActions(dst []byte, a *quota.Assignment) []byte {
	if a.Action == quota.AssignUnits && !a.IsExtension {
		dst = appendAction(dst, &quota.Assignment{Bucket: a.Bucket, Action: quota.DenyAll, TTL: a.TTL})
	}
	return appendAction(dst, a)
}

// appendAction appends a as an element of RateLimitQuotaResponse.bucket_action.
func appendAction(dst []byte, a *quota.Assignment) []byte {
	return appendMessage(dst, bucketActionField, func(dst []byte) []byte {
		dst = protowire.AppendBytes(protowire.AppendTag(dst, 1, protowire.BytesType), a.Bucket)
		if a.Action == quota.Abandon {
			return appendMessage(dst, 3, func(dst []byte) []byte { return dst })
		}
		return appendMessage(dst, 2, func(dst []byte) []byte {
			dst = appendMessage(dst, 2, func(dst []byte) []byte { return appendNumber(dst, 1, uint64(a.TTL/time.Second)) })
			return appendMessage(dst, 3, func(dst []byte) []byte { return appendStrategy(dst, a) })
		})
	})
}

// appendStrategy appends the fields of a RateLimitStrategy.
func appendStrategy(dst []byte, a *quota.Assignment) []byte {
	const allowAll, denyAll = 0, 1
	switch a.Action {
	case quota.AllowAll:
		return appendNumber(dst, 1, allowAll)
	case quota.DenyAll:
		return appendNumber(dst, 1, denyAll)
	}
	return appendMessage(dst, 3, func(dst []byte) []byte {
		dst = appendNumber(dst, 1, uint64(a.Units))
		dst = appendMessage(dst, 2, func(dst []byte) []byte { return appendNumber(dst, 1, 1) })
		return appendMessage(dst, 3, func(dst []byte) []byte {
			return appendNumber(appendNumber(dst, 1, refillTime), 2, uint64(a.Serial)%1_000_000_000)
		})
	})
}

func appendNumber(dst []byte, field protowire.Number, value uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(dst, field, protowire.VarintType), value)
}

// appendMessage appends a field that is a message, whose fields add appends. The message is shorter than 2 MiB.
func appendMessage(dst []byte, field protowire.Number, add func([]byte) []byte) []byte {
	dst = protowire.AppendTag(dst, field, protowire.BytesType)
	start := len(dst)
	dst = add(dst)
	n := len(dst) - start
	size := protowire.SizeVarint(uint64(n))
	dst = append(dst, make([]byte, size)...)
	copy(dst[start+size:], dst[start:start+n])
	protowire.AppendVarint(dst[start:start], uint64(n))
	return dst
}
