package platformtest

// ServerData are structured answers of other people's MCP servers, as egress takes each apart and the gateway puts it together again.
var ServerData = []struct {
	JSON, Shape string
	Leaves      []string
}{
	{`{}`, `{}`, nil},
	{`[]`, `[]`, nil},
	{`null`, `null`, nil},
	{`"a"`, `0`, []string{"a"}},
	{`"12"`, `0`, []string{"12"}}, // a text, though it looks like a number
	{`12`, `"0"`, []string{"12"}},
	{`-1.5e+300`, `"0"`, []string{"-1.5e+300"}},
	{`12345678901234567890`, `"0"`, []string{"12345678901234567890"}}, // more than a float holds
	{`[true,false,null,""]`, `[true,false,null,0]`, []string{""}},
	{`{"a":{"b":["x",1]},"c":"<&>"}`, `{"0":{"1":[2,"3"]},"4":5}`, []string{"a", "b", "x", "1", "c", "<&>"}},
	{`{"1":"0"}`, `{"0":1}`, []string{"1", "0"}}, // which look like places themselves
}
