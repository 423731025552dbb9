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
	p := Plane{
		TokenStride:   l.int64("token_stride_bytes"),
		HeadStride:    l.int64("head_stride_bytes"),
		ElementStride: l.int64("element_stride_bytes"),
		BlockStride:   l.int64("block_stride_bytes"),
		DType:         DType(l.int("dtype")),
		HeadDim:       l.int("head_dim"),
		RowBytes:      l.int("row_bytes"),
		GroupElems:    l.int("group_elems"),
		GroupStride:   l.int64("group_stride_bytes"),
		AddressTable:  r.memory(l.string("address_table")),
		Role:          Role(l.int("role")),
		GroupTokens:   l.int("group_tokens"),
	}
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
		KVHeads:              l.int("n_kv_heads"),
		K:                    r.plane(l.string("k")),
		V:                    r.plane(l.string("v")),
		BlockSize:            l.int("block_size"),
		BlockTable:           r.memory(l.string("block_table")),
		BlockTableHeadStride: uint64(l.int("block_table_head_stride")),
		RingSlots:            l.int("ring_slots"),
		RingFirst:            l.int("ring_first"),
		SharedBlocks:         l.int("n_shared_blocks"),
		FirstRecent:          l.int("first_recent"),
	}
	for _, companion := range l.list("companions", ",") {
		layout.Companions = append(layout.Companions, r.plane(companion))
	}
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
	return SignalInputs{
		Queries:         r.planeOrNil(l.string("queries")),
		QueryRows:       l.int("n_query_rows"),
		RowLSE:          r.planeOrNil(l.string("row_lse")),
		Scores:          r.planeOrNil(l.string("scores")),
		AttentionSums:   r.planeOrNil(l.string("attention_sums")),
		SumHeads:        l.int("n_sum_heads"),
		QueryMean:       r.planeOrNil(l.string("query_mean")),
		QueryCovariance: r.planeOrNil(l.string("query_covariance")),
		KeyFilter:       r.planeOrNil(l.string("key_filter")),
		TokenWeights:    r.planeOrNil(l.string("token_weights")),
		QueryCenters:    r.planeOrNil(l.string("query_centers")),

		ReferenceQueries:   r.planeOrNil(l.string("reference_queries")),
		ReferenceRows:      l.int("n_reference_rows"),
		ReferencePositions: r.memory(l.string("reference_positions")),
	}
}

func (r *replay) geometry(name string) Geometry {
	l := r.structOf("geometry", name)
	g := Geometry{
		Layers: l.int("n_layers"), MaxTokens: l.int("max_tokens"), RoPELayout: RoPELayout(l.int("rope_layout")),
		Each: each(l, "layers", func(name string) LayerGeometry {
			e := r.structOf("layer_geometry", name)
			return LayerGeometry{
				Cache: LayerCache(e.int("cache")), QHeads: e.int("n_q_heads"), KVHeads: e.int("n_kv_heads"),
				KHeadDim: e.int("k_head_dim"), VHeadDim: e.int("v_head_dim"), QDType: DType(e.int("q_dtype")),
				KDType: DType(e.int("k_dtype")), VDType: DType(e.int("v_dtype")),
				SoftmaxScale: float32(e.float("softmax_scale")), LogitSoftcap: float32(e.float("logit_softcap")),
			}
		}),
	}
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
	return &PlanOptions{
		HeadBudgets: numbers[uint32](l, "head_budgets"), LayerBudgets: numbers[float64](l, "layer_budgets"),
		ReportMass: l.flag("report_mass"), HasDestinations: l.flag("has_destinations"),
		DraftTokens: l.int("draft_tokens"),
	}
}

func (r *replay) scoreJob(name string) ScoreJob {
	l := r.structOf("score_job", name)
	job := ScoreJob{
		Layer: l.int("layer"), Tokens: l.int("n_tokens"), Seen: l.int("n_seen"),
		TokenCounts: r.memory(l.string("token_counts")), Inputs: r.inputs(l.string("inputs")),
		Scores: r.memory(l.string("scores")),
	}
	if l.has("view") {
		job.View = r.view(l.string("view"))
	}
	return job
}

func (r *replay) keepLists(name string) KeepLists {
	if name == "" {
		return KeepLists{}
	}
	l := r.structOf("keep_lists", name)
	return KeepLists{
		Slots: r.memory(l.string("slots")), Lists: l.int("n_lists"), Count: l.int("count"),
		ListStride: uint64(l.int("list_stride")), Counts: r.memory(l.string("counts")),
	}
}

