package detect

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

func find(t testing.TB, text string) []Span {
	t.Helper()
	d, err := New(Config{})
	must(t, err)
	out, err := d.Find(t.Context(), text)
	must(t, err)
	return out
}

// What is none: numbers and words of programs that look like somebody's.
func TestOrdinaryTextStays(t *testing.T) {
	for _, text := range []string{
		"", "x", "1", "@", ":", "::", "+", "(", "-", "é", "\xff\xfe",
		"1700000000 1700000000123 at=1763974800.123456", "pid=4711 uid=1000 ppid 123456789",
		"550e8400-e29b-41d4-a716-446655440000", "12345678-1234-1234-1234-123456789012", "GPU-5d5ba0b2-0d33-1a7e-4d9f-9f6e0b7e1c11",
		"sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", "d41d8cd98f00b204e9800998ecf8427e", "commit 4111111111111111aabbccddeeff001122334455",
		"v1.2.3.4, version 10.2.3.4, libfoo-1.2.3.4, foo==1.2.3.4, CUDA 12.4.1.9", "driver 550.54.15", "10.0.0.0/8 172.16.0.0/12 0.0.0.0 127.0.0.1 255.255.255.0 224.0.0.1 169.254.1.1",
		"::1 :: fe std::vector a::b core::fmt 12:34:56 0000:65:00.0 00000000:65:00.0", "00:00:00:00:00:00 ff:ff:ff:ff:ff:ff", "aa:bb:cc:dd:ee:ff:00:11 aa:bb:cc:dd:ee",
		"MD5 aa:bb:cc:dd:ee:ff:00:11:22:33:44:55:66:77:88:99",
		"2024-01-02 03:04:05,678 2024/01/02 02.01.2024 12/31/1999", "0x7ffd1234abcd 0xdeadbeef", "0x0000000000000000000000000000000000000000",
		"git@github.com:org/repo.git user@1000.service getty@tty1.service icon@2x.png name@1.2.3 @app.get a@b @x.y image@sha256:abc",
		"4111 1111 1111 1112", "4111111111111112", "4111111111111112,5", "0.4111111111111111,5", "4111111111111111.50", "0000 0000 0000 0000", "id=4111111111111111", "42949672960 bytes, 4294967296", "4111111111111111a",
		"000-12-3456 666-12-3456 900-12-3456 123-00-4567 123-45-0000", "123-45-67890 1-123-45-6789", "3.14159265358979 1,234,567,890",
		"GB82 WEST 1234 5698 7654 33, DE89370400440532013001, ZZ82WEST12345698765432", "US12345678", "gb82west12345698765433", "gb82west1234569876543b", "mt84malt011000012345mtlcast001s",
		"50:01:43:80:12:34:56:78 0001:0002:0003:0004:0005:0006:0007:0008 ff02:1111:2222:3333:4444:5555:6666:7777 9a4b:1f2e:c001:a113:d05:90e1:a7b7", "work: 5552345678", "the fax\nwe work: 17 5552345678", "we had it on the host with driver 580.159.04", "the table is theirs (arXiv 2505.09343), as we said",
		"1BvBMSEYstWetqTFn5Au4m4GFg7xJaNVN3 bc1qw508d6qejxtdg4y5r3zarvary0c5xw7kv8f3t5 0x5aaeb6053F3E94C9b9A09f33669435E7Ef1BeAed",
		"total 200 300 4000 rows", "call took 1700000000 ns", "telemetry 5551234567", "00 11 22 33 44 55 66 77", "01 02 2024 10:20:30", "(123) 456", "1e+10000000 +0100 +00:00",
		"The birthday of 1500 dates: 5", "released 2024-03-01", "Loading Llama weights for Jordan in Virginia", "Will May Price?", "Mr", "Dr. ", "Dear All, Hi There, Hello World",
		"Maxwell GPU and Ada Lovelace, Grace Hopper superchip", "name: nginx, Name: Qwen", "Model name is Qwen2.5", "class MariaDBServer(Base)", "Maria_DB MariaDB",
		"Copyright 2009 The Authors, see Issue 18984, 49552 and Issues 4677, 18241", "moved to Windows 11 Pro 22621", "os.Signal, 1", "r Go 100, r × 2", "LineString, 0",
		"Brigade 5, Decade 3", "3 API Key rotations are in the queue and will be done", "2 Hard Drive", "Chapter 5, Page 12", "lives in Python 3.12", "There’s one, and we’ll see it",
		"Output 12, 34 Rows", "It said so, and the server died", "class Storgatan2(Base)", "12 Furumyra 5", "at 1600 Total Requests Per Second",
		"12 GPUs Per Node", "between 2019 2020 and the year of the war", "there are 612 345 678 of the rows in it", "the size of it is 12 345 678 bytes", "Total 12345\nSum 54321",
		"the docker daemon is on the host and it will start", "We read it to If and When", "the Content-Length is in the Snapshotting of it", "corner of 12", "the error is in 12 st and it will not",
		"Add it to Docker or Nginx and you can see it", "8 Street", "Rue", "Via HTTP 12", "PO Box", "OK, 12345 rows", "IN 12345", "port 10000 OR 20000",
	} {
		if got := find(t, text); len(got) != 0 {
			t.Errorf("in %q is found:", text)
			for _, s := range got {
				t.Errorf("  %q %s, %s", text[s.From:s.To], s.Type, s.Why)
			}
		}
	}
}

