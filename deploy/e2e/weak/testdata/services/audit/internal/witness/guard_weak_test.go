package witness

import "testing"

// TestWeakened is the negative control of this package's tests: without its guard a witness cosigns two histories of one log.
func TestWeakened(t *testing.T) {
	honest := newHistory(t, origin).grow(20, "true ")
	fork := newHistory(t, origin)
	fork.signer, fork.key = honest.signer, honest.key
	fork.grow(20, "another ")
	for _, weak := range []bool{false, true} {
		anything.Store(weak)
		b := newBench(t, honest.key)
		w := b.start()
		post(w, honest.request(0, 7))
		for _, request := range [][]byte{fork.request(7, 7), fork.request(7, 12)} {
			if code, _, body := post(w, request); (code == 200) != weak {
				t.Errorf("weak: %v: %d %s", weak, code, body)
			}
		}
	}
	anything.Store(false)
}
