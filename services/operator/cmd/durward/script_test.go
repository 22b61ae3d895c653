package main

import (
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"durward.internal/services/operator/internal/installdir"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"durward": main})
}

// TestScripts runs the transcripts of commands that need no running process.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(env *testscript.Env) error {
			env.Setenv("HOME", env.WorkDir)
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			// makehome DIR makes a development installation of the operator alice on ports that nobody listens on.
			"makehome": func(ts *testscript.TestScript, _ bool, args []string) {
				h, err := installdir.At(ts.MkAbs(args[0]))
				ts.Check(err)
				_, err = h.Init(installdir.Options{Development: true, Operator: "alice", BasePort: 29430})
				ts.Check(err)
				_, err = h.RenewCertificates("alice", time.Now(), true)
				ts.Check(err)
			},
			// finddurward sets DURWARD to the path that the program knows itself by.
			"finddurward": func(ts *testscript.TestScript, _ bool, _ []string) {
				path, err := exec.LookPath("durward")
				for _, dir := range filepath.SplitList(ts.Getenv("PATH")) {
					if info, statErr := os.Stat(filepath.Join(dir, "durward")); statErr == nil && !info.IsDir() {
						path, err = filepath.Join(dir, "durward"), nil
						break
					}
				}
				ts.Check(err)
				ts.Setenv("DURWARD", path)
			},
			// mode FILE 0600 checks permissions.
			"mode": func(ts *testscript.TestScript, _ bool, args []string) {
				info, err := os.Stat(ts.MkAbs(args[0]))
				ts.Check(err)
				want, err := strconv.ParseUint(args[1], 8, 32)
				ts.Check(err)
				if info.Mode().Perm() != os.FileMode(want) {
					ts.Fatalf("%s has mode %o", args[0], info.Mode().Perm())
				}
			},
			// dockerd SOCKET DIR serves the files of DIR as a Docker Engine's answers until the script ends, each under its path with _ for
			// every slash and without its query, and nothing but GET.
			"dockerd": func(ts *testscript.TestScript, _ bool, args []string) {
				l, err := net.Listen("unix", ts.MkAbs(args[0]))
				ts.Check(err)
				dir := ts.MkAbs(args[1])
				server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					raw, err := os.ReadFile(filepath.Join(dir, strings.ReplaceAll(r.URL.Path, "/", "_")))
					if err != nil || r.Method != http.MethodGet {
						w.WriteHeader(http.StatusNotFound)
						return
					}
					_, _ = w.Write(raw)
				})}
				go func() { _ = server.Serve(l) }()
				ts.Defer(func() { _ = server.Close() })
			},
			// occupy ADDRESS listens until the script ends.
			"occupy": func(ts *testscript.TestScript, _ bool, args []string) {
				l, err := net.Listen("tcp", args[0])
				ts.Check(err)
				ts.Defer(func() { _ = l.Close() })
			},
		},
	})
}
