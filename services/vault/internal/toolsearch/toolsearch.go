// Package toolsearch finds tools by words, for agents whose list does not hold all of them. Names, titles and descriptions are ours or a
// human signed them; the words are an agent's.
package toolsearch

import (
	"cmp"
	"encoding/json"
	"math"
	"slices"
	"strings"
	"unicode"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/fault"
)

// The usual constants of BM25 (Robertson and Zaragoza, "The Probabilistic Relevance Framework", 2009), and how often a word of a name
// counts against one of a description.
const (
	k1         = 1.2
	b          = 0.75
	nameWeight = 3
)

// mostFound is how many tools Found names.
const mostFound = 10

// Found is what find_tools answers.
func Found(words string, tools []contract.Tool) *vaultv1.FindToolsResponse {
	resp := &vaultv1.FindToolsResponse{}
	for _, t := range Best(words, tools, mostFound) {
		resp.Tools = append(resp.Tools, &vaultv1.FoundTool{Tool: t.Name, Title: t.Title, Tier: t.Tier})
	}
	return resp
}

// Described is what describe_tool answers, with the whole description that was accepted. A tool that is not there and one that is not theirs get one answer.
func Described(name string, tools []contract.Tool) (*vaultv1.DescribeToolResponse, error) {
	i := slices.IndexFunc(tools, func(t contract.Tool) bool { return t.Name == name })
	if i < 0 {
		return nil, fault.New(callv1.Code_CODE_NOT_FOUND, "there is no such tool for this client; find_tools finds those that there are", fault.WithField("tool"))
	}
	schema, err := json.Marshal(tools[i].InputSchema)
	return &vaultv1.DescribeToolResponse{Description: contract.Described(tools[i]), Tier: tools[i].Tier, InputSchema: string(schema)}, err
}

// Best returns the tools that fit the words, the best first, at most so many.
func Best(words string, tools []contract.Tool, most int) []contract.Tool {
	documents, length := make([]map[string]int, len(tools)), 0
	in := map[string]int{}
	for i, t := range tools {
		documents[i] = count(t)
		for word, n := range documents[i] {
			in[word]++
			length += n
		}
	}
	type scored struct {
		tool  contract.Tool
		score float64
	}
	var found []scored
	for i, d := range documents {
		of, score := 0, 0.0
		for _, n := range d {
			of += n
		}
		for _, word := range unique(split(words)) {
			n := float64(d[word])
			if n == 0 {
				continue
			}
			rare := math.Log(1 + (float64(len(tools)-in[word])+0.5)/(float64(in[word])+0.5))
			score += rare * n * (k1 + 1) / (n + k1*(1-b+b*float64(of)*float64(len(tools))/float64(length)))
		}
		if score > 0 {
			found = append(found, scored{tools[i], score})
		}
	}
	slices.SortStableFunc(found, func(x, y scored) int { return cmp.Compare(y.score, x.score) })
	var out []contract.Tool
	for _, f := range found[:min(len(found), most)] {
		out = append(out, f.tool)
	}
	return out
}

func count(t contract.Tool) map[string]int {
	words := map[string]int{}
	for _, w := range split(t.Name + " " + t.Title) {
		words[w] += nameWeight
	}
	for _, w := range split(t.Description) {
		words[w]++
	}
	return words
}

// split are a text's words in lower case, without the s of many: readFile and read_files are both read and file.
func split(text string) []string {
	var spaced strings.Builder
	before := ' '
	for _, r := range text {
		if unicode.IsUpper(r) && unicode.IsLower(before) {
			spaced.WriteByte(' ')
		}
		spaced.WriteRune(unicode.ToLower(r))
		before = r
	}
	words := strings.FieldsFunc(spaced.String(), func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) })
	for i, w := range words {
		if len(w) > 3 && !strings.HasSuffix(w, "ss") {
			words[i] = strings.TrimSuffix(w, "s")
		}
	}
	return words
}

func unique(words []string) []string {
	slices.Sort(words)
	return slices.Compact(words)
}
