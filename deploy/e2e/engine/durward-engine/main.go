// Command durward-engine stands in for a model server in tests: it speaks what vLLM, llama-server's router or any OpenAI server
// says of health, sleep and requests, and takes and gives back memory as they do: of the GPUs of package fakegpu or, built with the
// tag nvml and started with -cuda, of real ones. It loads slowly, stalls, runs out of memory, lies about its sleep, leaks or crashes when told to.
//
// As `durward-engine grab` it is a stranger's program that takes memory and keeps it.
//
// It runs in tests alone, listens on loopback, and trusts whoever started it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"durward.internal/deploy/e2e/fakegpu"
)

// Steps at which it can be told to crash or to answer with 500.
var steps = []string{"load", "ready", "request", "sleep", "wake", "reload", "stop"}

// crashed is the exit status of a crash that was asked for.
const crashed = 3

// outOfMemory is what it exits with when a GPU has no room.
const outOfMemory = 1

// settings are the flags.
type settings struct {
	api, name, folder  string
	port               uint
	models             []string
	vram, residue      uint
	leak, oomAt        uint
	gpus               []uint32
	loadTime, perToken time.Duration
	cuda, stall, lying bool
	deaf               bool
	crashAt, failAt    string
	record             string
}

func main() {
	log.SetFlags(log.Lmicroseconds)
	if len(os.Args) > 1 && os.Args[1] == "grab" {
		os.Exit(grab(os.Args[2:]))
	}
	s, err := parse(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	os.Exit(run(s))
}

func parse(args []string) (*settings, error) {
	s := &settings{}
	flags := flag.NewFlagSet("durward-engine", flag.ContinueOnError)
	flags.StringVar(&s.api, "api", "openai", "vllm, llama (a router) or openai")
	flags.UintVar(&s.port, "port", 0, "port on 127.0.0.1")
	flags.StringVar(&s.name, "name", "engine-"+strconv.Itoa(os.Getpid()), "the `name` that memory is held under")
	flags.StringVar(&s.folder, "fake-gpu", os.Getenv(fakegpu.Variable), "the `folder` of the GPUs; without one no memory is taken")
	flags.BoolVar(&s.cuda, "cuda", false, "take memory of real GPUs, each with a CUDA context beside it")
	models := flags.String("model", "stub", "`names` of the models, separated by commas; only a router has several")
	flags.UintVar(&s.vram, "vram", 0, "`MiB` that it takes on all its GPUs together, or each of a router's models does")
	flags.UintVar(&s.residue, "sleep-mib", 0, "`MiB` that it keeps on all its GPUs together while it sleeps")
	flags.UintVar(&s.leak, "leak", 0, "`MiB` more that it keeps on its first GPU while it sleeps")
	flags.UintVar(&s.oomAt, "oom-at", 0, "run out of memory once it holds so many `MiB`")
	gpus := flags.String("gpus", "0", "`indexes` of its GPUs, separated by commas")
	flags.DurationVar(&s.loadTime, "load-time", 0, "how long it loads")
	flags.DurationVar(&s.perToken, "token-time", time.Millisecond, "how long one token takes")
	flags.BoolVar(&s.stall, "stall", false, "hang when half is loaded")
	flags.BoolVar(&s.lying, "lying-sleep", false, "say that it sleeps and keep the memory")
	flags.BoolVar(&s.deaf, "ignore-term", false, "do not end at SIGTERM")
	flags.StringVar(&s.crashAt, "crash-at", "", "exit at this `step`: "+strings.Join(steps, ", "))
	flags.StringVar(&s.failAt, "fail-at", "", "answer with 500 at this `step`")
	flags.StringVar(&s.record, "record", "", "append a line to this `file` at the start and for each request")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	for _, step := range []string{s.crashAt, s.failAt} {
		if step != "" && !slices.Contains(steps, step) {
			return nil, fmt.Errorf("there is no step %q", step)
		}
	}
	if !slices.Contains([]string{"vllm", "llama", "openai"}, s.api) || s.port == 0 {
		return nil, errors.New("-api and -port are needed")
	}
	s.models = strings.Split(*models, ",")
	for index := range strings.SplitSeq(*gpus, ",") {
		n, err := strconv.ParseUint(index, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("-gpus: %w", err)
		}
		s.gpus = append(s.gpus, uint32(n))
	}
	return s, nil
}

func run(s *settings) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if s.deaf {
		ctx = context.Background()
	}
	e := &engine{settings: s, host: &fakegpu.Host{Dir: s.folder}, loaded: map[string]string{}}
	e.note("started " + strconv.Itoa(os.Getpid()))
	if e.cuda {
		room, err := card(s.gpus[0]).room()
		if err != nil {
			log.Print(err)
			return outOfMemory
		}
		e.note(fmt.Sprintf("found %d MiB free", room))
	}
	log.Printf("%s server, models %s, GPUs %v", s.api, strings.Join(s.models, " "), s.gpus)
	srv := &http.Server{Addr: net.JoinHostPort("127.0.0.1", strconv.FormatUint(uint64(s.port), 10)), Handler: e.handler(), ReadHeaderTimeout: 5 * time.Second}
	failed := make(chan error, 1)
	listen := sync.OnceFunc(func() { go func() { failed <- srv.ListenAndServe() }() })
	if s.api != "vllm" {
		listen() // these answer 503 while they load; vLLM does not listen yet
	}
	if s.api != "llama" {
		e.load(ctx)
	}
	e.at("ready")
	listen()
	e.set(func() { e.ready = true })
	log.Print("ready")
	code := 0
	select {
	case err := <-failed:
		log.Print("listen: ", err)
		code = 1
	case <-ctx.Done():
	}
	e.at("stop")
	log.Print("ended")
	if s.folder != "" {
		_ = e.host.Give(s.name)
	}
	return code
}

// grab is a stranger's program.
func grab(args []string) int {
	flags := flag.NewFlagSet("grab", flag.ContinueOnError)
	folder := flags.String("fake-gpu", os.Getenv(fakegpu.Variable), "the `folder` of the GPUs")
	mib := flags.Uint("mib", 1024, "`MiB` to take")
	index := flags.Uint("gpu", 0, "of this GPU")
	length := flags.Duration("for", time.Hour, "for so long")
	cuda := flags.Bool("cuda", false, "take it of a real GPU")
	busy := flags.Bool("busy", false, "keep the real GPU busy")
	fault := flags.Bool("fault", false, "write where the real GPU has no memory, and end")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if *cuda {
		ctx, cancel := context.WithTimeout(ctx, *length)
		defer cancel()
		return grabCard(ctx, card(*index), *mib, *busy, *fault)
	}
	host := &fakegpu.Host{Dir: *folder}
	name := "grab-" + strconv.Itoa(os.Getpid())
	if err := host.Take(name, fakegpu.Hold{PID: os.Getpid(), GPU: uint32(*index), MiB: uint32(*mib)}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println("taken")
	select {
	case <-ctx.Done():
	case <-time.After(*length):
	}
	_ = host.Give(name)
	return 0
}

// grabCard is grab on a real GPU.
func grabCard(ctx context.Context, c card, mib uint, busy, fault bool) int {
	if err := c.hold(mib); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return outOfMemory
	}
	fmt.Println("taken")
	if fault {
		fmt.Println("the driver says:", c.fault())
		return crashed
	}
	for busy && ctx.Err() == nil {
		if err := c.busy(100 * time.Millisecond); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return crashed
		}
	}
	<-ctx.Done()
	return 0
}
