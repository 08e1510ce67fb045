// Crosscheck type-checks the packages of this directory and below, with their tests, for other operating systems. It
// compiles nothing, so that it takes seconds where go vet takes minutes on a new machine.
package main

import (
	"log"
	"os"

	"golang.org/x/tools/go/packages"
)

func main() {
	log.SetFlags(0)
	if len(os.Args) < 2 {
		log.Fatal("usage: crosscheck GOOS...")
	}
	seen := make(map[string]bool) // A file of a package is also one of the package with its tests.
	for _, system := range os.Args[1:] {
		list, err := packages.Load(&packages.Config{
			Mode:  packages.LoadAllSyntax,
			Tests: true,
			Env:   append(os.Environ(), "GOOS="+system, "GOARCH=amd64", "CGO_ENABLED=0"),
		}, "./...")
		if err != nil {
			log.Fatalf("crosscheck: %s: %v", system, err)
		}
		if len(list) == 0 {
			log.Fatalf("crosscheck: %s: no packages", system)
		}
		for _, p := range list {
			for _, e := range p.Errors {
				if text := "GOOS=" + system + ": " + e.Error(); !seen[text] {
					seen[text] = true
					log.Print(text)
				}
			}
		}
	}
	if len(seen) > 0 {
		os.Exit(1)
	}
}
