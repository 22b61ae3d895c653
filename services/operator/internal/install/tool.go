package install

import (
	"path/filepath"

	"durward.internal/services/operator/internal/installdir"
	"durward.internal/services/platform/durable"
)

// Tool is an internal program of the installation below root. user is the Unix user whose its files are; empty: root.
func Tool(root, name, user string) (installdir.Tool, error) {
	t, err := installdir.ToolAt(filepath.Join(root, pkiDir), filepath.Join(root, tlsDir), name)
	if err != nil || user == "" {
		return t, err
	}
	of, err := lookupUser(root, user)
	// The group is root, which renews it without the power to read everybody's files. The user's may be other people's too.
	t.Owner = &durable.Owner{UID: of.UID, Mode: 0o440}
	return t, err
}
