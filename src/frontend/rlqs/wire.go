package rlqs

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"ratelimit/src/frontend/rls"
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

// reportReader reads the usages of the RateLimitQuotaUsageReports that fields has. Its texts point into the message.
type reportReader struct {
	fields rls.Fields
	domain []byte // the last one that was read.

	bucketID        []byte
	allowed, denied uint64
	err             error // set if next returned false because the message is malformed.
}

// domainField returns the domain of a RateLimitQuotaUsageReports. If the message is malformed, it returns what stands
// before the mistake.
func domainField(message []byte) (domain []byte) {
	for f := (rls.Fields{Message: message}); f.Next(); {
		if f.Tag == 1<<3|rls.BytesType {
			domain = f.Bytes
		}
	}
	return domain
}

// next reads the next usage. It returns false at the end of the message and after an error.
func (r *reportReader) next() bool {
	for r.err == nil && r.fields.Next() {
		switch r.fields.Tag {
		case 1<<3 | rls.BytesType:
			r.domain = r.fields.Bytes
		case 2<<3 | rls.BytesType:
			r.readUsage(r.fields.Bytes)
			return r.err == nil
		}
	}
	if r.fields.Err != nil {
		r.err = errMalformed
	}
	return false
}

// readUsage reads a BucketQuotaUsage. It sets r.err if that is wrong.
func (r *reportReader) readUsage(message []byte) {
	r.bucketID, r.allowed, r.denied = nil, 0, 0
	f := rls.Fields{Message: message}
	for f.Next() {
		switch f.Tag {
		case 1<<3 | rls.BytesType:
			r.bucketID = f.Bytes
		case 3<<3 | rls.VarintType:
			r.allowed = f.Number
		case 4<<3 | rls.VarintType:
			r.denied = f.Number
		}
	}
	switch {
	case f.Err != nil:
		r.err = errMalformed
	case len(r.bucketID) > maxBucketIDBytes:
		r.err = fmt.Errorf("a bucket_id has %d bytes, at most %d are allowed", len(r.bucketID), maxBucketIDBytes)
	}
}

// entries returns the entries of the BucketId, sorted by key. Of several entries with one key the last one counts.
func (r *reportReader) entries() ([]rules.Entry, error) {
	var list []rules.Entry
	id := rls.Fields{Message: r.bucketID}
	for id.Next() {
		if id.Tag != 1<<3|rls.BytesType {
			continue
		}
		var e rules.Entry
		f := rls.Fields{Message: id.Bytes}
		for f.Next() {
			switch f.Tag {
			case 1<<3 | rls.BytesType:
				e.Key = f.Bytes
			case 2<<3 | rls.BytesType:
				e.Value = f.Bytes
			}
		}
		if f.Err != nil {
			return nil, errMalformed
		}
		if i := slices.IndexFunc(list, func(other rules.Entry) bool { return bytes.Equal(other.Key, e.Key) }); i >= 0 {
			list[i] = e
		} else if len(list) <= maxBucketEntries {
			list = append(list, e)
		}
	}
	switch {
	case id.Err != nil:
		return nil, errMalformed
	case len(list) == 0:
		return nil, errEmptyID
	case len(list) > maxBucketEntries:
		return nil, fmt.Errorf("a bucket_id has more than %d entries", maxBucketEntries)
	}
	quota.SortEntries(list)
	return list, nil
}

// bucketActionField is the number of RateLimitQuotaResponse.bucket_action.
const bucketActionField = 1

// refillTime is the fill_interval of token buckets in seconds, ten years: the units of an assignment are all that a
// proxy gets.
const refillTime = 10 * 365 * 24 * 3600

// appendActions appends what carries out a to the elements of RateLimitQuotaResponse.bucket_action.
//
// Units are a token bucket that starts full and does not refill. Envoy 1.40 keeps its tokens if the same settings come
// again, so that an extension adds none; the nanoseconds of fill_interval have no effect on the rate, and hold the
// serial number. A bucket with other settings starts as full as the one before it was. So new units follow a DENY_ALL,
// after which the bucket starts full. Envoy applies both before the next request.
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
