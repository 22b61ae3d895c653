package envelope

// Schema returns the JSON Schema (2020-12) of a tool's answers: the envelope around the tool's own result. Whatever the
// status, an answer fits it. The result schema is referred to, not copied; it must not be changed afterwards.
//
// Every tool carries one in tools/list, which a model reads whole. So it says what a client needs to read an answer, and is open:
// what stands in every tool's answers alike, the statuses and what comes with them, is named at the tool that waits, which sees all
// of them, and the server's instructions speak of the other members.
func Schema(result map[string]any, waits bool) map[string]any {
	properties := map[string]any{"result": result}
	if waits {
		properties["status"] = map[string]any{"enum": []any{OK, PendingApproval, Running, Denied, Error}}
		properties["operation_id"] = map[string]any{"type": "string"}
	}
	return map[string]any{"type": "object", "properties": properties}
}
