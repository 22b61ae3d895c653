package harness

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Disclosed searches the memory, environment and arguments of the executor, the gateway and audit, those of the vault but its memory, and
// every file of the installation, for values in four encodings, and names where it found which.
func (h *Host) Disclosed(values ...string) map[string]string {
	h.t.Helper()
	found := map[string]string{}
	look := func(place string, raw []byte) {
		for _, v := range values {
			for _, form := range []string{v, hex.EncodeToString([]byte(v)), base64.StdEncoding.EncodeToString([]byte(v)), base64.RawURLEncoding.EncodeToString([]byte(v))} {
				if bytes.Contains(raw, []byte(form[:len(form)-2])) {
					found[place] = v
				}
			}
		}
	}
	for _, role := range Roles() {
		proc := filepath.Join("/proc", strconv.Itoa(h.Process(role).PID()))
		for _, file := range []string{"environ", "cmdline"} {
			raw, err := os.ReadFile(filepath.Join(proc, file))
			h.must(err)
			look(file+" of the "+role, raw)
		}
		if role != Vault {
			h.memory(proc, func(raw []byte) { look("memory of the "+role, raw) })
		}
	}
	h.must(walk(h.Dir, look))
	return found
}

// walk reads every file below a folder. Files that go meanwhile are passed over: those behind them are read all the same.
func walk(dir string, look func(path string, raw []byte)) error {
	return filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		var raw []byte
		if err == nil && entry.Type().IsRegular() {
			raw, err = os.ReadFile(path)
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		look(path, raw)
		return err
	})
}

// memory reads all that a process may read of its own.
func (h *Host) memory(proc string, look func([]byte)) {
	h.t.Helper()
	maps, err := os.ReadFile(filepath.Join(proc, "maps"))
	h.must(err)
	mem, err := os.Open(filepath.Join(proc, "mem"))
	h.must(err)
	defer mem.Close()
	read := 0
	for line := range strings.Lines(string(maps)) {
		var from, to int64
		var mode string
		if n, _ := fmt.Sscanf(line, "%x-%x %s", &from, &to, &mode); n != 3 || mode[0] != 'r' || strings.Contains(line, "[v") {
			continue
		}
		raw, err := io.ReadAll(io.NewSectionReader(mem, from, to-from))
		if err == nil {
			read += len(raw)
		}
		look(raw)
	}
	if read < 1<<20 {
		h.t.Fatalf("%s: only %d bytes of memory could be read", proc, read)
	}
}
