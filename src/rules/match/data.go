package match

import (
	"ratelimit/src/rules"
	"ratelimit/src/rules/datafile"
)

// DataNode is a descriptor with values_from or limits_from.
type DataNode struct {
	Kind rules.LevelKind
	File *datafile.File
	Node *Node
	// NodesByLimit has a node for each of the Limits of the file's Table. They differ from node in the rule only. It is
	// nil for values_from.
	NodesByLimit []*Node
}

// dataList has the descriptors of one key on one level that have values_from or limits_from, in file order.
type dataList []DataNode

// find returns the first descriptor whose file has a value, or nil.
func (l dataList) find(value []byte) *Node {
	for i := range l {
		if n := l[i].find(value); n != nil {
			return n
		}
	}
	return nil
}

func (d *DataNode) find(value []byte) *Node {
	limit, found := d.File.Table.Find(value)
	switch {
	case !found:
		return nil
	case d.NodesByLimit != nil:
		return d.NodesByLimit[limit]
	}
	return d.Node
}

// explain adds the descriptors that find tries to s, and those that match but come later.
func (l dataList) explain(value []byte, s *Step) {
	for i := range l {
		at, how := l[i].Node.Place(), MatchValuesFrom
		if l[i].Kind == rules.LevelLimitsFrom {
			how = MatchLimitsFrom
		}
		if n := l[i].find(value); n != nil {
			line := rules.Pos{File: l[i].File.Path, Line: l[i].File.Table.Line(value)}
			s.addCandidateAt(at, n, how, true, "")
			s.Candidates[len(s.Candidates)-1].DataLine = line.String()
		} else {
			s.addCandidateAt(at, l[i].Node, how, false, WhyNotInFile)
		}
	}
}
