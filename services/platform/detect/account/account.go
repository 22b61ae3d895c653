// Package account says which numbers of accounts are valid: IBANs, payment cards, and addresses of Bitcoin and Ethereum. It is pure, and runs where
// detect does.
package account

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

// MaxIBAN is how long an IBAN is at most.
const MaxIBAN = 34

// IBANLength is how long a country's IBANs are, or 0.
func IBANLength(country string) int { return ibanLengths[country] }

// IBAN reports whether capitals and digits, of a country's length, have the remainder of an IBAN (ISO 13616).
func IBAN(value []byte) bool {
	rest := 0
	for i := range value {
		if c := value[(i+4)%len(value)]; c <= '9' { // the country and the check digits go last
			rest = (rest*10 + int(c-'0')) % 97
		} else {
			rest = (rest*100 + int(c-'A') + 10) % 97
		}
	}
	return rest == 1
}

const base58Letters = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"

// Bitcoin reports whether a word is an address in base 58 with its sum.
func Bitcoin(word string) bool {
	number, digit := new(big.Int), new(big.Int)
	for _, c := range []byte(word) {
		d := strings.IndexByte(base58Letters, c)
		if d < 0 {
			return false
		}
		number.Add(number.Mul(number, big.NewInt(58)), digit.SetInt64(int64(d)))
	}
	if number.BitLen() > 25*8 {
		return false
	}
	var raw [25]byte
	number.FillBytes(raw[:])
	once := sha256.Sum256(raw[:21])
	twice := sha256.Sum256(once[:])
	return (raw[0] == 0 || raw[0] == 5) && [4]byte(raw[21:]) == [4]byte(twice[:4])
}

const bech32Letters = "qpzry9x8gf2tvdw0s3jn54khce6mua7l"

// Bech32 reports whether data, which stands behind a prefix and 1, has its sum (BIP 173, BIP 350).
func Bech32(prefix, data string) bool {
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
	for _, c := range []byte(data) {
		d := strings.IndexByte(bech32Letters, c)
		if d < 0 {
			return false
		}
		step(byte(d))
	}
	return sum == 1 || sum == 0x2bc830a3
}

// Ethereum reports whether forty hexadecimal digits may be an address. Capitals among them are its sum, which must hold (EIP-55).
func Ethereum(digits string) (valid, summed bool) {
	lower := strings.ToLower(digits)
	switch {
	case strings.Trim(lower, "0") == "", strings.Trim(lower, "f") == "":
		return false, false
	case digits == lower, digits == strings.ToUpper(digits):
		return true, false
	}
	hash := sha3.NewLegacyKeccak256()
	hash.Write([]byte(lower))
	sum := hash.Sum(nil)
	for i := range len(lower) {
		if high := sum[i/2]>>(4*(1-i%2))&8 != 0; lower[i] > '9' && high == (digits[i] == lower[i]) {
			return false, false
		}
	}
	return true, true
}

// Issuer names the network of a card by its prefix and length; usual: few other numbers look so.
func Issuer(d string) (network string, usual bool) {
	prefix := func(n int) int {
		v := 0
		for _, c := range d[:n] {
			v = v*10 + int(c-'0')
		}
		return v
	}
	if len(d) < 12 {
		return "", false
	}
	two, three, four, n := prefix(2), prefix(3), prefix(4), len(d)
	switch {
	case d[0] == '4' && (n == 13 || n == 16 || n == 19):
		return "Visa", n == 16
	case two >= 51 && two <= 55 && n == 16, four >= 2221 && four <= 2720 && n == 16:
		return "Mastercard", true
	case (two == 34 || two == 37) && n == 15:
		return "American Express", true
	case (three >= 300 && three <= 305 || two == 36 || two == 38 || two == 39) && n >= 14:
		return "Diners Club", n == 14
	case (four == 6011 || three >= 644 && three <= 649 || two == 65) && n >= 16:
		return "Discover", n == 16
	case four >= 3528 && four <= 3589 && n >= 16, two == 35 && n == 16, (four == 2131 || four == 1800) && n == 15:
		return "JCB", n == 16
	case two == 62 && n >= 16:
		return "UnionPay", n == 16
	case two == 50 || two >= 56 && two <= 58 || four == 6304 || two == 67:
		return "Maestro", false
	}
	return "", false
}

// Luhn is the check of ISO/IEC 7812-1, annex B.
func Luhn(digits []byte) bool {
	sum, same := 0, true
	for i := range digits {
		d := int(digits[len(digits)-1-i] - '0')
		if i%2 == 1 {
			if d *= 2; d > 9 {
				d -= 9
			}
		}
		sum += d
		same = same && digits[i] == digits[0]
	}
	return sum%10 == 0 && !same
}
