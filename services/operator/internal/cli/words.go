package cli

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/operator/internal/approval"
	"durward.internal/services/operator/internal/output"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/contract"
)

// DidYouMean is what to do next after a name that there is not: one of the names near it, or else otherwise.
func DidYouMean(near []string, otherwise string) string {
	if len(near) == 0 {
		return otherwise
	}
	return "Did you mean " + strings.Join(near, ", ") + "?"
}

func IsPending(op *vaultv1.Operation) bool {
	return op.GetState() == vaultv1.OperationState_OPERATION_STATE_PENDING
}

// NonNil makes an empty list of none, for JSON.
func NonNil[T any](items []T) []T {
	if items == nil {
		return []T{}
	}
	return items
}

// Seconds writes how long something took: "0.4 s", "42 s", "1:35".
func Seconds(d time.Duration) string {
	switch d = max(d, 0); {
	case d < 10*time.Second:
		return strconv.FormatFloat(d.Truncate(100*time.Millisecond).Seconds(), 'f', 1, 64) + " s"
	case d < time.Minute:
		return strconv.Itoa(int(d/time.Second)) + " s"
	default:
		return approval.Duration(d)
	}
}

// StateColour is a state's word in its colour.
func (a *App) StateColour(s executorv1.ServiceState) string {
	text := contract.WordOf(s)
	switch s {
	case executorv1.ServiceState_SERVICE_STATE_RUNNING:
		return a.Out.Green(text)
	case executorv1.ServiceState_SERVICE_STATE_SLEEPING:
		return a.Out.Blue(text)
	case executorv1.ServiceState_SERVICE_STATE_STARTING, executorv1.ServiceState_SERVICE_STATE_STOPPING,
		executorv1.ServiceState_SERVICE_STATE_UNKNOWN:
		return a.Out.Yellow(text)
	case executorv1.ServiceState_SERVICE_STATE_UNHEALTHY, executorv1.ServiceState_SERVICE_STATE_FAILED:
		return a.Out.Red(text)
	default:
		return text
	}
}

func Mebibytes(n uint32) string {
	if n == 0 {
		return "-"
	}
	return strconv.FormatUint(uint64(n), 10) + " MiB"
}

func OrNothing(n uint32) string {
	if n == 0 {
		return ""
	}
	return strconv.FormatUint(uint64(n), 10)
}

func JoinNumbers(list []uint32) string {
	return strings.Join(output.Each(list, func(n uint32) string { return strconv.FormatUint(uint64(n), 10) }), ", ")
}

func When(yes bool, text string) string {
	if yes {
		return text
	}
	return ""
}

// ShellWord quotes s for a POSIX shell where that is needed.
func ShellWord(s string) string {
	if s != "" && strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-:=@%+,") == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

func GPUWords(source string, gpus uint32, example, driver bool) string {
	found := "no NVIDIA driver found"
	if driver {
		found = "an NVIDIA driver is there, and this executor does not use it"
	}
	switch source {
	case "simulated":
		catalog := "the catalogue"
		if example {
			catalog = "the example catalogue"
		}
		return fmt.Sprintf("%d × simulated (as %s says; %s)", gpus, catalog, found)
	case "nvml":
		return fmt.Sprintf("%d × NVIDIA", gpus)
	case "nvidia-smi":
		return fmt.Sprintf("%d × NVIDIA (read through nvidia-smi, not the driver's library)", gpus)
	default:
		return "none (" + found + "; the catalogue simulates none)"
	}
}

// DriverFound reports whether the NVIDIA kernel driver is loaded.
func DriverFound() bool {
	_, err := os.Stat("/proc/driver/nvidia/version")
	return err == nil
}

func ModeRuns(modes *executorv1.ListModesResponse) bool {
	for _, m := range modes.GetModes() {
		if m.GetModeId() == modes.GetCurrent() {
			return m.GetRunning()
		}
	}
	return false
}

// ParseTime reads what a flag says of a time: a moment, a day, or how long ago. Nothing is no time.
func (a *App) ParseTime(flag, s string) (*timestamppb.Timestamp, error) {
	if s == "" {
		return nil, nil
	}
	if ago, err := ParseDuration(s); err == nil {
		return timestamppb.New(a.Now().Add(-ago)), nil
	}
	for _, layout := range []string{time.RFC3339, "2006-01-02T15:04", time.DateOnly} {
		t, err := time.ParseInLocation(layout, s, time.Local)
		// The last day of 9999 ends in the year 10000 of UTC, west of it; a second of room is for who rounds up.
		if err == nil && timestamppb.New(t).IsValid() && timestamppb.New(t.Add(time.Second)).IsValid() {
			return timestamppb.New(t), nil
		}
	}
	return nil, Usage("Like 2026-01-31T12:00:00Z, 2026-01-31, 24h or 7d.", "--%s %q is not a time", flag, clean.Visible(s))
}

// ParseDuration reads days, or what Go calls a duration.
func ParseDuration(text string) (time.Duration, error) {
	if days, is := strings.CutSuffix(text, "d"); is {
		n, err := strconv.ParseUint(days, 10, 16)
		return time.Duration(n) * 24 * time.Hour, err
	}
	return time.ParseDuration(text)
}
