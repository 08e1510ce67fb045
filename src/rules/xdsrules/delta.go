package xdsrules

import (
	"cmp"
	"maps"
	"slices"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"ratelimit/src/rules"
	"ratelimit/src/rules/reload"
)

// maxDeltaBytes bounds the resources that are kept for delta xDS, with their names, in bytes. Each response has only
// some of them, so the size of a message does not bound them.
const maxDeltaBytes = 256 << 20

// resource is a resource that the server sent over delta xDS. Its part has the Key.
type resource struct {
	version string
	part    reload.Part
}

// resources are what the server has sent over delta xDS. They outlive streams.
//
//	sent      what the server believes this node has; what is compiled
//	accepted  what is in force. It differs from sent while the server's version of a resource is refused.
//
// A new stream starts with the accepted resources and names their versions. So the server sends the refused ones again,
// and what changed in between.
type resources struct {
	sent, accepted map[string]resource // nil until the first stream
	sentBytes      int                 // the size of sent
	wantsAll       bool                // set if the server is to send all resources over the next stream
}

// resume prepares for a new stream. It returns the versions to name in its first request. A version that the server
// does not know, such as "", makes it send the resource, or tell that it is gone.
func (s *resources) resume() map[string]string {
	s.sent, s.sentBytes = maps.Clone(s.accepted), 0
	if s.sent == nil {
		s.sent = make(map[string]resource)
	}
	versions := make(map[string]string, len(s.sent))
	for name, r := range s.sent {
		versions[name] = r.version
		if s.wantsAll {
			versions[name] = ""
		}
		s.sentBytes += r.size()
	}
	s.wantsAll = false
	return versions
}

func (r *resource) size() int { return len(r.part.Key) + len(r.part.Name) + len(r.part.Data) }

// apply changes sent as a response says. If it returns problems, the response is refused and changes nothing.
func (s *resources) apply(r *discovery.DeltaDiscoveryResponse) rules.Problems {
	if typeURL := cmp.Or(r.GetTypeUrl(), TypeURL); typeURL != TypeURL {
		return wrongType("xds response", typeURL)
	}
	var wrong reader
	bytesAfter := s.sentBytes
	for i, res := range r.GetResources() {
		_, known := s.sent[res.GetName()]
		switch {
		case res.GetName() == "":
			wrong.addProblem("xds response", "send a name with each resource", "resource %d has no name", i+1)
		case res.GetResource() == nil && !known:
			wrong.addProblem("xds response", "send it whole", "a heartbeat of the resource %q, which was never sent",
				shortName(res.GetName()))
		}
		bytesAfter += len(res.GetName()) + len(res.GetResource().GetTypeUrl()) + len(res.GetResource().GetValue())
	}
	if bytesAfter > maxDeltaBytes {
		wrong.addProblem("xds response", "send fewer or smaller resources", "all resources together are larger than %d MiB",
			maxDeltaBytes>>20)
	}
	if len(wrong.problems) > 0 {
		return wrong.problems
	}
	for _, res := range r.GetResources() {
		before, known := s.sent[res.GetName()]
		data := res.GetResource().GetValue()
		now := resource{
			res.GetVersion(),
			reload.Part{Name: res.GetResource().GetTypeUrl(), Key: res.GetName(), Data: data, Digest: reload.DigestOf(data)},
		}
		// The bytes that are there keep being shared with the parts in force.
		if res.GetResource() == nil || known && before.hasDataOf(now) {
			now.part = before.part
		}
		s.sentBytes += now.size() - before.size()
		s.sent[res.GetName()] = now
	}
	for _, name := range r.GetRemovedResources() {
		if before, known := s.sent[name]; known {
			s.sentBytes -= before.size()
			delete(s.sent, name)
		}
	}
	return nil
}

// wrongType returns the problem of a resource, or of a response, at a place that is of another type.
func wrongType(place, typeURL string) rules.Problems {
	var wrong reader
	wrong.addProblem(place, "send "+TypeURL, "its type is %q", shortName(typeURL))
	return wrong.problems
}

