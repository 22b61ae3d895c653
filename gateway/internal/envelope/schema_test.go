package envelope

// whole is the schema of everything that an envelope can hold, and of nothing else: tools/list has a shorter one.
func whole(result map[string]any) map[string]any {
	text, boolean := map[string]any{"type": "string"}, map[string]any{"type": "boolean"}
	texts := map[string]any{"type": "array", "items": text}
	object := func(required []any, properties map[string]any) map[string]any {
		return map[string]any{"type": "object", "additionalProperties": false, "required": required, "properties": properties}
	}
	return object([]any{"status", "summary", "request_id"}, map[string]any{
		"status":       map[string]any{"type": "string", "enum": []any{OK, PendingApproval, Running, Denied, Error}},
		"summary":      text,
		"request_id":   text,
		"operation_id": text,
		"expires_at":   text,
		"tell_user":    text,
		"next":         object([]any{"tool", "arguments"}, map[string]any{"tool": text, "arguments": map[string]any{"type": "object"}}),
		"result":       result,
		"reason":       map[string]any{"type": "string", "enum": []any{UserRejected, NotAvailable, ByRule, ByAgent}},
		"replayed":     boolean,
		"warnings":     texts,
		"audit": object([]any{"session_overrides", "persistent", "override_source"},
			map[string]any{"session_overrides": texts, "persistent": boolean, "override_source": text}),
		"error": object([]any{"code", "message", "retryable"}, map[string]any{
			"code": text, "message": text, "field": text, "retryable": boolean,
			"retry_after_s": map[string]any{"type": "integer"}, "did_you_mean": texts,
		}),
	})
}
