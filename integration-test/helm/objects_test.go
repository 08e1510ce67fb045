package helm

import (
	"fmt"
	"strconv"
	"strings"
)

// at returns what is in v at a path such as spec.ports.0.name, or nil.
func at(v any, path string) any {
	for key := range strings.SplitSeq(path, ".") {
		switch in := v.(type) {
		case map[string]any:
			v = in[key]
		case []any:
			i, err := strconv.Atoi(key)
			if err != nil || i >= len(in) {
				return nil
			}
			v = in[i]
		default:
			return nil
		}
	}
	return v
}

// list returns the elements of a list at a path, as maps.
func list(v any, path string) (elements []map[string]any) {
	items, _ := at(v, path).([]any)
	for _, item := range items {
		m, _ := item.(map[string]any)
		elements = append(elements, m)
	}
	return elements
}

func text(v any, path string) string {
	if v = at(v, path); v == nil {
		return ""
	}
	return fmt.Sprint(v)
}
