package contract

import (
	"bytes"
	"embed"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"slices"
	"strings"
	"testing"

	"buf.build/go/protovalidate"
	"github.com/google/go-cmp/cmp"
	"github.com/google/jsonschema-go/jsonschema"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/fault"
)

//go:embed testdata
var testdata embed.FS

var update = flag.Bool("update", false, "write the golden vectors anew")

func lookup(t testing.TB, name string) Tool {
	t.Helper()
	tool, ok := Lookup(name)
	if !ok {
		t.Fatalf("the contract has no tool %s", name)
	}
	return tool
}

func TestContractLint(t *testing.T) {
	for _, problem := range lint() {
		t.Error(problem)
	}
}

// A process compiles a type's rules at its first message, and could do nothing but refuse it where they do not compile.
func TestEveryRuleCompiles(t *testing.T) {
	types := 0
	protoregistry.GlobalTypes.RangeMessages(func(m protoreflect.MessageType) bool {
		if !strings.HasPrefix(string(m.Descriptor().FullName()), "durward.") {
			return true
		}
		types++
		var invalid *protovalidate.ValidationError
		if err := protovalidate.Validate(m.New().Interface()); err != nil && !errors.As(err, &invalid) {
			t.Errorf("the rules of %s: %v", m.Descriptor().FullName(), err)
		}
		return true
	})
	if types < 250 {
		t.Errorf("%d types are linked, not the contract's", types)
	}
}

func TestTools(t *testing.T) {
	want := map[string]struct {
		tier optionsv1.Tier
		sink optionsv1.Role
	}{
		"gpu_status":     {optionsv1.Tier_TIER_READ, optionsv1.Role_ROLE_EXECUTOR},
		"list_services":  {optionsv1.Tier_TIER_READ, optionsv1.Role_ROLE_EXECUTOR},
		"service_info":   {optionsv1.Tier_TIER_READ, optionsv1.Role_ROLE_EXECUTOR},
		"start_service":  {optionsv1.Tier_TIER_WRITE, optionsv1.Role_ROLE_EXECUTOR},
		"stop_service":   {optionsv1.Tier_TIER_WRITE, optionsv1.Role_ROLE_EXECUTOR},
		"service_logs":   {optionsv1.Tier_TIER_READ, optionsv1.Role_ROLE_EXECUTOR},
		"list_modes":     {optionsv1.Tier_TIER_READ, optionsv1.Role_ROLE_EXECUTOR},
		"mode_info":      {optionsv1.Tier_TIER_READ, optionsv1.Role_ROLE_EXECUTOR},
		"list_models":    {optionsv1.Tier_TIER_READ, optionsv1.Role_ROLE_EXECUTOR},
		"model_info":     {optionsv1.Tier_TIER_READ, optionsv1.Role_ROLE_EXECUTOR},
		"simulate_mode":  {optionsv1.Tier_TIER_READ, optionsv1.Role_ROLE_EXECUTOR},
		"switch_mode":    {optionsv1.Tier_TIER_DESTRUCTIVE, optionsv1.Role_ROLE_EXECUTOR},
		"sleep_service":  {optionsv1.Tier_TIER_WRITE, optionsv1.Role_ROLE_EXECUTOR},
		"wake_service":   {optionsv1.Tier_TIER_WRITE, optionsv1.Role_ROLE_EXECUTOR},
		"wait_operation": {optionsv1.Tier_TIER_READ, optionsv1.Role_ROLE_VAULT},

		"withdraw_operation": {optionsv1.Tier_TIER_READ, optionsv1.Role_ROLE_VAULT},

		"fetch_url":    {optionsv1.Tier_TIER_READ, optionsv1.Role_ROLE_EGRESS},
		"http_request": {optionsv1.Tier_TIER_WRITE, optionsv1.Role_ROLE_EGRESS},

		"security_report": {optionsv1.Tier_TIER_READ, optionsv1.Role_ROLE_EGRESS},

		"security_config": {optionsv1.Tier_TIER_READ, optionsv1.Role_ROLE_VAULT},
		"tokenize":        {optionsv1.Tier_TIER_READ, optionsv1.Role_ROLE_VAULT},
		"find_tools":      {optionsv1.Tier_TIER_READ, optionsv1.Role_ROLE_VAULT},
		"describe_tool":   {optionsv1.Tier_TIER_READ, optionsv1.Role_ROLE_VAULT},
	}
	tools := Tools()
	if len(tools) != len(want) {
		t.Errorf("%d tools, want %d", len(tools), len(want))
	}
	for _, tool := range tools {
		w, ok := want[tool.Name]
		if !ok || tool.Tier != w.tier || tool.Sink != w.sink || tool.Source != SourceNative {
			t.Errorf("%s: tier %v, sink %v, source %s", tool.Name, tool.Tier, tool.Sink, tool.Source)
		}
		if tool.OneCall != (tool.Name == "service_logs" || tool.Name == "fetch_url") || tool.Leaves != (tool.Name == "fetch_url" || tool.Name == "http_request") || tool.ByPermit() != (w.tier == optionsv1.Tier_TIER_READ && !tool.OneCall) {
			t.Errorf("%s: one call: %t, by permit: %t", tool.Name, tool.OneCall, tool.ByPermit())
		}
		if again, ok := ByMethod(tool.FullMethod); !ok || again.Name != tool.Name {
			t.Errorf("ByMethod(%s) = %s", tool.FullMethod, again.Name)
		}
	}
	for _, name := range []string{"", "start", "startService", "zzz"} {
		if _, ok := Lookup(name); ok {
			t.Errorf("Lookup(%q) finds a tool", name)
		}
	}
}

