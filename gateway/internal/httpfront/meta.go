package httpfront

import (
	"strings"
	"unicode"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"golang.org/x/text/unicode/norm"
	"google.golang.org/protobuf/encoding/protojson"

	"durward.internal/gateway/internal/relay"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/pattern"
	"durward.internal/services/platform/telemetry/span"
)

// Members of params._meta that are read; all else in it is dropped.
const (
	metaProgressToken = "progressToken"
	metaProtocol      = "io.modelcontextprotocol/protocolVersion"
	metaCapabilities  = "io.modelcontextprotocol/clientCapabilities"
)

// extensionTasks is the extension under which an answer may be a task.
const extensionTasks = "io.modelcontextprotocol/tasks"

// meta is what params._meta says.
type meta struct {
	// Capabilities are what the client declares with a request of the stateless era.
	Capabilities Capabilities
	// ClientName and ClientVersion are what the client calls itself: untrusted.
	ClientName, ClientVersion string
	// Proof is a key-bound client's signature, where the message carries one.
	Proof *callv1.Proof
	// Agent is which of the client's own agents asks, and Sender for whom a messaging client speaks; empty where nothing is said.
	Agent  string
	Sender relay.Sender
	// Instance tells programs of one principal apart in the stateless era: 32 hex digits, or empty.
	Instance string
	// TraceParent is the W3C trace context that the client gave, well formed, or empty. What stands beside it in that
	// context, tracestate and baggage, goes no further.
	TraceParent string

	progressToken jsontext.Value
	protocol      string
	declared      bool
	// diagnostic is what only a build for the conformance suite forwards.
	diagnostic []byte
}

const sentenceMeta = "The _meta member of params is not what the protocol describes."

var instancePattern = pattern.New(`^[0-9a-f]{32}$`)

// decodeMeta reads params._meta. A member of it that only looks like one that is read is refused: somebody else might take it
// for that one. Whether something beside it looks like _meta is for the method's decoder, most of which take no other members.
func decodeMeta(params jsontext.Value) (meta, *frameError) {
	var p struct {
		Meta jsontext.Value `json:"_meta"`
	}
	var out meta
	if params.Kind() != jsontext.KindBeginObject || json.Unmarshal(params, &p) != nil {
		return out, invalidParams("The params must be a JSON object.")
	}
	if p.Meta == nil {
		return out, nil
	}
	var m struct {
		ProgressToken jsontext.Value `json:"progressToken"`
		Protocol      *string        `json:"io.modelcontextprotocol/protocolVersion"`
		Client        *struct {
			Name    string         `json:"name"`
			Version string         `json:"version"`
			More    jsontext.Value `json:",embed"`
		} `json:"io.modelcontextprotocol/clientInfo"`
		Capabilities *struct {
			Extensions map[string]jsontext.Value `json:"extensions"`
			More       jsontext.Value            `json:",embed"`
		} `json:"io.modelcontextprotocol/clientCapabilities"`
		LogLevel *string        `json:"io.modelcontextprotocol/logLevel"`
		Proof    jsontext.Value `json:"durward/proof"`
		Instance *string        `json:"durward/instance"`
		Agent    *string        `json:"durward/agent"`
		Sender   *struct {
			User string `json:"user"`
			Room string `json:"room"`
		} `json:"durward/sender"`
		TraceParent *string        `json:"traceparent"`
		TraceState  *string        `json:"tracestate"`
		Baggage     *string        `json:"baggage"`
		More        jsontext.Value `json:",embed"`
	}
	if p.Meta.Kind() != jsontext.KindBeginObject || json.Unmarshal(p.Meta, &m) != nil {
		return out, invalidParams(sentenceMeta)
	}
	if m.Sender != nil {
		if out.Sender = (relay.Sender{User: m.Sender.User, Room: m.Sender.Room}); !validSender(out.Sender) {
			return out, invalidParams(sentenceSender)
		}
	}
	if lookalike(m.More, metaProgressToken, metaProtocol, metaCapabilities, "io.modelcontextprotocol/clientInfo",
		"io.modelcontextprotocol/logLevel", "durward/proof", "durward/instance", "durward/agent", "durward/sender", "traceparent", "tracestate", "baggage") {
		return out, invalidParams(sentenceLookalike)
	}
	if m.Protocol != nil {
		if *m.Protocol == "" || len(*m.Protocol) > maxLabel {
			return out, invalidParams(sentenceMeta)
		}
		out.protocol = *m.Protocol
	}
	if m.ProgressToken != nil && !validID(m.ProgressToken) {
		return out, invalidParams("The progressToken must be a string of at most 64 printable ASCII characters or a whole number of at most 15 characters.")
	}
	out.progressToken = m.ProgressToken
	if m.Client != nil {
		out.ClientName, out.ClientVersion = m.Client.Name, m.Client.Version
	}
	if m.Capabilities != nil {
		out.declared = true
		tasks, ok := m.Capabilities.Extensions[extensionTasks]
		if ok && tasks.Kind() != jsontext.KindBeginObject {
			return out, invalidParams(sentenceMeta)
		}
		out.Capabilities.Tasks = ok
	}
	if m.Proof != nil {
		proof := new(callv1.Proof)
		if len(m.Proof) > maxProof || protojson.Unmarshal(m.Proof, proof) != nil {
			return out, invalidParams("The durward/proof member of _meta is malformed.")
		}
		out.Proof = proof
	}
	if m.Instance != nil {
		if !instancePattern().MatchString(*m.Instance) {
			return out, invalidParams("The durward/instance member of _meta must be 32 hex digits.")
		}
		out.Instance = *m.Instance
	}
	if m.Agent != nil {
		if !agentPattern().MatchString(*m.Agent) {
			return out, invalidParams(sentenceAgent)
		}
		out.Agent = *m.Agent
	}
	if m.TraceParent != nil && span.Parse(*m.TraceParent).IsValid() {
		out.TraceParent = *m.TraceParent // any other is left out, as the W3C asks of whoever cannot read one
	}
	out.diagnostic = diagnosticMeta(p.Meta)
	return out, nil
}

