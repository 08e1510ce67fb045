package metrics

// Source adds figures with compatible names only.
func (r *Registry) Source(read func(add func(Stat))) {
	r.Add(func() (list []Figure) {
		read(func(s Stat) { list = append(list, Figure{Stat: s.Name, Kind: s.Kind, Value: s.Value}) })
		return list
	})
}

// GoRuntime is RuntimeFigures.
func GoRuntime(add func(Stat)) {
	for _, f := range RuntimeFigures() {
		add(Stat{f.Stat, f.Kind, f.Value})
	}
}
