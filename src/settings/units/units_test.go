package units

import (
	"math/big"
	"strings"
	"testing"
	"time"
)

func TestBytes(t *testing.T) {
	t.Parallel()
	const refused = -12345
	for text, want := range map[string]int64{
		"0": 0, "1000": 1000, "-1": -1, "0x1B": 27, "0b11": 3, "010": 8, "1_000": 1000, "9223372036854775807": 1<<63 - 1,
		"7B": 7, "4KiB": 4096, "4Ki": 4096, "4k": 4000, "4kB": 4000, "4KB": 4000,
		"256MiB": 256 << 20, "256 MiB": 256 << 20,
		"256mib": 256 << 20, "1G": 1e9, "4GiB": 4 << 30, "2TB": 2e12, "1.5GiB": 3 << 29, "0.1kB": 100, "0.3KiB": 307,
		"-1.5KiB": -1536, "8388607TiB": 8388607 << 40, "1.001kB": 1001,
		"": refused, "GiB": refused, "4GiBB": refused, "4 gigs": refused, "4,5GiB": refused, "1e3KiB": refused,
		"8388608TiB": refused, "4  GiB": refused, " 4GiB": refused, "0x4GiB": refused, "1/2KiB": refused, "4PiB": refused,
		"9223372036854775808": refused, "inf": refused, ".5GiB": refused,
	} {
		got, err := Bytes(text)
		if err != nil {
			got = refused
		}
		if got != want {
			t.Errorf("Bytes(%q) = %d, %v, want %d", text, got, err, want)
		}
	}
	for n, want := range map[int64]string{
		0: "0", 1000: "1000", 1024: "1KiB", 256 << 20: "256MiB", 3 << 29: "1536MiB", 1 << 50: "1024TiB", -4096: "-4KiB",
	} {
		if got := FormatBytes(n); got != want {
			t.Errorf("FormatBytes(%d) = %s, want %s", n, got, want)
		}
	}
}

func TestDuration(t *testing.T) {
	t.Parallel()
	const refused = -12345
	for text, want := range map[string]time.Duration{
		"0": 0, "500ms": 500 * time.Millisecond, "1h30m": 90 * time.Minute, "7d": 168 * time.Hour, "1.5d": 36 * time.Hour,
		"1d12h": 36 * time.Hour, "-1d12h": -36 * time.Hour, "0d": 0, "106751d": 106751 * 24 * time.Hour,
		"": refused, "5": refused, "d": refused, "1h2d": refused, "1d-2h": refused, "1d5": refused, "1dd": refused,
		"106752d": refused, "106751d23h47m17s": refused, "999999999999d": refused, "1 d": refused, "1day": refused,
	} {
		got, err := Duration(text)
		if err != nil {
			got = refused
		}
		if got != want {
			t.Errorf("Duration(%q) = %v, %v, want %v", text, got, err, want)
		}
	}
}

func TestPerSecond(t *testing.T) {
	t.Parallel()
	const refused = -12345
	for text, want := range map[string]float64{
		"10": 10, "10/s": 10, "0.5/sec": 0.5, "600/m": 10, "90/minute": 1.5, "36000/h": 10, "86400/d": 1, "-1/s": -1,
		"": refused, "/s": refused, "10/": refused, "10/w": refused, "10 rps": refused, "1e3/s": refused, "NaN": refused,
	} {
		got, err := PerSecond(text)
		if err != nil {
			got = refused
		}
		if got != want {
			t.Errorf("PerSecond(%q) = %v, %v, want %v", text, got, err, want)
		}
	}
}

// A refused text leads to what its user meant.
func TestAdvice(t *testing.T) {
	t.Parallel()
	isSize := func(text string) bool { n, err := Bytes(text); return err == nil && n >= 128<<10 }
	isTime := func(text string) bool { d, err := Duration(text); return err == nil && d > 0 }
	isRate := func(text string) bool { r, err := PerSecond(text); return err == nil && r > 0 }
	for _, tt := range []struct {
		text, want string
		units      []Unit
		isRight    func(string) bool
	}{
		{"4GiBB", "4GiB", OfBytes, isSize},
		{"4 gigabytes", "4GiB", OfBytes, isSize},
		{"4,5GB!", "4.5GiB", OfBytes, isSize},
		{"1000", "1000KiB", OfBytes, isSize},
		{"4", "4MiB", OfBytes, isSize},
		{"300000 bytes", "300000", OfBytes, isSize},
		{"much", "64MiB", OfBytes, isSize},
		{"5", "5s", OfDuration, isTime},
		{"-5s", "5s", OfDuration, isTime},
		{"5 minutes", "5m", OfDuration, isTime},
		{"5 milliseconds", "5ms", OfDuration, isTime},
		{"500msec", "500ms", OfDuration, isTime},
		{"1,5 hours", "1.5h", OfDuration, isTime},
		{"2days", "2d", OfDuration, isTime},
		{"10 per minute", "10/m", OfRate, isRate},
		{"10rps", "10/s", OfRate, isRate},
	} {
		if got := Advice("a value", tt.text, "64MiB", tt.units, tt.isRight); got != "write a value, such as "+tt.want {
			t.Errorf("%q: %s, want %s", tt.text, got, tt.want)
		}
	}
	if got := Advice("a number", "x", "", OfShare, isTime); got != "write a number" {
		t.Error(got)
	}
}