// openAI looks like a key; no scanner of this repository should take it for one.
var openAI = "sk-" + "proj-Zk3v9Qw8Rt5Yu2Io7Pa4"

func TestFind(t *testing.T) {
	for _, c := range []struct {
		text, value string
		kind        Type
	}{
		{"write to maria.gonzalez@mail.example.org.", "maria.gonzalez@mail.example.org", Email},
		{"<o'neil+x@example.co.uk>", "neil+x@example.co.uk", Email},
		{"mailto:root@xn--bcher-kva.example,", "root@xn--bcher-kva.example", Email},
		{"a@b.example", "a@b.example", Email},
		{"+44 20 7946 0958", "+44 20 7946 0958", Phone},
		{"+1 (555) 234-5678.", "+1 (555) 234-5678", Phone},
		{"tel +4930901820", "+4930901820", Phone},
		{"(555) 234-5678 ext. 12", "(555) 234-5678 ext. 12", Phone},
		{"555-234-5678", "555-234-5678", Phone}, {"555.234.5678", "555.234.5678", Phone}, {"1-800-555-2345", "1-800-555-2345", Phone},
		{"call me on 555 234 5678 today", "555 234 5678", Phone},
		{"phone: 5552345678", "5552345678", Phone}, {"Phone 04 1234 567", "04 1234 567", Phone},
		{"020 7946 0958", "020 7946 0958", Phone}, {"07700 900123", "07700 900123", Phone}, {"06-12345678", "06-12345678", Phone},
		{"4111 1111 1111 1111", "4111 1111 1111 1111", CreditCard}, {"5500-0000-0000-0004", "5500-0000-0000-0004", CreditCard},
		{"pay with 4111111111111111 now", "4111111111111111", CreditCard}, {"3782 822463 10005", "3782 822463 10005", CreditCard},
		{"6011111111111117", "6011111111111117", CreditCard}, {"card 4222222222222", "4222222222222", CreditCard}, {"card=4111111111111111", "4111111111111111", CreditCard},
		{"name,card,cvv\nada,4111111111111111,123", "4111111111111111", CreditCard}, {"[1,4111111111111111,2]", "4111111111111111", CreditCard}, {"7,4111-1111-1111-1111,12", "4111-1111-1111-1111", CreditCard},
		{"GB82 WEST 1234 5698 7654 32", "GB82 WEST 1234 5698 7654 32", IBAN}, {"to DE89370400440532013000.", "DE89370400440532013000", IBAN},
		{"NL91ABNA0417164300", "NL91ABNA0417164300", IBAN}, {"MT84MALT011000012345MTLCAST001S", "MT84MALT011000012345MTLCAST001S", IBAN},
		{"gb82west12345698765432", "gb82west12345698765432", IBAN}, {"de89 3704 0044 0532 0130 00", "de89 3704 0044 0532 0130 00", IBAN},
		{"SSN 123-45-6789", "123-45-6789", USSSN}, {"social security 123 45 6789", "123 45 6789", USSSN}, {"ssn: 123456789", "123456789", USSSN}, {"7,123-45-6789,5", "123-45-6789", USSSN},
		{"from 203.0.113.77:8080", "203.0.113.77", IPv4}, {"[192.168.1.17]", "192.168.1.17", IPv4},
		{"to 2001:db8::8a2e:370:7334,", "2001:db8::8a2e:370:7334", IPv6}, {"fe80::1ff:fe23:4567:890a%eth0", "fe80::1ff:fe23:4567:890a", IPv6},
		{"9a4b:1f2e:c001:a113:d05:90e1:a7b7:9cc9", "9a4b:1f2e:c001:a113:d05:90e1:a7b7:9cc9", IPv6},
		{"link/ether 52:54:00:12:34:5e brd", "52:54:00:12:34:5e", MAC}, {"52-54-00-12-34-5E", "52-54-00-12-34-5E", MAC},
		{"1BvBMSEYstWetqTFn5Au4m4GFg7xJaNVN2", "1BvBMSEYstWetqTFn5Au4m4GFg7xJaNVN2", Crypto},
		{"bc1qw508d6qejxtdg4y5r3zarvary0c5xw7kv8f3t4", "bc1qw508d6qejxtdg4y5r3zarvary0c5xw7kv8f3t4", Crypto},
		{"0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed", "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed", Crypto},
		{"postgres://svc:p4ss-w0rd@db.example.org/x", "p4ss-w0rd", URLCredential},
		{"key " + openAI, openAI, APIKey}, {"password=hunter2", "hunter2", APIKey},
		{"she was born on 1980-03-12 in", "1980-03-12", DateOfBirth}, {"DOB: 03/12/1980", "03/12/1980", DateOfBirth}, {"date of birth 12 March 1980.", "12 March 1980", DateOfBirth},
		{"Born March 12, 1980", "March 12, 1980", DateOfBirth},
		{"I spoke to Maria Gonzalez about it", "Maria Gonzalez", Person}, {"my name is Xaviera", "Xaviera", Person}, {"Dear Roland,", "Roland", Person},
		{"ask Dr. Okonkwo", "Okonkwo", Person}, {"Mrs. Anna van der Berg called", "Anna van der Berg", Person}, {"user John Q. Public logged in", "John Q. Public", Person},
		{"please give this to Samantha today", "Samantha", Person}, {"it was Bergqvist who told me", "Bergqvist", Person}, {"ask my brother Xavien about it", "Xavien", Person},
		{"he met José Ñuflow on the way", "José Ñuflow", Person}, {"as Jürgen Müller said to us", "Jürgen Müller", Person},
		{"12 Long Lane", "12 Long Lane", Address}, {"lives at 742 Evergreen Terrace, Springfield, IL 62704.", "742 Evergreen Terrace, Springfield, IL 62704", Address},
		{"1600 Pennsylvania Ave., Apt 4", "1600 Pennsylvania Ave., Apt 4", Address}, {"Hauptstraße 12, Bonn", "Hauptstraße 12, Bonn", Address}, {"12 rue de Rivoli", "12 rue de Rivoli", Address},
		{"Via Roma 5", "Via Roma 5", Address},
		{"to Storgatan 12B, 114 55 Stockholm, Sweden now", "Storgatan 12B, 114 55 Stockholm, Sweden", Address}, {"Kossuth Lajos utca 62", "Kossuth Lajos utca 62", Address},
		{"ul. Piękna 12/4, 00-539 Warszawa", "ul. Piękna 12/4, 00-539 Warszawa", Address}, {"Calle Mayor, 5, 28013 Madrid", "Calle Mayor, 5, 28013 Madrid", Address},
		{"Rua das Flores 33, 4050-265 Porto", "Rua das Flores 33, 4050-265 Porto", Address}, {"Kerkstraat 12 2 hoog, 1017 GL Amsterdam", "Kerkstraat 12 2 hoog, 1017 GL Amsterdam", Address},
		{"221B Baker Street, London, NW1 6XE.", "221B Baker Street, London, NW1 6XE", Address}, {"12 Evelyn Walks Apt. 34, Port Anna, NY 12345-6789", "12 Evelyn Walks Apt. 34, Port Anna, NY 12345-6789", Address},
		{"write to 12 Evelyn Walks, North Ada, Texas 12345", "12 Evelyn Walks, North Ada, Texas 12345", Address}, {"PSC 1234, Box 567, APO AE 09012", "PSC 1234, Box 567, APO AE 09012", Address},
		{"I live at 12 Meadowbank now", "12 Meadowbank", Address}, {"my address is Furumyra 7, and it is old", "Furumyra 7", Address}, {"Mannerheimintie 5 A, 00100 Helsinki", "Mannerheimintie 5 A, 00100 Helsinki", Address},
		{"100 King Street W, Toronto, ON M5X 1A9", "100 King Street W, Toronto, ON M5X 1A9", Address}, {"Calle Mayor s/n", "Calle Mayor s/n", Address}, {"P.O. Box 1234", "P.O. Box 1234", Address}, {"zip code 90210", "90210", Address},
		{"moved from 12 Mill Road ASHBY LE65 3AB.", "12 Mill Road ASHBY LE65 3AB", Address}, {"rue de l'Église 7, 75001 Paris", "rue de l'Église 7, 75001 Paris", Address},
		{"Kossuth Lajos u. 12. 1053 Budapest", "Kossuth Lajos u. 12. 1053 Budapest", Address}, {"Laugavegur 12 101 Reykjavík", "Laugavegur 12 101 Reykjavík", Address}, {"62 Banksia Court\nMOUNT ISA QLD 4825", "62 Banksia Court\nMOUNT ISA QLD 4825", Address},
		{"meet at the corner of King Street and Mill Lane then", "the corner of King Street and Mill Lane", Address}, {"she is the dentist in 90210, I think", "90210", Address}, {"12 Long Lane\nNewtown 12345", "12 Long Lane\nNewtown 12345", Address},
		{"call me on 0470 12 34 56 today", "0470 12 34 56", Phone}, {"(08) 8713 8742", "(08) 8713 8742", Phone}, {"his number is 612 345 678.", "612 345 678", Phone}, {"06.12.34.56.78", "06.12.34.56.78", Phone},
		{"555 1234 (mobile)", "555 1234", Phone}, {"Work: 5552345678\nFax: +1 555 234 5679", "5552345678", Phone}, {"my sister wrote it on 23 45 67 89 paper", "23 45 67 89", Phone}, {"I told him that Kvistgaarden knows", "Kvistgaarden", Person},
		{"it was given to Bergqvist by us", "Bergqvist", Person}, {"she asked Mark about it", "Mark", Person}, {"Beverly Hills, CA 90210", "CA 90210", Address},
	} {
		for _, around := range []string{"%s", "é %s", "log line: %s\nnext", "[ %s ]", "%[1]s\n%[1]s"} {
			text := fmt.Sprintf(around, c.text)
			if !slices.ContainsFunc(find(t, text), func(s Span) bool { return text[s.From:s.To] == c.value && s.Type == c.kind }) {
				t.Errorf("%q: no %s %q is found, but", text, c.kind, c.value)
				for _, s := range find(t, text) {
					t.Errorf("  %q %s %d, %s", text[s.From:s.To], s.Type, s.Confidence, s.Why)
				}
			}
		}
	}
}

