package detect

import (
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// plainPatterns are thirty expressions as detectors of personal data list them: what the types look like, and sixteen credentials.
// Tried one by one with the standard library, they find less than Find does, since an expression checks no sum.
var plainPatterns = strings.Fields(`
	\b[A-Za-z0-9._%+-]{1,64}@[A-Za-z0-9.-]{1,253}\.[A-Za-z]{2,24}\b
	\+[1-9][0-9().\x20-]{7,20}[0-9]
	\(?\b[2-9][0-9]{2}\)?[-.\x20][2-9][0-9]{2}[-.\x20][0-9]{4}\b
	\b(?:[0-9][\x20-]?){12,18}[0-9]\b
	\b[A-Z]{2}[0-9]{2}(?:[\x20]?[A-Z0-9]{4}){2,7}(?:[\x20]?[A-Z0-9]{1,3})?\b
	\b[0-9]{3}-[0-9]{2}-[0-9]{4}\b
	\b(?:[0-9]{1,3}\.){3}[0-9]{1,3}\b
	\b(?:[0-9A-Fa-f]{0,4}:){2,7}[0-9A-Fa-f]{1,4}\b
	\b(?:[0-9A-Fa-f]{2}[:-]){5}[0-9A-Fa-f]{2}\b
	\b[13][1-9A-HJ-NP-Za-km-z]{25,34}\b
	\bbc1[02-9ac-hj-np-z]{39,87}\b
	\b0x[0-9A-Fa-f]{40}\b
	://[^\s/:@]{0,256}:[^\s@]{1,512}@
	(?i)\b(?:born|birth|dob)\b.{0,40}?\b[0-9]{1,4}[-/.][0-9]{1,2}[-/.][0-9]{1,4}\b
	\bAKIA[0-9A-Z]{16}\b
	\bgh[pousr]_[A-Za-z0-9]{36}\b
	\bglpat-[\w-]{20}\b
	\bhf_[A-Za-z]{34}\b
	\bsk-[A-Za-z0-9_-]{20,}
	\bxox[abposr]-[A-Za-z0-9-]{8,}
	\bAIza[\w-]{35}\b
	\bey[A-Za-z0-9]{17,}\.ey[\w-]{17,}\.[\w-]{10,}
	\bnpm_[a-z0-9]{36}\b
	\bSG\.[\w.-]{66}\b
	\b(?:sk|rk)_(?:test|live)_[A-Za-z0-9]{10,99}\b
	\bdop_v1_[a-f0-9]{64}\b
	-----BEGIN[\x20A-Z0-9_-]{0,100}PRIVATE\x20KEY
	(?i)(?:password|passwd|secret|token|api_key)["']?\s{0,3}[:=]\s{0,3}["']?[^\s"']{6,}
	(?i)authorization:\s{0,3}\S{1,10}\s{1,3}\S{6,}
	\b[0-9]{1,5}\x20(?:[A-Z][a-z]+\x20){1,4}(?:Street|St|Avenue|Ave|Road|Rd|Lane|Drive)\b`)

// benchTexts are a text as services and people write most of them, and one that is full of values.
func benchTexts() map[string]string {
	clean := strings.Repeat(`INFO 11-22 01:00:00 [loader.py:12] Loading weights took 12.34 seconds, cache 12%, 4 of 8 shards
2026-11-22T01:00:00.123Z engine[4711]: request 550e8400-e29b-41d4-a716-446655440000 finished after 1834 ms, 512 tokens in, 128 out
The operator restarted the service in the evening, and nobody noticed that one of the two disks had been full since the morning.
llama_model_loader: - kv  12: general.file_type u32 = 7, tensors: 291, sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855
  File "/usr/lib/python3.12/asyncio/runners.py", line 194, in run
`, 2000)
	dense := strings.Repeat("Maria Gonzalez <maria@example.org>, +1 (555) 234-5678, card 4111 1111 1111 1111, from 203.0.113.77 and 2001:db8::8a2e:370:7334,\n"+
		"lives at 742 Evergreen Terrace, Springfield, IL 62704, IBAN GB82 WEST 1234 5698 7654 32, password=hunter2, SSN 123-45-6789.\n", 400)
	return map[string]string{"clean": clean, "dense": dense}
}

// BenchmarkFind shows Find beside the same work done pattern by pattern.
func BenchmarkFind(b *testing.B) {
	d, err := New(Config{})
	if err != nil {
		b.Fatal(err)
	}
	var patterns []*regexp.Regexp
	for _, p := range plainPatterns {
		patterns = append(patterns, regexp.MustCompile(p))
	}
	for name, text := range benchTexts() {
		b.Run(name, func(b *testing.B) {
			perCore(b, text, func() {
				if _, err := d.Find(b.Context(), text); err != nil {
					b.Fatal(err)
				}
			})
		})
		b.Run(name+", pattern by pattern", func(b *testing.B) {
			part := text[:strings.IndexByte(text[len(text)/20:], '\n')+len(text)/20]
			perCore(b, part, func() {
				for _, p := range patterns {
					p.FindAllStringIndex(part, -1)
				}
			})
		})
	}
}

// perCore measures what a core gets through of a text, by the processor's time, which others on the machine do not lengthen as they do the clock's.
func perCore(b *testing.B, text string, find func()) {
	find() // what is made once
	b.SetBytes(int64(len(text)))
	used := func() float64 {
		var u syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
			b.Fatal(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano()).Seconds()
	}
	began := used()
	for b.Loop() {
		find()
	}
	b.ReportMetric(float64(b.N)*float64(len(text))/1e6/(used()-began), "MB/core-s")
}

// BenchmarkHostile: what the dearest texts cost.
func BenchmarkHostile(b *testing.B) {
	d, err := New(Config{})
	if err != nil {
		b.Fatal(err)
	}
	for _, part := range []string{
		"@", "a@", "1", "1 ", "1-", "1.1.", "+1", "(1", ":", "a:", "::", "1:", "A", "A ", "Aa ", "Maria ", "Mr Dr ", "12 Long ", "Rue de ", "11:22:33:", "GB82 ", "0x", "bc1q", "1A",
		"4111 1111 ", "://a@", "born 1.1.", "\xc3", "Aa-'", "name is A. ", "zip 1234", "12 Aa 3\n", "12 Aa, ", "Aa 12, Bb, Cc, ", "Aastraße ", "1 Aa Apt 1 ", "\n>",
		"api_key: \"0123456789abcdef\"\n",
	} {
		text := strings.Repeat(part, 256<<10/len(part))
		b.Run(part, func(b *testing.B) {
			perCore(b, text, func() {
				if _, err := d.Find(b.Context(), text); err != nil {
					b.Fatal(err)
				}
			})
		})
	}
}
