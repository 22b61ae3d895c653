package audit

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/history"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/logproof"
	"durward.internal/services/platform/trust"
)

// maxReceipt bounds a file with a receipt in it: an answer of a tool.
const maxReceipt = 4 << 20

func (a *app) auditReceiptCommand() *cobra.Command {
	var folder string
	var ask, witnessed bool
	cmd := &cobra.Command{
		Use:   "receipt FILE",
		Short: "Prove one record's receipt, offline",
		Long: `Proves that a record is in the log, from its receipt and the log's public key alone. The file holds the
receipt itself, a tool's answer that carries it in _meta, what a command here wrote with --json, or a record
with its receipt ("durward audit show INDEX --json"), which is then proved to say what it says.

--trust names a folder with the log's public key in a file log_keys, for somebody who has no installation. With a
file witnesses.yaml in it, the receipt is also held against the witnesses that it names; --witnessed demands that
a quorum of them cosigned it. A reply's receipt is older than any cosignature: that of "audit show" has them.
--ask also asks audit whether its log still holds the record.

The exit code is 1 for a receipt that does not hold, and 2 for a file that cannot be read or is no JSON.`,
		Example: "  durward audit receipt reply.json\n  durward audit show 42 --json > record.json && durward audit receipt record.json\n" +
			"  durward audit receipt --trust ./their-keys record.json",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			file, err := readBounded(args[0])
			if err != nil {
				return err
			}
			if ask {
				return a.Run(cmd.Context(), func(ctx context.Context, s *cli.Session) error {
					return a.proveReceipt(ctx, file, s.Config.TrustDir, witnessed, s)
				})
			}
			if folder == "" {
				cfg, err := a.Config()
				if err != nil {
					return err
				}
				folder = cfg.TrustDir
			}
			return a.proveReceipt(cmd.Context(), file, folder, witnessed, nil)
		},
	}
	cmd.Flags().StringVar(&folder, "trust", "", "folder with the log's public key (default: this installation's)")
	cmd.Flags().BoolVar(&ask, "ask", false, "also ask audit whether its log still holds the record")
	cmd.Flags().BoolVar(&witnessed, "witnessed", false, "demand that a quorum of witnesses cosigned it")
	cmd.MarkFlagsMutuallyExclusive("trust", "ask")
	return cmd
}

func readBounded(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, cli.Usage("", "the file cannot be opened: %v", err)
	}
	if !info.Mode().IsRegular() || info.Size() > maxReceipt {
		return nil, cli.Usage("Give the one answer or record that holds the receipt.", "%s is no file with a receipt in it: it is larger than 4 MB, or no regular file", clean.Visible(path))
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, cli.Usage("", "the file cannot be read: %v", err)
	}
	return b, nil
}

// proveReceipt proves the receipt with the keys and the witnesses in the folder; with a session it also asks audit.
func (a *app) proveReceipt(ctx context.Context, file []byte, folder string, demand bool, s *cli.Session) error {
	keys, err := trust.ReadLogKeys(folder)
	if err != nil {
		return cli.Usage("Name the folder that holds log_keys: --trust FOLDER", "the log's public key cannot be read: %v", err)
	}
	witnesses, err := trust.ReadWitnesses(folder)
	if err != nil {
		return cli.Usage("Mend the file, or name another folder: --trust FOLDER", "the log's witnesses cannot be read: %v", err)
	}
	if demand && witnesses.Quorum == 0 {
		return cli.Usage("Write their keys and the quorum there, as deploy/docs/audit.md has it.", "the folder %s names no witnesses: it has no %s", clean.Visible(folder), trust.FileWitnesses)
	}
	p, err := history.ProveReceipt(file, keys, witnesses, a.Now())
	switch {
	case err != nil && !json.Valid(file):
		return cli.Usage(whatReceipt, "the file is no JSON: it holds no receipt")
	case err != nil:
		return receiptProblem(err)
	}
	if demand && p.Witnessed.IsZero() {
		return cli.Failed(fmt.Sprintf("Once witnesses have seen the record, this has their cosignatures: durward audit show %d --json", p.Receipt.GetIndex()),
			"the receipt holds, and no quorum of witnesses cosigned its checkpoint: whoever holds the log's key could have made it alone")
	}
	if s != nil {
		if err := s.LogExtends(ctx, append(s.Seen(ctx, nil, nil, nil, nil), history.Seen{By: "this receipt", Checkpoint: p.Checkpoint})); err != nil {
			return proofProblem(err)
		}
	}
	return a.showProved(p, witnesses, s != nil)
}

