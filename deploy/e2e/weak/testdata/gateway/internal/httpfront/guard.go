package httpfront

import (
	"bytes"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"net/url"
	"strings"

	"durward.internal/gateway/internal/connlimit"
	"durward.internal/gateway/internal/head"
	"durward.internal/gateway/internal/refusal"
	"durward.internal/services/platform/config"
	"durward.internal/services/platform/telemetry"
	"durward.internal/services/platform/weakness"
)

// This file makes the negative controls of deploy/e2e: the edge without one of its guards.

// Guards are those that a drill build may lack.
var Guards = weakness.Of("owner", "media", "headers", "keys", "sender", "path", "ids").Also("local", telemetry.WeakenLocal).Also("slow", connlimit.WeakenTime).
	Also("folds", head.WeakenFolds).Also("flood", refusal.WeakenRate).Also("remote", config.WeakenRemote)

// sameToken without "owner" gives everybody everybody's sessions.
func sameToken(opened, shown [sha256.Size]byte) bool {
	return Guards.Off("owner") || subtle.ConstantTimeCompare(opened[:], shown[:]) == 1
}

func localRequired() bool { return !Guards.Off("local") }

// isPath without "path" looks at the path as it is decoded.
func isPath(u *url.URL) bool { return u.Path == Path && (u.RawPath == "" || Guards.Off("path")) }

func mediaRequired() bool { return !Guards.Off("media") }

func headersRequired() bool { return !Guards.Off("headers") }

func onceRequired() bool { return !Guards.Off("ids") }

// senderRequired without "sender" serves whoever a messaging client names in whatever session it names.
func senderRequired() bool { return !Guards.Off("sender") }

// asSent without "keys" is the message as a forgiving parser understands it: keys without regard to case, to what Unicode
// folds and to zeros at their end, the last of two.
func asSent(body []byte) []byte {
	if !Guards.Off("keys") {
		return body
	}
	var message any
	if json.NewDecoder(bytes.NewReader(body)).Decode(&message) != nil {
		return body
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.UseNumber()
	out, err := json.Marshal(forgiving(dec))
	if err != nil {
		return body
	}
	return out
}

// forgiving reads the next value.
func forgiving(dec *json.Decoder) any {
	token, err := dec.Token()
	if err != nil {
		return nil
	}
	switch token {
	case json.Delim('{'):
		object := map[string]any{}
		for dec.More() {
			key, _ := dec.Token()
			name, _ := key.(string)
			name = strings.TrimRight(name, "\x00")
			for _, known := range []string{"method", "params", "name", "arguments", "service_id"} {
				if strings.EqualFold(name, known) {
					name = known
				}
			}
			object[name] = forgiving(dec)
		}
		_, _ = dec.Token()
		return object
	case json.Delim('['):
		list := []any{}
		for dec.More() {
			list = append(list, forgiving(dec))
		}
		_, _ = dec.Token()
		return list
	default:
		return token
	}
}
