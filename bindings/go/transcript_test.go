package kvevict

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math"
	"net/url"
	"os"
	"reflect"
	"sort"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"kvevict.dev/kvevict/bindings/go/internal/native"
)

// A transcript has calls of the C API and what came out of them: see bindings/transcript. These
// tests make the same calls in Go. replay_test.go has a function for each of them.

// line is a call or a struct with its arguments by name.
type line struct {
	text, name string
	values     map[string]string
	used       map[string]bool
}

func newLine(text string) *line {
	words := strings.Split(text, " ")
	l := &line{text: text, name: words[0], values: map[string]string{}, used: map[string]bool{}}
	for _, word := range words[1:] {
		key, value, _ := strings.Cut(word, "=")
		value, err := url.PathUnescape(value)
		if err != nil {
			panic(err)
		}
		l.values[key] = value
	}
	return l
}

func (l *line) has(key string) bool { _, ok := l.values[key]; return ok }

func (l *line) string(key string) string { l.used[key] = true; return l.values[key] }

func (l *line) list(key, by string) []string {
	if text := l.string(key); text != "" {
		return strings.Split(text, by)
	}
	return nil
}

func (l *line) int(key string) int { return int(l.int64(key)) }

func (l *line) flag(key string) bool { return l.int64(key) != 0 }

func (l *line) int64(key string) int64 {
	if l.string(key) == "" {
		return 0
	}
	return parse[int64](l.values[key])
}

func (l *line) float(key string) float64 {
	if l.string(key) == "" {
		return 0
	}
	return parse[float64](l.values[key])
}

// set is the value of a key at the address of a field, which stays as it is without the key.
func (l *line) set(key string, field any) {
	if !l.has(key) {
		return
	}
	switch to := reflect.ValueOf(field).Elem(); {
	case to.CanInt():
		to.SetInt(l.int64(key))
	case to.CanUint():
		to.SetUint(uint64(l.int64(key)))
	case to.CanFloat():
		to.SetFloat(l.float(key))
	case to.Kind() == reflect.String:
		to.SetString(l.string(key))
	default:
		to.SetBool(l.flag(key))
	}
}

func parse[T int | int32 | uint32 | int64 | float32 | float64](text string) T {
	value, err := strconv.ParseFloat(text, 64) // exact for whole numbers below 2^53
	if err != nil {
		panic(err)
	}
	return T(value)
}

// numbers are the elements of a list.
func numbers[T int32 | uint32 | float64](l *line, key string) []T {
	var all []T
	for _, text := range l.list(key, ",") {
		all = append(all, parse[T](text))
	}
	return all
}

func (l *line) checkUsed(t *testing.T) {
	t.Helper()
	for key := range l.values {
		if key != "name" && !l.used[key] {
			t.Errorf("%s is not given to the library: %s", key, l.text)
		}
	}
}

// buffer is memory that calls read or write.
type buffer struct {
	slice func(offset int) Memory // from so many bytes on
	bytes []byte
	kind  string
	seen  uint64
}

func bufferOf[T Number](kind string, n int) *buffer {
	size := int(unsafe.Sizeof(T(0)))
	room := make([]T, n+256/size)
	skip := int(-Slice(room).address&255) / size
	data := room[skip : skip+n]
	return &buffer{
		slice: func(offset int) Memory { return Slice(data[offset/size:]) },
		bytes: unsafe.Slice((*byte)(unsafe.Pointer(&room[skip])), n*size), kind: kind,
	}
}

func newBuffer(kind string, n int) *buffer {
	switch kind {
	case "u8":
		return bufferOf[uint8](kind, n)
	case "f16", "bf16":
		return bufferOf[uint16](kind, n)
	case "i32":
		return bufferOf[int32](kind, n)
	case "u32":
		return bufferOf[uint32](kind, n)
	case "u64":
		return bufferOf[uint64](kind, n)
	}
	return bufferOf[float32](kind, n)
}

func elements[T any](b *buffer) []T {
	var one T
	return unsafe.Slice((*T)(unsafe.Pointer(&b.bytes[0])), len(b.bytes)/int(unsafe.Sizeof(one)))
}

// draw fills a buffer from a counter.
func (b *buffer) draw(seed uint32) {
	size := map[string]int{"u8": 1, "f16": 2, "bf16": 2, "f32": 4}[b.kind]
	for i := 0; i < len(b.bytes)/size; i++ {
		x := seed*0x9e3779b9 + uint32(i)
		x ^= x >> 16
		x *= 0x7feb352d
		x ^= x >> 15
		x *= 0x846ca68b
		x ^= x >> 16
		real := float32(x>>8)/8388608 - 1
		switch b.kind {
		case "u8":
			b.bytes[i] = byte(x)
		case "f16":
			elements[uint16](b)[i] = uint16(0x3800 | x&0x83ff)
		case "bf16":
			elements[uint16](b)[i] = uint16(math.Float32bits(real) >> 16)
		default:
			elements[float32](b)[i] = real
		}
	}
}

func (b *buffer) hash() uint64 {
	hash := uint64(0xcbf29ce484222325)
	if b.kind == "u64" { // addresses
		return hash
	}
	for _, x := range b.bytes {
		hash = (hash ^ uint64(x)) * 0x100000001b3
	}
	return hash
}

