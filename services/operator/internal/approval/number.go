package approval

import (
	"errors"
	"fmt"
	"strings"

	"durward.internal/services/operator/internal/output"
	"durward.internal/services/platform/opnumber"
	"durward.internal/services/platform/pattern"
)

var idPattern = pattern.New(`^[0-9a-f]{32}$`)

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
func IsOperationID(s string) bool { return idPattern().MatchString(s) }

// Numbers gives each operation its short number: 4 characters, and as many more as keep it apart from the others given.
func Numbers(operationIDs []string) map[string]string {
	full := output.Each(operationIDs, opnumber.Of)
	short := opnumber.Shorten(full)
	numbers := make(map[string]string, len(operationIDs))
	for i, id := range operationIDs {
		numbers[id] = short[full[i]]
	}
	return numbers
}

// idBeginning is how many characters of an operation id name it. A number that is displayed is never as long: it names no other operation
// that happens to have an id which begins so.
const idBeginning = 8

// Find returns the operation that number names: a short number, at least 4 characters of a longer one, in either case and
// with the letters that are easily confused taken as what was meant, or at least 8 characters of an operation id.
func Find(number string, operationIDs []string) (string, error) {
	var found []string
	canonical := strings.NewReplacer("O", "0", "I", "1", "L", "1", "-", "").Replace(strings.ToUpper(number))
	lower := strings.ToLower(number)
	if len(number) < opnumber.Short {
		return "", ErrNoSuchNumber
	}
	for _, id := range operationIDs {
		if strings.HasPrefix(opnumber.Of(id), canonical) || len(lower) >= idBeginning && strings.HasPrefix(id, lower) {
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
	return "", &AmbiguousError{Number: number, Candidates: output.Each(found, func(id string) string { return shown[id] })}
}
