package server

import (
	"context"
	"slices"

	"google.golang.org/protobuf/proto"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/contract"
	"durward.internal/services/vault/internal/journal"
	"durward.internal/services/vault/internal/toolsearch"
)

// FindTools finds tools among those that the session may call.
func (s *toolService) FindTools(ctx context.Context, req *vaultv1.FindToolsRequest) (*vaultv1.FindToolsResponse, error) {
	q := question{method: vaultv1.ToolService_FindTools_FullMethodName}
	tools, err := s.theirs(ctx, &q)
	if err != nil {
		return nil, err
	}
	return toolsearch.Found(req.GetWords(), tools), s.shown(ctx, &q, "find-tools", "its session looked for tools", req)
}

// DescribeTool shows what tools/list would of one of them.
func (s *toolService) DescribeTool(ctx context.Context, req *vaultv1.DescribeToolRequest) (*vaultv1.DescribeToolResponse, error) {
	q := question{method: vaultv1.ToolService_DescribeTool_FullMethodName}
	tools, err := s.theirs(ctx, &q)
	if err != nil {
		return nil, err
	}
	resp, err := toolsearch.Described(req.GetTool(), tools)
	if err != nil {
		return nil, err
	}
	return resp, s.shown(ctx, &q, "describe-tool", "its session was shown a tool", req)
}

// theirs are the tools that the permit's session may call, without what is no tool to it: servers' resources and prompts.
func (s *toolService) theirs(ctx context.Context, q *question) ([]contract.Tool, error) {
	if err := s.admit(ctx, q); err != nil {
		return nil, err
	}
	all := s.callable(s.judge(q.opened, q.client))
	return slices.DeleteFunc(all, func(t contract.Tool) bool { return !t.IsTool() }), nil
}

// shown records that the session was shown something, with what it asked for.
func (s *toolService) shown(ctx context.Context, q *question, action, summary string, req proto.Message) (err error) {
	r := q.record(auditv1.Kind_KIND_READ, auditv1.Status_STATUS_OK, action)
	r.Body.Summary = summary
	if r.Body.Arguments, err = journal.Arguments(req); err != nil {
		return err
	}
	return s.Journal.Follow(ctx, r)
}