// TestDefinitionsGolden pins every tool's definition, byte for byte: approvals are bound to its digest, so a change of
// one must be meant.
func TestDefinitionsGolden(t *testing.T) {
	for _, tool := range Tools() {
		got, err := canonical.Marshal(tool.Definition())
		must(t, err)
		file := "testdata/" + tool.Name + ".definition.json"
		if *update {
			must(t, os.WriteFile(file, got, 0o644))
			continue
		}
		want, err := testdata.ReadFile(file)
		must(t, err)
		if diff := cmp.Diff(string(want), string(got)); diff != "" {
			t.Errorf("%s (-golden +got):\n%s", file, diff)
		}
		if digest := canonical.Digest(got); digest != tool.DefinitionDigest {
			t.Errorf("%s: the digest is not the definition's", tool.Name)
		}
	}
}

func TestSchemasCompileAndAgreeWithDecode(t *testing.T) {
	for _, tool := range Tools() {
		schema := compile(t, tool.InputSchema)
		compile(t, tool.ResultSchema)
		for _, raw := range []string{
			`{}`, `{"service_id":"demo-chat"}`, `{"service_id":""}`, `{"service_id":"-x"}`, `{"service_id":5}`, `{"service_id":null}`,
			`{"serviceId":"demo-chat"}`, `{"service_id":"demo-chat","x":1}`, `{"operation_id":"00112233445566778899aabbccddeeff"}`,
			`{"operation_id":"00112233445566778899AABBCCDDEEFF"}`, `[]`, `"x"`,
			`{"tier_ceiling_override":"WRITE"}`, `{"tier_ceiling_override":"TIER_WRITE"}`, `{"tier_ceiling_override":"DESTRUCTIVE"}`, `{"tier_ceiling_override":"TIER_UNSPECIFIED"}`,
			`{"tier_ceiling_override":2}`, `{"tier_ceiling_override":"DENIED"}`,
		} {
			var value any
			must(t, json.Unmarshal([]byte(raw), &value))
			schemaErr := schema.Validate(value)
			_, decodeErr := tool.Decode([]byte(raw))
			if (schemaErr == nil) != (decodeErr == nil) {
				t.Errorf("%s %s: schema says %v, Decode says %v", tool.Name, raw, schemaErr, decodeErr)
			}
		}
	}
}

func compile(t *testing.T, schema map[string]any) *jsonschema.Resolved {
	t.Helper()
	raw, err := json.Marshal(schema)
	must(t, err)
	var s jsonschema.Schema
	must(t, json.Unmarshal(raw, &s))
	r, err := s.Resolve(nil)
	must(t, err)
	return r
}