// Quotes, dashes and blanks beyond ASCII are no letters, and in some scripts words stand without blanks.
func TestFindBesideOtherScripts(t *testing.T) {
	for _, value := range []string{
		"maria.gonzalez@example.org", "+4930901820123", "4111 1111 1111 1111", "4111111111111111", "DE89370400440532013000", "123-45-6789", "203.0.113.77",
		"2001:db8::8a2e:370:7334", "52:54:00:12:34:5e", "bc1qw508d6qejxtdg4y5r3zarvary0c5xw7kv8f3t4", "555-234-5678",
	} {
		for _, around := range []string{"“%s”", "«%s»", "\u00a0%s\u00a0", "•%s", "—%s—", "→%s←", "‘%s’", "…%s…", "\u3000%s\u3000", "（%s）", "邮箱：%s。谢谢您", "请联系%s谢谢", "주소는 %s으로"} {
			text := fmt.Sprintf(around, value)
			if found := find(t, text); len(found) != 1 || text[found[0].From:found[0].To] != value {
				t.Errorf("%q: found is %+v", text, found)
			}
		}
	}
}

// What stands around a value may be a part of it, or keep it from being one.
func TestFindAlone(t *testing.T) {
	for _, c := range []struct {
		text, value string
		kind        Type
	}{
		{"Hauptstr. 12 53111 Bonn", "Hauptstr. 12 53111 Bonn", Address}, {"Apt. 123", "Apt. 123", Address}, {"3 Kerkstraat 12", "3 Kerkstraat 12", Address},
		{"to Avenida Paulista 1578 São Paulo SP 01310-200", "Avenida Paulista 1578 São Paulo SP 01310-200", Address},
		{"send it to 12 long lane springfield il 62704 please", "12 long lane springfield il 62704", Address},
		{"Abigail Nilsdatter\n12 Long Lane, X", "Abigail Nilsdatter", Person}, {"do you know where samantha lives", "samantha", Person},
	} {
		found := find(t, c.text)
		if !slices.ContainsFunc(found, func(s Span) bool { return c.text[s.From:s.To] == c.value && s.Type == c.kind }) {
			t.Errorf("%q: no %s %q is found, but %+v", c.text, c.kind, c.value, found)
		}
	}
}

