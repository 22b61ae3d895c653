// Package huggingface makes a model's card from a folder as Hugging Face's transformers writes it: config.json, and the lengths
// and headers of .safetensors files. All of it was written by strangers: files are bounded before they are read and every number
// before it is used. Nothing in a folder is code to it: *.py, pickles and "auto_map" are not looked at.
package huggingface

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	cards "durward.internal/services/inspector/internal/card"
	"durward.internal/services/platform/model"
)

// Names of files in a folder.
const (
	ConfigName = "config.json"
	IndexName  = "model.safetensors.index.json"
	Suffix     = ".safetensors"
)

// Bounds of files.
const (
	maxConfig = 4 << 20
	maxIndex  = 64 << 20
	maxTensor = 1 << 40
	maxHeader = 64 << 20 // of one .safetensors file; the format's own bound is 100 MB
	// MaxWeights is how many files of weights a folder may have.
	MaxWeights = 256
)

// Source is one file of a model, read from its start.
type Source interface {
	io.Reader
	Stat() (os.FileInfo, error)
}

// Folder is the files of a folder that say how large a model is. Index may be nil.
type Folder struct {
	Config, Index Source
	Weights       map[string]Source
}

// Card makes the card. Every error is one sentence.
func Card(f Folder) (model.Card, error) {
	text, err := whole(f.Config, maxConfig, ConfigName)
	if err != nil {
		return model.Card{}, err
	}
	card, err := parse(text)
	if err != nil {
		return model.Card{}, err
	}
	names, err := f.names()
	if err != nil {
		return model.Card{}, err
	}
	var sum, experts uint64
	for _, name := range names {
		n, mixture, err := tensors(f.Weights[name])
		if err != nil {
			return model.Card{}, err
		}
		sum, experts = sum+n, experts+mixture // of at most 256 lengths of files
	}
	card.WeightsMiB, card.ExpertsMiB = cards.MiB(sum), cards.Narrow(experts>>20)
	if err := card.Check(); err != nil {
		return model.Card{}, err
	}
	return card, nil
}

// names are the files that are loaded: those that the index names, or all but a second copy of the same weights.
func (f Folder) names() ([]string, error) {
	if f.Index != nil {
		text, err := whole(f.Index, maxIndex, IndexName)
		if err != nil {
			return nil, err
		}
		var index struct {
			WeightMap map[string]string `json:"weight_map"`
		}
		if err := json.Unmarshal(text, &index); err != nil || len(index.WeightMap) == 0 {
			return nil, errors.New(IndexName + " is not valid JSON, or does not say which file has which weights")
		}
		seen := make(map[string]bool)
		for _, name := range index.WeightMap {
			if f.Weights[name] == nil {
				return nil, errors.New("the folder lacks a file that " + IndexName + " names, or has it elsewhere")
			}
			seen[name] = true
		}
		return sorted(seen), nil
	}
	all := make(map[string]bool)
	for name := range f.Weights {
		all[name] = true
	}
	maps.DeleteFunc(all, func(name string, _ bool) bool { return strings.HasPrefix(name, "adapter_") }) // no weights of the model
	// Mistral's own format may lie beside the other, or be all that there is.
	other := maps.Clone(all)
	maps.DeleteFunc(other, func(name string, _ bool) bool { return strings.HasPrefix(name, "consolidated") })
	if len(other) > 0 {
		all = other
	}
	if len(all) == 0 {
		return nil, errors.New("the folder has no .safetensors files, and no other kind is read")
	}
	return sorted(all), nil
}

func sorted(names map[string]bool) []string {
	return slices.Sorted(maps.Keys(names))
}

// whole reads a file of at most so many bytes.
func whole(f Source, most int64, name string) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(f, most+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s cannot be read", name)
	case int64(len(text)) > most:
		return nil, fmt.Errorf("%s is larger than %d MiB", name, most>>20)
	}
	return text, nil
}

// tensors is how many bytes of tensors a .safetensors file has, by its header, and how many of them are a mixture's experts; the file
// must have them (https://huggingface.co/docs/safetensors: 8 bytes little-endian length, JSON, tensors).
func tensors(f Source) (size, experts uint64, err error) {
	info, err := f.Stat()
	if err != nil {
		return 0, 0, errors.New("a .safetensors file cannot be read")
	}
	var length [8]byte
	if _, err := io.ReadFull(f, length[:]); err != nil {
		return 0, 0, errors.New("a .safetensors file ends within its header")
	}
	n := binary.LittleEndian.Uint64(length[:])
	rest := uint64(max(0, info.Size()-8))
	switch {
	case n > maxHeader:
		return 0, 0, fmt.Errorf("a .safetensors file has a header of more than %d MiB", maxHeader>>20)
	case n > rest:
		return 0, 0, errors.New("a .safetensors file ends within its header")
	}
	end, experts, err := lastEnd(io.LimitReader(f, int64(n)))
	switch {
	case err != nil:
		return 0, 0, errors.New("a .safetensors file has a malformed header")
	case end > rest-n:
		return 0, 0, errors.New("a .safetensors file is shorter than the tensors that its header lists")
	}
	return end, experts, nil
}

// expertTensor is what the names of experts have in common, and those that every token takes (shared_experts) have not.
const expertTensor = ".experts."

// lastEnd is where the last tensor of a header ends, and what the experts among them take. It keeps one entry at a time.
func lastEnd(in io.Reader) (end, experts uint64, err error) {
	d := json.NewDecoder(in)
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return 0, 0, errors.New("no object")
	}
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return 0, 0, err
		}
		if name == "__metadata__" {
			var ignored json.RawMessage
			if err := d.Decode(&ignored); err != nil {
				return 0, 0, err
			}
			continue
		}
		var tensor struct {
			Offsets []uint64 `json:"data_offsets"`
		}
		if err := d.Decode(&tensor); err != nil {
			return 0, 0, err
		}
		if len(tensor.Offsets) != 2 || tensor.Offsets[0] > tensor.Offsets[1] {
			return 0, 0, errors.New("no offsets")
		}
		end = max(end, tensor.Offsets[1])
		if name, ok := name.(string); ok && strings.Contains(name, expertTensor) {
			experts += min(tensor.Offsets[1]-tensor.Offsets[0], maxTensor)
		}
	}
	if _, err := d.Token(); err != nil {
		return 0, 0, err
	}
	return end, min(experts, end), nil // a stranger's tensors may overlap
}
