package kvevict

import (
	"fmt"
	"math"
	"reflect"
	"regexp"
	"strings"
	"unsafe"
)

// The structs that lines describe, as values of Go. A type has the kind of its lines; a scalar
// field has the key that replay_fields_test.go says, any other its own name in C's spelling.

var kinds = map[reflect.Type]string{
	typeOf[Attention]():            "attention_job",
	typeOf[Edit]():                 "edit",
	typeOf[EvictOptions]():         "evict_options",
	typeOf[ForkOptions]():          "fork_options",
	typeOf[Geometry]():             "geometry",
	typeOf[KeepLists]():            "keep_lists",
	typeOf[LayerGeometry]():        "layer_geometry",
	typeOf[LayerScores]():          "layer_scores",
	typeOf[MassOptions]():          "mass_options",
	typeOf[Move]():                 "move",
	typeOf[Observation]():          "observation",
	typeOf[PagedCacheOptions]():    "paged_cache_options",
	typeOf[PagedEviction]():        "paged_eviction",
	typeOf[PagedRows]():            "paged_rows",
	typeOf[PlanOptions]():          "plan_options",
	typeOf[Rotation]():             "rotation",
	typeOf[ScoreJob]():             "score_job",
	typeOf[SelectOptions]():        "select_options",
	typeOf[SequenceEviction]():     "sequence_eviction",
	typeOf[SequenceLength]():       "sequence_length",
	typeOf[SequenceObservations](): "sequence_observations",
	typeOf[SequenceTokens]():       "sequence_tokens",
	typeOf[SignalInputs]():         "signal_inputs",
	typeOf[TokenRange]():           "token_range",
}

func typeOf[T any]() reflect.Type { return reflect.TypeOf((*T)(nil)).Elem() }

func (r *replay) structOf(kind, name string) *line {
	l := r.structs[name]
	if l == nil || l.name != kind {
		r.Fatalf("%s: no %s %q", r.line.text, kind, name)
	}
	return l
}

// fieldKey is the key of a field that is no scalar.
func fieldKey(of reflect.Type, field string) string {
	switch {
	case field == "Protected" && of == typeOf[SelectOptions]():
		return "protected_slots"
	case field == "Protected":
		return "protected_positions"
	case field == "Each":
		return "layers"
	case field == "RoPEInvFreq":
		return "rope_inv_freq"
	}
	return strings.ToLower(regexp.MustCompile("([a-z])([A-Z])").ReplaceAllString(field, "${1}_$2"))
}

// value is what a key of a line says for a parameter or field of a type.
func (r *replay) value(l *line, key string, of reflect.Type) reflect.Value {
	to := reflect.New(of).Elem()
	switch name := l.string(key); {
	case of == typeOf[Memory]() && key == "workspace":
		to.Set(reflect.ValueOf(r.scratch(l.int(key))))
	case of == typeOf[Memory]():
		to.Set(reflect.ValueOf(r.memory(name)))
	case of == typeOf[[]float32]() && name != "":
		to.Set(reflect.ValueOf(elements[float32](r.buffers[name])))
	case of == typeOf[[]byte]():
		to.Set(reflect.ValueOf(r.buffers[name].bytes))
	case of == typeOf[[][]int32](): // positions of a layer's lists
		if name != "-" {
			for _, list := range r.structOf("position_lists", name).list("positions", "/") {
				to.Set(reflect.Append(to, reflect.ValueOf(numbers[int32](newLine("list of="+list), "of"))))
			}
		}
	case of.Kind() == reflect.Slice:
		for _, element := range l.list(key, ",") {
			one := newLine("list of=" + element)
			to.Set(reflect.Append(to, r.value(one, "of", of.Elem())))
		}
	case of == typeOf[Plane]():
		to.Set(reflect.ValueOf(r.plane(name)))
	case of == typeOf[*View]():
		to.Set(reflect.ValueOf(r.view(name)))
	case r.handles[name] != nil && reflect.TypeOf(r.handles[name]) == of:
		to.Set(reflect.ValueOf(r.handles[name]))
	case of.Kind() == reflect.Pointer:
		if name != "" {
			to.Set(reflect.New(of.Elem()))
			to.Elem().Set(r.value(l, key, of.Elem()))
		}
	case of.Kind() == reflect.Struct:
		if name != "" && name != "-" {
			r.fill(to.Addr(), r.structOf(kinds[of], name))
		}
	default:
		l.set(key, to.Addr().Interface())
	}
	return to
}

// fill sets the fields of a struct.
func (r *replay) fill(to reflect.Value, l *line) {
	if scalars, ok := to.Interface().(interface{ apply(*line) }); ok {
		scalars.apply(l)
	}
	of := to.Elem().Type()
	for i := 0; i < of.NumField(); i++ {
		key := fieldKey(of, of.Field(i).Name)
		switch of.Field(i).Type.Kind() {
		case reflect.Pointer, reflect.Slice, reflect.Struct:
			if l.has(key) {
				to.Elem().Field(i).Set(r.value(l, key, of.Field(i).Type))
			}
		}
	}
	if move, ok := to.Interface().(*Move); ok && l.string("destination") == l.string("view") {
		move.Destination = move.View // a view is itself alone
	}
}

// one is the struct that a key of a line names.
func one[T any](r *replay, l *line, key string) T {
	return r.value(l, key, typeOf[T]()).Interface().(T)
}

func (r *replay) memory(name string) Memory {
	if name == "" {
		return Memory{}
	}
	return r.buffers[name].slice(0)
}

// scratch is an aligned workspace, whose content nobody looks at.
func (r *replay) scratch(bytes int) Memory {
	if bytes == 0 {
		return Memory{}
	}
	return newBuffer("u8", bytes).slice(0)
}

func (r *replay) plane(name string) Plane {
	if name == "" {
		return Plane{}
	}
	l := r.structOf("plane", name)
	p := Plane{AddressTable: r.memory(l.string("address_table"))}
	p.apply(l)
	offset := l.int("offset")
	if data := l.string("data"); data != "" {
		p.Data, p.Before = r.buffers[data].slice(offset), uint64(offset)
	} else {
		p.InBlock = uint64(offset)
	}
	return p
}

func (r *replay) view(name string) *View {
	if v := r.lent[name]; v != nil || name == "-" || name == "" {
		return v
	}
	l := r.structOf("view", name)
	layout := Layout{
		K: r.plane(l.string("k")), V: r.plane(l.string("v")),
		Companions: one[[]Plane](r, l, "companions"), BlockTable: r.memory(l.string("block_table")),
	}
	layout.apply(l)
	v, err := NewView(layout)
	must(r.T, err)
	return v
}

// What comes out, as text.

func reportText(e EvictReport) string {
	return joined(
		e.Evicted, e.BytesBefore, e.BytesAfter, e.TokensBefore, e.TokensAfter, e.BlocksFreed, e.Reason, e.WeakFits)
}

func reportTexts(reports []EvictReport) string {
	var texts []string
	for _, report := range reports {
		texts = append(texts, reportText(report))
	}
	return listed(texts)
}

func bitsOf(value float32) string {
	if value != value {
		return "nan"
	}
	return fmt.Sprint(math.Float32bits(value))
}

func workspaceText(w Workspace, err error) (string, error) {
	return " workspace=" + joined(w.Alignment, w.Least, w.Best), err
}

func result(key string, value any, err error) (string, error) {
	return " " + key + "=" + escaped(joined(value)), err
}

// words are numbers at an address of this process.
func words(address uint64, n int) string {
	if address == 0 {
		return ""
	}
	return listed(unsafe.Slice(*(**uint32)(unsafe.Pointer(&address)), n))
}
