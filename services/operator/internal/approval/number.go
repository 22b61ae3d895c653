package approval

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// alphabet is Crockford's base 32: no I, L, O or U, which people misread.
const alphabet = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"

const (
	shortLength = 4
	fullLength  = 26
)

var idPattern = regexp.MustCompile(`^[0-9a-f]{32}$`)

// ErrNoSuchNumber means that no known operation has the number.
var ErrNoSuchNumber = errors.New("no such operation")

// AmbiguousError means that a number fits several operations.
type AmbiguousError struct {
	Number     string
	Candidates []string
}

func (e *AmbiguousError) Error() string {
	return fmt.Sprintf("%s fits %d operations: %s", e.Number, len(e.Candidates), strings.Join(e.Candidates, ", "))
}

// IsOperationID reports whether s is a whole operation id, as agents and records carry it.
func IsOperationID(s string) bool { return idPattern.MatchString(s) }

// fullNumber is the number of an operation at its whole length; what people see is a prefix of it. It is a digest of the id,
// so that the number says nothing of the id, which alone works at the vault.
func fullNumber(operationID string) string {
	sum := sha256.Sum256([]byte("durward.number.v1\x00" + operationID))
	var b strings.Builder
	var acc, bits uint
	for _, c := range sum {
		acc = acc<<8 | uint(c)
		bits += 8
		for bits >= 5 && b.Len() < fullLength {
			bits -= 5
			b.WriteByte(alphabet[acc>>bits&31])
		}
		acc &= 1<<bits - 1
	}
	return b.String()
}

// Numbers gives each operation its short number: 4 characters, and as many more as keep it apart from the others given.
func Numbers(operationIDs []string) map[string]string {
	// In sorted order the longest common prefix is shared with a neighbour.
	full := make([]string, len(operationIDs))
	for i, id := range operationIDs {
		full[i] = fullNumber(id)
	}
	sorted := slices.Compact(slices.Sorted(slices.Values(full)))
	numbers := make(map[string]string, len(operationIDs))
	for i, id := range operationIDs {
		n := shortLength
		at, _ := slices.BinarySearch(sorted, full[i])
		for _, neighbour := range []int{at - 1, at + 1} {
			for neighbour >= 0 && neighbour < len(sorted) && n < fullLength && strings.HasPrefix(sorted[neighbour], full[i][:n]) {
				n++
			}
		}
		numbers[id] = full[i][:n]
	}
	return numbers
}

// Find returns the operation that number names: a short number, at least 4 characters of a longer one, in either case and
// with the letters that are easily confused taken as what was meant, or at least 4 characters of an operation id.
func Find(number string, operationIDs []string) (string, error) {
	var found []string
	canonical := strings.NewReplacer("O", "0", "I", "1", "L", "1", "-", "").Replace(strings.ToUpper(number))
	lower := strings.ToLower(number)
	if len(number) < shortLength {
		return "", ErrNoSuchNumber
	}
	for _, id := range operationIDs {
		if strings.HasPrefix(fullNumber(id), canonical) || strings.HasPrefix(id, lower) {
			found = append(found, id)
		}
	}
	switch len(found) {
	case 0:
		return "", ErrNoSuchNumber
	case 1:
		return found[0], nil
	}
	shown := Numbers(found)
	candidates := make([]string, len(found))
	for i, id := range found {
		candidates[i] = shown[id]
	}
	return "", &AmbiguousError{Number: number, Candidates: candidates}
}
