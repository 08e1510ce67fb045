package reload

import (
	"sync"

	"ratelimit/src/rules"
)

// Sources joins the rules of several sources into one Set. A domain belongs to the source that puts it in force first,
// until that source removes it. Other sources that send it are refused, as far as it is concerned:
//
//	files     web, api        in force: web, api
//	xds       api, jobs       in force: jobs; refused: api, which files has
//	files     web             in force: web; xds is loaded again
//	xds       api, jobs       in force: api, jobs
type Sources struct {
	mu     sync.Mutex // held during each load, and guards all fields
	all    []*Source
	joiner rules.Joiner
}

// Source is one source of rules among several.
type Source struct {
	// Name is the name of the source in messages.
	Name string
	// Reload makes the source load its rules again. It is called when another source has removed a domain that this source
	// was refused, and must not block. Required before the first load.
	Reload func()

	sources *Sources
	set     *rules.Set // the rules of the source in force; nil before the first load
	// domains that the source was refused because another source has them. It may no longer want them
	refused map[string]bool
}

// Add adds a source. All sources are added before the first load.
func (s *Sources) Add(name string) *Source {
	source := &Source{Name: name, sources: s, refused: make(map[string]bool)}
	s.all = append(s.all, source)
	return source
}

// ownerOf returns the name of the other source that has a domain, or "".
func (s *Source) ownerOf(domain string) string {
	for _, other := range s.sources.all {
		if other != s && other.hasDomain(domain) {
			s.refused[domain] = true
			return other.Name
		}
	}
	return ""
}

func (s *Source) hasDomain(domain string) bool {
	return s.set != nil && s.set.Domain([]byte(domain)) != nil
}

// join replaces the rules of the source by set and returns the rules of all sources.
func (s *Source) join(set *rules.Set) *rules.Set {
	before := s.set
	s.set = set
	var sets []*rules.Set
	for _, source := range s.sources.all {
		if source.set != nil {
			sets = append(sets, source.set)
		}
	}
	for _, other := range s.sources.all {
		for domain := range other.refused {
			if other != s && before != nil && before.Domain([]byte(domain)) != nil && !s.hasDomain(domain) {
				clear(other.refused)
				other.Reload()
				break
			}
		}
	}
	return s.sources.joiner.Join(sets)
}