func (a *app) showProved(p history.Proved, witnesses logproof.Witnesses, asked bool) error {
	shown := map[string]any{
		"index": p.Receipt.GetIndex(), "leaf_hash": hex.EncodeToString(p.Receipt.GetLeafHash()), "log": p.Checkpoint.Origin,
		"log_size": p.Checkpoint.Size, "root": hex.EncodeToString(p.Checkpoint.Root[:]), "signed_by": p.SignedBy,
		"record_proved": p.Entry != nil, "asked_audit": asked,
	}
	if !p.Witnessed.IsZero() {
		shown["witnessed_by"], shown["witnessed_at"] = p.Witnessed.By, p.Witnessed.At
	}
	return a.Show(shown, func() {
		a.Out.Printf("%s record %d is in the log %s\n", a.Out.Green("✓"), p.Receipt.GetIndex(), clean.Visible(p.Checkpoint.Origin))
		say := func(format string, args ...any) {
			a.Out.Printf("%s\n", a.Out.Wrapped("  "+fmt.Sprintf(format, args...)))
		}
		say("The key %s signed the log when it had %s, and the path in the receipt leads from the record with the leaf hash %x to the root of that log, %x.",
			clean.Visible(p.SignedBy), clean.Count(p.Checkpoint.Size, "record"), p.Receipt.GetLeafHash(), p.Checkpoint.Root)
		switch {
		case !p.Witnessed.IsZero():
			say("%s cosigned it at %s. Who only stole the log's key cannot have made it.", clean.Line(strings.Join(p.Witnessed.By, ", "), 500), p.Witnessed.At.Local().Format(time.DateTime))
		case witnesses.Quorum > 0:
			say("Fewer witnesses cosigned it than the %d that %s wants: whoever holds the log's key could have made it alone. Once witnesses have seen the record, %s audit show %d --json has their cosignatures.",
				witnesses.Quorum, trust.FileWitnesses, a.Typed(), p.Receipt.GetIndex())
		}
		if p.Entry != nil {
			say("The record is proved to say:")
			a.Out.Printf("%s\n", a.storyLine(p.Entry))
		} else {
			say("The receipt says that the record is there, not what it says: %s audit show %d --json has both.", a.Typed(), p.Receipt.GetIndex())
		}
		if asked {
			say("Audit proved that its log still holds that record.")
		} else {
			say("Whether the log still holds it is another question: %s audit receipt --ask FILE", a.Typed())
		}
	})
}

// whatReceipt says what holds a receipt.
const whatReceipt = "Give a tool's answer, the receipt in it, or: durward audit show INDEX --json"

// receiptProblem says what it means that a receipt does not hold.
func receiptProblem(err error) error {
	switch {
	case errors.Is(err, logproof.ErrReceipt):
		return cli.Failed(whatReceipt, "%v", err)
	case errors.Is(err, logproof.ErrSignature):
		return cli.Failed("Compare with the log's public key as you were given it. A changed receipt looks the same.",
			"nothing is proved: no key in log_keys signed the receipt's checkpoint")
	case errors.Is(err, logproof.ErrEntry):
		return cli.Failed("The record was changed after it was written, or the receipt is another's.", "nothing is proved: the record is not the one that its leaf hash stands for")
	default:
		return cli.Failed("The receipt was changed, or it is of another record or another log.", "nothing is proved: %v", err)
	}
}
