package docker

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"testing"
	"time"

	"durward.internal/services/executor/internal/driver/launch"
)

// inContainer is set in the images that the tests make: then this test binary is the program in the container.
const inContainer = "DURWARD_TEST_CONTAINER"

func TestMain(m *testing.M) {
	if os.Getenv(inContainer) != "" {
		os.Exit(program(os.Args[1:]))
	}
	if len(os.Args) > 1 && os.Args[1] == launch.Word {
		os.Exit(launch.Main(os.Args[2:]))
	}
	os.Exit(m.Run())
}

// program is what runs in a container, by its first argument.
func program(args []string) int {
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM)
	what := "serve"
	if len(args) > 0 {
		what = args[0]
	}
	switch what {
	case "serve": // on port 8080, and shows any file of the container
		fmt.Println("serving")
		mux := http.NewServeMux()
		mux.HandleFunc("/file", func(w http.ResponseWriter, r *http.Request) {
			raw, err := os.ReadFile(r.FormValue("name"))
			if err != nil {
				http.Error(w, err.Error(), http.StatusNotFound)
				return
			}
			_, _ = w.Write(raw)
		})
		mux.HandleFunc("/write", func(w http.ResponseWriter, r *http.Request) {
			if err := os.WriteFile(r.FormValue("name"), []byte("x"), 0o600); err != nil {
				http.Error(w, err.Error(), http.StatusForbidden)
			}
		})
		mux.HandleFunc("/environment", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, os.Environ()) })
		go func() { _ = http.ListenAndServe(":8080", mux) }()
		<-term
		fmt.Println("ending")
		return 0
	case "deaf": // does not end when it is told to
		signal.Ignore(syscall.SIGTERM)
		fmt.Println("deaf")
		time.Sleep(time.Hour) // a program that a signal ends
	case "hog": // takes memory until it is stopped
		var kept [][]byte
		for {
			b := make([]byte, 1<<20)
			for i := range b {
				b[i] = byte(i)
			}
			kept = append(kept, b)
			if len(kept) > 2048 {
				return 0
			}
		}
	case "say": // writes a line and ends with a status
		fmt.Fprintln(os.Stderr, args[1])
		code, err := strconv.Atoi(args[2])
		if err != nil {
			return 2
		}
		return code
	case "count": // writes numbered lines, a long one, and waits
		n, err := strconv.Atoi(args[1])
		if err != nil {
			return 2
		}
		for i := range n {
			out := io.Writer(os.Stdout)
			if i%2 == 1 {
				out = os.Stderr
			}
			fmt.Fprintf(out, "line %d\n", i)
		}
		long := make([]byte, 40_000)
		for i := range long {
			long[i] = 'x'
		}
		fmt.Printf("%s\nlast\n", long)
		<-term
	}
	return 0
}
