package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/md5"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/blakesmith/ar"
)

// deb returns the package for Debian.
func (c *contents) deb() ([]byte, error) {
	control, controlErr := c.debControl()
	data, dataErr := tarGzip(c.Time, c.withParents())
	if err := errors.Join(controlErr, dataErr); err != nil {
		return nil, err
	}
	var b bytes.Buffer
	w := ar.NewWriter(&b)
	err := w.WriteGlobalHeader()
	for _, member := range []struct {
		name string
		data []byte
	}{{"debian-binary", []byte("2.0\n")}, {"control.tar.gz", control}, {"data.tar.gz", data}} {
		header := &ar.Header{Name: member.name, ModTime: c.Time, Mode: 0o644, Size: int64(len(member.data))}
		err = errors.Join(err, w.WriteHeader(header))
		_, writeErr := w.Write(member.data)
		err = errors.Join(err, writeErr)
	}
	return b.Bytes(), err
}

// debControl returns the archive of what dpkg needs to know.
func (c *contents) debControl() ([]byte, error) {
	var sums, configs strings.Builder
	size := 0
	for _, f := range c.files {
		if f.mode.IsRegular() {
			fmt.Fprintf(&sums, "%x  %s\n", md5.Sum(f.data), f.path[1:])
			size += len(f.data)
		}
		if f.isConfig {
			fmt.Fprintln(&configs, f.path)
		}
	}
	fields := fmt.Sprintf("Package: %s\nVersion: %s\nSection: %s\nPriority: optional\nArchitecture: %s\n"+
		"Maintainer: %s\nInstalled-Size: %d\nHomepage: %s\nDescription: %s\n", c.Name, c.version, c.Section, c.arch, c.Maintainer,
		(size+1023)/1024, c.Homepage, strings.ReplaceAll(c.Description, "\n", "\n "))
	files := []file{
		{path: "/control", mode: 0o644, data: []byte(fields)},
		{path: "/md5sums", mode: 0o644, data: []byte(sums.String())},
		{path: "/conffiles", mode: 0o644, data: []byte(configs.String())},
	}
	for name, text := range map[string]string{
		"/postinst": c.scripts.PostInstall, "/prerm": c.scripts.PreRemove, "/postrm": c.scripts.PostRemove,
	} {
		if text != "" {
			files = append(files, file{path: name, mode: 0o755, data: []byte(text)})
		}
	}
	sortByPath(files)
	return tarGzip(c.Time, files)
}

// withParents returns the files with all directories above them, which dpkg wants in the package.
func (c *contents) withParents() []file {
	all, known := slices.Clone(c.files), make(map[string]bool)
	for _, f := range c.files {
		known[f.path] = true
	}
	for _, f := range c.files {
		for dir := path.Dir(f.path); dir != "/" && !known[dir]; dir = path.Dir(dir) {
			known[dir] = true
			all = append(all, file{path: dir, mode: fs.ModeDir | 0o755})
		}
	}
	sortByPath(all)
	return all
}

// tarGzip returns the files as a compressed archive.
func tarGzip(modified time.Time, files []file) ([]byte, error) {
	var b bytes.Buffer
	compressed, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	w := tar.NewWriter(compressed)
	for _, f := range files {
		header := &tar.Header{
			Name: "." + f.path, Mode: int64(f.mode.Perm()), Size: int64(len(f.data)), Linkname: f.target,
			ModTime: modified, Format: tar.FormatGNU, Uname: "root", Gname: "root", Typeflag: tar.TypeReg,
		}
		switch {
		case f.mode.IsDir():
			header.Name, header.Typeflag = header.Name+"/", tar.TypeDir
		case f.target != "":
			header.Typeflag = tar.TypeSymlink
		}
		if err := w.WriteHeader(header); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.data); err != nil {
			return nil, err
		}
	}
	err = errors.Join(w.Close(), compressed.Close())
	return b.Bytes(), err
}
