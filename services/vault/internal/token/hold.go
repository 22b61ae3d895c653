package token

import (
	"cmp"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"durward.internal/services/platform/clock"
	"durward.internal/services/platform/reference"
	"durward.internal/services/vault/internal/store"
)

// How long what a session holds outlives the process that made it, while its gateway may come back for it.
const (
	restTime = time.Hour
	lifeTime = 24 * time.Hour
)

// persistTime is how long an answer waits for the disk.
const persistTime = 500 * time.Millisecond

type used struct{ values, bytes int }

// Value is what a reference stands for.
type Value struct {
	reference.Reference
	Origin Origin
	// Text is empty where the value itself is not held: it is a secret that the agent sent, or too long.
	Text string
}

// holding is what one session's vault holds.
type holding struct {
	mu sync.Mutex
	sessionKey
	values index
	byID   map[reference.ID]*Value
	// room is what each origin has used of the session's bounds.
	room map[Origin]used
	// kept: the key is on the disk. inherited: an earlier process made what is held, and the session did not come back yet.
	kept, inherited bool
	// forgotten: the session has ended, and what is held now is not counted.
	forgotten bool
}

func newHolding() *holding {
	return &holding{byID: map[reference.ID]*Value{}, room: map[Origin]used{}}
}

func owner(by string) [sha256.Size]byte { return sha256.Sum256([]byte(by)) }

// holding returns what a session holds, with what an earlier process kept of it.
func (v *Values) holding(ctx context.Context, session string) *holding {
	v.mu.Lock()
	h := v.sessions[session]
	if h != nil {
		v.mu.Unlock()
		return h
	}
	h = newHolding()
	h.mu.Lock()
	defer h.mu.Unlock()
	v.sessions[session] = h
	v.mu.Unlock()
	if err := v.load(ctx, session, h); err != nil {
		v.cfg.Logger.ErrorContext(ctx, "what a session held before cannot be read: its references stand for nothing now", "session", session, "error", err)
	}
	return h
}

// load reads what an earlier process kept, or makes a key.
func (v *Values) load(ctx context.Context, session string, h *holding) error {
	_, _ = rand.Read(h.key[:]) // never fails
	h.born = v.cfg.Now()
	if v.cfg.Owner != nil {
		h.owner = owner(v.cfg.Owner(session))
	}
	if v.cfg.Store == nil {
		return nil
	}
	kept, err := v.keys().read(session)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	tokens, err := v.cfg.Store.Tokens(ctx, session)
	if err != nil {
		return err
	}
	h.sessionKey, h.kept, h.inherited = kept, true, true
	aead := h.aead()
	var failed error
	for _, t := range tokens {
		held, err := open(aead, t)
		if err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		v.hold(h, held)
	}
	return failed
}

// hold remembers a value while there is room, and reports whether there was.
func (v *Values) hold(h *holding, held *Value) bool {
	room, n := h.room[held.Origin], len(held.Text)
	if room.values >= MaxValues || room.bytes+n > maxHeld || v.total.Load()+int64(n) > maxTotal {
		return false
	}
	h.byID[held.ID] = held
	if h.forgotten {
		return true
	}
	h.room[held.Origin] = used{room.values + 1, room.bytes + n}
	v.total.Add(int64(n))
	if held.Origin == OriginSink {
		h.values.add(held.Text, kind{held.Class, held.Type}, maxBucket)
	}
	return true
}

// persist keeps fresh values for a process that comes after this one. Without a disk they are held all the same.
func (v *Values) persist(ctx context.Context, session string, h *holding, fresh []*Value) {
	if v.cfg.Store == nil || len(fresh) == 0 || h.forgotten {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), persistTime)
	defer cancel()
	err := func() error {
		if !h.kept {
			if err := v.keys().write(session, h.sessionKey); err != nil {
				return err
			}
			h.kept = true
		}
		aead, tokens := h.aead(), make([]store.Token, len(fresh))
		for i, held := range fresh {
			tokens[i] = seal(aead, held, v.cfg.Now())
		}
		return v.cfg.Store.KeepTokens(ctx, session, tokens)
	}()
	if err != nil {
		v.cfg.Logger.WarnContext(ctx, "values are held in memory alone, and end with this process", "session", session, "error", err)
	}
}