func (r *resource) hasDataOf(other resource) bool {
	return r.part.Name == other.part.Name && r.part.Digest == other.part.Digest
}

// parts returns the parts of sent, sorted by name.
func (s *resources) parts() []reload.Part {
	list := make([]reload.Part, 0, len(s.sent))
	for _, name := range slices.Sorted(maps.Keys(s.sent)) {
		list = append(list, s.sent[name].part)
	}
	return list
}

// acceptParts records that parts are in force. Each is that of sent, or of an earlier response.
func (s *resources) acceptParts(parts []reload.Part) {
	accepted := make(map[string]resource, len(parts))
	for _, p := range parts {
		r := s.sent[p.Key]
		if !r.hasDataOf(resource{part: p}) {
			r = s.accepted[p.Key]
		}
		accepted[p.Key] = r
	}
	s.accepted = accepted
}

// refusesSome returns whether one of the resources that a response has is not in force as it was sent.
func (s *resources) refusesSome(r *discovery.DeltaDiscoveryResponse) bool {
	return slices.ContainsFunc(r.GetResources(), func(res *discovery.Resource) bool {
		inForce, known := s.accepted[res.GetName()]
		sent, stillSent := s.sent[res.GetName()]
		return stillSent && (!known || !inForce.hasDataOf(sent))
	})
}

// confirmVersions records the versions of resources that were sent again with the contents that are in force.
func (s *resources) confirmVersions() {
	for name, r := range s.sent {
		if inForce, known := s.accepted[name]; known && inForce.version != r.version && inForce.hasDataOf(r) {
			s.accepted[name] = r
		}
	}
}

// waitingDeltas returns first and the responses that can be received without waiting. They are loaded together: a
// server may send each resource in a response of its own.
func waitingDeltas(first serverResponse, more <-chan serverResponse) []*discovery.DeltaDiscoveryResponse {
	list := []*discovery.DeltaDiscoveryResponse{first.(*discovery.DeltaDiscoveryResponse)}
	for {
		select {
		case r, open := <-more:
			if !open {
				return list
			}
			list = append(list, r.(*discovery.DeltaDiscoveryResponse))
		default:
			return list
		}
	}
}

// loadDeltas loads what responses change. It returns the responses in their order.
func (w *Watcher) loadDeltas(batch []*discovery.DeltaDiscoveryResponse) (loaded []loadedResponse, repeats int) {
	s := &w.resources
	loaded = make([]loadedResponse, len(batch))
	for i, r := range batch {
		loaded[i].response = r
		if problems := s.apply(r); len(problems) > 0 {
			loaded[i].refusal = cutText(problems.Error(), maxText)
			w.load(r.GetSystemVersionInfo(), func(out *reload.Result) { out.Err = problems })
		}
	}
	if !slices.ContainsFunc(loaded, func(l loadedResponse) bool { return l.refusal == "" }) {
		w.last.repeatCount++
		return loaded, w.last.repeatCount - 1
	}
	parts := s.parts()
	if hash := reload.HashOfParts(parts); w.last.mustLoad || hash != w.last.loadedHash {
		out := w.load(batch[len(batch)-1].GetSystemVersionInfo(), func(out *reload.Result) { w.loader.Load(parts, nil, out) })
		s.acceptParts(w.loader.PartsInForce())
		w.last = verdict{loadedHash: hash, refusal: refusalText(out)}
	} else {
		s.confirmVersions()
		repeats = 1
	}
	refused := false
	for i, r := range batch {
		if loaded[i].refusal == "" && w.last.refusal != "" && s.refusesSome(r) {
			loaded[i].refusal, refused = w.last.refusal, true
		}
	}
	if !refused {
		return loaded, 0
	}
	w.last.repeatCount += repeats
	return loaded, w.last.repeatCount
}

// refusalText returns what the server is told about the problems of a load; "" if it has none.
func refusalText(out reload.Result) string {
	if out.Err == nil {
		return ""
	}
	text := out.Err.Error()
	if out.Set != nil {
		text = "refused in part, other domains took effect: " + text
	}
	return cutText(text, maxText)
}