// What is read as a size is the number times the unit, computed with digits instead of fractions.
func FuzzBytes(f *testing.F) {
	for _, text := range []string{
		"1", "4KiB", "1.5 GiB", "0.001kB", "-7Ti", "0x1B", "99999999999999999999TB", "1..2k", "4Kib",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got, err := Bytes(text)
		want, ok := slowBytes(text)
		if (err == nil) != ok || ok && got != want {
			t.Errorf("Bytes(%q) = %d, %v, want %d, %t", text, got, err, want, ok)
		}
		if err == nil {
			if again, err := Bytes(FormatBytes(got)); err != nil || again != got {
				t.Errorf("FormatBytes(%d) = %s, which is %d, %v", got, FormatBytes(got), again, err)
			}
		}
	})
}

// slowBytes reads text from its end: the unit, a blank, digits, a point, digits, a sign.
func slowBytes(text string) (int64, bool) {
	if n, ok := new(big.Int).SetString(text, 0); ok {
		return n.Int64(), n.IsInt64()
	}
	number := strings.TrimRight(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
	unit := strings.ToLower(text[len(number):])
	number = strings.TrimSuffix(number, " ")
	sign, digits := int64(1), number
	if strings.HasPrefix(number, "-") {
		sign = -1
	}
	digits = strings.TrimPrefix(strings.TrimPrefix(digits, "-"), "+")
	if strings.Count(number, "-")+strings.Count(number, "+") != len(number)-len(digits) {
		return 0, false
	}
	whole, fraction, hasPoint := strings.Cut(digits, ".")
	all := whole + fraction
	if whole == "" || hasPoint && fraction == "" || strings.Trim(all, "0123456789") != "" ||
		len(whole) > 40 || len(fraction) > 40 {
		return 0, false
	}
	base := int64(1000)
	if strings.Contains(unit, "i") {
		base = 1024
	}
	if unit == "" {
		return 0, false
	}
	unit = strings.TrimSuffix(unit, "b")
	if base == 1024 {
		if unit = strings.TrimSuffix(unit, "i"); unit == "" {
			return 0, false
		}
	}
	power := strings.Index("kmgt", unit) + 1
	if unit == "" {
		power = 0
	} else if len(unit) > 1 || power == 0 {
		return 0, false
	}
	n, _ := new(big.Int).SetString(all, 10)
	n.Mul(n, new(big.Int).Exp(big.NewInt(base), big.NewInt(int64(power)), nil))
	n.Mul(n, big.NewInt(sign))
	n.Div(n, new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(len(fraction))), nil)) // rounds down
	return n.Int64(), n.IsInt64()
}

// A duration with days is the same one with hours.
func FuzzDuration(f *testing.F) {
	for _, text := range []string{"1d", "1d2h", "-3d1ms", "1.25d", "5", "dd", "106751d23h47m16s", "0.1d"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got, err := Duration(text)
		days, rest, hasDays := strings.Cut(text, "d")
		if !hasDays {
			want, wantErr := time.ParseDuration(text)
			if got != want || (err == nil) != (wantErr == nil) {
				t.Errorf("%q: %v, %v, want %v, %v", text, got, err, want, wantErr)
			}
			return
		}
		if err != nil {
			return
		}
		hours, errHours := time.ParseDuration(days + "h")
		more, errMore := time.ParseDuration(rest + "0s")
		if errHours != nil || errMore != nil || strings.ContainsAny(days, "hmsnuµ") {
			t.Fatalf("%q is accepted as %v", text, got)
		}
		if strings.HasPrefix(days, "-") {
			more = -more
		}
		want := new(big.Int).Add(new(big.Int).Mul(big.NewInt(int64(hours)), big.NewInt(24)), big.NewInt(int64(more)))
		if !want.IsInt64() || want.Int64() != int64(got) {
			t.Errorf("%q is %v, want %v ns", text, got, want)
		}
	})
}

// What Forms returns has the number of the text.
func FuzzForms(f *testing.F) {
	for _, text := range []string{"5 minutes", "1,5", "x", "-1s", "4GiBB", "\xff9"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, all := range [][]Unit{OfBytes, OfDuration, OfRate, OfShare} {
			for _, form := range Forms(text, all) {
				if !strings.Contains(strings.ReplaceAll(text, ",", "."), strings.TrimRight(form, "KMGTiBsmhdun/%")) {
					t.Errorf("%q becomes %q", text, form)
				}
			}
		}
	})
}
