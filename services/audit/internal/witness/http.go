package witness

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	"golang.org/x/mod/sumdb/tlog"
)

const (
	// maxBody bounds a request: a proof of 63 hashes and a checkpoint with signatures.
	maxBody = 32 << 10
	// maxProof is how many hashes a consistency proof can have.
	maxProof = 63
)

// Handler serves POST /add-checkpoint.
func (w *Witness) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /add-checkpoint", w.addCheckpoint)
	return mux
}

func (w *Witness) addCheckpoint(out http.ResponseWriter, in *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(out, in.Body, maxBody))
	if err != nil {
		http.Error(out, "the request is larger than 32 kB, or was cut off", http.StatusBadRequest)
		return
	}
	old, proof, signed, err := parseRequest(body)
	var line []byte
	if err == nil {
		line, err = w.Add(in.Context(), old, proof, signed)
	}
	var conflict *ConflictError
	switch {
	case err == nil:
		out.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = out.Write(line) // a client that is gone asks again
	case errors.As(err, &conflict):
		out.Header().Set("Content-Type", "text/x.tlog.size")
		out.WriteHeader(http.StatusConflict)
		_, _ = fmt.Fprintf(out, "%d\n", conflict.Known)
	case errors.Is(err, ErrRequest):
		http.Error(out, err.Error(), http.StatusBadRequest)
	case errors.Is(err, ErrUnknownLog):
		http.Error(out, err.Error(), http.StatusNotFound)
	case errors.Is(err, ErrSignature):
		http.Error(out, err.Error(), http.StatusForbidden)
	case errors.Is(err, ErrProof):
		http.Error(out, err.Error(), http.StatusUnprocessableEntity)
	default:
		w.cfg.Logger.ErrorContext(in.Context(), "a checkpoint could not be cosigned", "cause", err.Error())
		http.Error(out, "the witness cannot keep what it would cosign", http.StatusInternalServerError)
	}
}

// parseRequest reads the body of a request: "old SIZE", the hashes of the consistency proof in base64, a line each, an empty line, and
// the checkpoint. It has one spelling for each meaning. Errors wrap ErrRequest.
func parseRequest(body []byte) (old uint64, proof []tlog.Hash, checkpoint []byte, err error) {
	head, checkpoint, found := bytes.Cut(body, []byte("\n\n"))
	if !found {
		return 0, nil, nil, fmt.Errorf("%w: no empty line before the checkpoint", ErrRequest)
	}
	lines := strings.Split(string(head), "\n")
	size, found := strings.CutPrefix(lines[0], "old ")
	if old, err = strconv.ParseUint(size, 10, 63); !found || err != nil || strconv.FormatUint(old, 10) != size {
		return 0, nil, nil, fmt.Errorf("%w: it does not begin with the old size", ErrRequest)
	}
	if len(lines) > 1+maxProof {
		return 0, nil, nil, fmt.Errorf("%w: more than %d hashes prove nothing", ErrRequest, maxProof)
	}
	for _, line := range lines[1:] {
		h, err := tlog.ParseHash(line)
		if err != nil || h.String() != line {
			return 0, nil, nil, fmt.Errorf("%w: a line of the proof is no hash", ErrRequest)
		}
		proof = append(proof, h)
	}
	return old, proof, checkpoint, nil
}

// FormatRequest is the body that parseRequest reads.
func FormatRequest(old uint64, proof []tlog.Hash, checkpoint []byte) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "old %d\n", old)
	for _, h := range proof {
		fmt.Fprintf(&b, "%s\n", h)
	}
	b.WriteByte('\n')
	b.Write(checkpoint)
	return b.Bytes()
}
