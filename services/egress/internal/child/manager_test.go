package child

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"durward.internal/services/egress/internal/journal"
	"durward.internal/services/platform/downstream"
)

// execute starts the hostile server as a plain process, as its entry's arguments say.
func execute(_ context.Context, server *downstream.Pinned, _ string, env map[string]string) (*Process, error) {
	command := exec.Command(server.Entry.Program.Path, server.Entry.Program.Args...)
	command.Env = []string{"GORACE=" + os.Getenv("GORACE")} // how long the race detector waits at its end
	for name, value := range env {
		command.Env = append(command.Env, name+"="+value)
	}
	stdin, in, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	out, stdout, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	errs, stderr, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	command.Stdin, command.Stdout, command.Stderr = stdin, stdout, stderr
	err = command.Start()
	for _, f := range []*os.File{stdin, stdout, stderr} {
		f.Close()
	}
	return &Process{
		Stdin: in, Stdout: out, Stderr: errs, Wait: command.Wait,
		Kill: func() { _ = command.Process.Kill() /* it may be gone */ },
		Freeze: func(on bool) error {
			if on {
				return command.Process.Signal(syscall.SIGSTOP)
			}
			return command.Process.Signal(syscall.SIGCONT)
		},
	}, err
}

// pinned is a server in force that is the hostile program in a mode.
func pinned(id string) downstream.Pinned {
	return downstream.Pinned{
		Entry: downstream.Entry{
			ID: id, Program: &downstream.Program{Path: os.Args[0]},
			Timeouts: downstream.Timeouts{Ready: 10 * time.Second, Call: 10 * time.Second, Idle: time.Minute},
		},
		Tools: []downstream.Tool{{Name: "echo", Description: "says it again", Input: []byte(`{"type":"object"}`)}},
	}
}

// environment gives the mode, which is the server's id.
func environment(_ context.Context, server *downstream.Pinned, _ string) (map[string]string, error) {
	return map[string]string{"HOSTILE": strings.ReplaceAll(server.Entry.ID, "-", " ")}, nil
}

// TestOlder: a server that ends over the first question of the newest revision, or reads it and does not answer, is asked as its own revision has
// it; once that is known, from its start. One that takes long to start is waited for.
func TestOlder(t *testing.T) {
	t.Parallel()
	for mode, starts := range map[string]int32{"older": 3, "older-and-mute": 3, "good": 2, "newest-late": 2} {
		server := pinned(mode)
		server.Entry.Timeouts.Ready = 3 * time.Second
		var started atomic.Int32
		m := New(Config{Env: environment, Start: func(ctx context.Context, server *downstream.Pinned, principal string, env map[string]string) (*Process, error) {
			started.Add(1)
			return execute(ctx, server, principal, env)
		}})
		t.Cleanup(m.Close)
		m.Set([]downstream.Pinned{server})
		for range 2 {
			if result, err := m.Call(t.Context(), "agent", mode, "echo", []byte(`{"mode":"good"}`), sure); err != nil || len(result.Content) != 1 {
				t.Errorf("%s: %+v, %v", mode, result, err)
			}
			must(t, m.Restart(mode))
		}
		if n := started.Load(); n != starts {
			t.Errorf("%s was started %d times, want %d", mode, n, starts)
		}
	}
}

// TestOlderNoMore: a server whose program was replaced by one that knows the newest revision alone is found out by the call that it fails.
func TestOlderNoMore(t *testing.T) {
	t.Parallel()
	var mode atomic.Value
	mode.Store("older")
	m := New(Config{Start: execute, Env: func(context.Context, *downstream.Pinned, string) (map[string]string, error) {
		return map[string]string{"HOSTILE": mode.Load().(string)}, nil
	}})
	t.Cleanup(m.Close)
	m.Set([]downstream.Pinned{pinned("server")})
	for i, fails := range []bool{false, true, false} {
		if fails {
			mode.Store("newest")
			must(t, m.Restart("server"))
		}
		if _, err := m.Call(t.Context(), "agent", "server", "echo", []byte(`{"mode":"good"}`), sure); (err != nil) != fails {
			t.Errorf("call %d: %v", i, err)
		}
	}
}

