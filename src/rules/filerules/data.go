package filerules

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"ratelimit/src/rules/compile"
	"ratelimit/src/rules/datafile"
	"ratelimit/src/rules/reload"
	"ratelimit/src/rules/yamlrules"
)

// dataLimits bound the data files that rule files refer to.
type dataLimits struct {
	maxFileBytes  int64
	maxTotalBytes int64 // the most bytes that all data files may have together
	maxFiles      int
}

// readBlockBytes is the number of bytes of a data file that are read and hashed at a time.
const readBlockBytes = 64 << 10

// maxGentleBytes is how many bytes of data files are read with the Pacer of the scan. The others are read fast, because
// of ReadTimeout.
const maxGentleBytes = 32 << 20

var defaultDataLimits = dataLimits{maxFileBytes: 256 << 20, maxTotalBytes: 1 << 30, maxFiles: 1000}

// dataCache has what one scan found out about data files, so that the next one need not parse unchanged files again.
type dataCache struct {
	references map[datafile.Sum][]datafile.Reference // the data files that each rule file refers to, by its hash
	parsed     map[parsedKey]parsedData
}

// parsedKey tells apart what data files have: the same bytes have other values in a file of limits, and in a compressed
// one.
type parsedKey struct {
	sum          datafile.Sum
	kind         datafile.Kind
	isCompressed bool
}

type parsedData struct {
	table    *datafile.Table
	problems []datafile.Problem
}

// dataScan reads the data files that the rule files of a scan refer to.
type dataScan struct {
	*dirScan
	shownBase  string                              // the directory of the rules in messages
	byPath     map[datafile.Reference]*scannedData // by the path in messages: each file once, and one of two kinds twice
	inOrder    []*scannedData                      // the files of byPath
	usedNames  map[string]bool                     // the last elements of all paths
	references map[datafile.Sum][]datafile.Reference
	totalBytes int64          // the size of all data files so far
	fastPacer  datafile.Pacer // replaces dirScan.pacer after maxGentleBytes.
}

// scannedData is a data file that was found.
type scannedData struct {
	datafile.File
	kind    datafile.Kind
	content []byte // nil if the cache has what is in the file
}

func (d *scannedData) key(sum datafile.Sum) parsedKey {
	return parsedKey{sum, d.kind, strings.HasSuffix(d.Path, ".gz")}
}

// fail makes a problem that of the whole file.
func (d *scannedData) fail(fix, format string, args ...any) {
	d.Problems = []datafile.Problem{{Message: fmt.Sprintf(format, args...), Fix: fix}}
}

// readDataFiles reads the data files that the rule files refer to, as far as s.knownData does not have what is in them.
// shownBase is the directory of the rules in messages, and abs the absolute path of that directory.
func (s *dirScan) readDataFiles(shownBase, abs string) {
	d := &dataScan{
		dirScan: s, shownBase: shownBase, byPath: make(map[datafile.Reference]*scannedData),
		usedNames:  make(map[string]bool),
		references: make(map[datafile.Sum][]datafile.Reference),
	}
	s.data = d
	for i := range s.files {
		f := &s.files[i]
		list := d.referencesOf(f)
		if len(list) > 0 && s.openedBase == nil && !d.openBase(abs) {
			return
		}
		for _, r := range list {
			data := d.find(filepath.Join(filepath.Dir(f.Name), filepath.FromSlash(r.Name)), r)
			if s.isStopped || s.ctx.Err() != nil {
				return
			}
			if f.Attached == nil {
				f.Attached = make(datafile.Files)
			}
			dataFilesOf(*f)[r] = &data.File
		}
	}
	s.ignoredNames = slices.DeleteFunc(s.ignoredNames, func(name string) bool { return d.usedNames[name] })
}

