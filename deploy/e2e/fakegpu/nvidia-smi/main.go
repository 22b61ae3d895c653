// Command nvidia-smi is a stand-in for the driver's program: it answers the two questions that the executor asks, from the
// folder that DURWARD_FAKE_GPU names (package fakegpu).
package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"durward.internal/deploy/e2e/fakegpu"
)

const format = "--format=csv,noheader,nounits"

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Println(err)
		os.Exit(9)
	}
}

func run(args []string) error {
	host := &fakegpu.Host{Dir: os.Getenv(fakegpu.Variable)}
	if host.Dir == "" {
		return errors.New(fakegpu.Variable + " names no folder")
	}
	if !host.Loaded() {
		return errors.New("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver")
	}
	if len(args) != 2 || args[1] != format {
		return errors.New("only " + format + " is known")
	}
	gpus, err := host.Read()
	if err != nil {
		return err
	}
	if question, ok := strings.CutPrefix(args[0], "--query-gpu="); ok {
		return list(gpus, strings.Split(question, ","))
	}
	if args[0] == "--query-compute-apps=gpu_uuid,pid,used_memory" {
		for _, g := range gpus {
			for _, p := range g.Programs {
				fmt.Printf("%s, %d, %d\n", g.UUID, p.PID, p.MiB)
			}
		}
		return nil
	}
	return errors.New("the question is not known")
}

func list(gpus []fakegpu.GPU, fields []string) error {
	for i, g := range gpus {
		known := map[string]string{
			"index": strconv.Itoa(i), "uuid": g.UUID, "name": g.Name, "memory.total": number(g.Total), "memory.used": number(g.Used),
			"memory.free": number(g.Free()), "memory.reserved": number(g.Reserved), "utilization.gpu": "37", "temperature.gpu": "41",
			"power.draw": "120.50", "ecc.errors.uncorrected.volatile.total": "0",
		}
		var row []string
		for _, field := range fields {
			value, ok := known[field]
			if !ok {
				return fmt.Errorf("Field %q is not a valid field to query", field) //nolint:staticcheck // the words of nvidia-smi
			}
			if g.Lost && field != "index" && field != "uuid" {
				value = "[GPU is lost]"
			}
			row = append(row, value)
		}
		fmt.Println(strings.Join(row, ", "))
	}
	return nil
}

func number(n uint32) string { return strconv.FormatUint(uint64(n), 10) }
