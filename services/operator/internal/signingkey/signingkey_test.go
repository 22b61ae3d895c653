package signingkey

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"encoding/pem"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"

	"durward.internal/services/platform/keyfile"
	"durward.internal/services/platform/platformtest/testfile"
	"durward.internal/services/platform/statement"
	"durward.internal/services/platform/trust"
)

func writeKey(t *testing.T, passphrase string) (file string) {
	t.Helper()
	private, public, err := Generate("alice@durward", []byte(passphrase))
	must(t, err)
	file = filepath.Join(t.TempDir(), "key")
	for name, content := range map[string][]byte{file: private, file + ".pub": public} {
		testfile.Write(t, name, content)
	}
	return file
}

func answer(passphrase string) Asker {
	return func(context.Context, string) ([]byte, error) { return []byte(passphrase), nil }
}

func TestOpenRefuses(t *testing.T) {
	protected := writeKey(t, "correct horse")
	garbage := filepath.Join(t.TempDir(), "garbage")
	testfile.Write(t, garbage, "not a key")
	for _, c := range []struct {
		name   string
		source Source
		want   error
		text   string
	}{
		{"nobody to ask", Source{File: protected}, ErrNeedsHuman, ""},
		{"no terminal", Source{File: protected, Ask: func(context.Context, string) ([]byte, error) { return nil, ErrNeedsHuman }}, ErrNeedsHuman, ""},
		{"wrong passphrase", Source{File: protected, Ask: answer("battery staple")}, ErrPassphrase, ""},
		{"empty passphrase", Source{File: protected, Ask: answer("")}, ErrPassphrase, ""},
		{"missing file", Source{File: garbage + "x"}, os.ErrNotExist, ""},
		{"not a key", Source{File: garbage}, nil, "not an OpenSSH private key"},
		{"public key without agent", Source{File: protected + ".pub"}, nil, "SSH_AUTH_SOCK"},
		{"dead agent", Source{File: protected + ".pub", AgentSocket: garbage}, nil, "does not answer"},
	} {
		t.Run(c.name, func(t *testing.T) {
			signer, err := c.source.Open(context.Background())
			if err == nil {
				t.Fatalf("opened a %s key", signer.Protection)
			}
			if c.want != nil && !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) {
				t.Errorf("error %v", err)
			}
			if strings.Contains(err.Error(), "battery staple") {
				t.Error("the error repeats the passphrase")
			}
		})
	}
}