// openBase opens the directory of the rules, with the absolute path abs. It returns false after recording a problem.
func (d *dataScan) openBase(abs string) bool {
	path, info, err := d.resolveAbsolute(abs)
	if err == nil {
		if d.enterPlace(path, info) != nil {
			return false
		}
		d.openedBase, err = os.OpenRoot(path)
	}
	if err != nil {
		if !errors.Is(err, errStopped) {
			d.addProblem(d.shownBase, howToFix(err), "cannot be read: %v", errorWithoutPath(err))
		}
		return false
	}
	d.basePath, d.basePathWithLinks = path, abs
	return true
}

// referencesOf returns the data files that a rule file refers to.
func (d *dataScan) referencesOf(f *File) []datafile.Reference {
	if !mayHaveDataFiles(*f) {
		return nil
	}
	sum := datafile.Sum(sha256.Sum256(f.Data))
	list, known := d.knownData.references[sum]
	if !known {
		list = DataFiles(*f)
	}
	d.references[sum] = list
	return list
}

// find returns the data file with a path, and reads it if it is new.
func (d *dataScan) find(shown string, r datafile.Reference) *scannedData {
	d.usedNames[filepath.Base(shown)] = true
	at := datafile.Reference{Name: shown, Kind: r.Kind}
	data := d.byPath[at]
	if data != nil {
		return data
	}
	data = &scannedData{File: datafile.File{Path: shown}, kind: r.Kind}
	d.byPath[at] = data
	d.inOrder = append(d.inOrder, data)
	path, isLocal := filepath.Rel(d.shownBase, shown)
	switch {
	case r.Name == "":
		data.fail("write the path of a file", "the path is empty")
	case filepath.IsAbs(filepath.FromSlash(r.Name)):
		data.fail("write the path from the directory of the rule file on", "the path is absolute")
	case isLocal != nil || !filepath.IsLocal(path):
		data.fail("put the file there", "is not in the directory of the rules, %s", d.shownBase)
	case len(d.inOrder) > d.dataLimits.maxFiles:
		data.fail("join files", "the rules refer to more than %d files", d.dataLimits.maxFiles)
	default:
		d.read(data, path)
	}
	return data
}

// read finds the file at path, from the directory of the rules on, and reads it.
func (d *dataScan) read(data *scannedData, path string) {
	path, info, err := d.resolveLinks(d.basePath, path)
	switch {
	case errors.Is(err, errStopped):
		return
	case errors.Is(err, errNameMissing):
		data.fail("create the file, or fix the path", "does not exist")
		return
	case errors.Is(err, errOutsideBase):
		data.fail("put the file itself there", "%v", err)
		return
	case err != nil:
		data.fail(howToFix(err), "cannot be read: %v", err)
		return
	}
	if !d.acceptsData(data, info.Mode(), info.Size()) || d.enterPlace(path, info) != nil {
		return
	}
	f, err := d.openFile(path)
	if err == nil {
		err = d.readOpened(data, f)
		_ = f.Close()
	}
	if err != nil {
		data.fail(howToFix(err), "cannot be read: %v", errorWithoutPath(err))
	}
}

// acceptsData returns whether a file of that mode and size may be read.
func (d *dataScan) acceptsData(data *scannedData, mode fs.FileMode, size int64) bool {
	switch {
	case mode.IsDir():
		data.fail("write the path of a file", "is a directory")
	case !mode.IsRegular():
		data.fail("put a file in its place", "is %s, not a file", fileTypeNames[mode.Type()])
	case size > d.dataLimits.maxFileBytes:
		data.fail("use several files, or compress it", "is larger than %d MiB", d.dataLimits.maxFileBytes>>20)
	case d.totalBytes+size > d.dataLimits.maxTotalBytes:
		data.fail("compress files", "the data files are larger than %d MiB together", d.dataLimits.maxTotalBytes>>20)
	default:
		return true
	}
	return false
}

