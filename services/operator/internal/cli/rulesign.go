package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"regexp"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/operator/internal/approval"
	"durward.internal/services/operator/internal/installdir"
	filechange "durward.internal/services/operator/internal/signedchange"
	"durward.internal/services/operator/internal/signingkey"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/statement"
)

// placeLine is the line of a difference that says where the next group stands.
var placeLine = regexp.MustCompile(`^ @ [0-9]+$`)

// ShowPlan prints the difference, made visible.
func (a *App) ShowPlan(p *filechange.Plan) {
	out := a.Display()
	what := ""
	switch {
	case p.Before == nil:
		what = "  (new)"
	case p.After == nil:
		what = "  (taken away)"
	}
	out.Printf("%s  %s%s\n", out.Bold(clean.Visible(p.Name)), out.Dim(clean.Visible(p.Path)), what)
	for _, line := range filechange.Diff(p.Before, p.After) {
		text := clean.Visible(line)
		switch {
		case line[0] == '+':
			text = out.Green(text)
		case line[0] == '-':
			text = out.Red(text)
		case placeLine.MatchString(line):
			text = out.Dim(text)
		}
		out.Printf("  %s\n", text)
	}
}

// showConfigStatement prints what is about to be signed, whole.
func (a *App) showConfigStatement(st *statement.Statement) error {
	raw, err := st.Marshal()
	if err != nil {
		return err
	}
	out := a.Display()
	out.Printf("%s\n", out.Bold("The statement that you sign, whole:"))
	for _, line := range approval.Lines(raw) {
		out.Printf("  %s\n", line)
	}
	return nil
}

// signingSide is whose key signs: this person's; or, under sudo, of who called it, since root approves nothing.
type signingSide struct {
	operator string
	source   signingkey.Source
}

func (a *App) SigningSide(cfg installdir.Config) (signingSide, error) {
	agent := a.Streams.Getenv("SSH_AUTH_SOCK")
	own := signingSide{cfg.Operator, signingkey.Source{File: cfg.SigningKey, AgentSocket: agent, Ask: signingkey.AskTerminal}}
	_, err := os.Stat(cfg.SigningKey)
	if err == nil {
		return own, nil
	}
	name := a.Streams.Getenv("SUDO_USER")
	if os.Geteuid() != 0 || name == "" || name == "root" {
		return own, fmt.Errorf("%s is missing", clean.Visible(cfg.SigningKey))
	}
	caller, err := user.Lookup(name)
	if err != nil {
		return own, fmt.Errorf("there is no user %s", clean.Visible(name))
	}
	theirs, err := installdir.Home{Dir: filepath.Join(caller.HomeDir, ".durward")}.Load()
	if err != nil {
		return own, fmt.Errorf("%s is no operator here", clean.Visible(name))
	}
	return signingSide{theirs.Operator, signingkey.Source{File: theirs.SigningKey, AgentSocket: agent, Ask: signingkey.AskTerminal}}, nil
}

// signAll opens the key once, for what was shown together, and signs.
func (a *App) signAll(ctx context.Context, side signingSide, statements []*statement.Statement) (out []*callv1.HumanStatement, err error) {
	key, err := side.source.Open(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, key.Close()) }()
	for _, st := range statements {
		if key.Protection == "touch" {
			a.Out.Remark("Touch your security key.")
		}
		signed, err := statement.Sign(st, key)
		if err != nil {
			return nil, err
		}
		out = append(out, signed)
	}
	return out, nil
}
