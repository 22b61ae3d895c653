// Command sbom writes an SPDX 2.3 document of what programs are built from: each program's own build information (debug/buildinfo) names the
// Go toolchain and every module in it, with the digest that go.sum holds. The same programs give the same bytes.
//
//	sbom NAME VERSION PROGRAM… > sbom.spdx.json
//
// SOURCE_DATE_EPOCH is the time in it.
package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"
)

type checksum struct {
	Algorithm string `json:"algorithm"`
	Value     string `json:"checksumValue"`
}

type reference struct {
	Category string `json:"referenceCategory"`
	Type     string `json:"referenceType"`
	Locator  string `json:"referenceLocator"`
}

// pack is a package of SPDX: a program, a module or the toolchain.
type pack struct {
	ID       string      `json:"SPDXID"`
	Name     string      `json:"name"`
	Version  string      `json:"versionInfo,omitempty"`
	Download string      `json:"downloadLocation"`
	Analyzed bool        `json:"filesAnalyzed"`
	License  string      `json:"licenseConcluded"`
	Declared string      `json:"licenseDeclared"`
	Rights   string      `json:"copyrightText"`
	Sums     []checksum  `json:"checksums,omitempty"`
	Refs     []reference `json:"externalRefs,omitempty"`
}

type relation struct {
	From string `json:"spdxElementId"`
	Type string `json:"relationshipType"`
	To   string `json:"relatedSpdxElement"`
}

type document struct {
	Version   string         `json:"spdxVersion"`
	License   string         `json:"dataLicense"`
	ID        string         `json:"SPDXID"`
	Name      string         `json:"name"`
	Namespace string         `json:"documentNamespace"`
	Creation  map[string]any `json:"creationInfo"`
	Packages  []pack         `json:"packages"`
	Relations []relation     `json:"relationships"`
}

var unfit = regexp.MustCompile(`[^A-Za-z0-9.\-]+`)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "sbom:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) < 3 {
		return fmt.Errorf("usage: sbom NAME VERSION PROGRAM…")
	}
	epoch, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64)
	if err != nil {
		return fmt.Errorf("SOURCE_DATE_EPOCH: %w", err)
	}
	packs := map[string]pack{}
	var relations []relation
	sums := sha256.New()
	for _, path := range args[2:] {
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		info, err := buildinfo.ReadFile(path)
		if err != nil {
			return err
		}
		sum := fmt.Sprintf("%x", sha256.Sum256(data))
		fmt.Fprintln(sums, sum)
		name := filepath.Base(path)
		program := pack{ID: "SPDXRef-program-" + unfit.ReplaceAllString(name, "-"), Name: name, Version: args[1], Download: "NOASSERTION", License: "NOASSERTION", Declared: "Apache-2.0", Rights: "NOASSERTION", Sums: []checksum{{"SHA256", sum}}}
		packs[program.ID] = program
		relations = append(relations, relation{"SPDXRef-DOCUMENT", "DESCRIBES", program.ID})
		for _, module := range append([]*debug.Module{{Path: "stdlib", Version: info.GoVersion}}, info.Deps...) {
			if module.Replace != nil && module.Replace.Version == "" {
				continue // a module of this repository, which the program's own version says
			}
			part, err := dependency(module)
			if err != nil {
				return err
			}
			packs[part.ID] = part
			relations = append(relations, relation{program.ID, "DEPENDS_ON", part.ID})
		}
	}
	doc := document{
		Version: "SPDX-2.3", License: "CC0-1.0", ID: "SPDXRef-DOCUMENT", Name: args[0] + "-" + args[1],
		Namespace: fmt.Sprintf("https://durward.internal/spdx/%s-%x", args[0], sums.Sum(nil)),
		Creation:  map[string]any{"created": time.Unix(epoch, 0).UTC().Format(time.RFC3339), "creators": []string{"Tool: durward-sbom"}},
		Relations: relations,
	}
	for _, id := range slices.Sorted(maps.Keys(packs)) {
		doc.Packages = append(doc.Packages, packs[id])
	}
	out := json.NewEncoder(os.Stdout)
	out.SetIndent("", " ")
	return out.Encode(doc)
}

// dependency is a module as SPDX and a package URL name it. go.sum's "h1:" is the SHA-256 of a list of the module's files, and no file's own.
func dependency(m *debug.Module) (pack, error) {
	if m.Replace != nil {
		m = m.Replace
	}
	p := pack{
		ID: "SPDXRef-module-" + unfit.ReplaceAllString(m.Path+"-"+m.Version, "-"), Name: m.Path, Version: m.Version,
		Download: "NOASSERTION", License: "NOASSERTION", Declared: "NOASSERTION", Rights: "NOASSERTION",
		Refs: []reference{{"PACKAGE-MANAGER", "purl", "pkg:golang/" + m.Path + "@" + strings.ReplaceAll(m.Version, "+", "%2B")}},
	}
	if encoded, ok := strings.CutPrefix(m.Sum, "h1:"); ok {
		sum, err := base64.StdEncoding.DecodeString(encoded)
		if err != nil {
			return p, fmt.Errorf("%s: %w", m.Path, err)
		}
		p.Sums = []checksum{{"SHA256", fmt.Sprintf("%x", sum)}}
	}
	return p, nil
}
