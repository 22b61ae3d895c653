package audit

import (
	"bufio"
	"context"
	"errors"
	"io/fs"
	"os"
	"syscall"

	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/history"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/logproof"
	"durward.internal/services/platform/trust"
)

// verifyFile proves an exported file by this installation's keys, against the checkpoint that is kept here.
func (a *app) verifyFile(ctx context.Context, path string, complete bool) error {
	cfg, err := a.Config()
	if err != nil {
		return err
	}
	roots, err := trust.Open(cfg.TrustDir)
	if err != nil {
		return err
	}
	defer roots.Close()
	l, err := history.Open(ctx, history.Config{Audit: cfg.Audit.Identity, Trust: roots, StateDir: cfg.StateDir, Now: a.Now})
	if err != nil {
		return proofProblem(err)
	}
	report, err := proveFile(path, completing(l.Verifier(), complete))
	err = errors.Join(err, l.Close())
	if errors.Is(err, logproof.ErrRollback) {
		return cli.Failed("An export that is older than that checkpoint is shorter, and may be good. It is proved by itself with: durward audit verify --offline "+
			cli.ShellWord(path)+" --trust "+cli.ShellWord(cfg.TrustDir), "THE LOG IS NOT WHAT IT WAS: %v", err)
	}
	if err != nil {
		return proofProblem(err)
	}
	return a.showReport(report, checkpointPath(cfg))
}

// verifyForeign proves an exported file by the keys in a folder alone: those of signers that are not there leave statements unjudged.
func (a *app) verifyForeign(path, folder string, complete bool) error {
	keys, err := trust.ReadLogKeys(folder)
	if err != nil {
		return cli.Usage("Name the folder that holds log_keys: --trust FOLDER", "the log's public key cannot be read: %v", err)
	}
	signers, err := trust.ReadAllowedSigners(folder)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return cli.Usage("Mend the file, or name another folder: --trust FOLDER", "the operators' public keys cannot be read: %v", err)
	}
	report, err := proveFile(path, completing(history.NewVerifier(&trust.Snapshot{LogKeys: keys, AllowedSigners: signers}), complete))
	if err != nil {
		return proofProblem(err)
	}
	return a.showReport(report, "")
}

func proveFile(path string, v *history.Verifier) (history.Report, error) {
	f, err := os.Open(path) // #nosec G304 -- the file that was named
	if err != nil {
		return history.Report{}, cli.Usage("", "the file cannot be opened: %v", err)
	}
	report, err := history.VerifyFile(bufio.NewReader(f), v)
	if errors.Is(err, history.ErrNoExport) {
		err = cli.Usage("Write one: durward audit export FILE", "%s is no exported log: %v", clean.Visible(path), err)
	} else if errors.Is(err, syscall.EISDIR) {
		err = cli.Usage("Tiles are for other people's programs. Write a file: durward audit export FILE", "%s is a folder", clean.Visible(path))
	}
	return report, errors.Join(err, f.Close())
}