// Value returns what a reference of the session stands for.
func (v *Values) Value(ctx context.Context, session string, id reference.ID) (Value, bool) {
	h := v.holding(ctx, session)
	h.mu.Lock()
	defer h.mu.Unlock()
	held := h.byID[id]
	if held == nil || h.forgotten {
		return Value{}, false
	}
	return *held, true
}

// Adopt gives what an earlier process kept of a session to the one that its gateway opened in its place, and reports whether there was
// anything. Both must be one owner's.
func (v *Values) Adopt(ctx context.Context, from, to, by string) (bool, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if may, err := v.mayAdopt(from, to, by); !may {
		return false, err
	}
	// Whose they are is the key's to say: rows without one are nobody's, and Reclaim removes them, whenever the process ends.
	tokens, err := v.cfg.Store.Tokens(ctx, from)
	if err != nil {
		return false, err
	}
	if err := v.cfg.Store.KeepTokens(ctx, to, tokens); err != nil {
		return false, err
	}
	if err := v.keys().rename(from, to); err != nil {
		return false, errors.Join(err, v.cfg.Store.ForgetTokens(ctx, to))
	}
	if err := v.cfg.Store.ForgetTokens(ctx, from); err != nil {
		v.cfg.Logger.WarnContext(ctx, "what an earlier session held is to be removed later", "session", from, "error", err)
	}
	if h := v.sessions[from]; h != nil {
		h.mu.Lock()
		v.drop(from, h)
		h.mu.Unlock()
	}
	h := newHolding()
	if err := v.load(ctx, to, h); err != nil {
		return false, err
	}
	h.inherited = false
	v.sessions[to] = h
	return true, nil
}

// MayAdopt reports whether Adopt would find anything. It changes nothing.
func (v *Values) MayAdopt(ctx context.Context, from, to, by string) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	may, err := v.mayAdopt(from, to, by)
	if err != nil {
		v.cfg.Logger.ErrorContext(ctx, "what an earlier session held cannot be read: its references stand for nothing now", "session", from, "error", err)
	}
	return may
}

// mayAdopt is called with the lock.
func (v *Values) mayAdopt(from, to, by string) (bool, error) {
	if v.cfg.Store == nil || from == to {
		return false, nil
	}
	if h := v.sessions[from]; h != nil {
		h.mu.Lock()
		inherited := h.inherited
		h.mu.Unlock()
		if !inherited {
			return false, nil // this process opened it
		}
	}
	if v.sessions[to] != nil {
		return false, nil // it holds values of its own by now
	}
	kept, err := v.keys().read(from)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return false, err
	case by == "" || kept.owner != owner(by) || clock.Passed(kept.born, v.cfg.Now()) >= lifeTime:
		return false, nil
	}
	return true, nil
}

// Forget drops what the sessions hold that keep does not want kept, or for a day, and destroys their keys. What an earlier process left
// stays until nobody came back for it within an hour. What a request works on waits for the next call: all other sessions would wait with it.
func (v *Values) Forget(ctx context.Context, keep func(session string) bool) {
	now := v.cfg.Now()
	v.mu.Lock()
	var ended []string
	for session, h := range v.sessions {
		wanted := keep(session)
		if !h.mu.TryLock() {
			continue
		}
		if clock.Passed(h.born, now) >= lifeTime || !wanted && (!h.inherited || now.Sub(v.started) >= restTime) {
			if h.kept {
				ended = append(ended, session)
			}
			v.drop(session, h)
		}
		h.mu.Unlock()
	}
	v.mu.Unlock()
	v.destroy(ctx, ended)
}

// Reclaim destroys what an earlier process left and nobody came back for within an hour, and encrypted values that have no key.
func (v *Values) Reclaim(ctx context.Context) error {
	if v.cfg.Store == nil {
		return nil
	}
	with, err := v.keys().list()
	if err != nil {
		return err
	}
	stored, err := v.cfg.Store.TokenSessions(ctx)
	if err != nil {
		return err
	}
	var ended []string
	for _, session := range slices.Compact(slices.Sorted(slices.Values(append(slices.Clone(with), stored...)))) {
		v.mu.Lock()
		h := v.sessions[session]
		v.mu.Unlock()
		if h == nil && (!slices.Contains(with, session) || v.cfg.Now().Sub(v.started) >= restTime) {
			ended = append(ended, session)
		}
	}
	v.destroy(ctx, ended)
	return nil
}

