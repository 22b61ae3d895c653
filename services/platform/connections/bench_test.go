package connections

import (
	"fmt"
	"testing"
)

// BenchmarkReport makes each report of 100,000 origins.
func BenchmarkReport(b *testing.B) {
	rows := make([]Connection, 100_000)
	for i := range rows {
		host := fmt.Sprintf("h%d.example", i)
		rows[i] = Connection{Method: "GET", Destination: host + ":443", Origin: "https://" + host, Address: "93.184.216.34:443", Status: 200, Verdict: Answered}
	}
	for _, format := range Formats {
		b.Run(format, func(b *testing.B) {
			for b.Loop() {
				if _, err := Report(format, rows, Options{}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
