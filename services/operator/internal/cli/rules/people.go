package rules

import (
	"slices"
	"strings"

	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/installdir"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/config"
	"durward.internal/services/platform/security"
)

// userUnknown says that rules of a user bind nobody; "": they bind somebody, or it cannot be told.
func userUnknown(cfg installdir.Config, userName string) string {
	list, err := cli.ReadClientFacts(cfg.Clients)
	if err != nil || userName == "" || slices.Contains(cli.KnownUsers(list), userName) {
		return ""
	}
	text := "no client has the user " + clean.Visible(userName) + " (clients.yaml): its rules bind nobody"
	if near := config.Suggest(userName, cli.KnownUsers(list)); len(near) > 0 {
		text += "; did you mean " + strings.Join(near, ", ") + "?"
	}
	return text
}

// warnOfUser says beside the difference that it would bind nobody.
func (a *app) warnOfUser(cfg installdir.Config, userName string) {
	if text := userUnknown(cfg, userName); text != "" {
		a.Out.Remark("%s", a.Out.Yellow("Careful: "+text+"."))
	}
}

// warnOfFourEyes says for which clients nobody can approve anything once four eyes are needed: those that belong to nobody.
func (a *app) warnOfFourEyes(cfg installdir.Config) {
	list, err := cli.ReadClientFacts(cfg.Clients)
	if err != nil {
		return // who reads the file for its own sake says so
	}
	var without []string
	for _, c := range list {
		if c.User == "" {
			without = append(without, clean.Line(c.ID, 64))
		}
	}
	if len(without) > 0 {
		a.Out.Remark("%s", a.Out.Yellow("Careful: "+strings.Join(without, ", ")+" have no user in clients.yaml: with four eyes nobody can approve what they ask. "+
			"Give each its user: there."))
	}
}

// emptyUsers are the folders of users/ whose rules bind nobody, each as a sentence.
func emptyUsers(cfg installdir.Config, files []security.File) map[string]string {
	out := map[string]string{}
	for _, f := range files {
		rest, ok := strings.CutPrefix(f.Name, security.FolderUsers+"/")
		if !ok {
			continue
		}
		name, _, _ := strings.Cut(rest, "/")
		if text := userUnknown(cfg, name); text != "" {
			out[security.FolderUsers+"/"+name] = text
		}
	}
	return out
}
