package main

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"ratelimit/src/tools/bench"
)

// leastPayload is the least size of the payload of a frame.
var leastPayload = map[http2.FrameType]int{http2.FrameGoAway: 8, http2.FrameRSTStream: 4, http2.FrameWindowUpdate: 4}

// handle handles a frame. An error ends the session.
func (c *leanConn) handle(h http2.FrameHeader, payload []byte, now time.Time) error {
	size := len(payload)
	if h.Type == http2.FrameData || h.Type == http2.FrameHeaders {
		payload = unpad(payload, h)
	}
	if payload == nil || size < leastPayload[h.Type] {
		return fmt.Errorf("the server sent a %v frame whose %d bytes are too few", h.Type, size)
	}
	s := c.calls[h.StreamID]
	switch h.Type {
	case http2.FrameData:
		c.handleData(h, payload, size, now)
	case http2.FrameHeaders, http2.FrameContinuation:
		if h.Type == http2.FrameHeaders {
			c.headerBlock, c.headerEnds = c.headerBlock[:0], h.Flags.Has(http2.FlagHeadersEndStream)
		}
		if c.headerBlock = append(c.headerBlock, payload...); len(c.headerBlock) > maxHeaderBlock {
			return fmt.Errorf("the server sent a header block of more than %d bytes", maxHeaderBlock)
		}
		if h.Flags.Has(http2.FlagHeadersEndHeaders) {
			return c.handleBlock(s, now)
		}
	case http2.FrameSettings:
		if !h.Flags.Has(http2.FlagSettingsAck) {
			c.applySettings(payload)
		}
	case http2.FramePing:
		if !h.Flags.Has(http2.FlagPingAck) {
			c.frame(size, http2.FramePing, http2.FlagPingAck, 0)
			c.out = append(c.out, payload...)
		}
	case http2.FrameGoAway:
		c.goingAway = true
		last, code := binary.BigEndian.Uint32(payload)&maxStreamID, http2.ErrCode(binary.BigEndian.Uint32(payload[4:]))
		for id, s := range c.calls {
			if id > last {
				c.end(s, 0, status.Errorf(codes.Unavailable, "%v: %v %s", errGoAway, code, payload[8:]), now)
			}
		}
	case http2.FrameRSTStream:
		switch code := http2.ErrCode(binary.BigEndian.Uint32(payload)); {
		case s == nil:
		case code == http2.ErrCodeCancel && !now.Before(s.expires): // The server was first to see that the time is up.
			c.end(s, 0, c.timeUp(), now)
		default:
			c.end(s, 0, status.Errorf(resetCode(code), "the server reset the stream: %v", code), now)
		}
	case http2.FrameWindowUpdate:
		if s != nil {
			s.window += int(binary.BigEndian.Uint32(payload))
		} else if h.StreamID == 0 {
			c.window += int(binary.BigEndian.Uint32(payload))
		}
		c.unblock()
	}
	return nil
}

// resetCode returns gRPC's code for a reset stream.
func resetCode(code http2.ErrCode) codes.Code {
	switch code {
	case http2.ErrCodeRefusedStream:
		return codes.Unavailable
	case http2.ErrCodeCancel:
		return codes.Canceled
	case http2.ErrCodeEnhanceYourCalm:
		return codes.ResourceExhausted
	}
	return codes.Internal
}

// unpad removes the padding and the priority of a frame. It returns nil if the frame is too short.
func unpad(payload []byte, h http2.FrameHeader) []byte {
	var before, after int
	if h.Flags.Has(http2.FlagDataPadded) && len(payload) > 0 {
		before, after = 1, int(payload[0])
	}
	if h.Type == http2.FrameHeaders && h.Flags.Has(http2.FlagHeadersPriority) {
		before += 5
	}
	if before+after > len(payload) || h.Flags.Has(http2.FlagDataPadded) && before == 0 {
		return nil
	}
	return payload[before : len(payload)-after]
}