func TestDecodeRefuses(t *testing.T) {
	tool := lookup(t, "start_service")
	for name, tc := range map[string]struct {
		raw   string
		code  callv1.Code
		field string
	}{
		"nothing":             {``, callv1.Code_CODE_INVALID_ARGUMENT, ""},
		"null":                {`null`, callv1.Code_CODE_INVALID_ARGUMENT, ""},
		"list":                {`[]`, callv1.Code_CODE_INVALID_ARGUMENT, ""},
		"missing":             {`{}`, callv1.Code_CODE_INVALID_ARGUMENT, "service_id"},
		"null value":          {`{"service_id":null}`, callv1.Code_CODE_INVALID_ARGUMENT, "service_id"},
		"number":              {`{"service_id":3}`, callv1.Code_CODE_INVALID_ARGUMENT, "service_id"},
		"object":              {`{"service_id":{}}`, callv1.Code_CODE_INVALID_ARGUMENT, "service_id"},
		"empty":               {`{"service_id":""}`, callv1.Code_CODE_INVALID_ARGUMENT, "service_id"},
		"camelCase":           {`{"serviceId":"demo-chat"}`, callv1.Code_CODE_INVALID_ARGUMENT, ""},
		"case variant":        {`{"Service_id":"demo-chat"}`, callv1.Code_CODE_INVALID_ARGUMENT, ""},
		"NUL suffix":          {`{"service_id\u0000":"demo-chat"}`, callv1.Code_CODE_INVALID_ARGUMENT, ""},
		"unknown field":       {`{"service_id":"demo-chat","force":true}`, callv1.Code_CODE_INVALID_ARGUMENT, ""},
		"duplicate key":       {`{"service_id":"demo-chat","service_id":"demo-embed"}`, callv1.Code_CODE_INVALID_ARGUMENT, ""},
		"trailing data":       {`{"service_id":"demo-chat"}{}`, callv1.Code_CODE_INVALID_ARGUMENT, ""},
		"shell":               {`{"service_id":"a;rm -rf /"}`, callv1.Code_CODE_INVALID_ARGUMENT, "service_id"},
		"flag":                {`{"service_id":"--force"}`, callv1.Code_CODE_INVALID_ARGUMENT, "service_id"},
		"host flag":           {`{"service_id":"-Hroot"}`, callv1.Code_CODE_INVALID_ARGUMENT, "service_id"},
		"trailing newline":    {`{"service_id":"demo-chat\n"}`, callv1.Code_CODE_INVALID_ARGUMENT, "service_id"},
		"path":                {`{"service_id":"a/../../etc"}`, callv1.Code_CODE_INVALID_ARGUMENT, "service_id"},
		"65 characters":       {`{"service_id":"` + strings.Repeat("a", 65) + `"}`, callv1.Code_CODE_INVALID_ARGUMENT, "service_id"},
		"Cyrillic look-alike": {`{"service_id":"demo-ch\u0430t"}`, callv1.Code_CODE_INVALID_ARGUMENT, "service_id"},
		"2 MB":                {`{"service_id":"` + strings.Repeat("a", 2<<20) + `"}`, callv1.Code_CODE_TOO_LARGE, ""},
		"too deep":            {`{"service_id":` + strings.Repeat("[", 60) + strings.Repeat("]", 60) + `}`, callv1.Code_CODE_INVALID_ARGUMENT, ""},
	} {
		t.Run(name, func(t *testing.T) {
			m, err := tool.Decode([]byte(tc.raw))
			if err == nil {
				t.Fatalf("Decode = %v", m)
			}
			f := fault.From(err)
			if f.Code != tc.code || f.Field != tc.field {
				t.Errorf("fault %v, field %q (%s), want %v, %q", f.Code, f.Field, f.Message, tc.code, tc.field)
			}
			for _, value := range []string{"rm -rf", "etc", "demo-embed", "aaaa"} {
				if strings.Contains(f.Message, value) {
					t.Errorf("the message repeats the value: %s", f.Message)
				}
			}
		})
	}
	m, err := tool.Decode([]byte(` {"service_id": "demo\u002dchat"} `))
	must(t, err)
	got, err := Canonical(m)
	if err != nil || string(got) != `{"service_id":"demo-chat"}` {
		t.Errorf("Canonical = %s, %v", got, err)
	}
}

