package envelope

// Schema returns the JSON Schema (2020-12) of a tool's answers: the envelope around the tool's own result. Whatever the
// status, an answer fits it. waits says that the tool's calls may wait for a human. The result schema is referred to, not copied;
// it must not be changed afterwards.
//
// Every tool carries one in tools/list, which a model reads whole. So it says what a client needs to read an answer, and is open:
// the server's instructions speak of the other members.
func Schema(result map[string]any, waits bool) map[string]any {
	statuses, properties := []any{OK, Denied, Error}, map[string]any{"result": result}
	if waits {
		statuses = []any{OK, PendingApproval, Running, Denied, Error}
		properties["operation_id"] = map[string]any{"type": "string"}
	}
	properties["status"] = map[string]any{"enum": statuses}
	return map[string]any{"type": "object", "required": []any{"status", "summary", "request_id"}, "properties": properties}
}
