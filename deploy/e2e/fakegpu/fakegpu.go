// Package fakegpu is a folder that stands for a host's GPUs: a stand-in for the driver's library (nvml.c, built by build.sh)
// and one for nvidia-smi read it at every call, so that a test changes memory while the executor measures it. nvml.c says what
// the files hold.
package fakegpu

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// Variable is the environment variable that names the folder.
const Variable = "DURWARD_FAKE_GPU"

// GPU is one GPU of the folder. Sizes are MiB.
type GPU struct {
	UUID, Name      string
	Total, Reserved uint32
	// Lost: it has fallen off the bus.
	Lost bool
	// Used is what programs that run hold.
	Used     uint32
	Programs []Program
}

// Free is what nobody holds.
func (g GPU) Free() uint32 { return g.Total - min(g.Total, g.Reserved+g.Used) }

// Program is what one program holds of a GPU.
type Program struct {
	PID int
	MiB uint32
}

// Hold is one line of an allocation.
type Hold struct {
	PID int
	GPU uint32
	MiB uint32
}

// Host is a folder. Its methods may be called by several programs at once, one a file.
type Host struct{ Dir string }

// New makes the folder's GPUs.
func New(dir string, gpus ...GPU) (*Host, error) {
	if err := os.MkdirAll(filepath.Join(dir, "alloc"), 0o755); err != nil {
		return nil, err
	}
	var text strings.Builder
	for _, g := range gpus {
		fmt.Fprintf(&text, "%s %s %d %d\n", g.UUID, strings.ReplaceAll(g.Name, " ", "_"), g.Total, g.Reserved)
	}
	h := &Host{dir}
	return h, h.write("gpus", text.String())
}

// Full says that a GPU has no room for a Hold.
type Full struct{ Hold }

func (f *Full) Error() string { return fmt.Sprintf("GPU %d has no %d MiB free", f.GPU, f.MiB) }

// Take makes name hold exactly this, whatever it held before. Where a GPU has no room for it all stays as it was, with a *Full: as a
// driver does, it takes one program's request after the other, so that no two get the same memory.
func (h *Host) Take(name string, holds ...Hold) error {
	lock, err := os.Open(h.Dir)
	if err != nil {
		return err
	}
	defer lock.Close()
	for err = syscall.EINTR; errors.Is(err, syscall.EINTR); {
		err = syscall.Flock(int(lock.Fd()), syscall.LOCK_EX)
	}
	if err != nil {
		return err
	}
	gpus, err := h.read(name)
	if err != nil {
		return err
	}
	var text strings.Builder
	for _, x := range holds {
		if int(x.GPU) < len(gpus) {
			if gpus[x.GPU].Free() < x.MiB {
				return &Full{x}
			}
			gpus[x.GPU].Used += x.MiB
		}
		fmt.Fprintf(&text, "%d %d %d\n", x.PID, x.GPU, x.MiB)
	}
	return h.write(filepath.Join("alloc", name), text.String())
}

// Give lets go of all that name holds.
func (h *Host) Give(name string) error { return h.set(filepath.Join("alloc", name), false) }

// Lose makes a GPU fall off the bus, or brings it back.
func (h *Host) Lose(index uint32, lost bool) error {
	return h.set("lost-"+strconv.FormatUint(uint64(index), 10), lost)
}

// Unload takes the driver away, or brings it back.
func (h *Host) Unload(gone bool) error { return h.set("gone", gone) }

// Hang makes every call of the driver wait, or lets them go on.
func (h *Host) Hang(hang bool) error { return h.set("hang", hang) }

// Lag is for how many milliseconds the memory of an ended program is still held.
func (h *Host) Lag(ms int) error { return h.write("lag", strconv.Itoa(ms)) }

// XID reports a critical error of a GPU.
func (h *Host) XID(index uint32, code int) error {
	before, err := os.ReadFile(filepath.Join(h.Dir, "xid"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return h.write("xid", fmt.Sprintf("%s%d %d\n", before, index, code))
}

// Loaded reports whether the driver is there.
func (h *Host) Loaded() bool {
	_, err := os.Stat(filepath.Join(h.Dir, "gone"))
	return err != nil
}

// Read returns the GPUs as they are. What a program held that has ended does not count.
func (h *Host) Read() ([]GPU, error) { return h.read("") }

// read is Read, without what a name holds.
func (h *Host) read(without string) ([]GPU, error) {
	raw, err := os.ReadFile(filepath.Join(h.Dir, "gpus"))
	if err != nil {
		return nil, err
	}
	var out []GPU
	for line := range strings.Lines(string(raw)) {
		var g GPU
		if _, err := fmt.Sscan(line, &g.UUID, &g.Name, &g.Total, &g.Reserved); err != nil {
			return nil, fmt.Errorf("gpus: %w", err)
		}
		g.Name = strings.ReplaceAll(g.Name, "_", " ")
		_, err := os.Stat(filepath.Join(h.Dir, "lost-"+strconv.Itoa(len(out))))
		g.Lost = err == nil
		out = append(out, g)
	}
	entries, err := os.ReadDir(filepath.Join(h.Dir, "alloc"))
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") || e.Name() == without {
			continue
		}
		if err := h.allocation(e.Name(), out); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (h *Host) allocation(name string, gpus []GPU) error {
	f, err := os.Open(filepath.Join(h.Dir, "alloc", name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		var x Hold
		if _, err := fmt.Sscan(lines.Text(), &x.PID, &x.GPU, &x.MiB); err != nil {
			return fmt.Errorf("alloc/%s: %w", name, err)
		}
		if int(x.GPU) >= len(gpus) || x.PID != 0 && ended(x.PID) {
			continue
		}
		g := &gpus[x.GPU]
		g.Used += x.MiB
		if x.PID != 0 {
			g.Programs = append(g.Programs, Program{PID: x.PID, MiB: x.MiB})
		}
	}
	return lines.Err()
}

func ended(pid int) bool {
	raw, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return true
	}
	_, after, _ := strings.Cut(string(raw[strings.LastIndexByte(string(raw), ')')+1:]), " ")
	return strings.HasPrefix(after, "Z") || strings.HasPrefix(after, "X")
}

// write replaces a file by renaming, so that no reader sees half of one.
func (h *Host) write(name, text string) error {
	file := filepath.Join(h.Dir, name)
	next := filepath.Join(filepath.Dir(file), "."+filepath.Base(file))
	if err := os.WriteFile(next, []byte(text), 0o644); err != nil {
		return err
	}
	return os.Rename(next, file)
}

func (h *Host) set(name string, there bool) error {
	if there {
		return h.write(name, "")
	}
	err := os.Remove(filepath.Join(h.Dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