// TestOlderHasItsTime: the second start of an older server has as long as the first had.
func TestOlderHasItsTime(t *testing.T) {
	t.Parallel()
	server := pinned("older")
	server.Entry.Timeouts.Ready = 8 * time.Second
	m := New(Config{Env: environment, Start: func(ctx context.Context, server *downstream.Pinned, principal string, env map[string]string) (*Process, error) {
		time.Sleep(4100 * time.Millisecond) // a program that takes its time: twice that is more than Ready
		return execute(ctx, server, principal, env)
	}})
	t.Cleanup(m.Close)
	m.Set([]downstream.Pinned{server})
	if result, err := m.Call(t.Context(), "agent", "older", "echo", []byte(`{"mode":"good"}`), sure); err != nil {
		t.Errorf("%+v, %v", result, err)
	}
}

// manager runs servers whose mode is their id.
func manager(t *testing.T, servers ...downstream.Pinned) *Manager {
	t.Helper()
	m := New(Config{Start: execute, Env: environment})
	m.Set(servers)
	t.Cleanup(m.Close)
	return m
}

func sure() error { return nil }

func call(m *Manager, server string) (Result, error) {
	return m.Call(context.Background(), "agent", server, "echo", []byte(`{"say":"<b>"}`), sure)
}

// TestHostile has each hostile server end in one clear error that names it, while a neighbour's calls go on.
func TestHostile(t *testing.T) {
	short := func(p downstream.Pinned) downstream.Pinned {
		p.Entry.Timeouts.Call = 700 * time.Millisecond
		return p
	}
	for mode, want := range map[string]string{
		"line":         "it sent a message of more than 4 MiB",
		"picture":      "it sent a message of more than 4 MiB",
		"endless":      "it did not answer within 700ms",
		"wrong-id":     "it did not answer within 700ms",
		"deep":         "what it sent is nested more than 32 deep",
		"very-deep":    "what it sent is not well-formed JSON: exceeded max depth",
		"number":       "what it sent has the number 1e99999999, which is out of range",
		"long-number":  "what it sent has a number of more than 40 characters",
		"keys":         "what it sent is not well-formed JSON: duplicate object member name",
		"bytes":        "what it sent is not well-formed JSON: it is not UTF-8",
		"no-result":    "it answered with the error -32603: an answer without a result",
		"not-a-list":   "its answer is not one that MCP knows",
		"version":      "what it sent is not JSON-RPC 2.0",
		"error":        "it answered with the error -32000: red gnp.exe",
		"crash":        "it ended: exit status 3",
		"mute":         "it closed its output",
		"flood":        "it sent more than 1000 messages within a second that answer nothing",
		"deaf":         "it did not answer within 700ms",
		"pings":        "it does not read what it is sent",
		"large":        "its result is larger than 1 MiB",
		"slow":         "it was not ready within 700ms",
		"hello":        "its answer to initialize is not one that MCP knows",
		"revision":     `it speaks revision "2038-01-19" of MCP, which is not known here: ` + strings.Join(mcp.SupportedProtocolVersions(), ", ") + " are",
		"listcrash":    "it ended: exit status 4",
		"thousands":    "it lists more than 1000 tools, or 4 MiB of them",
		"pages":        "it lists its tools on more than 100 pages",
		"twice":        "its tool \"echo\" is not what was accepted: `durward server diff twice` shows how",
		"absent":       `it no longer has the tool "echo"`,
		"changed":      "its tool \"echo\" is not what was accepted: `durward server diff changed` shows how",
		"instructions": "its tool \"echo\" is not what was accepted: `durward server diff instructions` shows how",
	} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			server := pinned(mode)
			switch mode {
			case "slow":
				server.Entry.Timeouts.Ready = 700 * time.Millisecond
			case "endless", "wrong-id", "deaf":
				server = short(server)
			}
			m := manager(t, server, pinned("good"))
			if _, err := call(m, "good"); err != nil {
				t.Fatal(err)
			}
			var wait sync.WaitGroup
			wait.Go(func() {
				for range 20 {
					if _, err := call(m, "good"); err != nil {
						t.Errorf("the neighbour: %v", err)
					}
				}
			})
			arguments := []byte(`{}`)
			if mode == "deaf" {
				arguments = []byte(`{"a":"` + strings.Repeat("a", 1_000_000) + `"}`)
			}
			_, err := m.Call(t.Context(), "agent", mode, "echo", arguments, sure)
			wait.Wait()
			var told *Error
			if !errors.As(err, &told) || told.Server != mode || told.Text != want {
				t.Errorf("the call ended with %v, want: server %s: %s", err, mode, want)
			}
			if _, err := call(m, "good"); err != nil {
				t.Errorf("the neighbour afterwards: %v", err)
			}
		})
	}
}

