package command

import (
	"slices"
	"strings"

	"durward.internal/services/operator/internal/home"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/config"
	"durward.internal/services/platform/security"
)

// fourEyes is the setting by which a client's own user does not approve what it asks.
const fourEyes = "approvals.four_eyes"

// knownUsers are the users that clients.yaml gives to clients that are let in.
func knownUsers(list []clientFacts) []string {
	var out []string
	for _, c := range list {
		if c.User != "" && !slices.Contains(out, c.User) {
			out = append(out, c.User)
		}
	}
	return out
}

// userUnknown says that rules of a user bind nobody; "": they bind somebody, or it cannot be told.
func userUnknown(cfg home.Config, userName string) string {
	list, err := readClientFacts(cfg.Clients)
	if err != nil || userName == "" || slices.Contains(knownUsers(list), userName) {
		return ""
	}
	text := "no client has the user " + clean.Visible(userName) + " (clients.yaml): its rules bind nobody"
	if near := config.Suggest(userName, knownUsers(list)); len(near) > 0 {
		text += "; did you mean " + strings.Join(near, ", ") + "?"
	}
	return text
}

// warnOfUser says beside the difference that it would bind nobody.
func (a *app) warnOfUser(cfg home.Config, userName string) {
	if text := userUnknown(cfg, userName); text != "" {
		a.out.Remark("%s", a.out.Yellow("Careful: "+text+"."))
	}
}

// warnOfFourEyes says for which clients nobody can approve anything once four eyes are needed: those that belong to nobody.
func (a *app) warnOfFourEyes(cfg home.Config) {
	list, err := readClientFacts(cfg.Clients)
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
		a.out.Remark("%s", a.out.Yellow("Careful: "+strings.Join(without, ", ")+" have no user in clients.yaml: with four eyes nobody can approve what they ask. "+
			"Give each its user: there."))
	}
}

// needsUser reports whether four eyes bind a client without a user.
func needsUser(cfg home.Config, id string) bool {
	options, done, err := securityOptions(cfg)
	if err != nil {
		return false
	}
	defer done()
	state, _ := security.Look(options, nil)
	return state != nil && state.Values(id, "").FourEyes
}

// emptyUsers are the folders of users/ whose rules bind nobody, each as a sentence.
func emptyUsers(cfg home.Config, files []security.File) map[string]string {
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
