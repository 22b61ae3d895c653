package child

import (
	"errors"
	"fmt"
	"net/url"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/picture"
)

const (
	// maxResult bounds a result without its pictures, in bytes, and maxPieces in pieces of content.
	maxResult = 1 << 20
	maxPieces = 1000
	// maxName is the most characters of a name and of a type, maxURI of a URI.
	maxName = 200
	maxURI  = 2000
)

// rebuild makes a result anew from what the SDK read.
func rebuild(in *mcp.CallToolResult, images bool) (Result, error) {
	if in.InputRequests != nil {
		return Result{}, errors.New("it asks for more than the call gave it, which is not given")
	}
	if len(in.Content) > maxPieces {
		return Result{}, fmt.Errorf("its result has more than %d pieces", maxPieces)
	}
	out := Result{IsError: in.IsError}
	size, pictures := 0, 0
	if images {
		pictures = picture.Most
	}
	for _, piece := range in.Content {
		made := content(piece, &pictures)
		out.Content = append(out.Content, made)
		size += len(made.Text) + len(made.URI) + len(made.MIME)
	}
	if in.StructuredContent != nil {
		shown, err := cleaned(in.StructuredContent)
		if err == nil {
			out.Structured, err = canonical.Marshal(shown)
		}
		if err != nil { // the call has had its effect, and its texts may hold the same
			left := Content{Kind: Text, Text: "[data that is not passed on: " + clean.Line(err.Error(), maxMessage) + "]"}
			out.Content, size = append(out.Content, left), size+len(left.Text)
		}
		size += len(out.Structured)
	}
	if size > maxResult {
		return Result{}, fmt.Errorf("its result is larger than %d MiB", maxResult>>20)
	}
	return out, nil
}

// content is what is passed on of one piece. pictures is how many more pictures may be.
func content(piece mcp.Content, pictures *int) Content {
	switch piece := piece.(type) {
	case *mcp.TextContent:
		return Content{Kind: Text, Text: clean.Block(piece.Text, clean.Whole)}
	case *mcp.ImageContent:
		return shown("image", piece.Data, piece.MIMEType, pictures)
	case *mcp.AudioContent:
		return note("audio", piece.Data, piece.MIMEType, "no sound passes")
	case *mcp.ResourceLink:
		name := clean.Line(piece.Name, maxName)
		if address := webAddress(piece.URI); address != "" {
			return Content{Kind: Link, Text: name, URI: address, MIME: clean.Line(piece.MIMEType, maxName)}
		}
		return Content{Kind: Text, Text: fmt.Sprintf("[a link that is not passed on, %q: neither https nor http]", name)}
	case *mcp.EmbeddedResource:
		r := piece.Resource
		switch {
		case r == nil:
		case r.Blob != nil:
			return shown("resource", r.Blob, r.MIMEType, pictures)
		default:
			return Content{
				Kind: Resource, Text: clean.Block(r.Text, clean.Whole), URI: webAddress(r.URI), MIME: clean.Line(r.MIMEType, maxName),
			}
		}
	}
	return Content{Kind: Text, Text: "[content of a kind that is not passed on]"}
}

// shown passes on an image whose bytes are what its type says; a note stands for everything else.
func shown(what string, data []byte, mime string, pictures *int) Content {
	why := picture.Check(mime, data)
	switch {
	case len(data) == 0:
		return note(what, data, mime, "it holds nothing, or what is no base64")
	case why != nil:
		return note(what, data, mime, why.Error())
	case *pictures == 0:
		return note(what, data, mime, fmt.Sprintf("pictures pass where the server's entry says images, and %d a result", picture.Most))
	}
	*pictures--
	return Content{Kind: Image, Data: data, MIME: mime}
}

// note says what was left out, and why.
func note(what string, data []byte, mime, why string) Content {
	return Content{Kind: Text, Text: fmt.Sprintf("[%s that is not passed on: %s, %d bytes; %s]", what, clean.Line(mime, maxName), len(data), why)}
}

// webAddress returns an https or http URI, and nothing of any other.
func webAddress(text string) string {
	u, err := url.Parse(text)
	if err != nil || len(text) > maxURI || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || u.User != nil {
		return ""
	}
	return clean.Line(u.String(), clean.Whole)
}

// cleaned cleans every text of a JSON value. A key that would have to be cleaned is refused: two of them could become one.
func cleaned(v any) (any, error) {
	var err error
	switch v := v.(type) {
	case string:
		return clean.Block(v, clean.Whole), nil
	case []any:
		for i := range v {
			if v[i], err = cleaned(v[i]); err != nil {
				return nil, err
			}
		}
	case map[string]any:
		for key, inner := range v {
			if clean.Text(key, clean.Whole) != key {
				return nil, fmt.Errorf("the key \"%s\" has characters that are not shown", clean.Line(clean.Visible(key), maxName))
			}
			if v[key], err = cleaned(inner); err != nil {
				return nil, err
			}
		}
	}
	return v, nil
}
