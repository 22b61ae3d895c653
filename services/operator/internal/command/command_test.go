package command

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/operator/internal/keys"
	"durward.internal/services/operator/internal/output"
	"durward.internal/services/platform/fault"
)

func TestExplain(t *testing.T) {
	for _, c := range []struct {
		name string
		err  error
		code int
		want string
	}{
		{"unreachable", fault.New(callv1.Code_CODE_UNAVAILABLE, "the vault cannot be reached", fault.WithCause(errors.New("dial tcp 127.0.0.1:7431"))), exitUnreachable,
			"durward: the vault cannot be reached [r-1]\n  See which process is down: durward status\n"},
		{"audit", fault.New(callv1.Code_CODE_AUDIT_UNAVAILABLE, "nothing can be recorded"), exitUnreachable, "nothing can be recorded [r-1]"},
		{"halted", fault.New(callv1.Code_CODE_HALTED, "an operator has halted everything"), exitDenied, "durward resume"},
		{"denied", fault.New(callv1.Code_CODE_DENIED, "not allowed"), exitDenied, "not allowed [r-1]"},
		{"bad input", fault.New(callv1.Code_CODE_INVALID_ARGUMENT, "does not match", fault.WithField("service_id"), fault.WithSuggestions("demo-chat")), exitUsage,
			"durward: service_id: does not match\n  Did you mean demo-chat?\n"},
		{"a stranger's error", status.Error(codes.Internal, "panic: goroutine 1 at /src/x.go:3"), exitFailed, ""},
		{"no terminal", fmt.Errorf("sign: %w", keys.ErrNeedsHuman), exitDenied, "ssh-agent"},
		{"wrong passphrase", keys.ErrPassphrase, exitDenied, "Try again."},
		{"interrupted", context.Canceled, exitFailed, "interrupted"},
		{"hostile text", errors.New("x\x1b[31m\u202ey"), exitFailed, "durward: xy"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var errs bytes.Buffer
			a := &app{streams: Streams{Err: &errs}, requestID: "r-1"}
			err := c.err
			if st, ok := status.FromError(err); ok && st.Code() == codes.Internal {
				err = fault.From(err) // as the client interceptor does
			}
			if code := a.explain(err); code != c.code {
				t.Errorf("exit code %d, want %d", code, c.code)
			}
			if !strings.Contains(errs.String(), c.want) {
				t.Errorf("got %q, want %q in it", errs.String(), c.want)
			}
			for _, leak := range []string{"127.0.0.1", "goroutine", ".go:", "\x1b"} {
				if strings.Contains(errs.String(), leak) {
					t.Errorf("%q leaked: %q", leak, errs.String())
				}
			}
		})
	}
}

func TestConfirmRefusesWithoutATerminal(t *testing.T) {
	var out bytes.Buffer
	a := &app{streams: Streams{In: strings.NewReader("y\n")}, out: output.New(&out, &out, false, func(string) string { return "" })}
	var p *problem
	if err := a.confirm(context.Background(), "Sign?", false); !errors.As(err, &p) || p.code != exitDenied {
		t.Errorf("a pipe that says yes: %v", err)
	}
	if err := a.confirm(context.Background(), "Sign?", true); err != nil {
		t.Errorf("--yes: %v", err)
	}
}

func TestGPUWords(t *testing.T) {
	for _, c := range []struct {
		source          string
		gpus            uint32
		example, driver bool
		want            string
	}{
		{"simulated", 2, true, false, "2 × simulated (as the example catalogue says; no NVIDIA driver found)"},
		{"simulated", 1, false, true, "1 × simulated (as the catalogue says; an NVIDIA driver is there, and this executor does not use it)"},
		{"nvml", 8, false, true, "8 × NVIDIA"},
		{"nvidia-smi", 1, false, true, "1 × NVIDIA (read through nvidia-smi: this build was made without a C compiler)"},
		{"none found", 0, false, false, "none (no NVIDIA driver found; the catalogue simulates none)"},
	} {
		if got := gpuWords(c.source, c.gpus, c.example, c.driver); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}

func TestShellWord(t *testing.T) {
	for in, want := range map[string]string{"/home/me/.durward": "/home/me/.durward", "": "''", "it's": `'it'\''s'`, "a b": "'a b'", "$(x)": "'$(x)'"} {
		if got := shellWord(in); got != want {
			t.Errorf("shellWord(%q) = %s, want %s", in, got, want)
		}
	}
}

func TestChildEnvironment(t *testing.T) {
	env := childEnvironment(func(name string) string {
		return map[string]string{"PATH": "/bin", "HOME": "/home/me", "SSH_AUTH_SOCK": "/tmp/agent", "OPENAI_API_KEY": "secret", "LD_PRELOAD": "x"}[name]
	})
	if got := strings.Join(env, " "); got != "PATH=/bin HOME=/home/me" {
		t.Errorf("children inherit %s", got)
	}
}

func TestTableAligns(t *testing.T) {
	var out bytes.Buffer
	p := output.New(&out, &out, false, func(string) string { return "" })
	p.Table([]string{"A", "LONGER"}, [][]string{{"é", "x"}, {"\x1b[32mok\x1b[0m", "y"}})
	if got, want := out.String(), "A   LONGER\né   x\n\x1b[32mok\x1b[0m  y\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