// TestMostAlternatives: so many can be asked for, and no more. A switch to one that the edge does not see would be taken for an old plan.
func TestMostAlternatives(t *testing.T) {
	for asked, taken := range map[uint32]bool{MostAlternatives: true, MostAlternatives + 1: false} {
		err := Validate(&executorv1.SimulateModeRequest{ModeId: proto.String("night"), Alternatives: proto.Uint32(asked)})
		if (err == nil) != taken {
			t.Errorf("%d other ways: %v", asked, err)
		}
	}
}

func TestUnknownFieldIsHinted(t *testing.T) {
	_, err := lookup(t, "start_service").Decode([]byte(`{"serviceid":"demo-chat"}`))
	if f := fault.From(err); len(f.DidYouMean) != 1 || f.DidYouMean[0] != "service_id" {
		t.Errorf("did you mean %v, want service_id", f.DidYouMean)
	}
	// A name that is near to none: of a few that are missing all are told, of many none.
	for _, c := range []struct {
		tool, arguments string
		want            int
	}{
		{"service_info", `{"xyzzy":"demo-chat"}`, 1},
		{"service_info", `{"xyzzy":"demo-chat","service_id":"demo-chat"}`, 0},
		{"simulate_mode", `{"xyzzy":"demo-chat"}`, 0},
	} {
		_, err := lookup(t, c.tool).Decode([]byte(c.arguments))
		if f := fault.From(err); len(f.DidYouMean) != c.want {
			t.Errorf("%s %s: did you mean %v", c.tool, c.arguments, f.DidYouMean)
		}
	}
}

func TestCanonicalArguments(t *testing.T) {
	for _, raw := range []string{``, `null`, `[]`, `{ }`, `{"b":1,"a":1}`, `"x"`, `{"a":1.0}`} {
		if _, err := CanonicalArguments([]byte(raw)); err == nil {
			t.Errorf("CanonicalArguments(%s) = nil error", raw)
		}
	}
	if got, err := CanonicalArguments([]byte(`{"service_id":"demo-chat"}`)); err != nil || len(got) == 0 {
		t.Errorf("CanonicalArguments = %s, %v", got, err)
	}
}

// TestWholeNumbers: what is a whole number to the published schema is one to Decode, whose canonical form has no fraction.
func TestWholeNumbers(t *testing.T) {
	tool, _ := Lookup("service_logs")
	for raw, want := range map[string]bool{
		"1": true, "40": true, "1.0": true, "2.000": true, "1.5": false, "1e1": false, "10e-1": false, "-0": false, "-0.0": false, `"1"`: false,
		"41": false, "41.0": false, "0": false, "-1": false, "4294967297": false, "1.": false, ".0": false, "null": false,
	} {
		m, err := tool.Decode([]byte(`{"service_id":"a","lines":` + raw + `}`))
		if (err == nil) != want {
			t.Errorf("%s: %v", raw, err)
			continue
		}
		if err == nil {
			if canonical, err := Canonical(m); err != nil || bytes.Contains(canonical, []byte(".")) {
				t.Errorf("%s: canonical %s, %v", raw, canonical, err)
			}
		}
	}
}

func TestUnsetAndEmptyDiffer(t *testing.T) {
	unset, err := Canonical(&executorv1.StartServiceRequest{})
	must(t, err)
	empty, err := Canonical(&executorv1.StartServiceRequest{ServiceId: proto.String("")})
	must(t, err)
	if bytes.Equal(unset, empty) {
		t.Errorf("unset and empty are both %s", unset)
	}
}

func TestRedact(t *testing.T) {
	in := &vaultv1.OpenSessionRequest{Credential: "top secret", ClientName: "x"}
	out := Redact(in).(*vaultv1.OpenSessionRequest)
	if out.GetCredential() != "[redacted:sensitive]" || out.GetClientName() != "x" || in.GetCredential() == "" {
		t.Errorf("Redact = %v", out)
	}
	if out := Redact(&vaultv1.OpenSessionRequest{ClientName: "x"}).(*vaultv1.OpenSessionRequest); out.GetCredential() != "" {
		t.Errorf("Redact sets what was not there: %v", out)
	}
}

