package inspect

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"durward.internal/services/platform/model"
)

const goodCard = `{"architecture":"fake","layers":[{"count":2,"key_dim":64,"kind":"full","kv_heads":4,"value_dim":64}],"weights_mib":100}`

// open is a folder that every user may enter, unlike t.TempDir.
func open(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "inspect")
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	must(t, os.Chmod(dir, 0o777))
	return dir
}

// fake is a program in the inspector's place: a script that gets the same arguments.
func fake(t *testing.T, script string) *Inspector {
	t.Helper()
	path := filepath.Join(open(t), "fake")
	// A process that another test is just starting would hold the file open for writing, and it could not be started (ETXTBSY).
	syscall.ForkLock.RLock()
	err := os.WriteFile(path, []byte("#!/bin/sh\n"+script+"\n"), 0o755)
	syscall.ForkLock.RUnlock()
	must(t, err)
	return &Inspector{Program: path}
}

func file(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(open(t), "model.gguf")
	must(t, os.WriteFile(path, []byte(text), 0o644))
	return path
}

func printf(s string) string { return "printf '%s\\n' '" + s + "'" }

func TestCard(t *testing.T) {
	t.Parallel()
	i := fake(t, `test "$1" = gguf || exit 9; `+printf(goodCard))
	card, err := i.Card(t.Context(), file(t, "x"))
	if err != nil || card.WeightsMiB != 100 || len(card.Layers) != 1 || card.Layers[0].Kind != model.Full {
		t.Errorf("%+v, %v", card, err)
	}
	i = fake(t, `test "$1" = huggingface || exit 9; `+printf(goodCard))
	if _, err := i.Card(t.Context(), open(t)); err != nil {
		t.Errorf("a folder: %v", err)
	}
}

// Whatever the program says, hostile files or not, what comes out is a sound card or a sentence that can be shown.
func TestAnswers(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		script string
		want   error
		says   string
	}{
		"a refusal":            {"echo 'the file is not a GGUF file' >&2; exit 1", nil, "the file is not a GGUF file"},
		"an escape":            {`printf 'bad \033[31mfile\342\200\256\n' >&2; exit 1`, nil, "bad file"},
		"a path":               {"echo 'cannot open /etc/shadow' >&2; exit 1", nil, "internal error"},
		"a stack":              {"echo 'panic: runtime error' >&2; exit 2", ErrBounds, "within the bounds"},
		"a signal":             {"kill -SEGV $$", ErrBounds, "within the bounds"},
		"two lines":            {"printf 'one\ntwo\n' >&2; exit 1", nil, "one"},
		"a long sentence":      {"head -c 100000 /dev/zero | tr '\\0' a >&2; exit 1", nil, strings.Repeat("a", 300)},
		"no sentence":          {"exit 1", ErrAnswer, ""},
		"nothing":              {"exit 0", ErrAnswer, ""},
		"another code":         {"exit 77", ErrBounds, ""},
		"no JSON":              {"echo card", ErrAnswer, ""},
		"two cards":            {printf(goodCard) + ";" + printf(goodCard), ErrAnswer, ""},
		"a key of no card":     {printf(`{"extra":1,"weights_mib":100}`), ErrAnswer, ""},
		"a key twice":          {printf(`{"weights_mib":100,"weights_mib":100}`), ErrAnswer, ""},
		"another form":         {printf(`{"weights_mib": 100}`), ErrAnswer, ""},
		"an unsound card":      {printf(`{"layers":[{"count":5000,"kind":"recurrent"}],"weights_mib":100}`), ErrAnswer, ""},
		"a card of no kind":    {printf(`{"layers":[{"count":1,"kind":"evil"}],"weights_mib":100}`), ErrAnswer, ""},
		"an architecture's \\": {printf(`{"architecture":"\\u001b[31m","weights_mib":100}`), ErrAnswer, ""},
		"too much":             {"yes", ErrAnswer, "too long"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			card, err := fake(t, test.script).Card(t.Context(), file(t, "x"))
			if err == nil {
				t.Fatalf("no error, but %+v", card)
			}
			if test.want != nil && !errors.Is(err, test.want) || !strings.Contains(err.Error(), test.says) || len(err.Error()) > 2*maxSentence {
				t.Errorf("%q", err)
			}
		})
	}
}

func TestRefused(t *testing.T) {
	t.Parallel()
	good := fake(t, printf(goodCard))
	fifo := filepath.Join(t.TempDir(), "fifo")
	must(t, syscall.Mkfifo(fifo, 0o600))
	for name, test := range map[string]struct {
		inspector *Inspector
		path      string
	}{
		"a relative program": {&Inspector{Program: "durward-inspect"}, file(t, "x")},
		"no program":         {&Inspector{Program: "/nonexistent/durward-inspect"}, file(t, "x")},
		"a relative path":    {good, "model.gguf"},
		"an option":          {good, "-version"},
		"nothing":            {good, "/nonexistent/model.gguf"},
		"a pipe":             {good, fifo},
		"a device":           {good, "/dev/zero"},
		"a NUL":              {good, "/tmp/\x00"},
	} {
		if card, err := test.inspector.Card(t.Context(), test.path); err == nil {
			t.Errorf("%s: %+v", name, card)
		}
	}
}

