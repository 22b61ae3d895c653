// Package release says which version of Durward a program is.
package release

import "runtime/debug"

// linked is set by the linker: -ldflags "-X durward.internal/services/platform/release.linked=v1.2.3". scripts/build.sh takes it from
// scripts/version.sh.
var linked string

// none is the version of a program of which nothing is known, as those are that tests build: with a commit in it no build would be
// like the one before, and no answer of Go's test cache would hold.
const none = "v0.0.0-devel"

// Version returns the program's semantic version (semver.org): a release's, or v0.0.0-devel with the commit behind a plus.
func Version() string {
	info, _ := debug.ReadBuildInfo()
	return version(linked, info)
}

func version(linked string, info *debug.BuildInfo) string {
	if linked != "" {
		return linked
	}
	if info == nil {
		return none
	}
	commit, suffix := "", ""
	for _, setting := range info.Settings {
		switch {
		case setting.Key == "vcs.revision":
			commit = setting.Value[:min(len(setting.Value), 12)]
		case setting.Key == "vcs.modified" && setting.Value == "true":
			suffix = ".dirty"
		}
	}
	if commit == "" {
		return none
	}
	return none + "+" + commit + suffix
}
