// Command strict checks manifests against Kubernetes' types: strict FILE... It prints each problem, and ends with
// status 1 if there is one. A file may have several documents.
package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"k8s.io/apimachinery/pkg/util/yaml"

	"ratelimit/integration-test/kubernetes"
)

func main() {
	objects, problems := 0, 0
	for _, name := range os.Args[1:] {
		n, errs := checkFile(name)
		objects += n
		problems += len(errs)
		for _, err := range errs {
			fmt.Printf("%s: %v\n", name, err)
		}
	}
	fmt.Printf("%d objects, %d problems\n", objects, problems)
	if problems > 0 {
		os.Exit(1)
	}
}

// checkFile returns the number of objects in the named file, and their problems.
func checkFile(name string) (objects int, problems []error) {
	data, err := os.ReadFile(name)
	if err != nil {
		return 0, []error{err}
	}
	documents := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data)))
	for {
		text, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return objects, problems
		}
		if err != nil {
			return objects, append(problems, err)
		}
		objects++
		if o, err := kubernetes.Check(string(text)); err != nil {
			problems = append(problems, fmt.Errorf("%s %s: %w", o.Kind, o.Metadata.Name, err))
		}
	}
}
