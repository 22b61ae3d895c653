package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/operator/internal/install"
	"durward.internal/services/operator/internal/installdir"
	"durward.internal/services/operator/internal/signingkey"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/rpc"
)

// PublicText is an error's sentence for a screen.
func PublicText(err error) string {
	if f, ok := errors.AsType[*fault.Error](err); ok {
		return f.Message
	}
	return clean.Line(err.Error(), 500)
}

// Problem is an error with an exit code and what to do next.
type Problem struct {
	Code int
	text string
	next string
}

func (p *Problem) Error() string { return p.text }

func Failed(next, format string, args ...any) error {
	return &Problem{ExitFailed, fmt.Sprintf(format, args...), next}
}

func Usage(next, format string, args ...any) error {
	return &Problem{ExitUsage, fmt.Sprintf(format, args...), next}
}

// CheckLimit refuses a --limit that asks for nothing.
func CheckLimit(n uint32) error {
	if n == 0 {
		return Usage("Give 1 or more, or leave it away.", "--limit 0 asks for nothing")
	}
	return nil
}

func Unreachable(next, format string, args ...any) error {
	return &Problem{ExitUnreachable, fmt.Sprintf(format, args...), next}
}

func Denied(next, format string, args ...any) error {
	return &Problem{ExitDenied, fmt.Sprintf(format, args...), next}
}

// Explain writes an error as one plain sentence, what to do next and the request id, and returns the exit code.
func (a *App) Explain(err error) int {
	p, ours := errors.AsType[*Problem](err)
	if !ours {
		p = a.translate(err)
	}
	line := "durward: " + p.text
	if a.RequestID != "" && p.Code != ExitUsage {
		line += " [" + a.RequestID + "]"
	}
	_, _ = fmt.Fprintln(a.Streams.Err, line)
	if p.next != "" {
		_, _ = fmt.Fprintln(a.Streams.Err, "  "+a.MeantHere(p.next))
	}
	return p.Code
}

// command is where a hint names a command of ours.
var command = regexp.MustCompile(`(^|: |; )durward `)

// MeantHere is a hint whose commands are about the installation that --home names: typed as they stand, they would act on another.
func (a *App) MeantHere(hint string) string {
	if a.HomeDir == "" || strings.HasSuffix(hint, " -h") || strings.Contains(hint, "--home") {
		return hint
	}
	return command.ReplaceAllStringFunc(hint, func(found string) string { return strings.TrimSuffix(found, "durward ") + a.Typed() + " " })
}

// translate turns an error from elsewhere into a sentence for a person.
func (a *App) translate(err error) *Problem {
	var f *fault.Error
	switch {
	case errors.Is(err, signingkey.ErrNeedsHuman):
		return &Problem{ExitDenied, signingkey.ErrNeedsHuman.Error(), "Run the command at a terminal, or load the key into ssh-agent."}
	case errors.Is(err, signingkey.ErrPassphrase):
		return &Problem{ExitDenied, signingkey.ErrPassphrase.Error(), "Try again."}
	case errors.As(err, &f) && !fault.FromPeer(err) && f.Cause != nil && strings.Contains(f.Cause.Error(), "invalid UTF-8"):
		return &Problem{ExitUsage, "an argument is not valid UTF-8", "Type it in a terminal whose locale is UTF-8."}
	case errors.As(err, &f):
		return a.translateFault(f)
	case errors.Is(err, installdir.ErrUnusable):
		return &Problem{ExitFailed, clean.Block(err.Error(), 2000), "Use a folder of your own: --home DIR, or DURWARD_HOME."}
	case errors.Is(err, context.Canceled):
		return &Problem{ExitFailed, "interrupted", ""}
	default:
		// Whatever remains is this program's own: its files, its arguments.
		return &Problem{ExitFailed, clean.Block(err.Error(), 2000), ""}
	}
}

