package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/descriptorpb"
)

// The table has every RPC of the contract.
func TestCallers(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join("..", "..", "..", "..", "proto", "durward.binpb"))
	if err != nil {
		t.Fatal(err)
	}
	set := &descriptorpb.FileDescriptorSet{}
	if err := proto.Unmarshal(raw, set); err != nil {
		t.Fatal(err)
	}
	table, rpcs := callers(), 0
	for _, file := range set.GetFile() {
		_, process, ours := strings.Cut(file.GetPackage(), "durward.")
		for _, service := range file.GetService() {
			for _, method := range service.GetMethod() {
				rpcs++
				row := "| " + strings.TrimSuffix(process, ".v1") + " | " + service.GetName() + "." + method.GetName() + " | "
				if !ours || !strings.Contains(table, row) {
					t.Errorf("%s is not there", row)
				}
			}
		}
	}
	if rpcs < 100 {
		t.Errorf("the contract has %d RPCs", rpcs)
	}
}
