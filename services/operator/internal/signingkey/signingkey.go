// Package signingkey finds and uses the operator's signing key: an OpenSSH private key file with or without a passphrase, or a
// key that ssh-agent holds, FIDO2 sk- keys included, whose touch is the human.
//
// It runs in the operator's process. A passphrase is asked for at the terminal and kept by nobody; the key, once unlocked, lives as
// long as the one command that uses it, or as a Holder lets it.
package signingkey

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"
	"golang.org/x/term"

	"durward.internal/services/platform/keyfile"
)

var (
	// ErrNeedsHuman means that a passphrase is due and there is no terminal to ask for it at.
	ErrNeedsHuman = errors.New("the signing key has a passphrase and there is no terminal to ask for it")
	// ErrPassphrase means that the passphrase did not open the key.
	ErrPassphrase = errors.New("the passphrase does not open the signing key")
)

// Asker asks a person for a passphrase until ctx ends. It returns ErrNeedsHuman where nobody can be asked.
type Asker func(ctx context.Context, prompt string) ([]byte, error)

// AskTerminal asks at the controlling terminal, whatever standard input is. Ctrl-C, which ends ctx, ends the question.
func AskTerminal(ctx context.Context, prompt string) ([]byte, error) {
	tty, err := os.OpenFile("/dev/tty", os.O_RDWR, 0)
	if err != nil {
		return nil, ErrNeedsHuman
	}
	defer tty.Close()
	fd := int(tty.Fd())
	before, err := term.GetState(fd)
	if err != nil {
		return nil, ErrNeedsHuman
	}
	if _, err := fmt.Fprint(tty, prompt); err != nil {
		return nil, ErrNeedsHuman
	}
	type answer struct {
		passphrase []byte
		err        error
	}
	answered := make(chan answer, 1)
	go func() {
		passphrase, err := term.ReadPassword(fd)
		answered <- answer{passphrase, err}
	}()
	select {
	case a := <-answered:
		_, _ = fmt.Fprintln(tty)
		if a.err != nil {
			return nil, fmt.Errorf("read the passphrase: %w", a.err)
		}
		return a.passphrase, nil
	case <-ctx.Done():
		// The reading goroutine ends with the program, which is about to; the terminal must show what is typed again.
		return nil, errors.Join(ctx.Err(), term.Restore(fd, before))
	}
}

// Source says where the signing key is.
type Source struct {
	// File is a private key file, or a public key (.pub) whose private half ssh-agent holds.
	File string
	// AgentSocket is ssh-agent's socket; empty when there is none.
	AgentSocket string
	// Ask asks for the passphrase of a protected file.
	Ask Asker
}

// Open returns a signer for one command. Close it afterwards. When ctx ends, what waits for an agent or a touch ends too.
func (s Source) Open(ctx context.Context) (*Signer, error) {
	raw, err := os.ReadFile(s.File)
	if err != nil {
		return nil, fmt.Errorf("signing key: %w", err)
	}
	if public, _, _, _, err := ssh.ParseAuthorizedKey(raw); err == nil {
		return s.fromAgent(ctx, public)
	}
	if err := keyfile.Check(s.File); err != nil {
		return nil, fmt.Errorf("signing key: %w", err)
	}
	key, err := ssh.ParsePrivateKey(raw)
	if err == nil {
		return &Signer{Signer: key, Protection: "none"}, nil
	}
	if _, locked := errors.AsType[*ssh.PassphraseMissingError](err); !locked {
		// An sk- key's file holds only a handle: the device signs, through the agent.
		if public, publicErr := readPublic(s.File + ".pub"); publicErr == nil {
			return s.fromAgent(ctx, public)
		}
		return nil, errors.New("the signing key is not an OpenSSH private key that can be used here; load it into ssh-agent and name its .pub file")
	}
	if s.Ask == nil {
		return nil, ErrNeedsHuman
	}
	passphrase, err := s.Ask(ctx, "Passphrase for "+s.File+": ")
	if err != nil {
		return nil, err
	}
	defer clear(passphrase)
	key, err = ssh.ParsePrivateKeyWithPassphrase(raw, passphrase)
	if err != nil {
		return nil, ErrPassphrase
	}
	return &Signer{Signer: key, Protection: "passphrase"}, nil
}

// NeedsPassphrase reports whether Open will ask for a passphrase: the file is a private key that has one.
func (s Source) NeedsPassphrase() (bool, error) {
	raw, err := os.ReadFile(s.File)
	if err != nil {
		return false, fmt.Errorf("signing key: %w", err)
	}
	_, err = ssh.ParsePrivateKey(raw)
	_, locked := errors.AsType[*ssh.PassphraseMissingError](err)
	return locked, nil
}

