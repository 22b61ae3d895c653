package detect

import (
	"bytes"
	"strings"

	"durward.internal/services/platform/detect/account"
)

// iban looks at two letters and two digits.
func (s *scan) iban(from int) {
	// In small letters, which programs' own names have, too, nothing but the letters of a bank stands before the digits.
	letters, small := byte(isUpper), is(s.text[from], isLower)
	if small {
		letters = isLower
	}
	want := account.IBANLength(strings.ToUpper(s.text[from : from+2]))
	if want == 0 {
		return
	}
	n, to, last := 0, from, byte(0)
	var value [account.MaxIBAN]byte
	for ; to < len(s.text) && n < want; to++ {
		c := s.text[to]
		if (c == ' ' || c == '-') && n >= 4 && is(s.at(to-1), isDigit|letters) {
			continue
		}
		if c >= 0x80 || !is(c, isDigit|letters) || small && n >= 4 && !is(c, isDigit) && (n >= 8 || n > 4 && is(last, isDigit)) {
			return
		}
		value[n], last = c, c
		n++
	}
	if n == want && !is(s.at(to), isWord) && account.IBAN(bytes.ToUpper(value[:n])) {
		s.add(from, to, IBAN, 98, "a country's length, and the remainder modulo 97")
	}
}

const saidBitcoin = "an address of Bitcoin with its sum"

// bitcoin looks at a word that begins with 1 or 3.
func (s *scan) bitcoin(from int) {
	if to := s.wordEnd(from, 35); to-from >= 26 && to-from <= 35 && account.Bitcoin(s.text[from:to]) {
		s.add(from, to, Crypto, 98, saidBitcoin)
	}
}

// bech32 looks at a word that begins with a prefix and 1.
func (s *scan) bech32(from int, prefix string) {
	if to := s.wordEnd(from, 90); to-from >= 42 && to-from <= 90 && account.Bech32(prefix, s.text[from+len(prefix)+1:to]) {
		s.add(from, to, Crypto, 98, saidBitcoin)
	}
}

// wordEnd is where a word ends, or a place more than most bytes behind its beginning.
func (s *scan) wordEnd(from, most int) int {
	to := from
	for to < len(s.text) && to-from <= most && is(s.text[to], isWord) {
		to++
	}
	return to
}

// ethereum looks at 0x: forty digits are an address.
func (s *scan) ethereum(from int) {
	const length = 42
	to := from + length
	if to > len(s.text) || is(s.at(to), isWord) {
		return
	}
	for i := from + 2; i < to; i++ {
		if !is(s.text[i], isHex) {
			return
		}
	}
	switch valid, summed := account.Ethereum(s.text[from+2 : to]); {
	case valid && summed:
		s.add(from, to, Crypto, 98, "an address of Ethereum with its sum")
	case valid:
		s.add(from, to, Crypto, 75, "an address of Ethereum, without a sum")
	}
}
