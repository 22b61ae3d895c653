package installdir

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"durward.internal/services/platform/client"
	"durward.internal/services/platform/config"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/durable"
	"durward.internal/services/platform/identity"
	"durward.internal/services/platform/pki"
)

// toolsDir is below tls, and holds a folder for each internal program.
const toolsDir = "tools"

// FileConnect is in an internal program's folder, and is what its client.Load reads.
const FileConnect = "connect.json"

// Tool is where the files of an internal program are, and who may read them.
type Tool struct {
	// PKI is the folder of the authority, and Dir the program's own.
	PKI, Dir string
	ID       identity.ID
	// Owner is whose the files are; nil: ours.
	Owner *durable.Owner
	// private: it is in a home, where nothing is anybody else's business.
	private bool
}

// ToolAt is the internal program of that name in an installation whose certificates lie below tls.
func ToolAt(pkiDir, tls, name string) (Tool, error) {
	id, err := ProcessIdentity(toolsDir+"/"+name, "")
	return Tool{PKI: pkiDir, Dir: filepath.Join(tls, toolsDir, name), ID: id}, err
}

// Tool is an internal program of this home.
func (h Home) Tool(name string) (Tool, error) {
	t, err := ToolAt(h.PKI(), h.path("tls"), name)
	t.private = true
	return t, err
}

// Create issues the program's certificate, and writes how to connect and which tools it may call.
func (t Tool) Create(cfg Config, may []string) (err error) {
	ca, err := pki.Load(t.PKI)
	if err != nil {
		return err
	}
	certificate, key, err := ca.Issue(t.ID, 0)
	if err != nil {
		return err
	}
	connect := client.Config{
		TrustDir: cfg.TrustDir, Certificate: filepath.Join(t.Dir, pki.FileCertificate), Key: filepath.Join(t.Dir, pki.FileKey),
		Vault: peer(cfg.Vault), Executor: peer(cfg.Executor), Tools: map[string]string{},
	}
	if cfg.Egress != nil {
		egress := peer(*cfg.Egress)
		connect.Egress = &egress
	}
	for _, name := range may {
		if tool, ok := contract.Lookup(name); ok {
			connect.Tools[name] = hex.EncodeToString(tool.DefinitionDigest[:])
		}
	}
	connection, err := json.MarshalIndent(connect, "", "  ")
	if err != nil {
		return err
	}
	folder, file := fs.FileMode(0o755), fs.FileMode(0o644) // the key below is its owner's alone
	if t.private {
		folder, file = 0o700, 0o600
	}
	if err := os.MkdirAll(filepath.Dir(t.Dir), folder); err != nil {
		return fmt.Errorf("internal program: %w", err)
	}
	if err := os.Mkdir(t.Dir, folder); err != nil {
		return fmt.Errorf("internal program: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, t.Remove())
		}
	}()
	if err := errors.Join(os.Chmod(filepath.Dir(t.Dir), folder), os.Chmod(t.Dir, folder)); err != nil { // whatever the umask took
		return fmt.Errorf("internal program: %w", err)
	}
	if t.Owner == nil {
		err = pki.WriteLeaf(t.Dir, certificate, key)
	} else {
		err = pki.WriteLeafFor(t.Dir, certificate, key, *t.Owner)
	}
	if err != nil {
		return err
	}
	return CreateFile(filepath.Join(t.Dir, FileConnect), append(connection, '\n'), file)
}

func peer(p config.Peer) client.Process {
	return client.Process{Address: p.Address, Identity: p.Identity, Standbys: p.Standbys}
}

// Remove takes the program's files away, so that its certificate is renewed no more.
func (t Tool) Remove() error { return os.RemoveAll(t.Dir) }