func (s Source) fromAgent(ctx context.Context, public ssh.PublicKey) (*Signer, error) {
	if s.AgentSocket == "" {
		return nil, errors.New("the signing key is held by ssh-agent, and no agent runs: set SSH_AUTH_SOCK")
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", s.AgentSocket)
	if err != nil {
		return nil, errors.New("ssh-agent does not answer at SSH_AUTH_SOCK")
	}
	found := &Signer{conn: conn, ended: ctx.Err, stop: context.AfterFunc(ctx, func() { _ = conn.Close() })}
	signers, err := agent.NewClient(conn).Signers()
	if err != nil {
		return nil, errors.Join(found.because(fmt.Errorf("ssh-agent: %w", err)), found.Close())
	}
	for _, candidate := range signers {
		if bytes.Equal(candidate.PublicKey().Marshal(), public.Marshal()) {
			found.Signer, found.Protection = candidate, "agent"
			if strings.HasPrefix(public.Type(), "sk-") {
				found.Protection = "touch"
			}
			return found, nil
		}
	}
	return nil, errors.Join(errors.New("ssh-agent does not hold the signing key: ssh-add it"), found.Close())
}

// Signer is an opened signing key. A key that an agent holds signs until the context ends with which it was opened.
type Signer struct {
	ssh.Signer
	// Protection is "none", "passphrase", "agent" or "touch".
	Protection string
	// conn is an agent's. It is closed when what ended tells of ends, until stop.
	conn  net.Conn
	ended func() error
	stop  func() bool
}

// Sign signs.
func (s *Signer) Sign(random io.Reader, data []byte) (*ssh.Signature, error) {
	signature, err := s.Signer.Sign(random, data)
	return signature, s.because(err)
}

// SignWithAlgorithm signs with an RSA key by the hash that is named: its type alone stands for SHA-1, which counts nowhere.
func (s *Signer) SignWithAlgorithm(random io.Reader, data []byte, algorithm string) (*ssh.Signature, error) {
	key, ok := s.Signer.(ssh.AlgorithmSigner)
	if !ok {
		return nil, fmt.Errorf("the signing key does not sign by %s", algorithm)
	}
	signature, err := key.SignWithAlgorithm(random, data, algorithm)
	return signature, s.because(err)
}

// because is why an agent did not answer, where nobody waits for it any more.
func (s *Signer) because(err error) error {
	if err != nil && s.conn != nil && s.ended() != nil {
		return fmt.Errorf("ssh-agent has not answered: %w", s.ended())
	}
	return err
}

// Close ends the connection to the agent, if there is one.
func (s *Signer) Close() error {
	if s.conn == nil || !s.stop() {
		return nil
	}
	return s.conn.Close()
}

// Protected reports whether the private key file asks for a passphrase, or is not a private key file at all (an agent's).
func Protected(file string) (bool, error) {
	raw, err := os.ReadFile(file)
	if err != nil {
		return false, fmt.Errorf("signing key: %w", err)
	}
	_, err = ssh.ParsePrivateKey(raw)
	return err != nil, nil
}

// Public is the public half of the key in the file, for which it needs no passphrase; nil where the file does not say it.
func Public(file string) ssh.PublicKey {
	if key, err := readPublic(file); err == nil {
		return key
	}
	raw, err := os.ReadFile(file)
	if err != nil {
		return nil
	}
	signer, err := ssh.ParsePrivateKey(raw)
	if locked, ok := errors.AsType[*ssh.PassphraseMissingError](err); ok {
		return locked.PublicKey
	} else if err != nil {
		return nil
	}
	return signer.PublicKey()
}

// Generate makes an Ed25519 key pair in OpenSSH's formats. An empty passphrase leaves the private key unprotected.
func Generate(comment string, passphrase []byte) (private, public []byte, err error) {
	publicKey, privateKey, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("generate key: %w", err)
	}
	var block *pem.Block
	if len(passphrase) > 0 {
		block, err = ssh.MarshalPrivateKeyWithPassphrase(privateKey, comment, passphrase)
	} else {
		block, err = ssh.MarshalPrivateKey(privateKey, comment)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("encode key: %w", err)
	}
	sshKey, err := ssh.NewPublicKey(publicKey)
	if err != nil {
		return nil, nil, fmt.Errorf("encode key: %w", err)
	}
	line := strings.TrimSpace(string(ssh.MarshalAuthorizedKey(sshKey)))
	if comment != "" {
		line += " " + comment
	}
	return pem.EncodeToMemory(block), []byte(line + "\n"), nil
}

// LoadEd25519 reads an unprotected Ed25519 private key file: a client's key.
func LoadEd25519(file string) (ed25519.PrivateKey, error) {
	raw, err := keyfile.Read(file)
	if err != nil {
		return nil, fmt.Errorf("client key: %w", err)
	}
	parsed, err := ssh.ParseRawPrivateKey(raw)
	if err != nil {
		return nil, errors.New("client key: not an unprotected OpenSSH private key")
	}
	key, ok := parsed.(*ed25519.PrivateKey)
	if !ok {
		return nil, errors.New("client key: not an Ed25519 key")
	}
	return *key, nil
}

func readPublic(file string) (ssh.PublicKey, error) {
	raw, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("public key: %w", err)
	}
	key, _, options, rest, err := ssh.ParseAuthorizedKey(raw)
	if err != nil || len(options) > 0 || len(bytes.TrimSpace(rest)) > 0 {
		return nil, errors.New("the file does not hold one OpenSSH public key")
	}
	return key, nil
}

// ReadPublic reads a file with one OpenSSH public key.
func ReadPublic(file string) (ssh.PublicKey, error) { return readPublic(file) }
