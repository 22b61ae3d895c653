package proposal

import (
	"strconv"
	"strings"

	"durward.internal/services/platform/pattern"
)

var (
	notID    = pattern.New(`[^a-zA-Z0-9_]+`)
	notModel = pattern.New(`[^a-zA-Z0-9_./]+`)
)

// ID makes an id of somebody's name; "" where nothing is left of it.
func ID(name string) string {
	id := strings.TrimLeft(notID().ReplaceAllString(bounded(name), "-"), "-_")
	return strings.TrimRight(id[:min(len(id), maxID)], "-")
}

// ModelID makes a model's id of somebody's name, with slashes and dots.
func ModelID(name string) string {
	id := notModel().ReplaceAllString(bounded(name), "-")
	for strings.Contains(id, "..") {
		id = strings.ReplaceAll(id, "..", ".")
	}
	id = strings.TrimLeft(id, "-_./")
	return strings.TrimRight(id[:min(len(id), maxModelID)], "-./")
}

// bounded keeps what is scrubbed from taking long, and keeps - where it is.
func bounded(name string) string { return name[:min(len(name), 4096)] }

// FreeID is an id that neither the proposal's services nor its modes have, made of somebody's name: with -2, -3 behind it where
// others are called so. taken tells the ids of before.
func FreeID(name string, taken map[string]bool) string {
	base := ID(name)
	if base == "" {
		return ""
	}
	id := base
	for n := 2; taken[id] && n < 1000; n++ {
		suffix := "-" + strconv.Itoa(n)
		id = base[:min(len(base), maxID-len(suffix))] + suffix
	}
	if taken[id] {
		return ""
	}
	taken[id] = true
	return id
}

// Taken are the ids that the services and modes of the present catalog have.
func Taken(present *Present) map[string]bool {
	taken := map[string]bool{}
	if present == nil {
		return taken
	}
	for _, s := range present.Services {
		taken[s.ID] = true
	}
	for _, m := range present.Modes {
		taken[m.ID] = true
	}
	return taken
}