func (c *leanConn) applySettings(payload []byte) {
	for ; len(payload) >= 6; payload = payload[6:] {
		value := binary.BigEndian.Uint32(payload[2:])
		switch http2.SettingID(binary.BigEndian.Uint16(payload)) {
		case http2.SettingHeaderTableSize:
			c.encoder.SetMaxDynamicTableSizeLimit(value)
			c.repeats = false
		case http2.SettingMaxConcurrentStreams:
			c.maxStreams = int64(value)
			c.room.Signal()
		case http2.SettingInitialWindowSize:
			for _, s := range c.calls {
				s.window += int(value) - c.initialWindow
			}
			c.initialWindow = int(value)
			c.unblock()
		}
	}
	c.frame(0, http2.FrameSettings, http2.FlagSettingsAck, 0)
	c.settled = true
}

// unblock sends what flow control allows now.
func (c *leanConn) unblock() { c.blocked = slices.DeleteFunc(c.blocked, c.send) }

// handleData handles DATA that took size bytes of the window.
func (c *leanConn) handleData(h http2.FrameHeader, payload []byte, size int, now time.Time) {
	if c.unreturned += size; c.unreturned >= flowWindow/2 {
		c.frame(4, http2.FrameWindowUpdate, 0, 0)
		c.out = binary.BigEndian.AppendUint32(c.out, uint32(c.unreturned))
		c.unreturned = 0
	}
	s := c.calls[h.StreamID]
	if s == nil {
		return
	}
	s.answer = append(s.answer, payload...)
	switch {
	case h.Flags.Has(http2.FlagDataEndStream):
		c.end(s, 0, status.Error(codes.Internal, "the server ended the stream without trailers"), now)
	case len(s.answer) >= flowWindow/2: // So a stream needs no WINDOW_UPDATE.
		c.reset(s, status.Errorf(codes.ResourceExhausted, "the answer has more than %d bytes", flowWindow/2), now)
	}
}

// handleBlock handles a complete header block: the header or the trailer of the response to s. If s is nil, the call
// has ended.
func (c *leanConn) handleBlock(s *leanCall, now time.Time) error {
	c.fields = leanFields{}
	_, err := c.decoder.Write(c.headerBlock) // Blocks of unknown streams change the dynamic table, too.
	if err = errors.Join(err, c.decoder.Close()); err != nil {
		return err
	}
	switch {
	case s == nil:
	case c.headerEnds && len(s.unsent) > 0: // The server did not read the request.
		c.reset(s, cmp.Or(c.fields.err(),
			status.Error(codes.Internal, "the server answered before it read the request")), now)
	case c.headerEnds:
		answer, err := parseAnswer(s.answer)
		if failed := c.fields.err(); failed != nil {
			err = failed
		}
		c.end(s, answer, err, now)
	case c.fields.httpStatus != "200" && !strings.HasPrefix(c.fields.httpStatus, "1"):
		c.reset(s, c.fields.err(), now)
	}
	return nil
}

// err returns the error of a response that ends with these fields, or nil.
func (f leanFields) err() error {
	code, err := strconv.ParseUint(f.grpcStatus, 10, 32)
	switch {
	case err != nil:
		return status.Errorf(codes.Unknown, "the response has no grpc-status, and HTTP status %q", f.httpStatus)
	case code == uint64(codes.OK):
		return nil
	}
	message, err := url.PathUnescape(f.grpcMessage)
	if err != nil {
		message = f.grpcMessage
	}
	return status.Error(codes.Code(code), message)
}

// parseAnswer returns the overall code in the DATA of a response.
func parseAnswer(data []byte) (pb.RateLimitResponse_Code, error) {
	if len(data) < messagePrefix || data[0] != 0 ||
		uint64(binary.BigEndian.Uint32(data[1:])) != uint64(len(data)-messagePrefix) {
		return 0, status.Errorf(codes.Internal, "the %d bytes of the response are not one uncompressed message", len(data))
	}
	answer, err := bench.OverallCode(data[messagePrefix:])
	if err != nil {
		return 0, status.Error(codes.Internal, err.Error())
	}
	return answer, nil
}
