package consent

import "durward.internal/services/vault/internal/clients"

// Of is clients.yaml, with the setting that says for which clients a second human has to agree.
func Of(registry *clients.Registry, fourEyes func(client, user string) bool) Clients {
	return known{registry, fourEyes}
}

type known struct {
	*clients.Registry
	fourEyes func(client, user string) bool
}

// FourEyes implements Clients. A client that is not let in any more belongs to nobody.
func (k known) FourEyes(client string) (string, bool) {
	c, ok := k.Lookup(client)
	if !ok {
		return "", false
	}
	return c.User, k.fourEyes(c.ID, c.User)
}
