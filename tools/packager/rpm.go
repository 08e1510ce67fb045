package main

import (
	"bytes"
	"strings"

	"github.com/google/rpmpack"
)

// Types of files in an rpm, as in the mode of stat(2).
const (
	rpmRegular   = 0o100000
	rpmDirectory = 0o040000
	rpmLink      = 0o120000
)

// rpm returns the package for Red Hat. It owns no directories but its own.
func (c *contents) rpm() ([]byte, error) {
	summary, _, _ := strings.Cut(c.Description, "\n")
	arch := c.arch
	if name, ok := map[string]string{"amd64": "x86_64", "arm64": "aarch64", "386": "i386"}[arch]; ok {
		arch = name
	}
	p, err := rpmpack.NewRPM(rpmpack.RPMMetaData{
		Name: c.Name, Summary: summary, Description: c.Description, Version: c.version, Release: "1", Arch: arch,
		OS: "linux", Vendor: c.Vendor, URL: c.Homepage, Packager: c.Maintainer, Licence: c.License,
		Epoch: rpmpack.NoEpoch, BuildTime: c.Time,
	})
	if err != nil {
		return nil, err
	}
	for _, f := range c.files {
		entry := rpmpack.RPMFile{
			Name: f.path, Body: f.data, Mode: uint(f.mode.Perm()), Owner: "root", Group: "root",
			MTime: uint32(c.Time.Unix()),
		}
		switch {
		case f.mode.IsDir():
			entry.Mode |= rpmDirectory
		case f.target != "":
			entry.Mode |= rpmLink
			entry.Body = []byte(f.target)
		default:
			entry.Mode |= rpmRegular
		}
		if f.isConfig {
			entry.Type = rpmpack.ConfigFile | rpmpack.NoReplaceFile
		}
		p.AddFile(entry)
	}
	p.AddPostin(c.scripts.PostInstall)
	p.AddPreun(c.scripts.PreRemove)
	p.AddPostun(c.scripts.PostRemove)
	var b bytes.Buffer
	err = p.Write(&b)
	return b.Bytes(), err
}
