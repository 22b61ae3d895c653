package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/operator/internal/installdir"
	"durward.internal/services/operator/internal/output"
	"durward.internal/services/operator/internal/peers"
	"durward.internal/services/operator/internal/signingkey"
	"durward.internal/services/platform/fault"
)

func TestExplain(t *testing.T) {
	_, noText := proto.Marshal(wrapperspb.String("\xff"))
	for _, c := range []struct {
		name string
		err  error
		code int
		want string
	}{
		{"unreachable", fault.New(callv1.Code_CODE_UNAVAILABLE, "the vault cannot be reached", fault.WithCause(errors.New("dial tcp 127.0.0.1:7431"))), ExitUnreachable,
			"durward: the vault cannot be reached [r-1]\n  See which process is down: durward status\n"},
		{"a full disk", fault.New(callv1.Code_CODE_UNAVAILABLE, "in other words", fault.WithDiskFull()), ExitUnreachable,
			"in other words [r-1]\n  Make room; all goes on by itself. Which disk it is: durward status\n"},
		{"audit's full disk", fault.New(callv1.Code_CODE_AUDIT_UNAVAILABLE, "in other words", fault.WithDiskFull()), ExitUnreachable, "Make room"},
		{"audit", fault.New(callv1.Code_CODE_AUDIT_UNAVAILABLE, "nothing can be recorded"), ExitUnreachable, "nothing can be recorded [r-1]"},
		{"halted", fault.New(callv1.Code_CODE_HALTED, "everything is halted"), ExitDenied, "durward resume"},
		{"denied", fault.New(callv1.Code_CODE_DENIED, "not allowed"), ExitDenied, "not allowed [r-1]"},
		{"bad input", fault.New(callv1.Code_CODE_INVALID_ARGUMENT, "does not match", fault.WithField("service_id"), fault.WithSuggestions("demo-chat")), ExitUsage,
			"durward: service_id: does not match\n  Did you mean demo-chat?\n"},
		{"a stranger's error", status.Error(codes.Internal, "panic: goroutine 1 at /src/x.go:3"), ExitFailed, ""},
		{"no terminal", fmt.Errorf("sign: %w", signingkey.ErrNeedsHuman), ExitDenied, "ssh-agent"},
		{"wrong passphrase", signingkey.ErrPassphrase, ExitDenied, "Try again."},
		{"a folder of another's", fmt.Errorf("the folder /x %w: %w", installdir.ErrUnusable, fs.ErrPermission), ExitFailed,
			"durward: the folder /x cannot be used: permission denied [r-1]\n  Use a folder of your own: --home DIR, or DURWARD_HOME.\n"},
		{"an argument that no message carries", fault.From(status.Errorf(codes.Internal, "grpc: error while marshaling: %v", noText)), ExitUsage, "not valid UTF-8"},
		{"interrupted", context.Canceled, ExitFailed, "interrupted"},
		{"hostile text", errors.New("x\x1b[31m\u202ey"), ExitFailed, "durward: xy"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var errs bytes.Buffer
			a := &App{Streams: Streams{Err: &errs}, RequestID: "r-1"}
			err := c.err
			if st, ok := status.FromError(err); ok && st.Code() == codes.Internal {
				err = fault.From(err) // as the client interceptor does
			}
			if code := a.Explain(err); code != c.code {
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

// A hint's commands are about the installation that --home names; help is the same everywhere.
func TestHintsNameTheInstallation(t *testing.T) {
	for _, c := range []struct{ home, hint, want string }{
		{"", "See which process is down: durward status", "See which process is down: durward status"},
		{"h", "See which process is down: durward status", "See which process is down: durward --home h status"},
		{"my folder", "durward status; durward up", "durward --home 'my folder' status; durward --home 'my folder' up"},
		{"h", "See: durward deny -h", "See: durward deny -h"},
		{"h", "To begin anew: durward up --home DIR", "To begin anew: durward up --home DIR"},
		{"h", "the folder of durward is not on your PATH", "the folder of durward is not on your PATH"},
	} {
		var errs bytes.Buffer
		a := &App{Streams: Streams{Err: &errs}, HomeDir: c.home}
		if a.Explain(Failed(c.hint, "it failed")); !strings.HasSuffix(errs.String(), "\n  "+c.want+"\n") {
			t.Errorf("home %q: got %q, want %q in it", c.home, errs.String(), c.want)
		}
	}
}

// Where an internal error's cause is told depends on what runs the processes: durward up for a home, or systemd.
func TestAnInternalErrorNamesTheLogs(t *testing.T) {
	home := installdir.Home{Dir: t.TempDir()}
	for _, c := range [][4]string{
		{"journalctl -u 'durward-*'", "journalctl -u durward-vault -n 50", "sudo systemctl start durward.target", "Add it: sudo durward install --apply --egress"},
		{filepath.Join(home.Dir, "logs"), home.Log("vault"), "durward up", "Add it: durward down; durward up --egress"},
	} {
		want := c[0]
		if log, start, egress := ItsLog(home, "vault"), Start(home), AddEgress(home); log != c[1] || start != c[2] || egress != c[3] {
			t.Errorf("got %q, %q and %q, want %q", log, start, egress, c)
		}
		var errs bytes.Buffer
		a := &App{Streams: Streams{Err: &errs}, Home: home}
		if a.Explain(fault.New(callv1.Code_CODE_INTERNAL, "internal error")); !strings.HasSuffix(errs.String(), ": "+want+"\n") {
			t.Errorf("got %q, want %q in it", errs.String(), want)
		}
		if err := errors.Join(os.MkdirAll(filepath.Dir(home.Config("audit")), 0o700), os.WriteFile(home.Config("audit"), nil, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
}

func TestConfirmRefusesWithoutATerminal(t *testing.T) {
	var out bytes.Buffer
	a := &App{Streams: Streams{In: strings.NewReader("y\n")}, Out: output.New(&out, &out, func(string) string { return "" })}
	var p *Problem
	if err := a.Confirm(context.Background(), "Sign?", false); !errors.As(err, &p) || p.Code != ExitDenied {
		t.Errorf("a pipe that says yes: %v", err)
	}
	if err := a.Confirm(context.Background(), "Sign?", true); err != nil {
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
		{"nvidia-smi", 1, false, true, "1 × NVIDIA (read through nvidia-smi, not the driver's library)"},
		{"none found", 0, false, false, "none (no NVIDIA driver found; the catalogue simulates none)"},
	} {
		if got := GPUWords(c.source, c.gpus, c.example, c.driver); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}

func TestShellWord(t *testing.T) {
	for in, want := range map[string]string{"/home/me/.durward": "/home/me/.durward", "": "''", "it's": `'it'\''s'`, "a b": "'a b'", "$(x)": "'$(x)'"} {
		if got := ShellWord(in); got != want {
			t.Errorf("shellWord(%q) = %s, want %s", in, got, want)
		}
	}
}

func TestTableAligns(t *testing.T) {
	var out bytes.Buffer
	p := output.New(&out, &out, func(string) string { return "" })
	p.Table([]string{"A", "LONGER"}, [][]string{{"é", "x"}, {"\x1b[32mok\x1b[0m", "y"}})
	if got, want := out.String(), "A   LONGER\né   x\n\x1b[32mok\x1b[0m  y\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// vault lists operations, two a message.
type vault struct{ vaultv1.ApprovalServiceClient }

func (vault) ListOperations(_ context.Context, r *vaultv1.ListOperationsRequest, _ ...grpc.CallOption) (*vaultv1.ListOperationsResponse, error) {
	list := []*vaultv1.Operation{{OperationId: "5"}, {OperationId: "4"}, {OperationId: "3"}, {OperationId: "2"}, {OperationId: "1"}}
	at := 1 + slices.IndexFunc(list, func(o *vaultv1.Operation) bool { return o.GetOperationId() == r.GetAfter() })
	to := min(at+2, len(list))
	return &vaultv1.ListOperationsResponse{Operations: list[at:to], More: to < len(list)}, nil
}

func TestOperationsAreAllOfThem(t *testing.T) {
	s := &Session{Peers: &peers.Peers{Vault: peers.Vault{ApprovalServiceClient: vault{}}}}
	ops, err := s.Operations(t.Context())
	if got := output.Each(ops, (*vaultv1.Operation).GetOperationId); err != nil || !slices.Equal(got, []string{"5", "4", "3", "2", "1"}) {
		t.Errorf("%v, %v", got, err)
	}
}

type full struct{}

func (full) Write([]byte) (int, error) { return 0, syscall.EPIPE }

// TestStreamForNobody: a stream ends where nobody reads it any more, for people and for programs.
func TestStreamForNobody(t *testing.T) {
	for _, format := range []output.Format{output.Text, output.JSON, output.YAML} {
		a := &App{Format: format, Out: output.New(full{}, io.Discard, func(string) string { return "" })}
		if err := a.ShowLine("line", func() { a.Out.Printf("line\n") }); !errors.Is(err, syscall.EPIPE) {
			t.Errorf("%s: %v", format, err)
		}
	}
}
