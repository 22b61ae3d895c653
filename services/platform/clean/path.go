package clean

// pathShapes are absolute paths as an error shows them: two segments, or one that every Unix has, whatever stands before it
// but a word or a URL; one that every Unix has behind a word and a colon, an equals sign or an option; file URLs; drives;
// shares; and paths that climb. Letters of every alphabet make words.
var pathShapes = []string{
	`(?:^|[^\w\pL\pN/.~:%&;?=#-])~?/+(?:[\w\pL\pN.@+~-]+/+[\w\pL\pN.@+~-]+|` + roots + `\b)`,
	`(?:^|[\w\pL\pN"'])[=:]/+` + roots + `/`,
	`(?:^|[\s"'(=,])--?\w+/+` + roots + `/`,
	`(?i)\bfile:/`,
	`(?:^|[^A-Za-z0-9])[A-Za-z]:[\\/]+[\w\pL]`,
	`\\\\[\w\pL\pN.-]+\\[\w\pL\pN.$-]+`,
	`(?:^|[\s"'(=:])(?:\.\.?/)+[\w.-]+/[\w.-]`,
}

const roots = `(?:etc|tmp|home|root|usr|var|proc|sys|dev|opt|mnt|run|srv|bin|sbin|lib|lib64|boot|work|Users|private)`

var shownPath = oneOf(pathShapes...)

// ShowsPath reports whether a text shows a path of a file system, by the shapes that Leaks goes by.
func ShowsPath(s string) bool { return shownPath.MatchString(s) }