// destroy overwrites and removes the keys first: without them what the database has is nothing.
func (v *Values) destroy(ctx context.Context, sessions []string) {
	if len(sessions) == 0 || v.cfg.Store == nil {
		return
	}
	var failed error
	for _, session := range sessions {
		failed = errors.Join(failed, v.keys().destroy(session))
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), persistTime)
	defer cancel()
	if err := errors.Join(failed, v.cfg.Store.ForgetTokens(ctx, sessions...)); err != nil {
		v.cfg.Logger.ErrorContext(ctx, "what ended sessions held is not all removed", "error", err)
	}
}

// drop ends a holding; v.mu and its own lock are held. A request that works on it still goes on with a key that nobody else has.
func (v *Values) drop(session string, h *holding) {
	delete(v.sessions, session)
	for _, room := range h.room {
		v.total.Add(-int64(room.bytes))
	}
	h.forgotten, h.kept = true, false
	h.byID, h.values, h.room = map[reference.ID]*Value{}, index{}, map[Origin]used{}
	_, _ = rand.Read(h.key[:]) // never fails
}

// Held is how much a session holds.
type Held struct {
	Session string
	// Types counts values by class and type, as references name them.
	Types map[string]int
}

// Sessions returns the sessions that hold anything, in order.
func (v *Values) Sessions() []Held {
	v.mu.Lock()
	sessions := maps.Clone(v.sessions) // each is looked at without holding up the others
	v.mu.Unlock()
	var out []Held
	for session, h := range sessions {
		h.mu.Lock()
		if len(h.byID) > 0 {
			held := Held{Session: session, Types: map[string]int{}}
			for _, one := range h.byID {
				held.Types[string(one.Class)+":"+one.Type]++
			}
			out = append(out, held)
		}
		h.mu.Unlock()
	}
	slices.SortFunc(out, func(a, b Held) int { return cmp.Compare(a.Session, b.Session) })
	return out
}

// aead encrypts under the session's key.
func (h *holding) aead() cipher.AEAD {
	block, err := aes.NewCipher(h.key[:])
	if err != nil {
		panic("token: a key of 32 bytes is refused: " + err.Error())
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		panic("token: AES-GCM: " + err.Error())
	}
	return aead
}

// seal encrypts a value, bound to its reference.
func seal(aead cipher.AEAD, held *Value, now time.Time) store.Token {
	ref := held.ID.String()
	plain := []byte(strings.Join([]string{string(held.Origin), string(held.Class), held.Type, held.Text}, "\x00"))
	defer clear(plain)
	return store.Token{Ref: ref, Value: aead.Seal(nil, nil, plain, []byte(ref)), At: now} // #nosec G407 -- the AEAD makes the nonce
}

func open(aead cipher.AEAD, t store.Token) (*Value, error) {
	id, err := reference.ParseID(t.Ref)
	if err != nil {
		return nil, err
	}
	plain, err := aead.Open(nil, nil, t.Value, []byte(t.Ref))
	if err != nil {
		return nil, err
	}
	defer clear(plain)
	parts := strings.SplitN(string(plain), "\x00", 4)
	if len(parts) != 4 {
		return nil, errors.New("a value of another form")
	}
	return &Value{
		Reference: reference.Reference{Class: reference.Class(parts[1]), Type: parts[2], ID: id}, Origin: Origin(parts[0]), Text: parts[3],
	}, nil
}

// distinct reports whether a text cannot be an ordinary word: it is long, or has characters of two kinds in it.
func distinct(s string) bool {
	var letter, digit, other bool
	for _, r := range s {
		switch {
		case unicode.IsDigit(r):
			digit = true
		case unicode.IsLetter(r):
			letter = true
		default:
			other = true
		}
	}
	return letter && digit || (letter || digit) && other || utf8.RuneCountInString(s) >= 24
}
