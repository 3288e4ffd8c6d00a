package tokenize

// CountElements returns how many elements a JSON array has, and 0 for what is none.
// The array must have been checked, as ScanRequest does.
func CountElements(array []byte) int {
	i := skipSpace(array, 0)
	if i >= len(array) || array[i] != '[' {
		return 0
	}
	if i = skipSpace(array, i+1); i < len(array) && array[i] == ']' {
		return 0
	}
	for n := 1; ; n++ {
		next, err := skipValue(array, i, 1)
		if err != nil {
			return 0
		}
		if i = skipSpace(array, next); i >= len(array) || array[i] != ',' {
			return n
		}
		i = skipSpace(array, i+1)
	}
}