// TestHalves: a text that JavaScript cut within an emoji is an answer, and no end of the server.
func TestHalves(t *testing.T) {
	t.Parallel()
	m := manager(t, pinned("halves"))
	got, err := call(m, "halves")
	must(t, err)
	if diff := cmp.Diff(Result{Content: []Content{{Kind: Text, Text: "cut \ufffd"}}, Structured: []byte("{\"a\":\"\ufffd\"}")}, got); diff != "" {
		t.Error(diff)
	}
}

// TestKinds: content of a kind that nobody knows is left out of a result, and the rest passes.
func TestKinds(t *testing.T) {
	t.Parallel()
	m := manager(t, pinned("kind"))
	got, err := call(m, "kind")
	must(t, err)
	left := Content{Kind: Text, Text: "[content of a kind that is not passed on]"}
	if diff := cmp.Diff(Result{Content: []Content{left, {Kind: Text, Text: "the rest"}, left}}, got); diff != "" {
		t.Error(diff)
	}
}

// TestNoBase64: a piece whose bytes cannot be read is left out of a result, and the rest passes.
func TestNoBase64(t *testing.T) {
	t.Parallel()
	m := manager(t, pinned("no-base64"))
	got, err := call(m, "no-base64")
	if err != nil {
		t.Fatal(err)
	}
	left := func(what string) Content {
		return Content{Kind: Text, Text: "[" + what + " that is not passed on: image/png, 0 bytes; it holds nothing, or what is no base64]"}
	}
	if diff := cmp.Diff(Result{Content: []Content{left("image"), {Kind: Text, Text: "the rest"}, left("resource")}}, got); diff != "" {
		t.Error(diff)
	}
}

// TestAnswers are servers that are strange, and answer.
func TestAnswers(t *testing.T) {
	for mode, want := range map[string]string{
		"good":       `{"say":"<b>"}`,
		"noise":      `{"say":"<b>"}`,
		"duplicate":  "first",
		"escapes":    "red gnp.exe",
		"logs":       "logged",
		"hidden-key": `[data that is not passed on: the key "a\u{200B}" has characters that are not shown]`,
		"stderr":     "said",
		"progress":   "done",
		"asks": `{"roots":{}}` + "\n" +
			"ping: {}\n" +
			`roots/list: {"roots":[{"name":"/data","uri":"file:///data"}]}` + "\n" +
			`sampling/createMessage: {"code":-32601,"message":"method not found: \"refused\""}` + "\n" +
			`elicitation/create: {"code":-32601,"message":"method not found: \"refused\""}` + "\n" +
			`tasks/get: {"code":-32601,"message":"method not found: \"refused\""}` + "\n" +
			`resources/updated: {"code":-32601,"message":"method not found: \"refused\""}`,
	} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			m := manager(t, pinned(mode))
			result, err := m.Call(t.Context(), "agent", mode, "echo", []byte(`{"say":"<b>"}`), sure)
			must(t, err)
			if diff := cmp.Diff(Result{Content: []Content{{Kind: Text, Text: want}}}, result); diff != "" {
				t.Error(diff)
			}
			switch mode {
			case "progress":
				if s := m.Status()[0]; s.Dropped != 5 { // no call asked for progress
					t.Errorf("%d messages were dropped, want 5", s.Dropped)
				}
				if logs := m.Logs(mode); len(logs) != 1 || !strings.Contains(logs[0].Text, "info logged") {
					t.Errorf("the log is %q", logs)
				}
			case "duplicate":
				if result, err := m.Call(t.Context(), "agent", mode, "echo", []byte(`{"mode":"good"}`), sure); err != nil || result.Content[0].Text != "good" {
					t.Errorf("the next call: %v, %v", result, err)
				}
				if s := m.Status()[0]; s.Dropped != 1 {
					t.Errorf("%d messages were dropped, want 1", s.Dropped)
				}
			case "stderr":
				log := m.Logs(mode)[0].Text
				if len(log) > journal.Max || strings.Contains(log, "\x1b") {
					t.Errorf("the log has %d bytes, or escape codes", len(log))
				}
			}
		})
	}
}
