package config

import (
	"errors"
	"net"
	"path/filepath"
	"strings"
)

// DefaultSampleRatio is the share of requests that are traced unless the file says another: few enough that nothing gets
// slower, enough to show where time goes. What changes something is traced always.
const DefaultSampleRatio = 0.01

// Telemetry says what a process shows of itself beyond its log.
type Telemetry struct {
	// SampleRatio is the share of requests that change nothing which are traced: 0 to 1; 0.01 unless given. The gateway
	// decides for every process behind it.
	SampleRatio *float64 `yaml:"sample_ratio"`
	// OTLP is where traces are sent. Optional: without it they stay in the process, and GET /traces shows the newest.
	OTLP OTLP `yaml:"otlp"`
}

// OTLP names a collector of traces that speaks OTLP over gRPC.
type OTLP struct {
	// Endpoint is "127.0.0.1:4317", or "unix:///run/otel/otlp.sock". Empty: nothing is sent. A collector that is not on
	// loopback needs CA.
	Endpoint string `yaml:"endpoint"`
	// CA is a PEM file with the authority of the collector's certificate, absolute. With it the connection is TLS; without
	// it, in clear, which only a loopback or Unix address may be.
	CA string `yaml:"ca"`
}

// Ratio is SampleRatio or its default.
func (t Telemetry) Ratio() float64 {
	if t.SampleRatio == nil {
		return DefaultSampleRatio
	}
	return *t.SampleRatio
}

// unixScheme marks an endpoint that is a socket's path.
const unixScheme = "unix://"

// UnixSocket returns the path of a collector's Unix socket; false: the endpoint is host:port.
func (o OTLP) UnixSocket() (string, bool) { return strings.CutPrefix(o.Endpoint, unixScheme) }

// Validate checks the section. Every problem is reported, by its key.
func (t Telemetry) Validate() error {
	var problems []error
	if r := t.Ratio(); !(r >= 0 && r <= 1) { // NaN is neither
		problems = append(problems, errors.New("telemetry.sample_ratio: must be 0 to 1"))
	}
	return errors.Join(append(problems, named("telemetry.otlp.endpoint", t.OTLP.checkEndpoint()), named("telemetry.otlp.ca", t.OTLP.checkCA()))...)
}

func (o OTLP) checkEndpoint() error {
	if o.Endpoint == "" {
		return nil
	}
	if path, ok := o.UnixSocket(); ok {
		return checkAbsolute(path)
	}
	host, port, err := net.SplitHostPort(o.Endpoint)
	if err != nil || host == "" || port == "" || port == "0" {
		return errors.New("must be host:port or unix:///PATH")
	}
	if ip := net.ParseIP(host); o.CA == "" && (ip == nil || !ip.IsLoopback()) {
		return errors.New("is not a loopback address, like 127.0.0.1; a collector elsewhere needs telemetry.otlp.ca")
	}
	return nil
}

func (o OTLP) checkCA() error {
	switch {
	case o.CA == "":
		return nil
	case o.Endpoint == "":
		return errors.New("is there without an endpoint")
	case !filepath.IsAbs(o.CA):
		return errors.New("must be an absolute path")
	}
	return nil
}
