// Command durward-inspect reads the card of a model from its files and prints it as one line of canonical JSON.
//
//	durward-inspect gguf FILE         a GGUF file; of a split model any part, the others beside it
//	durward-inspect huggingface DIR   a folder with config.json and .safetensors files
//
// It is started for each model by whoever needs the card (package services/platform/inspect). The files were written by
// strangers, and the process is made so that whoever takes it over from within one has nothing: it opens them, gives up opening
// anything else, sockets, programs and memory beyond 512 MiB, and only then reads. Its standard output must be a pipe or a
// terminal: it cannot write to a file.
package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"durward.internal/services/inspector/internal/bounds"
	"durward.internal/services/inspector/internal/gguf"
	"durward.internal/services/inspector/internal/huggingface"
	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/model"
	"durward.internal/services/platform/release"
)

// version is the program's, as Git and the linker have it.
var version = release.Version()

// Exit codes. Package services/platform/inspect knows them.
const (
	exitOK        = 0
	exitFailure   = 1
	exitUsage     = 2
	exitForbidden = 3 // a file may not be read by this user
)

const usage = "usage: durward-inspect gguf FILE | durward-inspect huggingface DIR"

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	if len(args) == 1 && args[0] == "-version" {
		fmt.Fprintln(stdout, "durward-inspect", version)
		return exitOK
	}
	if err := bounds.Limit(); err != nil {
		fmt.Fprintln(stderr, "the limits of this process could not be set")
		return exitFailure
	}
	if len(args) != 2 {
		fmt.Fprintln(stderr, usage)
		return exitUsage
	}
	c, err := card(args[0], args[1])
	switch {
	case errors.Is(err, errUsage):
		fmt.Fprintln(stderr, usage)
		return exitUsage
	case errors.Is(err, fs.ErrPermission):
		fmt.Fprintln(stderr, "the model's files may not be read by this user")
		return exitForbidden
	case err != nil:
		fmt.Fprintln(stderr, err)
		return exitFailure
	}
	line, err := canonical.Marshal(c)
	if err != nil || len(line) > maxOutput {
		fmt.Fprintln(stderr, "the model's card is too long")
		return exitFailure
	}
	if _, err := fmt.Fprintf(stdout, "%s\n", line); err != nil {
		return exitFailure
	}
	return exitOK
}

// maxOutput bounds a card. One with 4,096 layers that all differ would be longer; no model is like that.
const maxOutput = 64 << 10

var errUsage = errors.New(usage)

// card opens the model's files, seals the process and reads them.
func card(kind, path string) (model.Card, error) {
	switch kind {
	case "gguf":
		names, err := gguf.Parts(path)
		if err != nil {
			return model.Card{}, err
		}
		parts := make([]gguf.Source, len(names))
		for i, name := range names {
			f, err := open(name)
			if err != nil {
				if len(names) > 1 && !errors.Is(err, fs.ErrPermission) {
					return model.Card{}, fmt.Errorf("part %d of %d: %w", i+1, len(names), err)
				}
				return model.Card{}, err
			}
			parts[i] = f
		}
		// What a kernel lacks is no reason not to read: the limits hold without.
		_ = bounds.Seal()
		return gguf.Card(parts)
	case "huggingface":
		folder, err := openFolder(path)
		if err != nil {
			return model.Card{}, err
		}
		_ = bounds.Seal()
		return huggingface.Card(folder)
	}
	return model.Card{}, errUsage
}

// open opens a regular file. Whoever put something else there could make an opening or a reading wait for ever.
func open(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0) //nolint:gosec // G703: whoever starts the program says which file it reads
	switch {
	case errors.Is(err, fs.ErrPermission):
		return nil, fs.ErrPermission
	case errors.Is(err, fs.ErrNotExist):
		return nil, errors.New("there is no such file")
	case err != nil:
		return nil, errors.New("the file cannot be opened")
	}
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		_ = f.Close()
		return nil, errors.New("it is not a regular file")
	}
	return f, nil
}

// openFolder opens what huggingface.Card may want to read. Links are followed: caches of Hugging Face are made of them.
func openFolder(path string) (huggingface.Folder, error) {
	config, err := open(filepath.Join(path, huggingface.ConfigName))
	if err != nil {
		if errors.Is(err, fs.ErrPermission) {
			return huggingface.Folder{}, err
		}
		return huggingface.Folder{}, fmt.Errorf("the folder's %s: %w", huggingface.ConfigName, err)
	}
	folder := huggingface.Folder{Config: config, Weights: make(map[string]huggingface.Source)}
	switch index, err := open(filepath.Join(path, huggingface.IndexName)); {
	case err == nil:
		folder.Index = index
	case errors.Is(err, fs.ErrPermission):
		return huggingface.Folder{}, err
	}
	dir, err := os.Open(path) //nolint:gosec // G703: as above
	if err != nil {
		return huggingface.Folder{}, errors.New("the folder cannot be opened")
	}
	defer dir.Close()
	for looked := 0; ; {
		names, err := dir.Readdirnames(256)
		for _, name := range names {
			if !strings.HasSuffix(name, huggingface.Suffix) {
				continue
			}
			if len(folder.Weights) == huggingface.MaxWeights {
				return huggingface.Folder{}, fmt.Errorf("the folder has more than %d files of weights", huggingface.MaxWeights)
			}
			f, err := open(filepath.Join(path, name))
			if err != nil {
				if errors.Is(err, fs.ErrPermission) {
					return huggingface.Folder{}, err
				}
				return huggingface.Folder{}, fmt.Errorf("one of the folder's files of weights: %w", err)
			}
			folder.Weights[name] = f
		}
		if looked += len(names); looked > maxEntries {
			return huggingface.Folder{}, fmt.Errorf("the folder has more than %d files", maxEntries)
		}
		if err != nil {
			return folder, nil
		}
	}
}

const maxEntries = 10_000