// replay is the state of a script.
type replay struct {
	*testing.T
	structs map[string]*line
	buffers map[string]*buffer
	handles map[string]any
	lent    map[string]*View // of paged sequences
	line    *line            // of the call
}

func newReplay(t *testing.T) *replay {
	return &replay{
		t, map[string]*line{}, map[string]*buffer{}, map[string]any{}, map[string]*View{}, nil,
	}
}

func (r *replay) define(l *line) {
	name := l.string("name")
	if l.name != "buffer" {
		r.structs[name] = l
		return
	}
	values, addresses, n := l.list("values", ","), l.list("addresses", ","), l.int("length")
	b := newBuffer(l.string("type"), n+len(values)+len(addresses))
	if l.has("seed") {
		b.draw(uint32(l.int("seed")))
	}
	for i, value := range values {
		if b.kind == "f32" {
			elements[float32](b)[i] = parse[float32](value)
		} else {
			elements[int32](b)[i] = parse[int32](value)
		}
	}
	for i, of := range addresses {
		elements[uint64](b)[i] = r.memory(of).Address()
	}
	b.seen = b.hash()
	l.checkUsed(r.T)
	r.buffers[name] = b
}

// changed are the buffers that have changed since the last call, as a transcript has them.
func (r *replay) changed() string {
	text := ""
	for _, name := range sortedKeys(r.buffers) {
		b := r.buffers[name]
		hash := b.hash()
		if hash != b.seen {
			text += fmt.Sprintf(" @%s=%d", name, hash)
		}
		b.seen = hash
	}
	return text
}

func sortedKeys[T any](m map[string]T) []string {
	var keys []string
	for key := range m {
		keys = append(keys, key)
	}
	sort.Strings(keys)
	return keys
}

// escaped is text as a value of a transcript.
func escaped(text string) string {
	return strings.ReplaceAll(strings.ReplaceAll(text, "%", "%25"), " ", "%20")
}

// joined is values in a row: 1:2:3. Flags are 1 and 0.
func joined(values ...any) string {
	var texts []string
	for _, value := range values {
		v := reflect.ValueOf(value)
		switch v.Kind() {
		case reflect.Bool:
			texts = append(texts, fmt.Sprint(flag(v.Bool())))
		case reflect.Int32: // enums have texts of their own
			texts = append(texts, fmt.Sprint(v.Int()))
		default:
			texts = append(texts, fmt.Sprint(value))
		}
	}
	return strings.Join(texts, ":")
}

func listed[T any](values []T) string {
	var texts []string
	for _, value := range values {
		texts = append(texts, joined(value))
	}
	return strings.Join(texts, ",")
}

// expect compares what came out of a call with the transcript's line.
func (r *replay) expect(expected, out string, err error) {
	r.Helper()
	if expected[0] == '=' {
		if err != nil {
			r.Errorf("%s\n%v", r.line.text, err)
		} else if is := "=" + out + r.changed(); is != expected {
			r.Errorf("%s\nexpected %s\ngot      %s", r.line.text, expected, is)
		}
		return
	}
	failed := newLine(expected)
	code := Status(failed.int("status"))
	wanted := native.NewError(int32(code), failed.string("message"))
	var e *Error
	if !errors.As(err, &e) || !reflect.DeepEqual(wanted, error(e)) || err.Error() != wanted.Error() {
		r.Errorf("%s\nexpected %v\ngot      %v", r.line.text, wanted, err)
	}
	if changed := r.changed(); changed != "" {
		r.Errorf("%s\nfails, and changes%s", r.line.text, changed)
	}
}

// transcript are the lines of the file that ctest names.
func transcript(t *testing.T) []string {
	file, err := os.Open(os.Getenv("KVEVICT_TEST_TRANSCRIPT"))
	if err != nil {
		t.Skip("skipped: KVEVICT_TEST_TRANSCRIPT names no transcript: ", err)
	}
	defer file.Close()
	var lines []string
	in := bufio.NewScanner(file)
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		lines = append(lines, in.Text())
	}
	must(t, in.Err())
	return lines
}

func TestTranscript(t *testing.T) {
	made := 0
	var r *replay
	lines := transcript(t)
	for i := 0; i < len(lines); i++ {
		l := newLine(lines[i])
		if l.name == "script" {
			r.end()
			r = newReplay(t)
			continue
		}
		call, ok := calls[l.name]
		if !ok {
			r.define(l)
			continue
		}
		r.line = l
		out, err := call(r, l)
		i++
		r.expect(lines[i], out, err)
		l.checkUsed(t)
		made++
	}
	r.end()
	if made < 300 {
		t.Errorf("%d calls", made)
	}
}

// end checks that every argument of a script has been given to the library, and closes what is open.
func (r *replay) end() {
	if r == nil {
		return
	}
	for _, name := range sortedKeys(r.structs) {
		r.structs[name].checkUsed(r.T)
	}
	for _, handle := range r.handles {
		if open, ok := handle.(io.Closer); ok {
			must(r.T, open.Close())
		}
	}
}
