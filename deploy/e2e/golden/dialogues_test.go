package golden

import (
	"bytes"
	"encoding/json"
	"fmt"
	"testing"

	"durward.internal/deploy/e2e/harness"
	"durward.internal/services/platform/opnumber"
)

// tellDialogues tells five conversations of an agent, a person and Durward, as each of them meets it.
func tellDialogues(t *testing.T, s *set) {
	w := newWorld(t, s, harness.Options{Catalog: harness.ModesCatalog, HoldS: 1})
	defer w.done()
	w.WriteFile("config/security/policy/quiet.cedar", `@id("quiet-hours")
@because("demo-sleepy belongs to the night shift")
forbid (principal, action == Action::"call:stop_service", resource) when { context.arguments.service_id == "demo-sleepy" };
`)
	w.StartAll()
	session := w.ConnectRaw(w.AddClient("agent", "--tier", "DESTRUCTIVE"))
	begin := func(name, about string) *dialogue {
		f := w.file("mcp/dialogue-" + name + ".txt")
		f.says("%s", about)
		return &dialogue{f, session}
	}

	d := begin("look", "An agent looks at the host. Nobody is asked.")
	d.calls("list_services", `{}`)
	d.calls("gpu_status", `{}`)

	d = begin("switch", "An agent simulates a switch, asks for it, and waits; a person approves; it happens once.")
	var plan struct {
		Result struct {
			Next struct {
				Tool      string
				Arguments map[string]string
			}
		}
	}
	d.decode(d.calls("simulate_mode", `{"mode_id":"day","alternatives":0}`), &plan)
	if plan.Result.Next.Tool != "switch_mode" {
		t.Fatalf("the simulation names %q next", plan.Result.Next.Tool)
	}
	plan.Result.Next.Arguments["reason"] = "the user starts to work"
	arguments, err := json.Marshal(plan.Result.Next.Arguments)
	must(t, err)
	id := envelopeOf(t, d.calls("switch_mode", string(arguments))).OperationID
	w.number(id)
	w.Approve(id)
	fmt.Fprintf(&d.file.text, "(a person runs durward approve %s, reads what is shown, and signs)\n\n", opnumber.Of(id)[:opnumber.Short])
	d.waits(id, "ok")

	d = begin("denied", "A person says no, and why. The agent stops.")
	id = envelopeOf(t, d.calls("stop_service", `{"service_id":"demo-chat","reason":"to free memory"}`)).OperationID
	d.file.durward("deny", w.number(id), "--reason", "not during the demo")
	d.waits(id, "denied")

	d = begin("withdrawn", "The user thinks better of it, and the agent takes its request back. There is nothing left to approve.")
	id = envelopeOf(t, d.calls("start_service", `{"service_id":"demo-sleepy","reason":"the user asked"}`)).OperationID
	number := w.number(id)
	d.calls("withdraw_operation", fmt.Sprintf(`{"operation_id":%q}`, id))
	d.waits(id, "denied")
	d.file.durward("approvals")
	d.file.durward("approve", number, "--yes")
	d.file.story(id)

	d = begin("not-allowed", "An agent mistypes a tool's name, and then meets a rule. Both answers say what it can do.")
	d.calls("stop_servce", `{"service_id":"demo-sleepy"}`)
	d.calls("stop_service", `{"service_id":"demo-sleepy"}`)
}

// dialogue is one conversation.
type dialogue struct {
	file    *transcript
	session *harness.RawSession
}

// calls has the agent call a tool until a process that did not answer in time does, and writes both sides down.
func (d *dialogue) calls(tool, arguments string) harness.RawAnswer {
	w := d.file.w
	w.t.Helper()
	answer := harness.Again(func() harness.RawAnswer { return mustRaw(w, d.session.Call(tool, arguments)) })
	d.told(tool+" "+arguments, answer)
	return answer
}

// waits has the agent wait for an operation until it stands so, and writes the last answer down.
func (d *dialogue) waits(id, status string) {
	w := d.file.w
	w.t.Helper()
	arguments := fmt.Sprintf(`{"operation_id":%q}`, id)
	harness.Eventually(w.t, "the operation is "+status, func() error {
		answer := mustRaw(w, d.session.Call("wait_operation", arguments))
		if got := envelopeOf(w.t, answer).Status; got != status {
			return fmt.Errorf("it is %s", got)
		}
		d.told("wait_operation "+arguments, answer)
		return nil
	})
}

func (d *dialogue) told(call string, answer harness.RawAnswer) {
	var result struct{ StructuredContent json.RawMessage }
	d.decodeResult(answer, &result)
	var b bytes.Buffer
	if err := json.Indent(&b, result.StructuredContent, "", "  "); err != nil {
		d.file.w.t.Fatalf("%v: %s", err, answer.Body)
	}
	fmt.Fprintf(&d.file.text, "agent> %s\n%s\n\n", call, visible(b.String()))
}

func (d *dialogue) decode(answer harness.RawAnswer, into any) {
	var result struct{ StructuredContent json.RawMessage }
	d.decodeResult(answer, &result)
	if err := json.Unmarshal(result.StructuredContent, into); err != nil {
		d.file.w.t.Fatalf("%v: %s", err, answer.Body)
	}
}

func (d *dialogue) decodeResult(answer harness.RawAnswer, into any) {
	if err := json.Unmarshal(answer.Result, into); err != nil {
		d.file.w.t.Fatalf("%v: %s", err, answer.Body)
	}
}
