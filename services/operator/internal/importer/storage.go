package importer

import (
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"

	"durward.internal/services/operator/internal/importer/boundedyaml"
	"durward.internal/services/operator/internal/importer/proposal"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/pattern"
)

type mount struct {
	source, target string
	readOnly       bool
}

// volumes are what the container sees of the host, and its tmpfs.
func (x *box) volumes() (mounts []mount, tmpfs []string) {
	for _, t := range x.texts(x.v.Get("tmpfs")) {
		target, _, _ := strings.Cut(t, ":")
		tmpfs = append(tmpfs, target)
	}
	v := x.v.Get("volumes")
	for _, source := range v.Keys { // a preset's: the host's folder, and the container's
		one, m := v.Get(source), mount{source: x.text(boundedyaml.Plain(source))}
		if m.target = one.Str(); one.Kind == boundedyaml.Mapping {
			m.target, m.readOnly = one.Get("bind").Str(), one.Get("mode").Str() == "ro"
		}
		mounts = append(mounts, m)
	}
	for _, one := range v.List {
		parts := append(strings.Split(x.text(one), ":"), "", "")
		m := mount{parts[0], parts[1], slices.Contains(strings.Split(parts[2], ","), "ro")}
		if m.target == "" {
			m.source, m.target = "", m.source
		}
		if one.Kind == boundedyaml.Mapping {
			m = mount{x.text(one.Get("source")), x.text(one.Get("target")), one.Get("read_only").Is()}
			switch one.Get("type").Str() {
			case "tmpfs":
				tmpfs = append(tmpfs, m.target)
				continue
			case "bind":
				if m.source != "" && !strings.HasPrefix(m.source, "~") && !filepath.IsAbs(m.source) {
					m.source = "./" + m.source
				}
			default:
				m.source = strings.TrimLeft(m.source, "/.~") // a volume's name
			}
		}
		mounts = append(mounts, m)
	}
	for i := range mounts {
		m := &mounts[i]
		if rest, ok := strings.CutPrefix(m.source, "~/"); ok && filepath.IsAbs(x.given.Variables["HOME"]) {
			m.source = filepath.Join(x.given.Variables["HOME"], rest)
		}
		if first, _, _ := strings.Cut(m.source, "/"); x.base != "" && (first == "." || first == "..") {
			m.source = filepath.Join(x.base, m.source)
		}
	}
	return mounts, tmpfs
}

// storage takes over bind mounts, tmpfs and shared memory, and names what else there is.
func (x *box) storage(id string, fields proposal.Fields) (proposal.Fields, bool) {
	s := x.s
	mounts, tmpfs := x.volumes()
	if len(mounts) > maxMounts || len(tmpfs) > maxTmpfs {
		return nil, x.leaveOut("it has more than %d mounts, or %d tmpfs", maxMounts, maxTmpfs)
	}
	var list []any
	for _, m := range mounts {
		shown, target := clean.Line(clean.Visible(m.source), 200), clean.Visible(m.target)
		switch {
		case m.source == "":
			s.note("The unnamed volume at %s was left out.", target)
			continue
		case len(missing(m.source+m.target)) > 0:
			x.want(m.source, m.target)
			s.note("A mount was left out: it %s.", unusable(m.source+m.target))
			continue
		case strings.HasPrefix(m.source, "~") || strings.Contains(m.source, "$"):
			s.note("The mount of %s at %s was left out: write out which folder that is (--set HOME=… says what ~ is).", shown, target)
			continue
		case !filepath.IsAbs(m.source):
			s.note("The volume %s at %s was left out: a mount is a folder of the host.", shown, target)
			continue
		}
		m.source, m.target = filepath.Clean(m.source), filepath.Clean(m.target)
		switch why := catalog.Unmountable(m.source); {
		case strings.HasSuffix(m.source, ".sock"):
			return nil, x.leaveOut("the mount of %s is refused: who has a daemon's socket has the host", clean.Visible(m.source))
		case why != "":
			return nil, x.leaveOut("the mount of %s is refused: it %s", clean.Visible(m.source), why)
		case !proposal.Shown(m.source + m.target):
			return nil, x.leaveOut("a mount holds characters that cannot be shown")
		}
		x.Mount(m.source, id)
		x.mounts = append(x.mounts, m)
		one := proposal.Fields{{Key: "source", Value: m.source}, {Key: "target", Value: m.target}}
		if !m.readOnly {
			one = append(one, yaml.MapItem{Key: "writable", Value: true})
		}
		list = append(list, one)
	}
	if len(list) > 0 {
		fields = append(fields, yaml.MapItem{Key: "mounts", Value: list})
	}
	if len(tmpfs) > 0 {
		fields = append(fields, yaml.MapItem{Key: "tmpfs", Value: tmpfs})
	}
	if size := x.text(x.v.Get("shm_size")); size != "" {
		if mib, ok := mebibytes(size); ok {
			fields = append(fields, yaml.MapItem{Key: "shm_mib", Value: mib})
		} else {
			s.note("shm_size %s is not understood.", clean.Line(clean.Visible(size), 64))
		}
	}
	return fields, true
}

// limits are what it may take of the host at most.
func (x *box) limits(fields proposal.Fields) proposal.Fields {
	said := func(key, deploy string) string {
		if text := x.text(x.v.Get(key)); text != "" {
			return text
		}
		return x.text(x.v.At("deploy", "resources", "limits", deploy))
	}
	var out proposal.Fields
	if mib, ok := mebibytes(said("mem_limit", "memory")); ok {
		out = append(out, yaml.MapItem{Key: "memory_mib", Value: mib})
	}
	if cpus, err := strconv.ParseFloat(said("cpus", "cpus"), 64); err == nil && cpus >= 0.01 && cpus <= 1024 {
		out = append(out, yaml.MapItem{Key: "cpu_percent", Value: uint32(cpus * 100)})
	}
	if pids, err := strconv.ParseUint(said("pids_limit", "pids"), 10, 20); err == nil && pids > 0 {
		out = append(out, yaml.MapItem{Key: "pids", Value: uint32(pids)})
	}
	if len(out) == 0 {
		return fields
	}
	return append(fields, yaml.MapItem{Key: "limits", Value: out})
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
