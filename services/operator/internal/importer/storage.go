package importer

import (
	"cmp"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"durward.internal/services/operator/internal/importer/boundedyaml"
	"durward.internal/services/operator/internal/importer/proposal"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/pattern"
)

// volumes are what the container sees of the host, and its tmpfs.
func (x *box) volumes() (mounts []catalog.Mount, tmpfs []string) {
	for _, t := range x.texts(x.v.Get("tmpfs")) {
		target, _, _ := strings.Cut(t, ":")
		tmpfs = append(tmpfs, target)
	}
	v := x.v.Get("volumes")
	for _, source := range v.Keys { // a preset's: the host's folder, and the container's
		one, m := v.Get(source), catalog.Mount{Source: x.text(boundedyaml.Plain(source)), Writable: true}
		if m.Target = one.Str(); one.Kind == boundedyaml.Mapping {
			m.Target, m.Writable = one.Get("bind").Str(), writable(one.Get("mode").Str())
		}
		mounts = append(mounts, m)
	}
	for _, one := range v.List {
		parts := append(strings.Split(x.text(one), ":"), "", "")
		m := catalog.Mount{Source: parts[0], Target: parts[1], Writable: writable(parts[2])}
		if m.Target == "" {
			m.Source, m.Target = "", m.Source
		}
		if one.Kind == boundedyaml.Mapping {
			m = catalog.Mount{Source: x.text(one.Get("source")), Target: x.text(one.Get("target")), Writable: denied(x.text(one.Get("read_only")))}
			switch one.Get("type").Str() {
			case "tmpfs":
				tmpfs = append(tmpfs, m.Target)
				continue
			case "bind":
				if m.Source != "" && !strings.HasPrefix(m.Source, "~") && !filepath.IsAbs(m.Source) {
					m.Source = "./" + m.Source
				}
			default:
				m.Source = strings.TrimLeft(m.Source, "/.~") // a volume's name
			}
		}
		mounts = append(mounts, m)
	}
	for i := range mounts {
		m := &mounts[i]
		if rest, ok := strings.CutPrefix(m.Source, "~/"); ok && filepath.IsAbs(x.given.Variables["HOME"]) {
			m.Source = filepath.Join(x.given.Variables["HOME"], rest)
		}
		if first, _, _ := strings.Cut(m.Source, "/"); x.base != "" && !x.plain && (first == "." || first == "..") {
			m.Source = filepath.Join(x.base, m.Source)
		}
	}
	return mounts, tmpfs
}

// writable reports whether a mount with these options may be written to: "ro,z". One whose options are not all known may not.
func writable(options string) bool {
	return len(missing(options)) == 0 && !slices.Contains(strings.Split(options, ","), "ro")
}

// denied reports whether a setting says no, or nothing. What is neither yes nor no is no word for writing.
func denied(text string) bool {
	return slices.Contains([]string{"", "false", "0", "n", "no", "off"}, strings.ToLower(text))
}

// storage takes over bind mounts, tmpfs and shared memory, and names what else there is.
func (x *box) storage(id string) bool {
	mounts, tmpfs := x.volumes()
	if len(mounts) > maxMounts || len(tmpfs) > maxTmpfs {
		return x.leaveOut("it has more than %d mounts, or %d tmpfs", maxMounts, maxTmpfs)
	}
	for _, m := range mounts {
		shown, target := clean.Line(clean.Visible(m.Source), 200), clean.Visible(m.Target)
		switch {
		case m.Source == "":
			x.note("The unnamed volume at %s was left out.", target)
			continue
		case len(missing(m.Source+m.Target)) > 0:
			x.want(m.Source, m.Target)
			x.note("A mount was left out: it %s.", unusable(m.Source+m.Target))
			continue
		case strings.HasPrefix(m.Source, "~") || strings.Contains(m.Source, "$"):
			x.note("The mount of %s at %s was left out: write out which folder that is (--set HOME=… says what ~ is).", shown, target)
			continue
		case !filepath.IsAbs(m.Source):
			x.note("The volume %s at %s was left out: a mount is a folder of the host.", shown, target)
			continue
		}
		m.Source, m.Target = filepath.Clean(m.Source), filepath.Clean(m.Target)
		switch why := catalog.Unmountable(m.Source); {
		case strings.HasSuffix(m.Source, ".sock"):
			return x.leaveOut("the mount of %s is refused: who has a daemon's socket has the host", clean.Visible(m.Source))
		case why != "":
			return x.leaveOut("the mount of %s is refused: it %s", clean.Visible(m.Source), why)
		case !proposal.Shown(m.Source + m.Target):
			return x.leaveOut("a mount holds characters that cannot be shown")
		}
		x.Mount(m.Source, id)
		x.Container.Mounts = append(x.Container.Mounts, m)
	}
	x.Container.Tmpfs = tmpfs
	if size := x.text(x.v.Get("shm_size")); size != "" {
		var ok bool
		if x.Container.ShmMiB, ok = mebibytes(size); !ok {
			x.note("shm_size %s is not understood.", clean.Line(clean.Visible(size), 64))
		}
	}
	return true
}

// limits are what it may take of the host at most. One that is not taken over is named: without it the container takes what there is.
func (x *box) limits() {
	limit := func(key, deploy string, read func(text string) bool) {
		switch text := cmp.Or(x.text(x.v.Get(key)), x.text(x.v.At("deploy", "resources", "limits", deploy))); {
		case text == "", text == "0", text == "-1": // none
		case len(missing(text)) > 0:
			x.want(text)
			x.note("%s was left out: it %s.", key, unusable(text))
		case !read(text):
			x.note("%s %s is not understood.", key, clean.Line(clean.Visible(text), 64))
		}
	}
	limit("mem_limit", "memory", func(text string) (ok bool) {
		x.Limits.MemoryMiB, ok = mebibytes(text)
		return ok
	})
	limit("cpus", "cpus", func(text string) bool {
		cpus, err := strconv.ParseFloat(text, 64)
		if err != nil || !(cpus >= 0.01 && cpus <= 1024) {
			return false
		}
		x.Limits.CPUPercent = uint32(math.Round(cpus * 100))
		return true
	})
	limit("pids_limit", "pids", func(text string) bool {
		pids, err := strconv.ParseUint(text, 10, 20)
		if err != nil {
			return false
		}
		x.Limits.PIDs = uint32(pids)
		return true
	})
}

var sizePattern = pattern.New(`\A([0-9]{1,15}(?:\.[0-9]{1,3})?)\s*([kmgtKMGT]?)(?:[iI]?[bB])?\z`)

// mebibytes reads Docker's sizes: "8g", "16gb", "512m", bytes. What is less than one MiB is one.
func mebibytes(text string) (uint32, bool) {
	m := sizePattern().FindStringSubmatch(text)
	if m == nil {
		return 0, false
	}
	n, err := strconv.ParseFloat(m[1], 64)
	scale := map[string]float64{"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}[strings.ToLower(m[2])]
	if n = n * scale / (1 << 20); err != nil || n <= 0 || n > 1<<24 {
		return 0, false
	}
	return max(1, uint32(n)), true
}
