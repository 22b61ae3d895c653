package main

import (
	"strings"
	"testing"

	"durward.internal/services/platform/config"
	"durward.internal/services/platform/platformtest/input"
)

// TestDocumentedFile: the file that documents every key is one that the launcher takes.
func TestDocumentedFile(t *testing.T) {
	input.Outside(t)
	s := &settings{}
	if err := config.Load("../../../../deploy/config/launcher.yaml", s); err != nil {
		t.Fatal(err)
	}
	if err := s.Validate(); err != nil || s.Packages == "" || len(s.Own) == 0 {
		t.Errorf("%+v, %v", s, err)
	}
}

func TestValidate(t *testing.T) {
	good := func() *settings {
		return &settings{Listen: "unix:/run/durward/launcher/launcher.sock,user=durward-egress", Servers: "/etc/durward/servers.yaml", StateDir: "/s", TrustDir: "/t"}
	}
	if err := good().Validate(); err != nil {
		t.Fatal(err)
	}
	for says, change := range map[string]func(*settings){
		"listen":                       func(s *settings) { s.Listen = "127.0.0.1:7000" },
		"the one user who may come":    func(s *settings) { s.Listen = "unix:/run/x" },
		"the one user who may":         func(s *settings) { s.Listen += ",user=other" },
		"the one user":                 func(s *settings) { s.Listen += ",group=other" },
		"servers: must be an absolute": func(s *settings) { s.Servers = "" },
		"state_dir: must be":           func(s *settings) { s.StateDir = "x" },
		"trust_dir: must be":           func(s *settings) { s.TrustDir = "x" },
		"own[0]":                       func(s *settings) { s.Own = []string{"x"} },
		"packages":                     func(s *settings) { s.Packages = "x" },
	} {
		s := good()
		change(s)
		if err := s.Validate(); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v", says, err)
		}
	}
}
