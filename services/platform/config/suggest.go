package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

const (
	maxSuggestions = 5
	// maxSuggestName bounds what is compared: a longer name is no slip of the finger.
	maxSuggestName = 128
)

// Suggest returns the known names that name may have been meant to be, nearest first, at most 5.
func Suggest(name string, known []string) []string {
	if name == "" || len(name) > maxSuggestName {
		return nil
	}
	type candidate struct {
		name     string
		distance int
	}
	var near []candidate
	lower := strings.ToLower(name)
	for _, k := range known {
		if len(k) > maxSuggestName {
			continue
		}
		d := distance(lower, strings.ToLower(k))
		switch {
		case d <= max(1, min(len(name), len(k))/3):
		case len(name) >= 3 && (strings.HasPrefix(strings.ToLower(k), lower) || strings.HasPrefix(lower, strings.ToLower(k)) && len(k) >= 3):
		default:
			continue
		}
		near = append(near, candidate{k, d})
	}
	slices.SortFunc(near, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.distance, b.distance), cmp.Compare(a.name, b.name))
	})
	var names []string
	for _, c := range near[:min(len(near), maxSuggestions)] {
		names = append(names, c.name)
	}
	return names
}

// DidYouMean is what a sentence about an unknown name ends with: the nearest known name as a question, or "" where none is near.
func DidYouMean(name string, known []string) string {
	near := Suggest(name, known)
	if len(near) == 0 {
		return ""
	}
	return fmt.Sprintf("; did you mean %q?", near[0])
}

// distance is the optimal string alignment distance: insertions, deletions, substitutions, and swaps of neighbours.
func distance(a, b string) int {
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}