func (a *App) translateFault(f *fault.Error) *Problem {
	text := f.Message
	if f.Field != "" {
		typed := a.asTyped(f.Field)
		if !strings.Contains(text, f.Field) {
			text = typed + ": " + text
		}
		for _, before := range []string{"", "a key of "} { // as package fault says which field breaks a rule
			if rest, ok := strings.CutPrefix(text, before+f.Field+" "); ok {
				text = before + typed + " " + rest
			}
		}
	}
	next := DidYouMean(f.DidYouMean, "")
	if f.DiskFull {
		next = "Make room; all goes on by itself. Which disk it is: durward status"
	}
	switch f.Code {
	case callv1.Code_CODE_UNAVAILABLE, callv1.Code_CODE_TIMEOUT:
		return &Problem{ExitUnreachable, text, cmp.Or(next, "See which process is down: durward status")}
	case callv1.Code_CODE_AUDIT_UNAVAILABLE:
		return &Problem{ExitUnreachable, text, cmp.Or(next, "Nothing is done that cannot be recorded. See: durward status")}
	case callv1.Code_CODE_DENIED, callv1.Code_CODE_UNAUTHENTICATED, callv1.Code_CODE_PROOF_REQUIRED:
		return &Problem{ExitDenied, text, next}
	case callv1.Code_CODE_HALTED:
		return &Problem{ExitDenied, text, cmp.Or(next, "End the halt: durward resume")}
	case callv1.Code_CODE_SEALED:
		return &Problem{ExitDenied, text, cmp.Or(next, "Unseal them: durward vault unseal")}
	case callv1.Code_CODE_INVALID_ARGUMENT:
		return &Problem{ExitUsage, text, next}
	case callv1.Code_CODE_NOT_FOUND:
		code := ExitFailed
		if f.Field == "client" { // as where a command looks for it in clients.yaml by itself
			code = ExitUsage
		}
		return &Problem{code, text, cmp.Or(next, listed(f.Field))}
	case callv1.Code_CODE_PLAN_CHANGED:
		return &Problem{ExitFailed, text, cmp.Or(next, "Nothing was done. See what would be done now: durward simulate MODE")}
	case callv1.Code_CODE_DOES_NOT_FIT:
		return &Problem{ExitFailed, text, cmp.Or(next, "See what holds memory: durward gpu")}
	case callv1.Code_CODE_INTERNAL:
		return &Problem{ExitFailed, text, cmp.Or(next, "The cause is in the log of the process under the request id: "+a.logs())}
	default:
		return &Problem{ExitFailed, text, next}
	}
}

// listed says where the ids are that a field of a call, or what was named, may have; or "".
func listed(field string) string {
	switch field {
	case "service_id":
		return "See: durward services"
	case "mode_id":
		return "See: durward mode ls"
	case "model_id":
		return "See: durward model ls"
	case "client":
		return "See: durward client list"
	case "server":
		return "See: durward server list"
	case "index":
		return "Find records: durward audit search"
	default:
		return ""
	}
}

// logs is where the processes tell more.
func (a *App) logs() string {
	if a.Home.Runs() {
		return filepath.Dir(a.Home.Log("x"))
	}
	if install.InContainers() {
		return "docker compose logs"
	}
	return "journalctl -u 'durward-*'"
}

// ItsLog is where a process tells why something is not well: a file of its home, the log of its container, or the journal of an installed host.
func ItsLog(home installdir.Home, role string) string {
	if home.Runs() {
		return home.Log(role)
	}
	if install.InContainers() {
		return "docker compose logs --tail 50 " + role
	}
	return "journalctl -u durward-" + role + " -n 50"
}

// Taken reports whether something listens at an address.
func Taken(ctx context.Context, address string) bool {
	ctx, cancel := context.WithTimeout(ctx, StatusPatience) // of a host that is off nothing comes back
	defer cancel()
	conn, err := rpc.DialContext(ctx, address)
	if err == nil {
		_ = conn.Close() // it was only tried
	}
	return err == nil
}

// Start is the command that starts what does not run.
func Start(home installdir.Home) string { return StartTyped("durward", home) }

// StartTyped is Start where this program is called as it is typed here.
func StartTyped(durward string, home installdir.Home) string {
	if home.Runs() {
		return durward + " up" + When(isDevelopment(home), " --development") // without it one with an open key does not start
	}
	if install.InContainers() {
		return "docker compose up --detach --wait"
	}
	return "sudo systemctl start durward.target"
}

// AddEgress is how an installation gets the process that reaches other hosts.
func AddEgress(home installdir.Home) string {
	if home.Runs() {
		return "Add it: durward down; " + Start(home) + " --egress"
	}
	return "Add it: sudo durward install --apply --egress"
}

// Restart is the command that starts one process of an installed host again.
func Restart(role string) string {
	if install.InContainers() {
		return "docker compose restart " + role
	}
	return "sudo systemctl restart durward-" + role
}

// NextGrantKey is how the vault gets its next signing key.
func NextGrantKey(home installdir.Home) string {
	if home.Runs() {
		return "A new start makes the next one: durward down; " + Start(home)
	}
	if install.InContainers() {
		return "This makes the next one, and has the vault sign with it: docker compose up --detach --wait; docker compose restart vault"
	}
	return "This makes the next one, and starts the processes again with it: sudo durward install --apply"
}

// isDevelopment reports whether an installation is one for trying things out: it runs as one, or its signing key has no
// passphrase.
func isDevelopment(home installdir.Home) bool {
	if running, ok := home.RunningProcess(); ok {
		return running.Development
	}
	cfg, err := home.Load()
	if err != nil {
		return false
	}
	protected, err := signingkey.Protected(cfg.SigningKey)
	return err == nil && !protected
}