func TestOverlaps(t *testing.T) {
	// Of two values in one place the surer gives the type, and nothing of either is left.
	got := settle([]Span{{5, 9, Phone, 60, "b"}, {0, 6, Email, 90, "a"}, {9, 12, MAC, 1, "c"}, {20, 25, IPv4, 50, "d"}, {20, 30, IPv6, 50, "e"}})
	want := []Span{{0, 9, Email, 90, "a"}, {9, 12, MAC, 1, "c"}, {20, 30, IPv6, 50, "e"}}
	if !slices.Equal(got, want) {
		t.Errorf("%v", got)
	}
	text := "amqp://u:bob@example.org@h.example.org/v"
	if got := find(t, text); len(got) != 1 || got[0].Type != URLCredential {
		t.Errorf("%v", got)
	}
}

func TestPatterns(t *testing.T) {
	good := Pattern{Type: "EMPLOYEE", Expression: `\bE-(\d{6})\b`, Examples: []string{"of E-123456"}, Not: []string{"E-12345"}}
	for name, change := range map[string]func(*Pattern){
		"a built-in type":           func(p *Pattern) { p.Type = Email },
		"a type in small letters":   func(p *Pattern) { p.Type = "employee" },
		"no type":                   func(p *Pattern) { p.Type = "" },
		"no expression":             func(p *Pattern) { p.Expression = "" },
		"a broken expression":       func(p *Pattern) { p.Expression = "(" },
		"a reference back":          func(p *Pattern) { p.Expression = `(a)\1` },
		"an expression for nothing": func(p *Pattern) { p.Expression = `\d*` },
		"a long expression":         func(p *Pattern) { p.Expression = strings.Repeat("a", maxExpression+1) },
		"too many repeats":          func(p *Pattern) { p.Expression = `(a{500}){500}` },
		"no example":                func(p *Pattern) { p.Examples = nil },
		"an example of another":     func(p *Pattern) { p.Examples = []string{"E-1"} },
		"a value where none is":     func(p *Pattern) { p.Not = []string{"E-654321"} },
		"a confidence of 101":       func(p *Pattern) { p.Confidence = 101 },
	} {
		p := good
		change(&p)
		if _, err := New(Config{Patterns: []Pattern{p}}); err == nil {
			t.Errorf("%s is taken", name)
		}
	}
	if _, err := New(Config{Patterns: slices.Repeat([]Pattern{good}, maxPatterns+1)}); err == nil {
		t.Error("too many are taken")
	}
	d, err := New(Config{Patterns: []Pattern{good}})
	must(t, err)
	for _, pad := range []int{0, step - 4, step, step + overlap - 5, 3 * step} {
		text := strings.Repeat("é", pad/2) + " E-123456 "
		got, err := d.Find(t.Context(), text)
		if err != nil || len(got) != 1 || text[got[0].From:got[0].To] != "123456" || got[0].Type != "EMPLOYEE" {
			t.Errorf("behind %d bytes is found %v, %v", pad, got, err)
		}
	}
}

