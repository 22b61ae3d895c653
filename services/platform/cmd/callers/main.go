// Command callers writes the tables of SECURITY.md that the contract decides: who may call which RPC, and the tools that
// agents see. -write replaces what stands between the markers of a file; -check fails if that would change it. With -api it prints the
// reference of the RPCs from a descriptor set.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	_ "durward.internal/proto/gen/durward/audit/v1"
	_ "durward.internal/proto/gen/durward/egress/v1"
	_ "durward.internal/proto/gen/durward/executor/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	_ "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/identity"
)

func main() {
	write := flag.String("write", "", "`file` whose tables are replaced")
	check := flag.String("check", "", "`file` whose tables must be current")
	descriptors := flag.String("api", "", "descriptor set, a `file` of buf build, whose reference is printed")
	flag.Parse()
	if *descriptors != "" {
		text, err := api(*descriptors)
		if err != nil {
			fmt.Fprintln(os.Stderr, "callers:", err)
			os.Exit(1)
		}
		fmt.Print(text)
		return
	}
	if err := run(*write, *check); err != nil {
		fmt.Fprintln(os.Stderr, "callers:", err)
		os.Exit(1)
	}
}

func run(write, check string) error {
	tables := map[string]string{"callers": callers(), "tools": tools()}
	file := write + check
	if file == "" || write != "" && check != "" {
		fmt.Print(tables["callers"], "\n", tables["tools"])
		return nil
	}
	old, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	updated := old
	for name, table := range tables {
		if updated, err = replace(updated, name, table); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
	}
	switch {
	case bytes.Equal(updated, old):
		return nil
	case check != "":
		return fmt.Errorf("the tables of %s are not current: make generate", check)
	default:
		return os.WriteFile(write, updated, 0o644) //nolint:gosec // a document of the source tree
	}
}

// replace puts a table between <!-- name:begin --> and <!-- name:end -->.
func replace(text []byte, name, table string) ([]byte, error) {
	begin, end := fmt.Sprintf("<!-- %s:begin -->\n", name), fmt.Sprintf("<!-- %s:end -->", name)
	before, rest, ok1 := bytes.Cut(text, []byte(begin))
	_, after, ok2 := bytes.Cut(rest, []byte(end))
	if !ok1 || !ok2 {
		return nil, fmt.Errorf("has no markers for %s", name)
	}
	return slices.Concat(before, []byte(begin+table+end), after), nil
}

func callers() string {
	var b strings.Builder
	b.WriteString("| process | RPC | who may call it |\n|---|---|---|\n")
	for _, file := range ours(protoregistry.GlobalFiles) {
		process := strings.Split(string(file.Package()), ".")[1]
		for i := range file.Services().Len() {
			service := file.Services().Get(i)
			for j := range service.Methods().Len() {
				method := service.Methods().Get(j)
				fmt.Fprintf(&b, "| %s | %s.%s | %s |\n", process, service.Name(), method.Name(), roleNames(method))
			}
		}
	}
	return b.String()
}

// ours are the files of the contract, in the order of their names.
func ours(files *protoregistry.Files) []protoreflect.FileDescriptor {
	var out []protoreflect.FileDescriptor
	files.RangeFiles(func(file protoreflect.FileDescriptor) bool {
		if strings.HasPrefix(string(file.Package()), "durward.") {
			out = append(out, file)
		}
		return true
	})
	slices.SortFunc(out, func(a, b protoreflect.FileDescriptor) int { return strings.Compare(a.Path(), b.Path()) })
	return out
}

func tools() string {
	var b strings.Builder
	b.WriteString("| tool | tier | answered by | what a call needs |\n|---|---|---|---|\n")
	for _, t := range contract.Tools() {
		needs := "a grant that carries a human's signed statement"
		switch {
		case t.OneCall && t.Leaves:
			needs = "a grant of its own from the vault, which carries a human's signed statement where the domain is not listed"
		case t.OneCall:
			needs = "a grant of its own from the vault; no human is asked"
		case t.Tier == optionsv1.Tier_TIER_READ:
			needs = "the session's permit"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", t.Name, contract.TierName(t.Tier), identity.RoleName(t.Sink), needs)
	}
	return b.String()
}
