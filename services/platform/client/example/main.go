// Command example is an internal program: `example CONNECT_JSON MODE`. tool.py beside it is the same in Python.
package main

import (
	"context"
	"fmt"
	"log"
	"os"

	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/client"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "Usage: example CONNECT_JSON MODE")
		os.Exit(2)
	}
	ctx, mode := context.Background(), os.Args[2]
	c := must(client.Open(ctx, must(client.Load(os.Args[1]))))
	defer func() { _ = c.Close() }()
	tools, history := executorv1.NewToolServiceClient(c), vaultv1.NewOperationServiceClient(c)
	fmt.Println("services", must(tools.ListServices(ctx, &executorv1.ListServicesRequest{})))
	changes := must(executorv1.NewEventServiceClient(c).WatchServices(ctx, &executorv1.WatchServicesRequest{}))
	go func() {
		for change, err := changes.Recv(); err == nil; change, err = changes.Recv() {
			fmt.Println("state", change.GetServiceId(), change.GetState())
		}
	}()
	plan := must(tools.SimulateMode(ctx, &executorv1.SimulateModeRequest{ModeId: &mode})).GetPlanDigest()
	done := must(tools.SwitchMode(ctx, &executorv1.SwitchModeRequest{ModeId: &mode, PlanDigest: &plan})) // a human agrees first
	fmt.Println("switched", done.GetModeId(), done.GetOutcome())
	fmt.Println("history", must(history.ListSessionOperations(ctx, &vaultv1.ListSessionOperationsRequest{})))
}

func must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}
