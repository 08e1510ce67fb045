package yamlrules

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"

	"gopkg.in/yaml.v3"

	"ratelimit/src/rules"
)

// parseDocuments reads the documents behind the first of a file. A first document that is not
// YAML hides them.
func ParseMore(name string, data []byte) (configs []rules.DomainConfig, problems, warnings rules.Problems) {
	if !bytes.Contains(data, []byte("\n---")) {
		return nil, nil, nil
	}
	documents, err := decodeAll(data)
	for i, doc := range documents {
		if i == 0 || len(doc.Content) == 0 || kindOf(doc.Content[0]) == IsNull {
			continue
		}
		r := newYAMLReader(name, len(data))
		if cfg := r.config(doc.Content[0]); cfg != nil {
			configs = append(configs, *cfg)
		}
		problems = append(problems, r.problems...)
		warnings = append(warnings, r.warnings...)
	}
	if err != nil && len(documents) > 0 {
		at, what := rules.Pos{File: name}, err.Error()
		if m := yamlLine.FindStringSubmatch(what); m != nil {
			at.Line, _ = strconv.Atoi(m[1]) // no line: 0, unknown
			what = m[2]
		}
		problems.Add(at, mendSyntax(what), "not YAML: %s", what)
	}
	return configs, problems, warnings
}

// decodeAll parses all documents of data, up to the first that is not YAML.
func decodeAll(data []byte) (documents []*yaml.Node, err error) {
	defer func() { // as in decode
		if p := recover(); p != nil {
			err = fmt.Errorf("the parser failed: %v", p)
		}
	}()
	dec := yaml.NewDecoder(bytes.NewReader(data))
	for {
		doc := new(yaml.Node)
		if err := dec.Decode(doc); errors.Is(err, io.EOF) {
			return documents, nil
		} else if err != nil {
			return documents, err
		}
		documents = append(documents, doc)
	}
}
