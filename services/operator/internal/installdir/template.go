package installdir

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"regexp"
	"text/template"
)

// Render fills in the template folder/NAME.yaml of files: the configuration of one process, in development and on a host of its
// own. A template writes strings with its function yaml.
func Render(files fs.FS, folder, name string, values any) ([]byte, error) {
	raw, err := fs.ReadFile(files, folder+"/"+name+".yaml")
	if err != nil {
		return nil, fmt.Errorf("configuration of %s: %w", name, err)
	}
	t, err := template.New(name).Funcs(template.FuncMap{"yaml": quoteYAML}).Parse(string(raw))
	if err != nil {
		return nil, fmt.Errorf("configuration of %s: %w", name, err)
	}
	var b bytes.Buffer
	if err := t.Execute(&b, values); err != nil {
		return nil, fmt.Errorf("configuration of %s: %w", name, err)
	}
	return b.Bytes(), nil
}

var plainPath = regexp.MustCompile(`^/[A-Za-z0-9/._-]*$`)

// quoteYAML writes a string as a YAML scalar: plain where that is safe, else in double quotes, whose escapes are JSON's.
func quoteYAML(s string) (string, error) {
	if plainPath.MatchString(s) {
		return s, nil
	}
	b, err := json.Marshal(s)
	return string(b), err
}
