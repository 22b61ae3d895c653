package mcpserver_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	executorv1 "durward.internal/proto/gen/durward/executor/v1"
)

// What a model's economy bears: bytes of JSON as they go over the wire, and characters of what it reads at the beginning.
const (
	mostToolList     = 16_000 // with the tools of egress, which not every installation has
	mostAnswer       = 6_000
	mostSimulation   = 6_500 // with three alternatives, each with its GPUs: an agent that wants less asks for none
	mostDescription  = 600
	mostInstructions = 1500
)

// crowded is a connection to the executor of a large host: 8 GPUs, 24 services with names of a good length.
type crowded struct{ grpc.ClientConnInterface }

func (c crowded) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	err := c.ClientConnInterface.Invoke(ctx, method, args, reply, opts...)
	if _, simulated := reply.(*executorv1.SimulateModeResponse); err != nil && !simulated { // which the stand-in cannot
		return err
	}
	const running = executorv1.ServiceState_SERVICE_STATE_UNHEALTHY
	switch r := reply.(type) {
	case *executorv1.ListServicesResponse:
		proto.Reset(r)
		for i := range 24 {
			r.Services = append(r.Services, &executorv1.ServiceSummary{
				ServiceId: fmt.Sprintf("llama-3-70b-instruct-awq-%02d", i), Name: fmt.Sprintf("Llama 3 70B, quantised, for chat %02d", i), State: running,
				Model: "meta-llama/Llama-3.3-70B-Instruct-AWQ", VramMib: 46080,
			})
		}
	case *executorv1.GpuStatusResponse:
		proto.Reset(r)
		r.Source = "nvml"
		for i := range uint32(8) {
			gpu := &executorv1.Gpu{
				Index: i, Uuid: fmt.Sprintf("GPU-%08d-aaaa-bbbb-cccc-dddddddddddd", i), Name: "NVIDIA H100 80GB HBM3", MemoryTotalMib: 81559, MemoryUsedMib: 79872,
			}
			for j := range uint32(3) {
				gpu.Services = append(gpu.Services, fmt.Sprintf("llama-3-70b-instruct-awq-%02d", 3*i+j))
			}
			r.Gpus = append(r.Gpus, gpu)
		}
	case *executorv1.SimulateModeResponse:
		proto.Reset(r)
		gpus := func() (out []*executorv1.GpuForecast) {
			for i := range uint32(8) {
				out = append(out, &executorv1.GpuForecast{Index: i, NowMib: 79872, AfterMib: 46080, FreeMib: 34919, ForeignMib: 1024, TotalMib: 81559, Source: "estimated"})
			}
			return out
		}
		digest, id := strings.Repeat("0123456789abcdef", 4), "llama-3-70b-instruct-awq-"
		r.ModeId, r.Fits, r.PlanDigest, r.HostMib, r.HostAvailableMib, r.Gpus = "everyday-coding", true, digest, 409600, 819200, gpus()
		r.Next = &executorv1.NextCall{Tool: "switch_mode", Arguments: map[string]string{"mode_id": r.GetModeId(), "plan_digest": digest}}
		for i := range 4 {
			name := fmt.Sprintf("%s%02d", id, i)
			r.Steps = append(r.Steps, &executorv1.PlanStep{Action: executorv1.PlanAction_PLAN_ACTION_SLEEP, ServiceId: name, ExpectedS: 120})
			r.Needs = append(r.Needs, &executorv1.ServiceNeed{ServiceId: name, NeedMib: 46080, Source: "estimated", Context: 131072, KvTokens: 400000})
		}
		for range 3 {
			r.Alternatives = append(r.Alternatives, &executorv1.Alternative{Gpus: gpus(), PlanDigest: digest, HostMib: 409600, ExpectedS: 120, Changes: []*executorv1.Change{
				{Kind: executorv1.ChangeKind_CHANGE_KIND_UTILISATION, ServiceId: id + "00", From: "0.90", To: "0.80"},
				{Kind: executorv1.ChangeKind_CHANGE_KIND_SLEEP, ServiceId: id + "01"},
			}})
		}
	case *executorv1.ServiceInfoResponse:
		r.Service = &executorv1.ServiceDetail{
			ServiceId: "llama-3-70b-instruct-awq-00", Name: "Llama 3 70B, quantised, for chat", Description: strings.Repeat("What it is for, in a sentence. ", 16), State: running,
			Driver: "process", BaseUrl: "http://127.0.0.1:8000/v1", Model: "meta-llama/Llama-3.3-70B-Instruct-AWQ", Gpus: []uint32{0, 1, 2, 3, 4, 5, 6, 7},
			VramMib: 46080, UptimeS: 1_000_000, Cause: "It does not answer its health check.",
		}
	}
	return nil
}

