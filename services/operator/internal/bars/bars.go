// Package bars draws how a GPU's memory is shared out, as one line of a terminal.
//
// It runs in the operator's process and trusts its caller: it draws numbers, and holds no text of anybody's.
package bars

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	executorv1 "durward.internal/proto/gen/durward/executor/v1"
)

// Kind is what a part of the memory is.
type Kind int

// The kinds, in the order in which a bar shows them.
const (
	// Services use it.
	Services Kind = iota
	// Foreign programs use it: no service of this host.
	Foreign
	// Claimed is declared by services that hold memory here, and not used by them yet.
	Claimed
	// Free is nobody's.
	Free
	// Reserved is the driver's own.
	Reserved
	kinds
)

// Rune is the character that stands for the kind, so that a bar can be read without colours.
func (k Kind) Rune() rune { return [kinds]rune{'█', '▓', '░', '·', '▒'}[k] }

// Word names the kind.
func (k Kind) Word() string {
	return [kinds]string{"services", "foreign", "claimed, not used yet", "free", "the driver's"}[k]
}

// Kinds returns every kind, in a bar's order.
func Kinds() []Kind { return []Kind{Services, Foreign, Claimed, Free, Reserved} }

// Sizes are MiB, by kind. They add up to the GPU's memory.
type Sizes [kinds]uint32

// Of splits a GPU's memory into its parts. Numbers that do not fit together (a driver counts its programs and the whole at
// different moments) are cut so that the parts never exceed the whole.
func Of(g *executorv1.Gpu) Sizes {
	var s Sizes
	left := g.GetMemoryTotalMib()
	take := func(k Kind, n uint32) {
		s[k] = min(n, left)
		left -= s[k]
	}
	foreign := min(g.GetMemoryForeignMib(), g.GetMemoryUsedMib())
	services := g.GetMemoryUsedMib() - foreign
	take(Reserved, g.GetMemoryReservedMib())
	if len(g.GetServices()) == 0 && g.GetMemoryClaimedMib() == 0 {
		// A few MiB of what is used belong to no program: the driver takes them for all together.
		unowned := min(services, left)
		s[Reserved], left, services = s[Reserved]+unowned, left-unowned, 0
	}
	take(Services, services)
	take(Foreign, foreign)
	take(Claimed, g.GetMemoryClaimedMib()-min(g.GetMemoryClaimedMib(), services))
	take(Free, left)
	return s
}

// Forecast splits a GPU's memory as a plan would leave it, or as it is now.
func Forecast(f *executorv1.GpuForecast, after bool) Sizes {
	used := f.GetNowMib()
	free := f.GetTotalMib() - min(used, f.GetTotalMib())
	if after {
		used, free = f.GetAfterMib(), f.GetFreeMib()
	}
	foreign := min(f.GetForeignMib(), used)
	var s Sizes
	left := f.GetTotalMib()
	for _, part := range []struct {
		kind Kind
		mib  uint32
	}{{Services, used - foreign}, {Foreign, foreign}, {Free, free}, {Reserved, left}} {
		s[part.kind] = min(part.mib, left)
		left -= s[part.kind]
	}
	return s
}

// Total is the sum of the parts.
func (s Sizes) Total() (sum uint64) {
	for _, n := range s {
		sum += uint64(n)
	}
	return sum
}

// Draw writes the parts as one bar of width characters; paint colours one kind's stretch. Every part that is not 0 has at
// least one character, as far as there are enough.
func Draw(s Sizes, width int, paint func(Kind, string) string) string {
	var b strings.Builder
	cells := share(s, width)
	for _, k := range Kinds() {
		if cells[k] > 0 {
			b.WriteString(paint(k, strings.Repeat(string(k.Rune()), cells[k])))
		}
	}
	return b.String()
}

// Paint is what Draw paints stretches with where these are the colours of a terminal.
func Paint(green, red, yellow, dim func(string) string) func(Kind, string) string {
	return func(k Kind, s string) string {
		switch k {
		case Services:
			return green(s)
		case Foreign:
			return red(s)
		case Claimed:
			return yellow(s)
		default:
			return dim(s)
		}
	}
}

// share gives width characters to the parts by the largest remainder.
func share(s Sizes, width int) [kinds]int {
	var cells [kinds]int
	total := s.Total()
	if total == 0 || width <= 0 {
		return cells
	}
	type rest struct {
		kind Kind
		of   uint64
	}
	var rests []rest
	left := width
	for _, k := range Kinds() {
		exact := uint64(s[k]) * uint64(width)
		cells[k] = int(exact / total)
		left -= cells[k]
		rests = append(rests, rest{k, exact % total})
	}
	slices.SortStableFunc(rests, func(a, b rest) int { return cmp.Compare(b.of, a.of) })
	for i := 0; i < len(rests) && left > 0; i, left = i+1, left-1 {
		cells[rests[i].kind]++
	}
	// What is there is seen: the widest part gives.
	for _, k := range Kinds() {
		if s[k] == 0 || cells[k] > 0 {
			continue
		}
		widest := Services
		for _, other := range Kinds() {
			if cells[other] > cells[widest] {
				widest = other
			}
		}
		if cells[widest] > 1 {
			cells[widest]--
			cells[k]++
		}
	}
	return cells
}

// Size writes MiB for people: "512 MiB", "23.5 GiB".
func Size(mib uint32) string {
	if mib < 1024 {
		return strconv.FormatUint(uint64(mib), 10) + " MiB"
	}
	return strconv.FormatFloat(float64(mib)/1024, 'f', 1, 64) + " GiB"
}