func (r *replay) tokenRange(name string) TokenRange {
	l := r.structOf("token_range", name)
	return TokenRange{First: l.int("first"), End: l.int("end"), Rank: int32(l.int("rank"))}
}

func (r *replay) edit(name string) Edit {
	l := r.structOf("edit", name)
	return Edit{
		Kind: EditKind(l.int("kind")), First: l.int("first"), End: l.int("end"), New: l.int("n_new"),
		To: l.int("to"), Positions: EditPositions(l.int("positions")),
	}
}

func (r *replay) selectOptions(name string) *SelectOptions {
	l := r.structOf("select_options", name)
	return &SelectOptions{
		Tokens: l.int("n_tokens"), TokenCounts: r.memory(l.string("token_counts")),
		Scores: r.memory(l.string("scores")), Rows: l.int("n_rows"), Reduce: Reduce(l.int("reduce")),
		Sink: l.int("n_sink"), Recent: l.int("n_recent"), Tie: Tie(l.int("tie")),
		SelectBlock: l.int("select_block"), Protected: numbers[int32](l, "protected_slots"),
		Ranges: each(l, "ranges", r.tokenRange),
	}
}

func (r *replay) move(name string) Move {
	l := r.structOf("move", name)
	m := Move{
		View: r.view(l.string("view")), Tokens: l.int("n_tokens"), TokenCounts: r.memory(l.string("token_counts")),
		Keep: r.keepLists(l.string("keep")), Merge: Merge(l.int("merge")),
		MergeThreshold: l.float("merge_threshold"), MergeFraction: l.float("merge_fraction"),
		FirstSlot: l.int("first_slot"),
	}
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
	return Rotation{
		Layer: l.int("layer"), Tokens: l.int("n_tokens"), View: r.view(l.string("view")),
		Offsets: r.memory(l.string("offsets")), Lists: l.int("n_lists"),
		TokenCounts: r.memory(l.string("token_counts")),
	}
}

func (r *replay) attention(name string) Attention {
	l := r.structOf("attention_job", name)
	return Attention{
		View: r.view(l.string("view")), Tokens: l.int("n_tokens"), TokenCounts: r.memory(l.string("token_counts")),
		QHeads: l.int("n_q_heads"), Rows: l.int("n_queries"), Queries: r.plane(l.string("queries")),
		Out: r.plane(l.string("out")), VHeadDim: l.int("v_head_dim"), Window: l.int("window"),
		NonCausal: l.flag("non_causal"), SoftmaxScale: float32(l.float("softmax_scale")),
		LogitSoftcap: float32(l.float("logit_softcap")), SinkLogits: r.memory(l.string("sink_logits")),
		RowLSE: r.planeOrNil(l.string("row_lse")), AttentionSums: r.planeOrNil(l.string("attention_sums")),
		SumHeads: l.int("n_sum_heads"),
	}
}

func (r *replay) layerScores(name string) LayerScores {
	l := r.structOf("layer_scores", name)
	return LayerScores{
		Rows: l.int("n_rows"), Tokens: l.int("n_tokens"), Scores: elements[float32](r.buffers[l.string("scores")]),
	}
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
	return &EvictOptions{
		Protected: numbers[int32](l, "protected_positions"), Inputs: each(l, "inputs", r.inputs),
		Undo: r.memory(l.string("undo")), Ranges: each(l, "ranges", r.tokenRange), ByTable: l.flag("by_table"),
		Destinations: each(l, "destinations", r.view),
	}
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
	return PagedCacheOptions{
		Blocks: l.int("n_blocks"), BlockSize: l.int("block_size"), Layout: BlockLayout(l.int("layout")),
		Memory: r.memory(l.string("memory")), NumberDType: DType(l.int("number_dtype")),
		GroupTokens: l.int("group_tokens"), RecentTokens: l.int("recent_tokens"),
		RecentDType: DType(l.int("recent_dtype")),
	}
}

func (r *replay) pagedRows(name string) PagedRows {
	l := r.structOf("paged_rows", name)
	return PagedRows{
		l.int("layer"), l.int("first_slot"), l.int("n_tokens"), r.plane(l.string("k")), r.plane(l.string("v")),
	}
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
