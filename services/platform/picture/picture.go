// Package picture says which pictures of strangers may pass: those of a few types, whose bytes are of that type, within bounds.
//
// It runs in egress, which gets them from other people's servers, and in the gateway, the last before the client. The bytes are hostile:
// their headers alone are read, and no pixel is ever decoded here. Nobody looks through a picture for personal data.
package picture

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"image"
	"image/gif"
	"image/jpeg"
	"image/png"
	"io"
)

// Bounds of what passes: bytes of one picture, and pictures of one result.
const (
	MaxBytes = 1 << 20
	Most     = 4
)

// Bounds of what whoever decodes a picture has to hold: pixels of a side, and in all.
const (
	maxSide   = 16_384
	maxPixels = 32 << 20
)

// headers read the size of a picture, by the type. SVG is not among them: it is a program.
var headers = map[string]func(io.Reader) (image.Config, error){
	"image/png": png.DecodeConfig, "image/jpeg": jpeg.DecodeConfig, "image/gif": gif.DecodeConfig, "image/webp": webp,
}

// Check reports why bytes are no picture of that type that may pass; nil: they are one. The reason repeats nothing of them.
func Check(mime string, data []byte) error {
	header, known := headers[mime]
	switch {
	case !known:
		return errors.New("its type is not one that is passed on")
	case len(data) > MaxBytes:
		return fmt.Errorf("it is larger than %d MiB", MaxBytes>>20)
	}
	config, err := header(bytes.NewReader(data))
	switch {
	case err != nil || config.Width <= 0 || config.Height <= 0:
		return errors.New("its bytes are not of that type")
	case config.Width > maxSide || config.Height > maxSide || config.Width*config.Height > maxPixels:
		return fmt.Errorf("it has more pixels than %d, or than %d a side", maxPixels, maxSide)
	}
	return nil
}

// webp reads the header of a WebP file: https://developers.google.com/speed/webp/docs/riff_container.
func webp(r io.Reader) (c image.Config, err error) {
	var h [30]byte
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return c, err
	}
	if string(h[:4]) != "RIFF" || string(h[8:12]) != "WEBP" {
		return c, errors.New("no WebP file")
	}
	const fourteen = 1<<14 - 1
	switch kind := string(h[12:16]); {
	case kind == "VP8 " && string(h[23:26]) == "\x9d\x01\x2a":
		c.Width, c.Height = int(binary.LittleEndian.Uint16(h[26:]))&fourteen, int(binary.LittleEndian.Uint16(h[28:]))&fourteen
	case kind == "VP8L" && h[20] == 0x2f:
		size := binary.LittleEndian.Uint32(h[21:])
		c.Width, c.Height = int(size&fourteen)+1, int(size>>14&fourteen)+1
	case kind == "VP8X":
		c.Width, c.Height = int(binary.LittleEndian.Uint32(h[23:])>>8)+1, int(binary.LittleEndian.Uint32(h[26:])>>8)+1
	default:
		err = errors.New("no picture in the WebP file")
	}
	return c, err
}