// Names, descriptions and answers fit a model's economy, in both eras.
func TestBudgets(t *testing.T) {
	e := newEdge(t, edgeOptions{wrap: func(c grpc.ClientConnInterface) grpc.ClientConnInterface { return crowded{c} }})
	older := e.connect(t, tokenAgent)
	ask := map[string]func(method, name, params string) reply{
		"sessions": func(method, _, params string) reply {
			return e.send(t, request{session: older, body: fmt.Sprintf(`{"jsonrpc":"2.0","id":7,"method":%q,"params":{%s}}`, method, params)})
		},
		"stateless": func(method, name, params string) reply { return e.own(t, tokenAgent, method, name, params, "{}") },
	}
	for era, ask := range ask {
		list := ask("tools/list", "", "")
		if n := len(list.message.Result); n == 0 || n > mostToolList {
			t.Errorf("%s: tools/list has %d bytes, at most %d are wanted", era, n, mostToolList)
		} else {
			t.Logf("%s: tools/list has %d bytes", era, n)
		}
		var tools struct {
			Tools []struct {
				Name        string `json:"name"`
				Title       string `json:"title"`
				Description string `json:"description"`
				Annotations struct {
					ReadOnly bool `json:"readOnlyHint"`
				} `json:"annotations"`
			} `json:"tools"`
		}
		must(t, json.Unmarshal(list.message.Result, &tools))
		if len(tools.Tools) == 0 {
			t.Fatalf("%s: no tools", era)
		}
		for _, tool := range tools.Tools {
			tier, rest, _ := strings.Cut(tool.Description, ": ")
			n := utf8.RuneCountInString(tool.Description)
			switch {
			case n > mostDescription || tool.Title == "":
				t.Errorf("%s: %s has %d characters of description, title %q", era, tool.Name, n, tool.Title)
			case tool.Annotations.ReadOnly == (tool.Name == "wait_operation" || tool.Name == "withdraw_operation" || tier != "READ"):
				t.Errorf("%s: %s says that it only reads: %t", era, tool.Name, tool.Annotations.ReadOnly)
			case tier == "READ" && !strings.HasPrefix(rest, "asks nobody"):
				t.Errorf("%s: %s does not say that it asks nobody: %s", era, tool.Name, tool.Description)
			case tier != "READ" && (tier != "WRITE" && tier != "DESTRUCTIVE" || !strings.HasPrefix(rest, "a human ")):
				t.Errorf("%s: %s does not say what a human will be asked: %s", era, tool.Name, tool.Description)
			}
		}
		for name, arguments := range map[string]string{
			"gpu_status": `{}`, "list_services": `{}`, "service_info": `{"service_id":"demo-chat"}`, "start_service": `{"service_id":"demo-chat"}`,
			"stop_service": `{"service_id":"-"}`, "simulate_mode": `{"mode_id":"everyday-coding"}`, "wait_operation": `{"operation_id":"00000000000000000000000000000000"}`,
		} {
			answer := decodeAnswer(t, ask("tools/call", name, fmt.Sprintf(`"name":%q,"arguments":%s`, name, arguments)))
			if answer.tool.IsError != (name == "stop_service" || name == "wait_operation") {
				t.Errorf("%s: %s is answered with %s", era, name, answer.tool.Content[0].Text)
			}
			most := mostAnswer
			if name == "simulate_mode" {
				most = mostSimulation
			}
			if n := len(answer.tool.Content[0].Text); n > most {
				t.Errorf("%s: the answer of %s has %d bytes, at most %d are wanted", era, name, n, most)
			} else {
				t.Logf("%s: the answer of %s has %d bytes", era, name, n)
			}
		}
	}
	var hello struct {
		Instructions string `json:"instructions"`
	}
	must(t, json.Unmarshal(e.send(t, request{body: initialize}).message.Result, &hello))
	if n := utf8.RuneCountInString(hello.Instructions); n == 0 || n > mostInstructions {
		t.Errorf("%d characters of instructions, at most %d are wanted", n, mostInstructions)
	}
}
