// Code generated from the headers by bindings/go/generate.sh. DO NOT EDIT.

package kvevict

func (o *Attention) apply(l *line) {
	l.set("n_tokens", &o.Tokens)
	l.set("n_q_heads", &o.QHeads)
	l.set("n_queries", &o.Rows)
	l.set("v_head_dim", &o.VHeadDim)
	l.set("window", &o.Window)
	l.set("non_causal", &o.NonCausal)
	l.set("softmax_scale", &o.SoftmaxScale)
	l.set("logit_softcap", &o.LogitSoftcap)
	l.set("n_sum_heads", &o.SumHeads)
}

func (o *SequenceTokens) apply(l *line) {
	l.set("n_tokens", &o.Tokens)
}

func (o *SequenceLength) apply(l *line) {
	l.set("new_length", &o.NewLength)
}

func (o *SequenceObservations) apply(l *line) {
	l.set("n_rows", &o.Rows)
	l.set("first_position", &o.FirstPosition)
}

func (o *Rotation) apply(l *line) {
	l.set("layer", &o.Layer)
	l.set("n_tokens", &o.Tokens)
	l.set("n_lists", &o.Lists)
}

func (o *Edit) apply(l *line) {
	l.set("kind", &o.Kind)
	l.set("first", &o.First)
	l.set("end", &o.End)
	l.set("n_new", &o.New)
	l.set("to", &o.To)
	l.set("positions", &o.Positions)
}

func (o *LayerScores) apply(l *line) {
	l.set("n_rows", &o.Rows)
	l.set("n_tokens", &o.Tokens)
}

func (o *MassOptions) apply(l *line) {
	l.set("scope", &o.Scope)
	l.set("mass", &o.Mass)
	l.set("n_sink", &o.Sink)
	l.set("n_recent", &o.Recent)
	l.set("every_row", &o.EveryRow)
}

func (o *ContextOptions) apply(l *line) {
	l.set("device", &o.Device)
	l.set("log_level", &o.LogLevel)
	l.set("select_on_host", &o.SelectOnHost)
	l.set("debug", &o.Debug)
}

func (o *Plane) apply(l *line) {
	l.set("token_stride_bytes", &o.TokenStride)
	l.set("head_stride_bytes", &o.HeadStride)
	l.set("element_stride_bytes", &o.ElementStride)
	l.set("block_stride_bytes", &o.BlockStride)
	l.set("dtype", &o.DType)
	l.set("head_dim", &o.HeadDim)
	l.set("row_bytes", &o.RowBytes)
	l.set("role", &o.Role)
	l.set("group_stride_bytes", &o.GroupStride)
	l.set("group_elems", &o.GroupElems)
	l.set("group_tokens", &o.GroupTokens)
}

func (o *Layout) apply(l *line) {
	l.set("n_kv_heads", &o.KVHeads)
	l.set("block_size", &o.BlockSize)
	l.set("block_table_head_stride", &o.BlockTableHeadStride)
	l.set("ring_slots", &o.RingSlots)
	l.set("ring_first", &o.RingFirst)
	l.set("n_shared_blocks", &o.SharedBlocks)
	l.set("first_recent", &o.FirstRecent)
}

func (o *LayerGeometry) apply(l *line) {
	l.set("cache", &o.Cache)
	l.set("n_q_heads", &o.QHeads)
	l.set("n_kv_heads", &o.KVHeads)
	l.set("k_head_dim", &o.KHeadDim)
	l.set("v_head_dim", &o.VHeadDim)
	l.set("q_dtype", &o.QDType)
	l.set("k_dtype", &o.KDType)
	l.set("v_dtype", &o.VDType)
	l.set("softmax_scale", &o.SoftmaxScale)
	l.set("logit_softcap", &o.LogitSoftcap)
}

func (o *Geometry) apply(l *line) {
	l.set("n_layers", &o.Layers)
	l.set("max_tokens", &o.MaxTokens)
	l.set("rope_layout", &o.RoPELayout)
}

func (o *PlanOptions) apply(l *line) {
	l.set("draft_tokens", &o.DraftTokens)
	l.set("report_mass", &o.ReportMass)
	l.set("has_destinations", &o.HasDestinations)
}

func (o *SignalInputs) apply(l *line) {
	l.set("n_sum_heads", &o.SumHeads)
	l.set("n_query_rows", &o.QueryRows)
	l.set("n_reference_rows", &o.ReferenceRows)
}

func (o *ScoreJob) apply(l *line) {
	l.set("layer", &o.Layer)
	l.set("n_tokens", &o.Tokens)
	l.set("n_seen", &o.Seen)
}

func (o *KeepLists) apply(l *line) {
	l.set("n_lists", &o.Lists)
	l.set("list_stride", &o.ListStride)
	l.set("count", &o.Count)
}

func (o *TokenRange) apply(l *line) {
	l.set("rank", &o.Rank)
	l.set("first", &o.First)
	l.set("end", &o.End)
}

func (o *SelectOptions) apply(l *line) {
	l.set("n_tokens", &o.Tokens)
	l.set("n_rows", &o.Rows)
	l.set("reduce", &o.Reduce)
	l.set("n_sink", &o.Sink)
	l.set("n_recent", &o.Recent)
	l.set("tie", &o.Tie)
	l.set("select_block", &o.SelectBlock)
}

func (o *Move) apply(l *line) {
	l.set("n_tokens", &o.Tokens)
	l.set("merge", &o.Merge)
	l.set("first_slot", &o.FirstSlot)
	l.set("merge_threshold", &o.MergeThreshold)
	l.set("merge_fraction", &o.MergeFraction)
}

func (o *Observation) apply(l *line) {
	l.set("layer", &o.Layer)
}

func (o *EvictOptions) apply(l *line) {
	l.set("by_table", &o.ByTable)
}

func (o *PagedCacheOptions) apply(l *line) {
	l.set("n_blocks", &o.Blocks)
	l.set("block_size", &o.BlockSize)
	l.set("layout", &o.Layout)
	l.set("number_dtype", &o.NumberDType)
	l.set("group_tokens", &o.GroupTokens)
	l.set("recent_tokens", &o.RecentTokens)
	l.set("recent_dtype", &o.RecentDType)
}

func (o *PagedRows) apply(l *line) {
	l.set("layer", &o.Layer)
	l.set("first_slot", &o.FirstSlot)
	l.set("n_tokens", &o.Tokens)
}

func (o *Prefill) apply(l *line) {
	l.set("n_tokens", &o.Tokens)
	l.set("chunk", &o.Chunk)
	l.set("evict_each_chunk", &o.EvictEachChunk)
}
