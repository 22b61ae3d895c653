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

// FreeID is an id that neither the proposal's services nor its modes have, made of somebody's name. taken tells the ids of before.
func FreeID(name string, taken map[string]bool) string {
	id := numbered(ID(name), maxID, func(id string) bool { return !taken[id] })
	if id != "" {
		taken[id] = true
	}
	return id
}

// numbered is the first of an id and the same with -2, -3 behind it that is free, "" where none is.
func numbered(base string, longest int, free func(id string) bool) string {
	id := base
	for n := 2; id != "" && !free(id); n++ {
		if n == maxAlike {
			return ""
		}
		suffix := "-" + strconv.Itoa(n)
		id = base[:min(len(base), longest-len(suffix))] + suffix
	}
	return id
}

// maxAlike is how many may want one id.
const maxAlike = 1000

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