// forward writes the members of _meta that the SDK needs. What the client can do is left out: nothing that is served depends
// on it but what the front has read.
func (m meta) forward(era Era) []byte {
	var b []byte
	if era == Stateless {
		b = append(b, `"`+metaProtocol+`":"`+modernEra+`",`...) // the one that is served
		if m.diagnostic == nil {
			b = append(b, `"`+metaCapabilities+`":{},`...)
		}
	}
	if m.progressToken != nil {
		b = append(b, `"`+metaProgressToken+`":`...)
		b = append(b, m.progressToken...)
		b = append(b, ',')
	}
	if m.diagnostic != nil {
		b = append(b, m.diagnostic...)
		b = append(b, ',')
	}
	return b[:max(0, len(b)-1)]
}

const sentenceLookalike = "The message has a key that looks like one of the protocol's, and is not, or one of more than 256 bytes: keys are written exactly."

// maxKey is how long a key may be that is compared with known ones, in bytes: folding costs.
const maxKey = 256

// lookalike reports whether an object has a key that another parser, or a careless reader, would take for a known one:
// equal to it but for case, compatibility forms of Unicode, and characters that nobody sees. rest are the members that are
// not known, nil if there are none. A key that is too long to be looked at counts as one.
func lookalike(rest jsontext.Value, known ...string) bool {
	if rest == nil {
		return false
	}
	var members map[string]jsontext.Value
	if json.Unmarshal(rest, &members) != nil {
		return true
	}
	for name := range members {
		if len(name) > maxKey {
			return true
		}
		folded := fold(name)
		for _, k := range known {
			if strings.EqualFold(folded, k) {
				return true
			}
		}
	}
	return false
}

// fold brings a key into the form in which lookalikes are equal.
func fold(key string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || unicode.Is(unicode.Cf, r) || unicode.Is(unicode.Mn, r) || unicode.IsSpace(r) {
			return -1
		}
		return r
	}, norm.NFKD.String(key))
}
