// Package editor edits rule files as an editor does: with yaml-language-server, which gets the JSON Schema by the first
// line of the file. It checks that a mistake is marked at its place, and that keys and values are completed, with their
// descriptions.
//
// make editor-check runs it. It needs node and npm, and installs the server into the user's cache.
package editor