// TestTextFromOutside pins what of the answers comes from elsewhere and passes the vault: whoever adds a field says where its text
// is from.
func TestTextFromOutside(t *testing.T) {
	want := map[string][]string{"service_logs": {"log"}, "switch_mode": {"log"}, "fetch_url": {"url", "content_type", "text"}, "http_request": {"content_type", "location", "text"}, "security_report": {"report"}, "tokenize": {"text"}, "describe_tool": {"description", "input_schema"}}
	for _, tool := range Tools() {
		if tool.OpenResult {
			continue // its response is for the gateway, which answers with the original tool's result
		}
		if diff := cmp.Diff(want[tool.Name], outsideFields(tool.Method)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tool.Name, diff)
		}
		if odd := Opaque(tool.Method.Output()); len(odd) > 0 {
			t.Errorf("%s returns what nothing can look through: %v", tool.Name, odd)
		}
	}
}

// A number from outside may be somebody's telephone number, and nothing can be put in its place; a flag is nobody's.
func TestOpaqueContentIsFound(t *testing.T) {
	odd := Opaque((&auditv1.Body{}).ProtoReflect().Descriptor())
	for field, want := range map[string]bool{"duration_ms": true, "result_digest": true, "summary": false, "details": false, "confirmed": false, "channel": false} {
		if slices.Contains(odd, field) != want {
			t.Errorf("%s: %t, want %t, of %v", field, !want, want, odd)
		}
	}
}

// The one thing that leaves unseen is a picture of a server's, which a human lets pass.
func TestUnseen(t *testing.T) {
	protoregistry.GlobalFiles.RangeFiles(func(f protoreflect.FileDescriptor) bool {
		for i := range f.Messages().Len() {
			fields := f.Messages().Get(i).Fields()
			for n := range fields.Len() {
				if fd := fields.Get(n); unseen(fd) != (fd.FullName() == "durward.egress.v1.ServerContent.data") {
					t.Errorf("%s: unseen is %t", fd.FullName(), unseen(fd))
				}
			}
		}
		return true
	})
	if odd := Opaque(ServersMethod.Output()); len(odd) > 0 {
		t.Errorf("a server's result has what nothing can look through: %v", odd)
	}
}

func BenchmarkDecode(b *testing.B) {
	tool := lookup(b, "start_service")
	raw := []byte(`{"service_id":"demo-chat"}`)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := tool.Decode(raw); err != nil {
			b.Fatal(err)
		}
	}
}

