package envelope

// Schema returns the JSON Schema (2020-12) of a tool's answers: the envelope around the tool's own result. Whatever the
// status, an answer fits it. The result schema is referred to, not copied; it must not be changed afterwards.
func Schema(result map[string]any) map[string]any {
	return object([]any{"status", "summary", "request_id"}, map[string]any{
		"status":       map[string]any{"type": "string", "enum": []any{OK, PendingApproval, Running, Denied, Error}},
		"summary":      text,
		"request_id":   text,
		"operation_id": text,
		"expires_at":   text,
		"tell_user":    text,
		"next":         object([]any{"tool", "arguments"}, map[string]any{"tool": text, "arguments": map[string]any{"type": "object"}}),
		"result":       result,
		"reason":       map[string]any{"type": "string", "enum": []any{UserRejected, NotAvailable}},
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

// Parts of the schema that never change.
var (
	text    = map[string]any{"type": "string"}
	boolean = map[string]any{"type": "boolean"}
	texts   = map[string]any{"type": "array", "items": text}
)

func object(required []any, properties map[string]any) map[string]any {
	return map[string]any{"type": "object", "additionalProperties": false, "required": required, "properties": properties}
}
