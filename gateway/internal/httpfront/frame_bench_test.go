package httpfront

import "testing"

func BenchmarkDecode(b *testing.B) {
	call := `"name":"start_service","arguments":{"service_id":"demo-chat","reason":"the user asked for it"}`
	for name, c := range map[string]struct {
		body string
		h    headers
	}{
		"stateful":  {`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{` + call + `,"_meta":{"progressToken":1}}}`, headers{session: true}},
		"stateless": {modern("tools/call", call), about("tools/call", "start_service")},
	} {
		b.Run(name, func(b *testing.B) {
			d := decoder{methods()}
			b.ReportAllocs()
			for b.Loop() {
				if _, bad := d.decode([]byte(c.body), c.h); bad != nil {
					b.Fatal(bad)
				}
			}
		})
	}
}
