package launch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/executor/internal/driver"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/handover"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == Word {
		os.Exit(Main(os.Args[2:]))
	}
	os.Exit(m.Run())
}

func service() *catalog.Service {
	return &catalog.Service{ID: "llm", Unit: "llm.service", Credentials: []string{"hf", "api"}}
}

// releases is a vault that seals these values for whatever key it is told.
func releases(values ...handover.Value) Release {
	return func(_ context.Context, service string, _ []string, public []byte) ([]byte, error) {
		return handover.Seal(public, service, values)
	}
}

func file(name, variable, value string) handover.Value {
	return handover.Value{Name: name, File: true, Variable: variable, Value: []byte(value)}
}

func variable(name, variable, value string) handover.Value {
	return handover.Value{Name: name, Variable: variable, Value: []byte(value)}
}

func TestProgram(t *testing.T) {
	t.Parallel()
	run := func(release Release, may driver.Begin, script string) (string, error) {
		out, err := os.Create(filepath.Join(t.TempDir(), "out"))
		must(t, err)
		defer out.Close()
		cmd := &exec.Cmd{Path: "/bin/sh", Args: []string{"sh", "-c", script}, Env: []string{"TOKEN=before", "KEPT=yes"}, Stdout: out, Stderr: out}
		if err := Program(t.Context(), release, service(), cmd, cmd.Start, may); err != nil {
			return "", err
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("the program: %v", err)
		}
		raw, err := os.ReadFile(out.Name())
		return string(raw), err
	}
	got, err := run(releases(file("hf", "HF_PATH", "of hf\n"), variable("api", "TOKEN", "of api")), driver.AtOnce,
		`cat "$HF_PATH"; echo "$TOKEN $KEPT"; (echo x >"$HF_PATH") 2>/dev/null || echo sealed`)
	if err != nil || got != "of hf\nof api yes\nsealed\n" {
		t.Errorf("%q, %v", got, err)
	}
	for name, c := range map[string]struct {
		release Release
		want    error
		says    string
	}{
		"without a vault": {nil, driver.ErrNoCredential, ""},
		"sealed": {func(context.Context, string, []string, []byte) ([]byte, error) {
			return nil, fault.New(callv1.Code_CODE_SEALED, "x")
		}, driver.ErrSealed, ""},
		"not granted": {func(context.Context, string, []string, []byte) ([]byte, error) {
			return nil, fault.New(callv1.Code_CODE_NOT_FOUND, "x")
		}, driver.ErrNoCredential, ""},
		"without a call": {func(context.Context, string, []string, []byte) ([]byte, error) { return nil, driver.ErrOnlyByCall }, driver.ErrOnlyByCall, ""},
		"sealed for another service": {func(_ context.Context, _ string, _ []string, public []byte) ([]byte, error) {
			return handover.Seal(public, "other", nil)
		}, driver.ErrNotStarted, "not sealed to this start"},
		"a variable with a zero byte": {releases(variable("api", "TOKEN", "a\x00b")), driver.ErrNotStarted, "api: it holds a zero byte"},
	} {
		got, err := run(c.release, driver.AtOnce, "echo it ran")
		if !errors.Is(err, c.want) || got != "" || !strings.Contains(err.Error(), c.says) || errors.Is(err, driver.ErrNotStarted) != errors.Is(c.want, driver.ErrNotStarted) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	// What it rests on ended while the vault was asked.
	asked, ended := false, errors.New("it has ended")
	got, err = run(func(ctx context.Context, service string, names []string, public []byte) ([]byte, error) {
		asked = true
		return releases(variable("api", "TOKEN", "of api"))(ctx, service, names, public)
	}, func(func() error) error {
		if !asked {
			t.Error("it was let begin before the vault was asked")
		}
		return ended
	}, "echo it ran")
	if !errors.Is(err, ended) || got != "" {
		t.Errorf("ended meanwhile: %q, %v", got, err)
	}
}

// ask is what systemd does: it comes from an abstract address that names the unit and the credential.
func ask(t *testing.T, socket, from string) string {
	t.Helper()
	var local *net.UnixAddr
	if from != "" {
		local = &net.UnixAddr{Name: fmt.Sprintf("@%x%s", t.Name(), from), Net: "unix"}
	}
	conn, err := net.DialUnix("unix", local, &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		return err.Error()
	}
	defer conn.Close()
	got, err := io.ReadAll(conn)
	if err != nil {
		t.Error(err)
	}
	return string(got)
}

func TestServe(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "credentials", "llm")
	held, err := Serve(t.Context(), releases(file("hf", "HF_PATH", "of hf"), variable("api", "TOKEN", "of api")), service(), socket)
	must(t, err)
	for from, want := range map[string]string{
		"": "", "/unit/llm.service/none": "", "/unit/other.service/hf": "", "/unit/llm.service": "", "/unit/llm.service/": "", "/llm.service/hf": "",
		"/unit/llm.service/hf": "of hf", "/unit/llm.service/api": "of api",
	} {
		if got := ask(t, socket, from); got != want {
			t.Errorf("from %q: %q, want %q", from, got, want)
		}
	}
	held.Close()
	if got := ask(t, socket, "/unit/llm.service/hf"); !strings.Contains(got, "no such file") {
		t.Errorf("once the unit was started: %q", got)
	}
	if _, err := Serve(t.Context(), releases(), service(), "/dev/null/x"); !errors.Is(err, driver.ErrNotTaken) {
		t.Errorf("at a place where there can be no socket: %v", err)
	}
}

