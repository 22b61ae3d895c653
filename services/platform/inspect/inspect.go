// Package inspect reads a model's card from its files by running the inspector, a program of its own that is bounded in time,
// memory and output and sees nothing but those files: what is in them was written by strangers. What the program answers is
// trusted as little: it is decoded strictly and checked like a card that somebody wrote by hand, and its sentences are cleaned.
//
// Whoever links this starts a program by its absolute path, which only they choose. Run by root, the program works as nobody
// wherever that user may read the files, and as root where it may not; its own limits hold in both cases.
package inspect

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/filewatch"
	"durward.internal/services/platform/model"
)

// Bounds of one reading. The program's own are tighter but for time.
const (
	// Timeout is how long the program may take.
	Timeout = 10 * time.Second
	// atOnce is how many programs run at a time.
	atOnce = 2
	// maxCard and maxSentence bound, in bytes, what is read of its answer.
	maxCard     = 64 << 10
	maxSentence = 400
	// maxNames is how many files of a folder are looked at; the program reads folders of no more.
	maxNames = 10_000
	// kept is how many answers are remembered: more than a catalogue has models, since a catalogue's are asked for in turn.
	kept = 2048
)

// Exit codes of durward-inspect.
const (
	exitFailure   = 1
	exitRuntime   = 2
	exitForbidden = 3
)

// Errors that are no answer of the program's.
var (
	ErrProgram = errors.New("the program that reads models cannot be started")
	ErrBounds  = errors.New("the model's files could not be read within the bounds of time and memory")
	ErrAnswer  = errors.New("the program that reads models gave no valid answer")
)

// Inspector runs the program durward-inspect. Use one for a process, by pointer: it remembers what it has read, and runs two
// programs at a time.
type Inspector struct {
	// Program is its absolute path.
	Program string

	once    sync.Once
	slots   chan struct{}
	mu      sync.Mutex
	answers map[fingerprint]answer
	order   []fingerprint // the oldest first
	timeout time.Duration // of tests; Timeout when 0
}

// fingerprint changes when a model's files do.
type fingerprint struct {
	path   string
	stamps [3]filewatch.Stamp
}

type answer struct {
	card model.Card
	err  error
}

// Card reads the card of a GGUF file (its further parts beside it), or of a folder with config.json and safetensors. The path is
// absolute. Errors are one sentence for a human, cleaned, that repeats nothing of the file but an architecture's name; an answer,
// a refusal too, is remembered until the file changes. It waits while two others are read, and is safe for concurrent use.
func (i *Inspector) Card(ctx context.Context, path string) (model.Card, error) {
	i.once.Do(func() {
		i.slots = make(chan struct{}, atOnce)
		i.answers = make(map[fingerprint]answer)
	})
	if !filepath.IsAbs(i.Program) || !filepath.IsAbs(path) || strings.ContainsRune(path, 0) {
		return model.Card{}, errors.New("the inspector and the model need absolute paths")
	}
	path = filepath.Clean(path)
	kind, print, err := look(path)
	if err != nil {
		return model.Card{}, err
	}
	if a, ok := i.remembered(print); ok {
		return a.card, a.err
	}
	select {
	case i.slots <- struct{}{}:
		defer func() { <-i.slots }()
	case <-ctx.Done():
		return model.Card{}, ctx.Err()
	}
	if a, ok := i.remembered(print); ok { // another caller asked the same and was first
		return a.card, a.err
	}
	card, final, err := i.read(ctx, kind, path)
	if err == nil || final {
		i.remember(print, answer{card, err})
	}
	return clone(card), err
}

// look says of which kind a model is, and what its files look like from outside.
func look(path string) (kind string, print fingerprint, err error) {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrPermission):
		return "", print, errors.New("the model's files may not be read by this user")
	case err != nil:
		return "", print, errors.New("there is no such file")
	}
	print = fingerprint{path: path, stamps: [3]filewatch.Stamp{filewatch.StampOf(path)}}
	switch {
	case info.IsDir():
		print.stamps[1] = filewatch.StampOf(filepath.Join(path, "config.json"))
		print.stamps[2] = stampOfAll(path, func(name string) bool {
			return strings.HasSuffix(name, ".safetensors") || name == "model.safetensors.index.json"
		})
		return "huggingface", print, nil
	case info.Mode().IsRegular():
		if before, _, split := strings.Cut(filepath.Base(path), "-of-"); split && len(before) > len("-00001") {
			// Parts of a split model come and grow beside it.
			prefix := before[:len(before)-len("00001")]
			print.stamps[1] = stampOfAll(filepath.Dir(path), func(name string) bool { return strings.HasPrefix(name, prefix) })
		}
		return "gguf", print, nil
	}
	return "", print, errors.New("it is neither a regular file nor a folder")
}

// stampOfAll is of a folder's files that count: how long they are together, when one of them was last changed, and a sum of what
// tells them apart.
func stampOfAll(folder string, counts func(name string) bool) (all filewatch.Stamp) {
	dir, err := os.Open(folder)
	if err != nil {
		return all
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(maxNames) // what was read before an error counts
	for _, name := range names {
		if counts(name) {
			one := filewatch.StampOf(filepath.Join(folder, name))
			all.Device += one.Device
			all.Inode += one.Inode
			all.Size += one.Size
			all.Changed = max(all.Changed, one.Changed)
		}
	}
	return all
}

func (i *Inspector) remembered(print fingerprint) (answer, bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	a, ok := i.answers[print]
	a.card = clone(a.card)
	return a, ok
}

func (i *Inspector) remember(print fingerprint, a answer) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if _, ok := i.answers[print]; !ok {
		if len(i.order) == kept {
			delete(i.answers, i.order[0])
			i.order = i.order[1:]
		}
		i.order = append(i.order, print)
	}
	a.card = clone(a.card)
	i.answers[print] = a
}

// clone lets no caller change what another gets.
func clone(c model.Card) model.Card {
	c.Layers = slices.Clone(c.Layers)
	return c
}

// read runs the program. final: the same files give the same answer again.
func (i *Inspector) read(ctx context.Context, kind, path string) (card model.Card, final bool, err error) {
	p := program{path: i.Program, args: []string{kind, path}, env: []string{}, timeout: cmp.Or(i.timeout, Timeout), most: maxCard}
	r, err := p.runLeast(ctx)
	switch {
	case err != nil:
		return model.Card{}, false, err
	case r.code == exitFailure || r.code == exitForbidden:
		sentence := clean.Sentence(firstLine(r.stderr), maxSentence)
		if sentence == "" {
			return model.Card{}, false, ErrAnswer
		}
		return model.Card{}, r.code == exitFailure, errors.New(sentence)
	case r.code != 0:
		// Go's runtime ends a process that is refused memory or runs out of stack with 2, which it does again; a limit of the
		// kernel's, or somebody else, with a signal.
		return model.Card{}, r.code == exitRuntime, ErrBounds
	}
	if err := canonical.Unmarshal(bytes.TrimSuffix(r.stdout, []byte("\n")), &card); err != nil {
		return model.Card{}, false, fmt.Errorf("%w: %w", ErrAnswer, err)
	}
	if err := card.Check(); err != nil {
		return model.Card{}, false, fmt.Errorf("%w: %w", ErrAnswer, err)
	}
	return card, true, nil
}
