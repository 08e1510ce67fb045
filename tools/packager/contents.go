package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"text/template"
	"time"

	"go.yaml.in/yaml/v3"
)

// settings are those of the keys of goreleaser's section nfpms that this project uses. Another key is an error.
type settings struct {
	Name        string    `yaml:"package_name"`
	Formats     []string  `yaml:"formats"`
	Vendor      string    `yaml:"vendor"`
	Maintainer  string    `yaml:"maintainer"`
	Homepage    string    `yaml:"homepage"`
	License     string    `yaml:"license"`
	Section     string    `yaml:"section"`
	Description string    `yaml:"description"` // the first line is the summary.
	BinDir      string    `yaml:"bindir"`
	Time        time.Time `yaml:"mtime"`
	Contents    []item    `yaml:"contents"`
	Overrides   map[string]struct {
		Scripts scripts `yaml:"scripts"`
	} `yaml:"overrides"` // by format.
}

// item is a file of the package, or several.
type item struct {
	Source      string `yaml:"src"` // a pattern of files, or the target of a link.
	Destination string `yaml:"dst"` // ends with "/" if it is the directory for several files.
	Type        string `yaml:"type"`
	FileInfo    struct {
		Mode fs.FileMode `yaml:"mode"`
	} `yaml:"file_info"`
	Packager string `yaml:"packager"` // the only format that has the item; empty: all.
}

// scripts are paths of scripts, and later their texts.
type scripts struct {
	PostInstall string `yaml:"postinstall"`
	PreRemove   string `yaml:"preremove"`
	PostRemove  string `yaml:"postremove"`
}

// contents is all that a package says and has.
type contents struct {
	settings
	version string // with "~" before the part that precedes a release.
	arch    string // as in GOARCH.
	files   []file // sorted by path.
	scripts scripts
}

// file is one file, directory or link of a package. All belong to root.
type file struct {
	path     string // absolute.
	mode     fs.FileMode
	data     []byte
	target   string // of a link.
	isConfig bool   // An upgrade leaves what the operator has changed.
}

// contents reads what the text of .goreleaser.yaml says of the package.
func (r request) contents(text []byte) (*contents, error) {
	var release struct {
		NFPMs []yaml.Node `yaml:"nfpms"`
	}
	if err := yaml.Unmarshal(text, &release); err != nil {
		return nil, err
	}
	if len(release.NFPMs) != 1 {
		return nil, fmt.Errorf("nfpms has %d items, want 1", len(release.NFPMs))
	}
	section, err := yaml.Marshal(&release.NFPMs[0])
	if err != nil {
		return nil, err
	}
	if section, err = r.expand(section); err != nil {
		return nil, err
	}
	c := &contents{arch: r.arch, version: strings.Replace(packageVersion(r.version, r.time), "-", "~", 1)}
	decoder := yaml.NewDecoder(bytes.NewReader(section))
	decoder.KnownFields(true)
	if err := decoder.Decode(&c.settings); err != nil {
		return nil, err
	}
	binary := item{Source: r.binary, Destination: path.Join(c.BinDir, c.Name)}
	binary.FileInfo.Mode = 0o755
	for _, i := range append(c.Contents, binary) {
		if i.Packager == "" || i.Packager == r.format {
			files, err := i.files()
			if err != nil {
				return nil, err
			}
			c.files = append(c.files, files...)
		}
	}
	sortByPath(c.files)
	c.scripts, err = c.Overrides[r.format].Scripts.read()
	return c, err
}

func sortByPath(files []file) {
	slices.SortFunc(files, func(a, b file) int { return cmp.Compare(a.path, b.path) })
}

// files returns the files of the item.
func (i item) files() ([]file, error) {
	one := file{path: path.Clean(i.Destination), mode: i.FileInfo.Mode}
	switch i.Type {
	case "dir":
		one.mode |= fs.ModeDir
		return []file{one}, nil
	case "symlink":
		one.mode, one.target = fs.ModeSymlink, i.Source
		return []file{one}, nil
	case "config|noreplace":
		one.isConfig = true
	case "":
	default:
		return nil, fmt.Errorf("%s: the type %q is not known", i.Destination, i.Type)
	}
	matches, err := filepath.Glob(i.Source)
	if err == nil && len(matches) == 0 {
		err = errors.New("no such file")
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", i.Source, err)
	}
	var files []file
	for _, source := range matches {
		f := one
		if strings.HasSuffix(i.Destination, "/") {
			f.path = path.Join(i.Destination, filepath.Base(source))
		} else if len(matches) > 1 {
			return nil, fmt.Errorf("%s: %d files for %s, whose name does not end with /", i.Source, len(matches),
				i.Destination)
		}
		if f.data, err = os.ReadFile(source); err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	return files, nil
}

// read returns the texts of the scripts.
func (s scripts) read() (texts scripts, err error) {
	for text, file := range map[*string]string{
		&texts.PostInstall: s.PostInstall, &texts.PreRemove: s.PreRemove, &texts.PostRemove: s.PostRemove,
	} {
		if file != "" {
			data, readErr := os.ReadFile(file)
			*text, err = string(data), errors.Join(err, readErr)
		}
	}
	return texts, err
}

// expand replaces goreleaser's templates.
func (r request) expand(text []byte) ([]byte, error) {
	envOrDefault := func(name, fallback string) string {
		if value, ok := os.LookupEnv(name); ok {
			return value
		}
		return fallback
	}
	functions := template.FuncMap{"envOrDefault": envOrDefault}
	t, err := template.New("nfpms").Option("missingkey=error").Funcs(functions).Parse(string(text))
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	err = t.Execute(&b, map[string]string{"CommitDate": r.time.Format(time.RFC3339)})
	return b.Bytes(), err
}
