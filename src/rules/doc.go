// Package rules answers one question: which rule applies to this descriptor?
//
// Rule files are read ([ParseYAML]) into plain configuration values, compiled
// ([Compile]) into an immutable [Set], and asked ([Domain.Find]) with the bytes
// of a request. Everything that is wrong with a set of files is reported at
// once, each [Problem] with its place and how to mend it.
package rules
