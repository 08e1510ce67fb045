// Picture makes a PNG of a screen small: it keeps the 256 most frequent colours, and draws others in the nearest of
// them.
//
//	picture from.png to.png
package main

import (
	"bytes"
	"cmp"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"maps"
	"os"
	"slices"
)

func main() {
	if err := shrink(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "picture:", err)
		os.Exit(1)
	}
}

func shrink(files []string) error {
	if len(files) != 2 {
		return fmt.Errorf("want two files, from and to, got %q", files)
	}
	data, err := os.ReadFile(files[0])
	if err != nil {
		return err
	}
	from, err := png.Decode(bytes.NewReader(data))
	if err != nil {
		return fmt.Errorf("%s: %w", files[0], err)
	}
	var b bytes.Buffer
	if err := (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&b, paletted(from)); err != nil {
		return err
	}
	return os.WriteFile(files[1], b.Bytes(), 0o644)
}

// paletted returns a picture in at most 256 colours.
func paletted(from image.Image) *image.Paletted {
	count := make(map[color.Color]int)
	eachPixel(from, func(x, y int) { count[from.At(x, y)]++ })
	frequent := slices.SortedFunc(maps.Keys(count), func(a, b color.Color) int {
		return cmp.Or(cmp.Compare(count[b], count[a]), cmp.Compare(fmt.Sprint(a), fmt.Sprint(b)))
	})
	to := image.NewPaletted(from.Bounds(), color.Palette(frequent[:min(256, len(frequent))]))
	nearest := make(map[color.Color]uint8)
	for c := range count {
		nearest[c] = uint8(to.Palette.Index(c))
	}
	eachPixel(from, func(x, y int) { to.SetColorIndex(x, y, nearest[from.At(x, y)]) })
	return to
}

func eachPixel(m image.Image, do func(x, y int)) {
	for y := m.Bounds().Min.Y; y < m.Bounds().Max.Y; y++ {
		for x := m.Bounds().Min.X; x < m.Bounds().Max.X; x++ {
			do(x, y)
		}
	}
}