func TestOpenSigns(t *testing.T) {
	protected, plain := writeKey(t, "correct horse"), writeKey(t, "")
	asked := 0
	for _, c := range []struct {
		name, protection string
		source           Source
	}{
		{"plain", "none", Source{File: plain}},
		{"protected", "passphrase", Source{File: protected, Ask: func(_ context.Context, prompt string) ([]byte, error) {
			asked++
			if !strings.Contains(prompt, protected) {
				t.Errorf("prompt %q does not name the key", prompt)
			}
			return []byte("correct horse"), nil
		}}},
		{"agent", "agent", Source{File: plain + ".pub", AgentSocket: serveAgent(t, plain)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			for range 2 {
				signer, err := c.source.Open(context.Background())
				must(t, err)
				if signer.Protection != c.protection {
					t.Errorf("protection %q, want %q", signer.Protection, c.protection)
				}
				signature, err := signer.Sign(nil, []byte("message"))
				must(t, err)
				if err := signer.PublicKey().Verify([]byte("message"), signature); err != nil {
					t.Error(err)
				}
				if err := signer.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	if asked != 2 {
		t.Errorf("asked %d times for two signatures; each decision asks again", asked)
	}
	for file, want := range map[string]bool{protected: true, plain: false} {
		if got, err := Protected(file); err != nil || got != want {
			t.Errorf("Protected = %v, %v; want %v", got, err, want)
		}
	}
}

// TestRSA: a key of every kind that allowed_signers takes can sign, RSA by a hash that counts.
func TestRSA(t *testing.T) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	must(t, err)
	public, err := ssh.NewPublicKey(&key.PublicKey)
	must(t, err)
	line := ssh.MarshalAuthorizedKey(public)
	operators, err := trust.ParseAllowedSigners(append([]byte("alice "), line...))
	must(t, err)
	plain, err := ssh.MarshalPrivateKey(key, "")
	must(t, err)
	protected, err := ssh.MarshalPrivateKeyWithPassphrase(key, "", []byte("secret"))
	must(t, err)
	dir := t.TempDir()
	source := Source{AgentSocket: serveKey(t, key), Ask: answer("secret")}
	for name, content := range map[string][]byte{"plain": pem.EncodeToMemory(plain), "protected": pem.EncodeToMemory(protected), "agent.pub": line} {
		source.File = filepath.Join(dir, name)
		testfile.Write(t, source.File, content)
		signer, err := source.Open(t.Context())
		must(t, err)
		signed, err := statement.Sign(aStatement(), signer)
		must(t, errors.Join(err, signer.Close()))
		if _, err := statement.VerifySignature(signed, operators, time.Now()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAgentWithoutTheKey(t *testing.T) {
	held, other := writeKey(t, ""), writeKey(t, "")
	_, err := Source{File: other + ".pub", AgentSocket: serveAgent(t, held)}.Open(context.Background())
	if err == nil || !strings.Contains(err.Error(), "does not hold") {
		t.Errorf("error %v", err)
	}
}

// silent is an agent that answers nothing but who it holds, where it does that: one behind a connection that hangs, or a key that waits for
// its touch.
type silent struct {
	agent.Agent
	asked, never chan struct{}
}

func (s silent) Sign(ssh.PublicKey, []byte) (*ssh.Signature, error) {
	close(s.asked)
	<-s.never
	return nil, errors.New("never")
}

// TestNobodyWaitsForAnAgentForEver: Ctrl-C, and the screen's patience, end a look at an agent and a signature that do not come.
func TestNobodyWaitsForAnAgentForEver(t *testing.T) {
	file := writeKey(t, "")
	socket := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", socket)
	must(t, err)
	defer func() { _ = listener.Close() }()
	ctx, cancel := context.WithCancel(t.Context())
	opened := make(chan error, 1)
	go func() {
		_, err := Source{File: file + ".pub", AgentSocket: socket}.Open(ctx)
		opened <- err
	}()
	conn, err := listener.Accept()
	must(t, err)
	defer func() { _ = conn.Close() }()
	_, err = conn.Read(make([]byte, 1)) // it has asked
	must(t, err)
	cancel()
	if err := <-opened; !errors.Is(err, context.Canceled) {
		t.Errorf("an agent that does not say whom it holds: %v", err)
	}

	key, err := LoadEd25519(file)
	must(t, err)
	keyring := silent{agent.NewKeyring(), make(chan struct{}), make(chan struct{})}
	defer close(keyring.never)
	must(t, keyring.Add(agent.AddedKey{PrivateKey: &key}))
	go func() {
		if conn, err := listener.Accept(); err == nil {
			_ = agent.ServeAgent(keyring, conn) // it ends with its connection
			_ = conn.Close()
		}
	}()
	ctx, cancel = context.WithCancel(t.Context())
	signer, err := Source{File: file + ".pub", AgentSocket: socket}.Open(ctx)
	must(t, err)
	go func() {
		<-keyring.asked
		cancel()
	}()
	if _, err := signer.Sign(nil, []byte("message")); !errors.Is(err, context.Canceled) {
		t.Errorf("an agent that does not sign: %v", err)
	}
	must(t, signer.Close())
}

func TestLoadEd25519(t *testing.T) {
	if _, err := LoadEd25519(writeKey(t, "secret")); err == nil {
		t.Error("a protected key was loaded without its passphrase")
	}
	file := writeKey(t, "")
	key, err := LoadEd25519(file)
	must(t, err)
	public, err := ReadPublic(file + ".pub")
	must(t, err)
	own, err := ssh.NewSignerFromKey(key)
	if err != nil || string(own.PublicKey().Marshal()) != string(public.Marshal()) {
		t.Errorf("the halves do not belong together: %v", err)
	}
}

func TestKeysThatOthersCanReadAreRefused(t *testing.T) {
	file := writeKey(t, "")
	must(t, os.Chmod(file, 0o644))
	if _, err := (Source{File: file}).Open(t.Context()); !errors.Is(err, keyfile.ErrOpen) {
		t.Errorf("an operator's key: %v", err)
	}
	if _, err := LoadEd25519(file); !errors.Is(err, keyfile.ErrOpen) {
		t.Errorf("a client's key: %v", err)
	}
}

func serveAgent(t *testing.T, file string) (socket string) {
	t.Helper()
	key, err := LoadEd25519(file)
	must(t, err)
	return serveKey(t, &key)
}

// serveKey is an agent that holds a key.
func serveKey(t *testing.T, key any) (socket string) {
	t.Helper()
	keyring := agent.NewKeyring()
	must(t, keyring.Add(agent.AddedKey{PrivateKey: key}))
	return listen(t, func(conn net.Conn) { _ = agent.ServeAgent(keyring, conn) }) // ends with the client's connection
}

// listen serves connections to a socket.
func listen(t *testing.T, serve func(net.Conn)) (socket string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "agent")
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket = filepath.Join(dir, "s")
	listener, err := net.Listen("unix", socket)
	must(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				serve(conn)
				_ = conn.Close()
			}()
		}
	}()
	return socket
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
