package statement

import "fmt"

// Restore is which log goes on, and what of the one before it is lost. The numbers are what the operator's program displayed.
type Restore struct {
	// Made is when the backup was made.
	Made string `json:"made"`
	// Size and Root are of the log that goes on: the backup's.
	Size uint64 `json:"size"`
	Root string `json:"root"`
	// OldSize and OldRoot are the newest head that was known of the log before, and Lost its records behind Size.
	OldSize uint64 `json:"old_size"`
	OldRoot string `json:"old_root"`
	Lost    uint64 `json:"lost"`
}

func (r *Restore) check() error {
	bad := func(what string) error { return fmt.Errorf("%w: a restored log's %s", ErrMalformed, what) }
	if _, err := parseTime(r.Made); err != nil {
		return bad("backup has no time")
	}
	if r.Size == 0 || r.Root == "" || r.OldRoot == "" || r.OldSize >= 1<<53 {
		return bad("heads are missing")
	}
	if r.OldSize < r.Size || r.Lost != r.OldSize-r.Size {
		return bad("records lost are not those between its heads")
	}
	if r.OldSize == r.Size && r.OldRoot != r.Root {
		return bad("heads are of two logs")
	}
	return nil
}