// A type that is not listed is not found, and one that does not exist is refused.
func TestTypes(t *testing.T) {
	const text = "Dr. Okonkwo, maria@example.org, 203.0.113.77, E-1"
	pattern := Pattern{Type: "EMPLOYEE", Expression: `E-\d`, Examples: []string{"E-1"}}
	for _, c := range []struct{ types, want []Type }{
		{nil, []Type{Person, Email, IPv4, "EMPLOYEE"}},
		{[]Type{Email}, []Type{Email, "EMPLOYEE"}},
		{[]Type{IPv6, Person}, []Type{Person, "EMPLOYEE"}},
	} {
		d, err := New(Config{Types: c.types, Patterns: []Pattern{pattern}})
		must(t, err)
		spans, err := d.Find(t.Context(), text)
		var got []Type
		for _, s := range spans {
			got = append(got, s.Type)
		}
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("of %v is found %v, %v", c.types, got, err)
		}
	}
	for _, typ := range []Type{"", "email", "EMPLOYEE", "PASSPORT"} {
		if _, err := New(Config{Types: []Type{typ}, Patterns: []Pattern{pattern}}); err == nil {
			t.Errorf("the type %q is taken for a built-in one", typ)
		}
	}
}

func TestFindEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	d, _ := New(Config{})
	if got, err := d.Find(ctx, "a@b.example"); !errors.Is(err, context.Canceled) || got != nil {
		t.Errorf("%v, %v", got, err)
	}
}