// readOpened sets Sum, and the content unless the last scan knew it. Hashing alone takes no memory for the content, and
// most scans find no change.
func (d *dataScan) readOpened(data *scannedData, f *os.File) error {
	info, err := f.Stat()
	// The file may have been replaced since its size was read.
	if err != nil || !d.acceptsData(data, info.Mode(), info.Size()) {
		return err
	}
	size, sum, err := d.copyContent(io.Discard, f)
	if err != nil || !d.acceptsData(data, info.Mode(), size) {
		return err
	}
	if _, known := d.knownData.parsed[data.key(sum)]; !known {
		var content bytes.Buffer
		content.Grow(int(size))
		if _, err = f.Seek(0, io.SeekStart); err == nil {
			size, sum, err = d.copyContent(&content, f)
		}
		if err != nil || !d.acceptsData(data, info.Mode(), size) { // The file may have grown in between.
			return err
		}
		data.content = content.Bytes()
	}
	data.Sum = sum
	d.totalBytes += size
	return nil
}

// copyContent copies a file to w, up to one byte more than it may have. It returns the number of bytes and their hash.
func (d *dataScan) copyContent(w io.Writer, f *os.File) (size int64, sum datafile.Sum, err error) {
	hash := sha256.New()
	size, err = io.CopyBuffer(io.MultiWriter(hash, w, &pacedWriter{d, maxGentleBytes - d.totalBytes}),
		io.LimitReader(d.contentReader(f), d.dataLimits.maxFileBytes+1), make([]byte, readBlockBytes))
	return size, datafile.Sum(hash.Sum(nil)), err
}

// pacedWriter slows down a copy.
type pacedWriter struct {
	scan       *dataScan
	gentleLeft int64 // the number of bytes that are copied with the Pacer of the scan
}

func (w *pacedWriter) Write(block []byte) (int, error) {
	pacer := &w.scan.pacer
	if w.gentleLeft -= int64(len(block)); w.gentleLeft < 0 {
		pacer = &w.scan.fastPacer
	}
	pacer.Step()
	return len(block), nil
}

// parse parses the files whose contents known does not have, and returns what the next scan need not parse.
func (d *dataScan) parse(known *dataCache) dataCache {
	next := dataCache{d.references, make(map[parsedKey]parsedData)}
	for _, data := range d.inOrder {
		key := data.key(data.Sum)
		if data.Sum == (datafile.Sum{}) { // The file could not be read.
			continue
		}
		p, isParsed := next.parsed[key]
		if !isParsed {
			p, isParsed = known.parsed[key]
		}
		if !isParsed {
			p.table, p.problems = datafile.Parse(data.Path, data.content, data.kind, &d.pacer)
		}
		next.parsed[key] = p
		data.content, data.Table, data.Problems = nil, p.table, p.problems
	}
	for i := range d.files {
		if f := &d.files[i]; f.Attached != nil {
			f.Digest = reload.DigestOf(dataFilesOf(*f).AppendVersion(f.Digest[:]))
		}
	}
	return next
}

// dataFilesOf returns the data files that were read for a rule file.
func dataFilesOf(f File) datafile.Files {
	files, _ := f.Attached.(datafile.Files)
	return files
}

// mayHaveDataFiles reports whether DataFiles may return any. It only searches for the words values_from and
// limits_from.
func mayHaveDataFiles(f File) bool {
	return bytes.Contains(f.Data, []byte(datafile.Values.String())) ||
		bytes.Contains(f.Data, []byte(datafile.Limits.String()))
}

// DataFiles returns the data files that a rule file refers to, each once. It parses the file.
func DataFiles(f File) (list []datafile.Reference) {
	seen := make(map[datafile.Reference]bool)
	var walk func([]compile.DescriptorConfig)
	walk = func(descriptors []compile.DescriptorConfig) {
		for i := range descriptors {
			for r := range descriptors[i].DataFiles() {
				if !seen[r] {
					seen[r] = true
					list = append(list, r)
				}
			}
			walk(descriptors[i].Descriptors)
		}
	}
	if cfg, _, _ := parseFile(f); cfg != nil {
		for _, descriptors := range append(cfg.DescriptorParts, cfg.Descriptors) {
			walk(descriptors)
		}
	}
	if hasLaterDocuments(f) { // Only LoadAllDocuments looks at these.
		later, _, _ := yamlrules.ParseLaterDocuments(f.Name, f.Data)
		for i := range later {
			walk(later[i].Descriptors)
		}
	}
	return list
}