// It runs with nothing of ours: no environment, no standard input, another folder, a process group of its own.
func TestWhatTheProgramHas(t *testing.T) {
	t.Parallel()
	t.Run("environment", func(t *testing.T) {
		t.Parallel()
		// What is left is what the shell itself sets.
		i := fake(t, `env | grep -vE '^(PWD|_|SHLVL|OLDPWD)=' >&2; test -z "$(env | grep -vE '^(PWD|_|SHLVL|OLDPWD)=')" || exit 1; test "$PWD" = / || exit 5; `+
			`read -r line && exit 6; `+printf(goodCard))
		if _, err := i.Card(t.Context(), file(t, "x")); err != nil {
			t.Error(err)
		}
	})
	t.Run("user", func(t *testing.T) {
		t.Parallel()
		i := fake(t, `printf '{"context":%s,"heads":%s,"weights_mib":1}\n' "$(id -u)" "$(id -g)"`)
		card, err := i.Card(t.Context(), file(t, "x"))
		want := os.Geteuid()
		if want == 0 {
			want = nobody
		}
		if err != nil || int(card.Context) != want {
			t.Errorf("runs as %d (%v), want %d", card.Context, err, want)
		}
	})
	t.Run("root where nobody may not", func(t *testing.T) {
		t.Parallel()
		if os.Geteuid() != 0 {
			t.Log("not root: there is nobody to give up")
			return
		}
		path := file(t, "x")
		must(t, os.Chmod(path, 0o600))
		i := fake(t, `test -r "$2" || exit 3; printf '{"context":%s,"weights_mib":1}\n' "$(id -u | sed s/^0/1/)"`)
		if card, err := i.Card(t.Context(), path); err != nil || card.Context != 1 {
			t.Errorf("%+v, %v", card, err)
		}
	})
}

// running reports whether a process is there and has not ended.
func running(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, after, _ := strings.Cut(string(b), ") ")
	return !strings.HasPrefix(after, "Z") && !strings.HasPrefix(after, "X")
}

func pidIn(t *testing.T, path string) int {
	t.Helper()
	for {
		b, err := os.ReadFile(path)
		if pid, numErr := strconv.Atoi(strings.TrimSpace(string(b))); err == nil && numErr == nil {
			return pid
		}
		select {
		case <-t.Context().Done():
			t.Fatal("the program did not come to write its number")
		case <-time.After(5 * time.Millisecond): // another program writes it, and says nothing to us
		}
	}
}

func gone(t *testing.T, pid int) {
	t.Helper()
	for running(pid) {
		select {
		case <-t.Context().Done():
			t.Fatalf("process %d is still there", pid)
		case <-time.After(5 * time.Millisecond): // it is no child of ours: its end is seen in /proc alone
		}
	}
}

// A program that hangs is killed with all that it started, by time and by the caller's context.
func TestKilled(t *testing.T) {
	t.Parallel()
	hang := func(t *testing.T) (i *Inspector, child string) {
		child = filepath.Join(open(t), "child")
		return fake(t, `sleep 1000 & echo $! > '`+child+`'; trap '' TERM INT; wait; sleep 1000`), child
	}
	t.Run("time", func(t *testing.T) {
		t.Parallel()
		i, child := hang(t)
		i.timeout = 300 * time.Millisecond
		path := file(t, "x")
		if _, err := i.Card(t.Context(), path); !errors.Is(err, ErrBounds) {
			t.Errorf("%v", err)
		}
		gone(t, pidIn(t, child))
		// That is no answer about the file, so it is asked again.
		if _, ok := i.remembered(printOf(t, path)); ok {
			t.Error("running out of time is remembered")
		}
	})
	t.Run("context", func(t *testing.T) {
		t.Parallel()
		i, child := hang(t)
		ctx, cancel := context.WithCancel(t.Context())
		path := file(t, "x")
		ended := make(chan error, 1)
		go func() {
			_, err := i.Card(ctx, path)
			ended <- err
		}()
		pid := pidIn(t, child)
		if !running(pid) {
			t.Fatal("the child is not running: the test shows nothing")
		}
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
		gone(t, pid)
	})
	t.Run("left behind", func(t *testing.T) {
		t.Parallel()
		child := filepath.Join(open(t), "child")
		i := fake(t, `sleep 1000 >/dev/null 2>&1 & echo $! > '`+child+`'; `+printf(goodCard))
		if _, err := i.Card(t.Context(), file(t, "x")); err != nil {
			t.Error(err)
		}
		gone(t, pidIn(t, child))
	})
}

func printOf(t *testing.T, path string) fingerprint {
	t.Helper()
	_, print, err := look(path)
	must(t, err)
	return print
}

