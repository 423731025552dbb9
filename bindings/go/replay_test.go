package kvevict

import (
	"fmt"
	"math"
	"unsafe"
)

// The structs that lines describe, as values of Go.

func (r *replay) structOf(kind, name string) *line {
	l := r.structs[name]
	if l == nil || l.name != kind {
		r.Fatalf("%s: no %s %q", r.line.text, kind, name)
	}
	return l
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

func (r *replay) planeOrNil(name string) *Plane {
	if name == "" {
		return nil
	}
	p := r.plane(name)
	return &p
}

func (r *replay) view(name string) *View {
	if v := r.lent[name]; v != nil || name == "-" {
		return v
	}
	l := r.structOf("view", name)
	layout := Layout{
		K: r.plane(l.string("k")), V: r.plane(l.string("v")),
		Companions: each(l, "companions", r.plane), BlockTable: r.memory(l.string("block_table")),
	}
	layout.apply(l)
	v, err := NewView(layout)
	must(r.T, err)
	return v
}

// each makes a value of each name of a list.
func each[T any](l *line, key string, of func(string) T) []T {
	var all []T
	for _, name := range l.list(key, ",") {
		all = append(all, of(name))
	}
	return all
}

func (r *replay) inputs(name string) SignalInputs {
	if name == "" || name == "-" {
		return SignalInputs{}
	}
	l := r.structOf("signal_inputs", name)
	in := SignalInputs{
		Queries:         r.planeOrNil(l.string("queries")),
		RowLSE:          r.planeOrNil(l.string("row_lse")),
		Scores:          r.planeOrNil(l.string("scores")),
		AttentionSums:   r.planeOrNil(l.string("attention_sums")),
		QueryMean:       r.planeOrNil(l.string("query_mean")),
		QueryCovariance: r.planeOrNil(l.string("query_covariance")),
		KeyFilter:       r.planeOrNil(l.string("key_filter")),
		TokenWeights:    r.planeOrNil(l.string("token_weights")),
		QueryCenters:    r.planeOrNil(l.string("query_centers")),

		ReferenceQueries:   r.planeOrNil(l.string("reference_queries")),
		ReferencePositions: r.memory(l.string("reference_positions")),
	}
	in.apply(l)
	return in
}

func (r *replay) geometry(name string) Geometry {
	l := r.structOf("geometry", name)
	g := Geometry{Each: each(l, "layers", func(name string) (layer LayerGeometry) {
		layer.apply(r.structOf("layer_geometry", name))
		return layer
	})}
	g.apply(l)
	if rope := l.string("rope_inv_freq"); rope != "" {
		g.RoPEInvFreq = elements[float32](r.buffers[rope])
	}
	if sinks := l.string("sink_logits"); sinks != "" {
		g.SinkLogits = elements[float32](r.buffers[sinks])
	}
	return g
}

func (r *replay) planOptions(name string) *PlanOptions {
	if name == "" {
		return nil
	}
	l := r.structOf("plan_options", name)
	o := &PlanOptions{
		HeadBudgets: numbers[uint32](l, "head_budgets"), LayerBudgets: numbers[float64](l, "layer_budgets"),
	}
	o.apply(l)
	return o
}

func (r *replay) scoreJob(name string) ScoreJob {
	l := r.structOf("score_job", name)
	job := ScoreJob{
		TokenCounts: r.memory(l.string("token_counts")), Inputs: r.inputs(l.string("inputs")),
		Scores: r.memory(l.string("scores")),
	}
	job.apply(l)
	if l.has("view") {
		job.View = r.view(l.string("view"))
	}
	return job
}

func (r *replay) keepLists(name string) (lists KeepLists) {
	if name == "" {
		return lists
	}
	l := r.structOf("keep_lists", name)
	lists.apply(l)
	lists.Slots, lists.Counts = r.memory(l.string("slots")), r.memory(l.string("counts"))
	return lists
}

func (r *replay) tokenRange(name string) (tokens TokenRange) {
	tokens.apply(r.structOf("token_range", name))
	return tokens
}

func (r *replay) edit(name string) (e Edit) {
	e.apply(r.structOf("edit", name))
	return e
}

func (r *replay) selectOptions(name string) *SelectOptions {
	l := r.structOf("select_options", name)
	o := &SelectOptions{
		TokenCounts: r.memory(l.string("token_counts")), Scores: r.memory(l.string("scores")),
		Protected: numbers[int32](l, "protected_slots"), Ranges: each(l, "ranges", r.tokenRange),
	}
	o.apply(l)
	return o
}

func (r *replay) move(name string) Move {
	l := r.structOf("move", name)
	m := Move{
		View: r.view(l.string("view")), TokenCounts: r.memory(l.string("token_counts")),
		Keep: r.keepLists(l.string("keep")),
	}
	m.apply(l)
	if to := l.string("destination"); to != "" {
		m.Destination = m.View // a view is itself alone
		if to != l.string("view") {
			m.Destination = r.view(to)
		}
	}
	return m
}

func (r *replay) rotation(name string) Rotation {
	l := r.structOf("rotation", name)
	job := Rotation{
		View: r.view(l.string("view")), Offsets: r.memory(l.string("offsets")),
		TokenCounts: r.memory(l.string("token_counts")),
	}
	job.apply(l)
	return job
}

func (r *replay) attention(name string) Attention {
	l := r.structOf("attention_job", name)
	job := Attention{
		View: r.view(l.string("view")), TokenCounts: r.memory(l.string("token_counts")),
		Queries: r.plane(l.string("queries")), Out: r.plane(l.string("out")),
		SinkLogits: r.memory(l.string("sink_logits")), RowLSE: r.planeOrNil(l.string("row_lse")),
		AttentionSums: r.planeOrNil(l.string("attention_sums")),
	}
	job.apply(l)
	return job
}

func (r *replay) layerScores(name string) LayerScores {
	l := r.structOf("layer_scores", name)
	scores := LayerScores{Scores: elements[float32](r.buffers[l.string("scores")])}
	scores.apply(l)
	return scores
}

func (r *replay) observation(name string) Observation {
	l := r.structOf("observation", name)
	return Observation{l.int("layer"), r.inputs(l.string("inputs"))}
}

func (r *replay) evictOptions(name string) *EvictOptions {
	if name == "" {
		return nil
	}
	l := r.structOf("evict_options", name)
	o := &EvictOptions{
		Protected: numbers[int32](l, "protected_positions"), Inputs: each(l, "inputs", r.inputs),
		Undo: r.memory(l.string("undo")), Ranges: each(l, "ranges", r.tokenRange),
		Destinations: each(l, "destinations", r.view),
	}
	o.apply(l)
	return o
}

func (r *replay) positionLists(name string) [][]int32 {
	if name == "-" {
		return nil
	}
	var lists [][]int32
	for _, list := range r.structOf("position_lists", name).list("positions", "/") {
		lists = append(lists, numbers[int32](newLine("list of="+list), "of"))
	}
	return lists
}

func (r *replay) forkOptions(name string) *ForkOptions {
	if name == "" {
		return nil
	}
	l := r.structOf("fork_options", name)
	return &ForkOptions{Plan: r.plans[l.string("plan")], Memory: r.memory(l.string("memory"))}
}

func (r *replay) pagedCacheOptions(name string) PagedCacheOptions {
	l := r.structOf("paged_cache_options", name)
	o := PagedCacheOptions{Memory: r.memory(l.string("memory"))}
	o.apply(l)
	return o
}

func (r *replay) pagedRows(name string) PagedRows {
	l := r.structOf("paged_rows", name)
	rows := PagedRows{K: r.plane(l.string("k")), V: r.plane(l.string("v"))}
	rows.apply(l)
	return rows
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
