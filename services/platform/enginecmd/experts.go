package enginecmd

import (
	"fmt"
	"math"
	"regexp"
	"strings"
)

// AllExperts stands for the experts of every layer.
const AllExperts = math.MaxUint32

// Bounds of -ot: a pattern in bytes, how many are read, and how many layers they are held against: more than any published model has.
const maxPattern, maxOverrides, patternLayers = 256, 64, 128

// LayerSet is a set of a model's layers, counted from 0. Those beyond patternLayers are in it where all others are.
type LayerSet [patternLayers / 64]uint64

// FirstLayers is the set of the first n layers.
func FirstLayers(n uint32) (s LayerSet) {
	for layer := range uint64(min(n, patternLayers)) {
		s[layer/64] |= 1 << (layer % 64)
	}
	return s
}

// Has reports whether a layer is in the set.
func (s LayerSet) Has(layer uint64) bool {
	if layer >= patternLayers {
		return s == FirstLayers(patternLayers)
	}
	return s[layer/64]>>(layer%64)&1 == 1
}

// Layers are those of the set, in order.
func (s LayerSet) Layers() (list []uint64) {
	for layer := range uint64(patternLayers) {
		if s.Has(layer) {
			list = append(list, layer)
		}
	}
	return list
}

// Count is how many of the layers from one up to another, without that one, are in the set.
func (s LayerSet) Count(from, to uint64) (n uint64) {
	for ; from < min(to, patternLayers); from++ {
		if s.Has(from) {
			n++
		}
	}
	if from < to && s.Has(patternLayers) {
		n += to - from
	}
	return n
}

// override is one of -ot's: what it matches, and whether that stays with the host. nil matches everything.
type override struct {
	matches *regexp.Regexp
	host    bool
}

// HostExperts are the layers all of whose experts llama.cpp keeps with the host. As there, the first of -ot's patterns that matches a
// tensor says where it lies. What else patterns keep with the host is passed over, and so are those that Go's expressions cannot read, so
// that a GPU is taken to hold more than it will, and not less.
func (c *Command) HostExperts() (kept LayerSet) {
	if len(c.Overrides) > maxOverrides {
		return LayerSet{}
	}
	var overrides []override
	for _, one := range c.Overrides {
		at := max(strings.LastIndex(one, "="), 0)
		o := override{host: one[at:] == "=CPU"}
		if at <= maxPattern {
			o.matches, _ = regexp.Compile(one[:at])
		}
		if o.matches != nil || !o.host {
			overrides = append(overrides, o)
		}
	}
	for layer := range uint32(patternLayers) {
		host := true
		for _, which := range []string{"up", "down", "gate"} {
			host = host && stays(overrides, fmt.Sprintf("blk.%d.ffn_%s_exps.weight", layer, which), layer < c.CPUExperts)
		}
		if host {
			kept[layer/64] |= 1 << (layer % 64)
		}
	}
	return kept
}

// stays reports whether a tensor is the host's; otherwise is for one that no pattern matches.
func stays(overrides []override, tensor string, otherwise bool) bool {
	for _, o := range overrides {
		if o.matches == nil || o.matches.MatchString(tensor) {
			return o.host
		}
	}
	return otherwise
}

// Moves reports whether -ot lays anything on a GPU by its name, such as CUDA1.
func (c *Command) Moves() bool {
	for _, one := range c.Overrides {
		buffer := one[strings.LastIndex(one, "=")+1:]
		if name := strings.TrimRight(buffer, "0123456789"); name != buffer && !strings.ContainsAny(name, "[]:") {
			return true
		}
	}
	return false
}
