package detect

import (
	"crypto/sha256"
	"math/big"
	"strings"

	"golang.org/x/crypto/sha3"
)

// ibanLengths is how long the IBANs of each country are (SWIFT's registry of IBANs).
var ibanLengths = map[string]int{
	"AD": 24, "AE": 23, "AL": 28, "AT": 20, "AZ": 28, "BA": 20, "BE": 16, "BG": 22, "BH": 22, "BI": 27, "BR": 29, "BY": 28, "CH": 21, "CR": 22, "CY": 28,
	"CZ": 24, "DE": 22, "DJ": 27, "DK": 18, "DO": 28, "EE": 20, "EG": 29, "ES": 24, "FI": 18, "FK": 18, "FO": 18, "FR": 27, "GB": 22, "GE": 22, "GI": 23,
	"GL": 18, "GR": 27, "GT": 28, "HR": 21, "HU": 28, "IE": 22, "IL": 23, "IQ": 23, "IS": 26, "IT": 27, "JO": 30, "KW": 30, "KZ": 20, "LB": 28, "LC": 32,
	"LI": 21, "LT": 20, "LU": 20, "LV": 21, "LY": 25, "MC": 27, "MD": 24, "ME": 22, "MK": 19, "MN": 20, "MR": 27, "MT": 31, "MU": 30, "NI": 28, "NL": 18,
	"NO": 15, "OM": 23, "PK": 24, "PL": 28, "PS": 29, "PT": 25, "QA": 29, "RO": 24, "RS": 22, "RU": 33, "SA": 24, "SC": 31, "SD": 18, "SE": 24, "SI": 19,
	"SK": 24, "SM": 27, "SO": 23, "ST": 25, "SV": 28, "TL": 23, "TN": 24, "TR": 26, "UA": 29, "VA": 22, "VG": 24, "XK": 20, "YE": 30,
}

// iban looks at two capitals and two digits.
func (s *scan) iban(from int) {
	want := ibanLengths[s.text[from:from+2]]
	if want == 0 {
		return
	}
	rest, n, to := 0, 0, from
	var value [34]byte
	for ; to < len(s.text) && n < want; to++ {
		c := s.text[to]
		if (c == ' ' || c == '-') && n >= 4 && is(s.at(to-1), isDigit|isUpper) {
			continue
		}
		if !is(c, isDigit|isUpper) {
			return
		}
		value[n] = c
		n++
	}
	if n < want || is(s.at(to), isWord) {
		return
	}
	for i := range n {
		c := value[(i+4)%n] // the country and the check digits go last
		if is(c, isDigit) {
			rest = (rest*10 + int(c-'0')) % 97
		} else {
			rest = (rest*100 + int(c-'A') + 10) % 97
		}
	}
	if rest == 1 {
		s.add(from, to, IBAN, 98, "a country's length, and the remainder modulo 97")
	}
}

const base58Letters = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"

// bitcoin looks at a word that begins with 1 or 3.
func (s *scan) bitcoin(from int) {
	to := from
	for to < len(s.text) && to-from <= 35 && is(s.text[to], isWord) {
		to++
	}
	if to-from < 26 || to-from > 35 {
		return
	}
	number, digit := new(big.Int), new(big.Int)
	for _, c := range []byte(s.text[from:to]) {
		d := strings.IndexByte(base58Letters, c)
		if d < 0 {
			return
		}
		number.Add(number.Mul(number, big.NewInt(58)), digit.SetInt64(int64(d)))
	}
	if number.BitLen() > 25*8 {
		return
	}
	var raw [25]byte
	number.FillBytes(raw[:])
	once := sha256.Sum256(raw[:21])
	twice := sha256.Sum256(once[:])
	if (raw[0] == 0 || raw[0] == 5) && [4]byte(raw[21:]) == [4]byte(twice[:4]) {
		s.add(from, to, Crypto, 98, "an address of Bitcoin with its sum")
	}
}

const bech32Letters = "qpzry9x8gf2tvdw0s3jn54khce6mua7l"

// bech32 looks at a word that begins with a prefix and 1 (BIP 173, BIP 350).
func (s *scan) bech32(from int, prefix string) {
	to := from
	for to < len(s.text) && to-from <= 90 && is(s.text[to], isWord) {
		to++
	}
	if to-from < 42 || to-from > 90 {
		return
	}
	sum := uint32(1)
	step := func(v byte) {
		top := sum >> 25
		sum = sum&0x1ffffff<<5 ^ uint32(v)
		for i, g := range [5]uint32{0x3b6a57b2, 0x26508e6d, 0x1ea119fa, 0x3d4233dd, 0x2a1462b3} {
			if top>>i&1 == 1 {
				sum ^= g
			}
		}
	}
	for _, c := range []byte(prefix) {
		step(c >> 5)
	}
	step(0)
	for _, c := range []byte(prefix) {
		step(c & 31)
	}
	for _, c := range []byte(s.text[from+len(prefix)+1 : to]) {
		d := strings.IndexByte(bech32Letters, c)
		if d < 0 {
			return
		}
		step(byte(d))
	}
	if sum == 1 || sum == 0x2bc830a3 {
		s.add(from, to, Crypto, 98, "an address of Bitcoin with its sum")
	}
}

// ethereum looks at 0x: forty digits are an address. Capitals among them are its sum (EIP-55).
func (s *scan) ethereum(from int) {
	const length = 42
	to := from + length
	if to > len(s.text) || is(s.at(to), isWord) {
		return
	}
	value := s.text[from+2 : to]
	for i := range len(value) {
		if !is(value[i], isHex) {
			return
		}
	}
	lower := strings.ToLower(value)
	if strings.Trim(lower, "0") == "" || strings.Trim(lower, "f") == "" {
		return
	}
	if value == lower || value == strings.ToUpper(value) {
		s.add(from, to, Crypto, 75, "an address of Ethereum, without a sum")
		return
	}
	hash := sha3.NewLegacyKeccak256()
	hash.Write([]byte(lower))
	sum := hash.Sum(nil)
	for i := range len(lower) {
		if high := sum[i/2]>>(4*(1-i%2))&8 != 0; is(lower[i], isLower) && high == (value[i] == lower[i]) {
			return
		}
	}
	s.add(from, to, Crypto, 98, "an address of Ethereum with its sum")
}
