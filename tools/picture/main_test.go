package main

import (
	"image"
	"image/color"
	"testing"
)

// The frequent colour stays, and of 400 rare ones each is drawn in one that is near.
func TestPaletted(t *testing.T) {
	t.Parallel()
	from := image.NewRGBA(image.Rect(0, 0, 20, 40))
	for x := range 20 {
		for y := range 40 {
			from.SetRGBA(x, y, color.RGBA{200, 100, 50, 255})
			if y < 20 {
				from.SetRGBA(x, y, color.RGBA{uint8(10 * x), uint8(10 * y), 0, 255})
			}
		}
	}
	to := paletted(from)
	if len(to.Palette) != 256 || to.At(3, 30) != from.At(3, 30) {
		t.Errorf("%d colours; %v became %v", len(to.Palette), from.At(3, 30), to.At(3, 30))
	}
	eachPixel(from, func(x, y int) {
		r, g, _, _ := from.At(x, y).RGBA()
		r2, g2, _, _ := to.At(x, y).RGBA()
		if max(r, r2)-min(r, r2) > 200<<8 || max(g, g2)-min(g, g2) > 200<<8 {
			t.Errorf("%d,%d: %v became %v", x, y, from.At(x, y), to.At(x, y))
		}
	})
}
