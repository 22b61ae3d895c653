package httpfront

import (
	"crypto/sha256"
	"testing"
)

// TestGuardsStand: in a build without the drill's tag every guard refuses what is off by a little.
func TestGuardsStand(t *testing.T) {
	if !localRequired() || !mediaRequired() || !headersRequired() || !senderRequired() {
		t.Error("something is not required")
	}
	one := sha256.Sum256([]byte("token"))
	other := one
	other[31] ^= 1
	if sameToken(one, other) || !sameToken(one, one) {
		t.Error("tokens are compared too kindly")
	}
	if body := `{"Method":1,"method":2}`; string(asSent([]byte(body))) != body {
		t.Error("a message is not read as it was sent")
	}
}
