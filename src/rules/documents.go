package rules

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	gopath "path"
	"strconv"
	"strings"

	"gopkg.in/yaml.v3"
)

// checkDocuments compiles the documents behind the first of YAML files, which Load never puts
// in force, and returns what is wrong or odd in them.
func checkDocuments(files []File, opt Options) (problems, warnings Problems) {
	var configs []DomainConfig
	for _, f := range files {
		if ext := strings.ToLower(gopath.Ext(f.Name)); ext == ".ini" || ext == ".json" {
			continue
		}
		more, wrong, odd := parseDocuments(f)
		configs = append(configs, more...)
		problems = append(problems, wrong...)
		warnings = append(warnings, odd...)
	}
	_, odd, err := Compile(configs, opt)
	var wrong Problems
	if errors.As(err, &wrong) {
		problems = append(problems, wrong...)
	}
	return problems, append(warnings, odd...)
}

// parseDocuments reads the documents behind the first of a file. A first document that is not
// YAML hides them.
func parseDocuments(f File) (configs []DomainConfig, problems, warnings Problems) {
	if !bytes.Contains(f.Data, []byte("\n---")) {
		return nil, nil, nil
	}
	documents, err := decodeAll(f.Data)
	for i, doc := range documents {
		if i == 0 || len(doc.Content) == 0 || kindOf(doc.Content[0]) == isNull {
			continue
		}
		r := newYAMLReader(f.Name, len(f.Data))
		if cfg := r.config(doc.Content[0]); cfg != nil {
			configs = append(configs, *cfg)
		}
		problems = append(problems, r.problems...)
		warnings = append(warnings, r.warnings...)
	}
	if err != nil && len(documents) > 0 {
		at, what := Pos{File: f.Name}, err.Error()
		if m := yamlLine.FindStringSubmatch(what); m != nil {
			at.Line, _ = strconv.Atoi(m[1]) // no line: 0, unknown
			what = m[2]
		}
		problems.add(at, mendSyntax(what), "not YAML: %s", what)
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
