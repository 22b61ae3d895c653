package server

import (
	"context"
	"encoding/json"
	"slices"

	"google.golang.org/protobuf/proto"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/fault"
	"durward.internal/services/vault/internal/journal"
	"durward.internal/services/vault/internal/toolsearch"
)

// mostFound is how many tools FindTools names.
const mostFound = 10

// FindTools finds tools among those that the session may call.
func (s *toolService) FindTools(ctx context.Context, req *vaultv1.FindToolsRequest) (*vaultv1.FindToolsResponse, error) {
	q := question{method: vaultv1.ToolService_FindTools_FullMethodName}
	tools, err := s.theirs(ctx, &q)
	if err != nil {
		return nil, err
	}
	resp := &vaultv1.FindToolsResponse{}
	for _, t := range toolsearch.Best(req.GetWords(), tools, mostFound) {
		resp.Tools = append(resp.Tools, &vaultv1.FoundTool{Tool: t.Name, Title: t.Title, Tier: t.Tier})
	}
	return resp, s.shown(ctx, &q, "find-tools", req)
}

// DescribeTool shows what tools/list would of one of them. One that is not there and one that is not theirs get one answer.
func (s *toolService) DescribeTool(ctx context.Context, req *vaultv1.DescribeToolRequest) (*vaultv1.DescribeToolResponse, error) {
	q := question{method: vaultv1.ToolService_DescribeTool_FullMethodName}
	tools, err := s.theirs(ctx, &q)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(tools, func(t contract.Tool) bool { return t.Name == req.GetTool() })
	if i < 0 {
		return nil, fault.New(callv1.Code_CODE_NOT_FOUND, "there is no such tool for this client; find_tools finds those that there are", fault.WithField("tool"))
	}
	t := tools[i]
	schema, err := json.Marshal(t.InputSchema)
	if err != nil {
		return nil, err
	}
	return &vaultv1.DescribeToolResponse{Description: contract.Told(t), Tier: t.Tier, InputSchema: string(schema)}, s.shown(ctx, &q, "describe-tool", req)
}

// theirs are the tools that the permit's session may call.
func (s *toolService) theirs(ctx context.Context, q *question) ([]contract.Tool, error) {
	if err := s.admit(ctx, q); err != nil {
		return nil, s.recordRefused(ctx, q.record(auditv1.Kind_KIND_DENIED, auditv1.Status_STATUS_DENIED, "permit-refused"), err)
	}
	var out []contract.Tool
	for _, name := range s.callable(s.judge(q.opened, q.client)) {
		if t, ok := contract.Lookup(name); ok {
			out = append(out, t)
		}
	}
	return out, nil
}

// shown records that the session was shown something, with what it asked for.
func (s *toolService) shown(ctx context.Context, q *question, action string, req proto.Message) (err error) {
	r := q.record(auditv1.Kind_KIND_READ, auditv1.Status_STATUS_OK, action)
	if r.Body.Arguments, err = journal.Arguments(req); err != nil {
		return err
	}
	return s.Journal.Follow(ctx, r)
}