func TestPut(t *testing.T) {
	t.Parallel()
	memory, err := os.MkdirTemp("/dev/shm", "launch")
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(memory) })
	folder := filepath.Join(memory, "credentials")
	held, err := Put(t.Context(), releases(file("hf", "HF_PATH", "of hf"), file("api", "API", "of api")), service(), folder)
	must(t, err)
	if len(held.Files) != 2 || held.Files[0].Variable != "HF_PATH" || held.Files[0].Name != "hf" {
		t.Fatalf("%+v", held.Files)
	}
	if got, err := os.ReadFile(held.Files[1].Path); err != nil || !bytes.Equal(got, []byte("of api")) {
		t.Errorf("%q, %v", got, err)
	}
	if st, err := os.Stat(folder); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("others get into the folder: %v, %v", st, err)
	}
	held.Close()
	if left, err := os.ReadDir(folder); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	disk, err := os.MkdirTemp("/var/tmp", "disk") // which is no memory
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(disk) })
	if disk, err = filepath.Abs(disk); err != nil {
		t.Fatal(err)
	}
	for name, try := range map[string]func() (*Held, error){
		"a folder on a disk": func() (*Held, error) { return Put(t.Context(), releases(file("hf", "HF", "x")), service(), disk) },
		"a folder of everybody's": func() (*Held, error) {
			if err := os.Chmod(folder, 0o755); err != nil {
				return nil, err
			}
			return Put(t.Context(), releases(file("hf", "HF", "x")), service(), folder)
		},
		"a value for a variable": func() (*Held, error) {
			if err := os.Chmod(folder, 0o700); err != nil {
				return nil, err
			}
			return Put(t.Context(), releases(file("hf", "HF", "x"), variable("api", "TOKEN", "y")), service(), folder)
		},
	} {
		held, err := try()
		if !errors.Is(err, driver.ErrNotTaken) {
			t.Errorf("%s: %v", name, err)
		}
		held.Close()
		for _, place := range []string{disk, folder} {
			if left, err := os.ReadDir(place); err != nil || len(left) != 0 {
				t.Errorf("%s left behind: %v, %v", name, left, err)
			}
		}
	}
}

// TestALauncherRefuses: as above without a process in between, so that each reason is seen.
func TestALauncherRefuses(t *testing.T) {
	t.Parallel()
	refuses := func(name, says string, err error) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", name, err)
		}
	}
	own, err := os.MkdirTemp("/dev/shm", "launch")
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(own) })
	everybodys := filepath.Join(own, "everybodys")
	must(t, errors.Join(os.Mkdir(everybodys, 0o700), os.Chmod(everybodys, 0o750)))
	disk, err := os.MkdirTemp("/var/tmp", "disk")
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(disk) })
	values := []handover.Value{file("hf", "HF", "x")}
	_, _, err = put(disk, values)
	refuses("a folder on a disk", "is on a disk", err)
	_, _, err = put(everybodys, values)
	refuses("a folder that others get into", "this user alone", err)
	_, _, err = put(own, []handover.Value{variable("api", "TOKEN", "y")})
	refuses("a value for a variable", "a container gets files alone", err)
	_, _, err = put(filepath.Join(own, "a", "b"), values)
	refuses("a folder that cannot be made", "no such file", err)
	refuses("a variable with a zero byte", "zero byte", become(instructions{Path: "/none"}, []handover.Value{variable("api", "TOKEN", "a\x00b")}))

	// A program is told by the conversation's end alone.
	executor, launcher := net.Pipe()
	said := make(chan []byte, 1)
	go func() {
		if _, err := readFrame(executor); err != nil {
			t.Error(err)
		}
		if err := writeFrame(executor, []byte(`{"Path":"/none","Service":"llm"}`)); err != nil {
			t.Error(err)
		}
		raw, _ := io.ReadAll(executor) // the launcher goes away
		said <- raw
	}()
	refuses("what is not sealed to it", "not sealed to this start", launch(launcher))
	_ = launcher.Close()
	if raw := <-said; len(raw) > 0 {
		t.Errorf("it says %q", raw)
	}
}

// Neither side takes more memory for what the other says than a frame may have, whatever length it is said to have.
func TestFrames(t *testing.T) {
	t.Parallel()
	var told bytes.Buffer
	for _, n := range []int{0, 1, maxFrame, maxFrame + 1} {
		told.Reset()
		must(t, writeFrame(&told, make([]byte, n)))
		if got, err := readFrame(&told); (err == nil) != (n <= maxFrame) || err == nil && len(got) != n {
			t.Errorf("%d bytes: %d, %v", n, len(got), err)
		}
	}
}

// TestALauncherEndsWithItsExecutor: what it holds goes away when the other end closes, however that comes.
func TestALauncherEndsWithItsExecutor(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "s")
	held, err := Serve(t.Context(), releases(file("hf", "HF", "x")), service(), socket)
	must(t, err)
	if err := held.control.Close(); err != nil { // as the kernel does for an executor that is killed
		t.Fatal(err)
	}
	<-held.ended
	if _, err := os.Stat(socket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its socket is there: %v", err)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
