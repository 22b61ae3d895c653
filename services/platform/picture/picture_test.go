package picture

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"image"
	"image/color"
	"image/gif"
	"image/jpeg"
	"image/png"
	"strings"
	"testing"
)

// bombed is a PNG whose header says another size than it has.
func bombed(t *testing.T, width, height uint32) []byte {
	t.Helper()
	var out bytes.Buffer
	if err := png.Encode(&out, image.NewGray(image.Rect(0, 0, 2, 3))); err != nil {
		t.Fatal(err)
	}
	raw := out.Bytes()
	binary.BigEndian.PutUint32(raw[16:], width)
	binary.BigEndian.PutUint32(raw[20:], height)
	binary.BigEndian.PutUint32(raw[29:], crc32.ChecksumIEEE(raw[12:29]))
	return raw
}

// riff is a WebP file with that chunk.
func riff(chunk string) []byte { return []byte("RIFF\x00\x00\x00\x00WEBP" + chunk) }

func TestCheck(t *testing.T) {
	two := image.NewPaletted(image.Rect(0, 0, 2, 3), color.Palette{color.Black, color.White})
	var jpg, gf bytes.Buffer
	if err := jpeg.Encode(&jpg, two, nil); err != nil {
		t.Fatal(err)
	}
	if err := gif.Encode(&gf, two, nil); err != nil {
		t.Fatal(err)
	}
	whole := bombed(t, 2, 3)
	const typed, bytesOf, pixels = "its type is not", "its bytes are not", "more pixels"
	for name, c := range map[string]struct {
		mime string
		data []byte
		why  string
	}{
		"png":              {"image/png", whole, ""},
		"jpeg":             {"image/jpeg", jpg.Bytes(), ""},
		"gif":              {"image/gif", gf.Bytes(), ""},
		"webp":             {"image/webp", riff("VP8 \x00\x00\x00\x00\x00\x00\x00\x9d\x01\x2a\x02\x00\x03\x00"), ""},
		"webp, lossless":   {"image/webp", riff("VP8L\x00\x00\x00\x00\x2f\x01\x80\x00\x00\x00\x00\x00\x00\x00"), ""},
		"webp, extended":   {"image/webp", riff("VP8X\x0a\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x02\x00\x00"), ""},
		"largest":          {"image/png", append(bombed(t, 2, 3), make([]byte, MaxBytes-len(whole))...), ""},
		"too large":        {"image/png", append(bombed(t, 2, 3), make([]byte, MaxBytes-len(whole)+1)...), "larger than 1 MiB"},
		"nothing":          {"image/png", nil, bytesOf},
		"html":             {"image/png", []byte("<script>alert(1)</script>"), bytesOf},
		"magic, then html": {"image/png", []byte("\x89PNG\r\n\x1a\n<html><script>alert(1)</script></html>"), bytesOf},
		"another type":     {"image/png", jpg.Bytes(), bytesOf},
		"half a header":    {"image/png", whole[:20], bytesOf},
		"svg":              {"image/svg+xml", []byte(`<svg xmlns="http://www.w3.org/2000/svg"/>`), typed},
		"svg as png":       {"image/png", []byte(`<svg xmlns="http://www.w3.org/2000/svg"/>`), bytesOf},
		"control signs":    {"image/png\r\nX: y", whole, typed},
		"parameters":       {"image/png; charset=utf-8", whole, typed},
		"capitals":         {"IMAGE/PNG", whole, typed},
		"no type":          {"", whole, typed},
		"audio":            {"audio/wav", []byte("RIFF\x00\x00\x00\x00WAVEfmt "), typed},
		"wave as webp":     {"image/webp", append([]byte("RIFF\x00\x00\x00\x00WAVE"), make([]byte, 20)...), bytesOf},
		"webp of nothing":  {"image/webp", riff("EXIF" + strings.Repeat("\x00", 14)), bytesOf},
		"no width":         {"image/png", bombed(t, 0, 3), bytesOf},
		"a bomb":           {"image/png", bombed(t, 16_000, 16_000), pixels},
		"a wide bomb":      {"image/png", bombed(t, 1<<31-1, 1), pixels},
		"a bomb, webp":     {"image/webp", riff("VP8X\x0a\x00\x00\x00\x00\x00\x00\x00\xff\xff\xff\xff\xff\xff"), pixels},
	} {
		if err := Check(c.mime, c.data); (err == nil) != (c.why == "") || err != nil && !strings.Contains(err.Error(), c.why) {
			t.Errorf("%s: %v, want %q", name, err, c.why)
		}
	}
}

func FuzzCheck(f *testing.F) {
	f.Add("image/png", []byte("\x89PNG\r\n\x1a\n"))
	f.Add("image/webp", riff("VP8L"))
	f.Add("image/gif", []byte("GIF89a\x01\x00\x01\x00\x80"))
	f.Add("image/jpeg", []byte("\xff\xd8\xff\xc0\x00\x11"))
	f.Fuzz(func(t *testing.T, mime string, data []byte) {
		if Check(mime, data) == nil && (headers[mime] == nil || len(data) > MaxBytes || len(data) < 10) {
			t.Errorf("%q passes as %q", data, mime)
		}
	})
}
