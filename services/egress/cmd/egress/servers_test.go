package main

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/egress/internal/childproxy"
	"durward.internal/services/platform/destination"
	"durward.internal/services/platform/downstream"
	"durward.internal/services/platform/fault"
)

// Other hosts are reached for the servers there that are in force, and not where a human blocked them.
func TestAccepted(t *testing.T) {
	t.Parallel()
	list, err := destination.ParseList(destination.Source{}, []byte("allow: [stranger.example]\nblock: [bad.example, {domain: good.example, clients: [one]}]\n"))
	if err != nil {
		t.Fatal(err)
	}
	var servers []downstream.Pinned
	for _, url := range []string{"", "https://good.example/mcp", "https://bad.example/mcp"} {
		servers = append(servers, downstream.Pinned{Entry: downstream.Entry{URL: url}})
	}
	for url, may := range map[string]bool{"https://good.example/": true, "https://bad.example/": false, "https://stranger.example/": false} {
		_, to, err := destination.ParseURL(url)
		if err != nil {
			t.Fatal(err)
		}
		if err := accepted(servers, list, to); (err == nil) != may {
			t.Errorf("%s: %v", url, err)
		}
	}
}

// What a server reached is in the log with its address, what it was refused with the rule, and what did not answer is no refusal.
func TestVerdictRecords(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		verdict childproxy.Verdict
		status  auditv1.Status
		details map[string]string
	}{
		{childproxy.Verdict{To: "a.example:443", Address: "93.184.216.34:443", Begun: true}, auditv1.Status_STATUS_PENDING, map[string]string{"destination": "a.example:443", "address": "93.184.216.34:443"}},
		{
			childproxy.Verdict{To: "a.example:443", Address: "93.184.216.34:443", Sent: 7, Received: 100}, auditv1.Status_STATUS_OK,
			map[string]string{"destination": "a.example:443", "address": "93.184.216.34:443", "sent": "7", "bytes": "100"},
		},
		{childproxy.Verdict{To: "b.example:443", Rule: "destination", Why: "no"}, auditv1.Status_STATUS_DENIED, map[string]string{"destination": "b.example:443", "rule": "destination"}},
		{childproxy.Verdict{To: "c.example:443", Why: "away"}, auditv1.Status_STATUS_ERROR, map[string]string{"destination": "c.example:443"}},
	} {
		c.verdict.Server, c.verdict.User, c.details["server"] = "web", "ann/s1", "web"
		r := verdictRecord(c.verdict)
		if r.GetStatus() != c.status || !maps.Equal(r.GetBody().GetDetails(), c.details) || r.GetTool() != "connect" || r.GetBody().GetPrincipal() != "ann" || r.GetBody().GetSession() != "s1" {
			t.Errorf("%+v: %v", c.verdict, r)
		}
	}
}

// telling is a vault whose streams say these things, one after the other, and break off; then it ends what listens.
type telling struct {
	vaultv1.SessionServiceClient

	streams []*sessionStream
	done    context.CancelFunc
}

func (v *telling) WatchSessions(context.Context, *vaultv1.WatchSessionsRequest, ...grpc.CallOption) (grpc.ServerStreamingClient[vaultv1.WatchSessionsResponse], error) {
	if len(v.streams) == 0 {
		v.done()
		return nil, errors.New("away")
	}
	next := v.streams[0]
	v.streams = v.streams[1:]
	return next, nil
}

type sessionStream struct {
	grpc.ServerStreamingClient[vaultv1.WatchSessionsResponse]

	begun metadata.MD
	says  []*vaultv1.WatchSessionsResponse
}

func (s *sessionStream) Header() (metadata.MD, error) { return s.begun, nil }

func (s *sessionStream) Recv() (*vaultv1.WatchSessionsResponse, error) {
	if len(s.says) == 0 {
		return nil, errors.New("it broke off")
	}
	next := s.says[0]
	s.says = s.says[1:]
	return next, nil
}

// A session that the vault ends is ended here, by its name. All are when the vault is heard again, and not when it only refuses.
func TestWatchSessions(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		begun := metadata.Pairs("content-type", "application/grpc")
		vault := &telling{done: cancel, streams: []*sessionStream{
			{begun: begun, says: []*vaultv1.WatchSessionsResponse{{Session: "s-1", DangerousUntil: timestamppb.Now()}, {Session: "s-2", Ended: true}}},
			{},
			{begun: begun, says: []*vaultv1.WatchSessionsResponse{{Session: "s-1"}, {Session: "s-3", Ended: true}}},
		}}
		var ended []string
		watchSessions(ctx, vault, func(session string) { ended = append(ended, session) }, slog.New(slog.DiscardHandler))
		if want := []string{"", "s-2", "", "s-3"}; !slices.Equal(ended, want) {
			t.Errorf("it ends %q, want %q", ended, want)
		}
	})
}

// refusing is a vault that gives no credential.
type refusing struct{ vaultv1.ReleaseServiceClient }

func (refusing) ReleaseCredentials(context.Context, *vaultv1.ReleaseCredentialsRequest, ...grpc.CallOption) (*vaultv1.ReleaseCredentialsResponse, error) {
	return nil, fault.New(callv1.Code_CODE_NOT_FOUND, "there is no such credential, or it is not granted")
}

// TestReleasedNamesNoWrongOne: the vault does not say which credential is missing, so that none is named as the one where there are several.
func TestReleasedNamesNoWrongOne(t *testing.T) {
	t.Parallel()
	for names, want := range map[string]string{
		"a":   "a credential is not stored, or not granted to it: durward credential grant a --server notes",
		"b,a": "one of the credentials a, b is not stored, or not granted to it: durward credential list; durward credential grant NAME --server notes",
	} {
		if _, err := released(t.Context(), refusing{}, "notes", strings.Split(names, ",")); err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %s", names, err, want)
		}
	}
}
