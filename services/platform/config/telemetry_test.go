package config_test

import (
	"math"
	"path/filepath"
	"strings"
	"testing"

	"durward.internal/services/platform/config"
	"durward.internal/services/platform/platformtest/testfile"
)

func TestTelemetryIsChecked(t *testing.T) {
	for want, c := range map[string]config.Telemetry{
		"telemetry.sample_ratio: must be 0 to 1":           {SampleRatio: new(1.5)},
		"sample_ratio: must be 0 to 1":                     {SampleRatio: new(-0.1)},
		"ratio: must be 0 to 1":                            {SampleRatio: new(math.NaN())},
		"telemetry.otlp.endpoint: must be host:port":       {OTLP: config.OTLP{Endpoint: "collector"}},
		"endpoint: must be host:port":                      {OTLP: config.OTLP{Endpoint: "127.0.0.1:0"}},
		"otlp.endpoint: must be host:port":                 {OTLP: config.OTLP{Endpoint: ":4317"}},
		"is not a loopback address":                        {OTLP: config.OTLP{Endpoint: "10.0.0.1:4317"}},
		"endpoint: is not a loopback address":              {OTLP: config.OTLP{Endpoint: "localhost:4317"}}, // a name is decided elsewhere
		"a collector elsewhere needs telemetry.otlp.ca":    {OTLP: config.OTLP{Endpoint: "otel.example:4317"}},
		"telemetry.otlp.endpoint: must be an absolute":     {OTLP: config.OTLP{Endpoint: "unix://run/otel.sock"}},
		"telemetry.otlp.endpoint: must be written without": {OTLP: config.OTLP{Endpoint: "unix:///run/../otel.sock"}},
		"telemetry.otlp.ca: is there without an endpoint":  {OTLP: config.OTLP{CA: "/ca.pem"}},
		"telemetry.otlp.ca: must be an absolute path":      {OTLP: config.OTLP{Endpoint: "127.0.0.1:4317", CA: "ca.pem"}},
	} {
		common := valid()
		common.Telemetry = c
		if err := common.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, not %q", c, err, want)
		}
	}
	for _, c := range []config.Telemetry{
		{}, {SampleRatio: new(0.0)}, {SampleRatio: new(1.0)}, {OTLP: config.OTLP{Endpoint: "127.0.0.1:4317"}},
		{OTLP: config.OTLP{Endpoint: "[::1]:4317"}}, {OTLP: config.OTLP{Endpoint: "unix:///run/otel.sock"}},
		{OTLP: config.OTLP{Endpoint: "otel.example:4317", CA: "/etc/otel.pem"}},
	} {
		if err := c.Validate(); err != nil {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// Nothing said means few traces and nobody who gets them; 0 means none, and is not the same.
func TestTelemetryDefaults(t *testing.T) {
	for text, want := range map[string]float64{
		"": config.DefaultSampleRatio, "telemetry: {}\n": config.DefaultSampleRatio, "telemetry: {sample_ratio: 0}\n": 0, "telemetry: {sample_ratio: 0.5}\n": 0.5,
	} {
		path := filepath.Join(t.TempDir(), "vault.yaml")
		testfile.Write(t, path, "listen: 127.0.0.1:1\n"+text)
		var c config.Common
		if err := config.Load(path, &c); err != nil {
			t.Fatal(err)
		}
		if got := c.Telemetry.Ratio(); got != want || c.Telemetry.OTLP.Endpoint != "" {
			t.Errorf("%q: ratio %v, endpoint %q", text, got, c.Telemetry.OTLP.Endpoint)
		}
	}
}