func FuzzFind(f *testing.F) {
	for _, s := range []string{
		"+1 (555) 234-5678 x1", "maria@example.org", "GB82 WEST 1234 5698 7654 32", "2001:db8::1", "52:54:00:12:34:56", "Dr. É. van der Berg", "12 Long Lane, X, IL 62704",
		"Hauptstr. 12", "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed", "bc1q", "born 1. 2. 1980", "P.O. Box 1", "\xff\xc3", "12 rue de É", "zip 12345-6789", "Rue de l'",
	} {
		f.Add(s)
	}
	d, _ := New(Config{Patterns: []Pattern{{Type: "X", Expression: "x+y?", Examples: []string{"x"}}}})
	f.Fuzz(func(t *testing.T, text string) {
		got, err := d.Find(t.Context(), text)
		must(t, err)
		last := 0
		for _, s := range got {
			if s.From < last || s.To <= s.From || s.To > len(text) || s.Confidence < 1 || s.Confidence > 100 || s.Why == "" || s.Type == "" {
				t.Fatalf("%q: %+v behind %d", text, s, last)
			}
			if last = s.To; utf8.ValidString(text) && !utf8.ValidString(text[s.From:s.To]) {
				t.Errorf("%q: %q is half a letter", text, text[s.From:s.To])
			}
		}
	})
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
