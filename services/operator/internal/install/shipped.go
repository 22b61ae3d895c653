package install

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/hiddeco/sshsig"
	"golang.org/x/crypto/ssh"

	"durward.internal/services/platform/trust"
)

const (
	sumsFile = PackagePrograms + "/SHA256SUMS"
	// releaseNamespace is what the list of digests is signed for: ssh-keygen -Y sign -n durward-release.
	releaseNamespace = "durward-release"
	// ReleaseSigners is where root names the keys of those who make releases, as in allowed_signers.
	ReleaseSigners = trustDir + "/release_signers"
)

// Shipped is what the package's own list says of the files that it brought.
type Shipped struct {
	Files int `json:"files"`
	// Differ are files that are missing, or not what was packed, and programs that the package did not bring.
	Differ []string `json:"differ"`
	// Key is the fingerprint of the key that signed the list, and Signer whose it is; empty where nobody signed it, or no such signer is known.
	Key    string `json:"key,omitempty"`
	Signer string `json:"signer,omitempty"`
}

// ErrReleaseSignature means that the list of digests is not what was signed.
var ErrReleaseSignature = errors.New(sumsFile + " is not what its signature is of")

// Verify holds the files of the package to its list, and the list to its signature. A program that whoever changed could have changed with
// the list: only a signature by a key that is known from elsewhere says more. It reads what is installed, with the program that is.
func Verify(root string, signers []byte, now time.Time) (Shipped, error) {
	s := Shipped{Differ: []string{}}
	on := func(path string) string { return filepath.Join(root, path) }
	list, err := os.ReadFile(on(sumsFile))
	if err != nil {
		return s, err
	}
	listed := []string{sumsFile, sumsFile + ".sig"}
	for line := range strings.Lines(string(list)) {
		sum, name, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "  ")
		if !ok || path.Clean("/"+name) != "/"+name {
			return s, fmt.Errorf("%s cannot be read", sumsFile)
		}
		name = "/" + name
		s.Files, listed = s.Files+1, append(listed, name)
		if strings.HasPrefix(name, "/usr/share/doc/") || strings.HasPrefix(name, "/usr/share/man/") || strings.HasPrefix(name, "/usr/share/lintian/") {
			continue // a host may be told to leave them out (dpkg.cfg(5), path-exclude)
		}
		got, err := fileDigest(on(name))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return s, err
		}
		if got != sum {
			s.Differ = append(s.Differ, name)
		}
	}
	entries, err := os.ReadDir(on(PackagePrograms))
	if err != nil {
		return s, err
	}
	for _, entry := range entries {
		if name := PackagePrograms + "/" + entry.Name(); !slices.Contains(listed, name) {
			s.Differ = append(s.Differ, name)
		}
	}
	armoured, err := os.ReadFile(on(sumsFile + ".sig"))
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return s, err
	}
	signature, err := sshsig.Unarmor(armoured)
	if err != nil || sshsig.Verify(bytes.NewReader(list), signature, signature.PublicKey, signature.HashAlgorithm, releaseNamespace) != nil {
		return s, ErrReleaseSignature
	}
	s.Key = ssh.FingerprintSHA256(signature.PublicKey)
	known, err := trust.ParseAllowedSigners(signers)
	if err != nil {
		return s, fmt.Errorf("signers of releases: %w", err)
	}
	if signer, err := known.Find(signature.PublicKey, releaseNamespace, now); err == nil {
		s.Signer = signer.Operator
	}
	return s, nil
}

func fileDigest(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return fmt.Sprintf("%x", h.Sum(nil)), nil
}