func FuzzDecode(f *testing.F) {
	for _, s := range []string{`{"service_id":"demo-chat"}`, `{"service_id":null}`, `{"serviceId":"a"}`, `{"operation_id":"00112233445566778899aabbccddeeff"}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		for _, tool := range Tools() {
			m, err := tool.Decode(raw)
			if err != nil {
				continue
			}
			// What the edge decided on is what the sink reads.
			canon, err := Canonical(m)
			must(t, err)
			again, err := tool.Decode(canon)
			if err != nil || !proto.Equal(m, again) {
				t.Fatalf("%s: %q decodes to %v, its canonical form %s to %v, %v", tool.Name, raw, m, canon, again, err)
			}
		}
	})
}

// An RPC that is no tool and shows what one shows takes that tool's permit; any other takes none.
func TestPermitOf(t *testing.T) {
	for method, want := range map[string]string{
		"/durward.executor.v1.ToolService/GpuStatus":            "gpu_status",
		"/durward.executor.v1.EventService/WatchServices":       "list_services",
		"/durward.vault.v1.OperationService/GetOperation":       "wait_operation",
		"/durward.vault.v1.SessionService/OpenSession":          "",
		"/durward.vault.v1.ApprovalService/WatchOperations":     "",
		"/durward.executor.v1.EventService/WatchSecrets":        "",
		"/durward.executor.v1.EventService":                     "",
		"durward.executor.v1.EventService.WatchServices":        "",
		"/durward.executor.v1.WatchServicesRequest/service_ids": "",
		"": "",
	} {
		if got, ok := PermitOf(method); got.Name != want || ok != (want != "") {
			t.Errorf("%q takes the permit of %q, %v", method, got.Name, ok)
		}
	}
	under, err := UnderPermit(optionsv1.Role_ROLE_EXECUTOR)
	watch := under["/durward.executor.v1.EventService/WatchServices"]
	progress := under["/durward.executor.v1.EventService/WatchProgress"]
	if err != nil || len(under) != 2 || watch.Tool.Name != "list_services" || !watch.Stream() || progress.Tool.Name != "list_services" {
		t.Errorf("the executor's RPCs under a permit are %v, %v", under, err)
	}
	under, err = UnderPermit(optionsv1.Role_ROLE_VAULT)
	get := under["/durward.vault.v1.OperationService/GetOperation"]
	own := under["/durward.vault.v1.OperationService/ListSessionOperations"]
	if err != nil || len(under) != 2 || get.Tool.Name != "wait_operation" || get.Stream() || own.Tool.Name != "wait_operation" {
		t.Errorf("the vault's RPCs under a permit are %v, %v", under, err)
	}
}

// An internal program calls what the gateway calls in an agent's name, and its own session's operations: every tool, what opens and keeps a
// session, and nothing else.
func TestInternalPrograms(t *testing.T) {
	others := map[string]bool{}
	protoregistry.GlobalFiles.RangeFiles(func(file protoreflect.FileDescriptor) bool {
		for i := range file.Services().Len() {
			methods := file.Services().Get(i).Methods()
			for j := range methods.Len() {
				m := methods.Get(j)
				tool := slices.Contains(callers(m), optionsv1.Role_ROLE_TOOL)
				if toolOption(m) != nil != tool {
					others[fullMethod(m)] = tool
				}
				if tool && toolOption(m) != nil && !slices.Contains(callers(m), optionsv1.Role_ROLE_GATEWAY) {
					t.Errorf("%s is no gateway's to call", m.FullName())
				}
			}
		}
		return true
	})
	want := map[string]bool{}
	for _, method := range []string{
		"SessionService/OpenSession", "SessionService/RenewPermits", "SessionService/CloseSession", "AuthorityService/Authorise",
		"OperationService/GetOperation", "OperationService/ListSessionOperations",
	} {
		want["/durward.vault.v1."+method] = true
	}
	want["/durward.executor.v1.EventService/WatchServices"] = true
	if diff := cmp.Diff(want, others); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestOperatorStreams(t *testing.T) {
	got := OperatorStreams(optionsv1.Role_ROLE_EXECUTOR)
	if diff := cmp.Diff(map[string]bool{"/durward.executor.v1.ControlService/FollowLogs": true}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// What names a permit is under it whether or not it streams; what names one that it cannot have is found.
func TestUnderPermit(t *testing.T) {
	gateway, operator := optionsv1.Role_ROLE_GATEWAY, optionsv1.Role_ROLE_OPERATOR
	for name, c := range map[string]struct {
		permit string
		tool   *optionsv1.Tool
		stream bool
		caller optionsv1.Role
		want   string // the tool, "error" or nothing
	}{
		"a unary RPC without a permit":        {caller: gateway},
		"an operator's stream without one":    {caller: operator, stream: true},
		"a gateway's stream without one":      {caller: gateway, stream: true, want: "error"},
		"a unary RPC under a permit":          {permit: "list_services", caller: gateway, want: "list_services"},
		"a stream under a permit":             {permit: "gpu_status", caller: gateway, stream: true, want: "gpu_status"},
		"an operator's under a permit":        {permit: "gpu_status", caller: operator, want: "gpu_status"},
		"under the permit of what changes":    {permit: "start_service", caller: gateway, want: "error"},
		"under that of a one-call tool":       {permit: "service_logs", caller: gateway, want: "error"},
		"under the permit of another sink":    {permit: "wait_operation", caller: gateway, want: "error"},
		"under the permit of no tool":         {permit: "no_such_tool", caller: gateway, want: "error"},
		"an operator's under that of no tool": {permit: "no_such_tool", caller: operator, want: "error"},
		"a tool that names another's permit":  {permit: "gpu_status", tool: &optionsv1.Tool{Name: "two_of_them"}, caller: gateway, want: "error"},
	} {
		t.Run(name, func(t *testing.T) {
			options := &descriptorpb.MethodOptions{}
			proto.SetExtension(options, optionsv1.E_Callers, []optionsv1.Role{c.caller})
			if c.permit != "" {
				proto.SetExtension(options, optionsv1.E_Permit, c.permit)
			}
			if c.tool != nil {
				proto.SetExtension(options, optionsv1.E_Tool, c.tool)
			}
			file, err := protodesc.NewFile(&descriptorpb.FileDescriptorProto{
				Name: proto.String("durward/executor/v1/look.proto"), Package: proto.String("durward.executor.v1"), Syntax: proto.String("proto3"),
				Dependency: []string{"durward/executor/v1/events.proto"},
				Service: []*descriptorpb.ServiceDescriptorProto{{
					Name: proto.String("LookService"),
					Method: []*descriptorpb.MethodDescriptorProto{{
						Name: proto.String("Look"), ServerStreaming: &c.stream, Options: options,
						InputType: proto.String(".durward.executor.v1.WatchServicesRequest"), OutputType: proto.String(".durward.executor.v1.WatchServicesResponse"),
					}},
				}},
			}, protoregistry.GlobalFiles)
			must(t, err)
			var files protoregistry.Files
			must(t, files.RegisterFile(file))
			under, err := underPermits(&files, optionsv1.Role_ROLE_EXECUTOR)
			got := under["/durward.executor.v1.LookService/Look"].Tool.Name
			if err != nil {
				got = "error"
				if !strings.Contains(err.Error(), "LookService/Look") {
					t.Errorf("the error does not name it: %v", err)
				}
			}
			if got != c.want {
				t.Errorf("under %q, %v; want %q", got, err, c.want)
			}
			if under, err := underPermits(&files, optionsv1.Role_ROLE_VAULT); err != nil || len(under) != 0 {
				t.Errorf("the vault has %v, %v", under, err)
			}
		})
	}
}

// TestEnumsAreWords: what agents read and write of an enum is a word, in the canonical form that is signed and shown too, and its name in
// the contract is nothing that they may write.
func TestEnumsAreWords(t *testing.T) {
	tool := lookup(t, "security_config")
	m, err := tool.Decode([]byte(`{"tier_ceiling_override":"WRITE"}`))
	must(t, err)
	if form, err := Canonical(m); err != nil || string(form) != `{"tier_ceiling_override":"WRITE"}` {
		t.Errorf("canonical form %s: %v", form, err)
	}
	if _, err := tool.Decode([]byte(`{"tier_ceiling_override":"TIER_WRITE"}`)); err == nil {
		t.Error("a name is taken for a word")
	}
	if raw, err := json.Marshal(lookup(t, "list_services").ResultSchema); err != nil || !strings.Contains(string(raw), `"running"`) || strings.Contains(string(raw), "SERVICE_STATE") {
		t.Errorf("%s: %v", raw, err)
	}
}

// TestReferred: a reference names a tool by its name, its source and its very definition.
func TestReferred(t *testing.T) {
	tool, ok := Lookup("start_service")
	if !ok {
		t.Fatal("the contract has no start_service")
	}
	if got, ok := Referred(tool.Ref()); !ok || got.FullMethod != tool.FullMethod {
		t.Errorf("its own reference: %q, %t", got.FullMethod, ok)
	}
	for name, change := range map[string]func(*callv1.ToolRef){
		"another name":       func(r *callv1.ToolRef) { r.Name = "stop_service" },
		"no such name":       func(r *callv1.ToolRef) { r.Name = "drop_tables" },
		"another source":     func(r *callv1.ToolRef) { r.Source = "mcp:files" },
		"another definition": func(r *callv1.ToolRef) { r.DefinitionDigest[0]++ },
		"no definition":      func(r *callv1.ToolRef) { r.DefinitionDigest = nil },
	} {
		ref := proto.CloneOf(tool.Ref())
		change(ref)
		if got, ok := Referred(ref); ok {
			t.Errorf("%s: it is %s", name, got.Name)
		}
	}
	if _, ok := Referred(nil); ok {
		t.Error("nothing names a tool")
	}
}

func TestWordOf(t *testing.T) {
	t.Parallel()
	for value, want := range map[protoreflect.Enum]string{
		executorv1.ServiceState_SERVICE_STATE_RUNNING: "running", callv1.Channel_CHANNEL_DESKTOP_UI: "desktop_ui",
		callv1.Channel_CHANNEL_UNSPECIFIED: "unspecified", callv1.Channel(77): "77",
	} {
		if got := WordOf(value); got != want {
			t.Errorf("%v: %q, want %q", value, got, want)
		}
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
