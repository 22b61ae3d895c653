package servers

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strings"
	"time"

	"durward.internal/services/operator/internal/installdir"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/downstream"
)

// listPatience bounds how long a server is run to say which tools it has.
const listPatience = 2 * time.Minute

// maxListing bounds what egress' program writes, in bytes.
const maxListing = 8 << 20

// Lister runs a server once, without a network, and returns what it says of itself. packages is where packages of npm lie.
type Lister func(ctx context.Context, p downstream.Pinned, packages string) (*downstream.Listing, error)

// launcherUser is whose processes other people's servers are on an installed host.
const launcherUser = "durward-launcher"

// ByProgram lists with the program durward-list in a folder: it alone starts strangers' programs and speaks their protocol. It runs as this
// program's user, but for root on an installed host, where it is the launcher's user, as the server will be: what breaks out is not root.
// own is Files.Own.
func ByProgram(folder string, own []string) Lister {
	return func(ctx context.Context, p downstream.Pinned, packages string) (*downstream.Listing, error) {
		asked, err := json.Marshal(downstream.ListRequest{Entry: p.Entry, ProgramDigest: p.ProgramDigest, Packages: packages, Own: own})
		if err != nil {
			return nil, err
		}
		ctx, cancel := context.WithTimeout(ctx, listPatience)
		defer cancel()
		cmd := exec.CommandContext(ctx, filepath.Join(folder, "durward-list")) // #nosec G204 -- our own program beside this one
		out := &limited{left: maxListing}
		cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(asked), out, &limited{left: 64 << 10}
		cmd.Env, cmd.WaitDelay = []string{"PATH=/usr/local/bin:/usr/bin:/bin"}, time.Second
		if _, missing := user.Lookup(launcherUser); os.Geteuid() == 0 && missing == nil {
			if cmd.SysProcAttr, err = installdir.AsUser(launcherUser); err != nil {
				return nil, err
			}
		}
		err = cmd.Run()
		if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
			return nil, errors.New("durward-list is not beside this program: it runs other people's servers")
		}
		var answer downstream.ListAnswer
		if json.Unmarshal(out.Bytes(), &answer) != nil || answer.Problem == "" && answer.Listing == nil {
			return nil, fmt.Errorf("the server %s could not be asked for its tools", p.Entry.ID)
		}
		if answer.Problem != "" {
			return nil, errors.New(clean.Line(strings.TrimSpace(answer.Problem), 500))
		}
		return answer.Listing, nil
	}
}

// limited is a buffer that takes so much and refuses more.
type limited struct {
	bytes.Buffer

	left int
}

func (l *limited) Write(b []byte) (int, error) {
	if l.left -= len(b); l.left < 0 {
		return 0, errors.New("too much")
	}
	return l.Buffer.Write(b)
}
