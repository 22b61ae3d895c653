package systemd

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"os"
)

// maxUnitFile bounds what is read of a unit's files, in bytes each.
const maxUnitFile = 1 << 20

// digest is "sha256:…" over the names and contents of a unit's file and its drop-ins, in the order in which systemd reads them.
func digest(f facts) (string, error) {
	sum := sha256.New()
	for _, name := range append([]string{f.fragment}, f.dropIns...) {
		if err := add(sum, name); err != nil {
			return "", fmt.Errorf("%w: %w", errBadUnit, err)
		}
	}
	return "sha256:" + hex.EncodeToString(sum.Sum(nil)), nil
}

// add hashes a file's name and contents, each behind its length, so that no two lists of files look alike.
func add(sum hash.Hash, name string) error {
	file, err := os.Open(name)
	if err != nil {
		return err
	}
	defer file.Close()
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		return fmt.Errorf("%s is no regular file", name)
	}
	content, err := io.ReadAll(io.LimitReader(file, maxUnitFile+1))
	if err != nil {
		return err
	}
	if len(content) > maxUnitFile {
		return fmt.Errorf("%s is longer than a unit's file may be", name)
	}
	for _, part := range [][]byte{[]byte(name), content} {
		sum.Write(binary.BigEndian.AppendUint64(nil, uint64(len(part))))
		sum.Write(part)
	}
	return nil
}