// An answer is remembered until the file is another one.
func TestRemembered(t *testing.T) {
	t.Parallel()
	log := filepath.Join(open(t), "log")
	for name, script := range map[string]string{"a card": printf(goodCard), "a refusal": "echo 'no' >&2; exit 1", "no stack left": "exit 2"} {
		t.Run(name, func(t *testing.T) {
			log := log + strings.ReplaceAll(name, " ", "-")
			must(t, os.WriteFile(log, nil, 0o666))
			must(t, os.Chmod(log, 0o666))
			i := fake(t, `echo x >> '`+log+`'; `+script)
			path := file(t, "x")
			asked := func() int {
				t.Helper()
				card, _ := i.Card(t.Context(), path)
				if len(card.Layers) > 0 {
					card.Layers[0].Count = 77 // the caller's own
				}
				if again, _ := i.Card(t.Context(), path); len(again.Layers) > 0 && again.Layers[0].Count == 77 {
					t.Error("one caller's change is another's card")
				}
				b, err := os.ReadFile(log)
				must(t, err)
				return len(b) / 2
			}
			if n := asked(); n != 1 {
				t.Errorf("asked %d times for one file", n)
			}
			must(t, os.Chtimes(path, time.Time{}, time.Unix(1, 0)))
			if n := asked(); n != 2 {
				t.Errorf("asked %d times, want 2: the file changed", n)
			}
			must(t, os.WriteFile(path+".new", []byte("x"), 0o644))
			must(t, os.Chtimes(path+".new", time.Time{}, time.Unix(1, 0)))
			must(t, os.Rename(path+".new", path))
			if n := asked(); n != 3 {
				t.Errorf("asked %d times, want 3: another file of the same size and time is in its place", n)
			}
		})
	}
}

// What was refused while it was downloaded is looked at again when any of its files has grown.
func TestParts(t *testing.T) {
	t.Parallel()
	i := fake(t, "echo no >&2; exit 1")
	asked := func(path string) fingerprint {
		t.Helper()
		if _, err := i.Card(t.Context(), path); err == nil {
			t.Fatal("no refusal")
		}
		_, print, err := look(path)
		must(t, err)
		if _, ok := i.remembered(print); !ok {
			t.Fatal("the refusal is not remembered")
		}
		return print
	}
	write := func(path, text string) {
		t.Helper()
		must(t, os.WriteFile(path, []byte(text), 0o644))
	}
	for path, files := range map[string][2]string{
		"folder":                {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"},
		"a-00001-of-00002.gguf": {"a-00001-of-00002.gguf", "a-00002-of-00002.gguf"},
	} {
		dir := open(t)
		path := filepath.Join(dir, path)
		at := dir
		if filepath.Ext(path) == "" {
			must(t, os.Mkdir(path, 0o755))
			at = path
		}
		for _, name := range files {
			write(filepath.Join(at, name), "x")
		}
		write(filepath.Join(at, "notes.txt"), "x")
		before := asked(path)
		write(filepath.Join(at, "notes.txt"), "xy")
		if asked(path) != before {
			t.Errorf("%s: another file is none of the model's", path)
		}
		write(filepath.Join(at, files[1]), "xy")
		if asked(path) == before {
			t.Errorf("%s: a part has grown", path)
		}
	}
}

func TestRemembersNoMoreThanItMay(t *testing.T) {
	t.Parallel()
	i := fake(t, "exit 1")
	if _, err := i.Card(t.Context(), file(t, "x")); err == nil {
		t.Error("a program that failed gave a card")
	}
	for n := range 3 * kept {
		i.remember(fingerprint{path: strconv.Itoa(n)}, answer{err: ErrAnswer})
	}
	if len(i.answers) != kept || len(i.order) != kept {
		t.Errorf("%d answers in an order of %d, want %d", len(i.answers), len(i.order), kept)
	}
	if _, ok := i.remembered(fingerprint{path: strconv.Itoa(3*kept - 1)}); !ok {
		t.Error("the newest is forgotten")
	}
}

// No more than two run at a time, however many ask.
func TestTwoAtATime(t *testing.T) {
	t.Parallel()
	dir := open(t)
	// Each says how many are there; mkdir is one step.
	i := fake(t, `mkdir '`+dir+`'/$$; n=$(ls '`+dir+`' | wc -l); sleep 0.05; rmdir '`+dir+`'/$$; printf '{"context":%d,"weights_mib":1}\n' "$n"`)
	var all sync.WaitGroup
	for range 8 {
		path := file(t, "x")
		all.Go(func() {
			card, err := i.Card(t.Context(), path)
			if err != nil || card.Context < 1 || card.Context > 2 {
				t.Errorf("%d run at a time, %v", card.Context, err)
			}
		})
	}
	all.Wait()
	// Whoever waits can give up.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	i.slots <- struct{}{}
	i.slots <- struct{}{}
	if _, err := i.Card(ctx, file(t, "x")); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
