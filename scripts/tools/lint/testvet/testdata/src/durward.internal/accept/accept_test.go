package accept

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"durward.internal/helper"
)

func TestDirect(t *testing.T) {
	if got := next(); got == next() {
		t.Errorf("%d twice", got)
	}
}

func TestHelpers(t *testing.T)          { helper.Must(t, nil) }
func TestFixtureIsTheTest(t *testing.T) { helper.Start(t) }
func TestForeign(t *testing.T) {
	if err := fstest.TestFS(fstest.MapFS{}); err != nil {
		helper.Must(t, err)
	}
}

func TestForeignHelper(t *testing.T) { testing.AllocsPerRun(1, func() { t.FailNow() }) }

func TestMethodValue(t *testing.T) { each(t.Fatal) }

func TestFunctionValue(t *testing.T) {
	for _, check := range []func(*testing.T){func(*testing.T) {}} {
		check(t)
	}
}

func TestInterface(t *testing.T) {
	var c checker = stand{t}
	c.check(t)
}

func TestMethod(t *testing.T) { stand{t}.do() }

func TestClosure(t *testing.T) {
	ends := func() { stand{t}.do() }
	t.Run("one", func(*testing.T) { ends() })
	t.Run("named", TestMethod)
}

func TestGeneric(t *testing.T) { equal(t, 1, 1) }

func TestBubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Hour)
		helper.Must(t, nil)
	})
}

func FuzzParse(f *testing.F) {
	f.Fuzz(func(t *testing.T, s string) { helper.Must(t, nil) })
}

func BenchmarkParts(b *testing.B) {
	b.Run("one", func(b *testing.B) { next() })
}

func TestMain(m *testing.M) { os.Exit(m.Run()) }

func TestReasons(t *testing.T) {
	// The operating system's clock is what is tested.
	time.Sleep(time.Millisecond)

	os.Remove("absent") // It may be absent.
	fmt.Println("x")
	var b bytes.Buffer
	var s strings.Builder
	b.WriteString("x")
	io.WriteString(&s, "x")
	w := httptest.NewRecorder()
	w.Write(nil)
	func(w http.ResponseWriter) { w.Write(nil) }(w)
	f, err := os.Open(os.DevNull)
	helper.Must(t, err)
	f.Close()
	defer func() { os.RemoveAll("absent") }()
	t.Cleanup(func() { _ = stand{t}.Close() })
	if len(os.Args) > 0 {
		t.Log("run")
	} else {
		return
	}
}

type checker interface{ check(*testing.T) }

type stand struct{ t *testing.T }

func (s stand) check(*testing.T) {}
func (s stand) do()              { s.t.Error("x") }
func (s stand) Close() error     { return nil }

func each(fail func(...any)) {}

func equal[T comparable](t *testing.T, a, b T) {
	if a != b {
		t.Error(a, b)
	}
}

var count int

func next() int { count++; return count }
