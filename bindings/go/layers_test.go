package kvevict

import "testing"

// unlike has two layers with caches that differ, and between them one with a window and one without a
// cache.
var unlike = Geometry{Layers: 4, MaxTokens: full, Each: []LayerGeometry{
	smallLayer,
	{Cache: LayerCacheWindow, QHeads: 3, KVHeads: 7},
	{Cache: LayerCacheNone},
	{QHeads: 2, KVHeads: 1, KHeadDim: 4, QDType: DTypeF32, KDType: DTypeF32, VDType: DTypeF32},
}}

func unlikePlan(t *testing.T, text string, headBudgets ...uint32) *Plan {
	t.Helper()
	policy, err := ParsePolicy(text)
	must(t, err)
	return planOf(t, newContext(t, nil), policy, unlike, headBudgets...)
}

// narrow is the plane of the last layer, whose rows have 4 elements.
func narrow(data []float32, heads int) *Plane {
	return &Plane{
		Data: Slice(data), DType: DTypeF32, HeadDim: 4, TokenStride: int64(heads) * 16, HeadStride: 16,
	}
}

// unlikeViews have room for all tokens; nothing stands for layers without a full cache.
func unlikeViews(t *testing.T) (views []*View, keys [2][]float32) {
	t.Helper()
	keys = [2][]float32{random(full*row, 1), random(full*4, 2)}
	last, err := NewView(Layout{KVHeads: 1, K: *narrow(keys[1], 1)})
	must(t, err)
	return []*View{newView(t, keys[0], random(full*row, 3)), nil, nil, last}, keys
}

// Logit caps and sinks of the geometry reach the plan.
func TestCapsAndSinksAreOfTheGeometry(t *testing.T) {
	policy, err := ParsePolicy("snapkv:budget=16,window=4")
	must(t, err)
	context := newContext(t, nil)
	layer := smallLayer
	layer.LogitSoftcap = 30
	geometry := Geometry{Layers: 1, MaxTokens: full, Each: []LayerGeometry{layer}}
	geometry.SinkLogits = make([]float32, layer.QHeads)
	planOf(t, context, policy, geometry)
	geometry.SinkLogits = geometry.SinkLogits[1:]
	_, err = context.NewPlan(geometry, policy, nil)
	fails(t, err, StatusInvalidArgument, "sink_logits_len")
	geometry.SinkLogits = nil
	geometry.Each[0].LogitSoftcap = -1
	_, err = context.NewPlan(geometry, policy, nil)
	fails(t, err, StatusInvalidArgument, "logit_softcap -1")
}

func TestLayersThatDifferAreTold(t *testing.T) {
	plan := unlikePlan(t, "snapkv:budget=16,window=4")
	var layers []LayerInfo
	for layer := 0; layer < unlike.Layers; layer++ {
		info, err := plan.Layer(layer)
		must(t, err)
		if info.Cache != LayerCacheFull {
			same(t, [2]int{0, 0}, [2]int{info.KVHeads, info.Lists})
			info = LayerInfo{Cache: info.Cache}
		}
		layers = append(layers, info)
	}
	same(t, []LayerInfo{
		{LayerCacheFull, qHeads, kvHeads, kvHeads, 0},
		{Cache: LayerCacheWindow},
		{Cache: LayerCacheNone},
		{LayerCacheFull, 2, 1, 1, kvHeads},
	}, layers)
	_, err := plan.Layer(4)
	fails(t, err, StatusInvalidArgument, "layer 4")
	_, err = plan.Layer(-1)
	fails(t, err, StatusInvalidArgument, "layer -1")
	budgets, err := plan.LayerBudgets(full)
	must(t, err)
	same(t, []uint32{16, 0, 0, 16}, budgets)
	can, err := plan.Capabilities(1)
	must(t, err)
	same(t, ReasonNoFullCache, can.MoveReason)

	wrong := unlike
	wrong.Each = wrong.Each[:2]
	policy, err := NewPolicy("snapkv")
	must(t, err)
	_, err = newContext(t, nil).NewPlan(wrong, policy, nil)
	fails(t, err, StatusInvalidArgument, "layers_len 2")
}

// Scores have each layer's own shape, and the lists of layers with a full cache lie end to end.
func TestLayersThatDifferAreEvictedByTheirScores(t *testing.T) {
	plan := unlikePlan(t, "custom:sink=0,budget=3")
	sequence := newSequence(t, plan)
	views, keys := unlikeViews(t)
	before := [2][]float32{append([]float32(nil), keys[0]...), append([]float32(nil), keys[1]...)}
	const n = 10
	must(t, sequence.Append(n, 0))
	rank := func(heads int, best ...int) *Plane {
		plane := scores(make([]float32, kvHeads*n))
		data := make([]float32, heads*n)
		for i, slot := range best {
			data[i/3*n+slot] = 1
		}
		plane.Data = Slice(data)
		return plane
	}
	inputs := []SignalInputs{
		{Scores: rank(kvHeads, 1, 4, 9, 0, 2, 8)}, {Scores: &Plane{}}, {}, {Scores: rank(1, 5, 6, 7)},
	}
	kept := [][]int32{{1, 4, 9}, {0, 2, 8}, {5, 6, 7}}
	scratch := newMemory(t)(plan.Workspace(OperationEvict, n))
	report, err := sequence.Evict(views, &EvictOptions{Inputs: inputs}, scratch, 0)
	must(t, err)
	same(t, [2]uint64{2 * n, 2 * 3}, [2]uint64{report.TokensBefore, report.TokensAfter})
	for i, positions := range kept {
		layer, head := i/kvHeads*3, i%kvHeads
		is, err := sequence.KeepPositions(layer, head)
		must(t, err)
		same(t, positions, is)
		for slot, position := range positions {
			if layer == 0 {
				to, from := (slot*kvHeads+head)*headDim, (int(position)*kvHeads+head)*headDim
				same(t, before[0][from:from+headDim], keys[0][to:to+headDim])
			} else {
				same(t, before[1][position*4:position*4+4], keys[1][slot*4:slot*4+4])
			}
		}
	}
	lists, err := sequence.ListReports()
	must(t, err)
	same(t, [][3]int{{0, n, 3}, {0, n, 3}, {3, n, 3}}, tokensOf(lists))
	for _, layer := range []int{1, 2} {
		memory, err := sequence.MemoryOf(layer)
		must(t, err)
		same(t, [2]uint64{0, 0}, [2]uint64{memory.Lengths, uint64(memory.Lists)})
	}
	inputs[3].Scores = rank(1)
	inputs[3].Scores.Data = Slice(make([]float32, 2))
	_, err = sequence.Evict(views, &EvictOptions{Inputs: inputs}, scratch, 0)
	fails(t, err, StatusInvalidArgument, "layers[3]", "Scores holds 2 rows of 1 heads, not 3")
	views[3] = nil
	_, err = sequence.Evict(views, nil, scratch, 0)
	fails(t, err, StatusInvalidArgument, "layers[3]", "view is nil")
}

// Queries have each layer's own shape. Those of layers without a full cache are not read.
func TestLayersThatDifferAreObserved(t *testing.T) {
	plan := unlikePlan(t, "snapkv:budget=16,window=4,pool=none")
	views, _ := unlikeViews(t)
	wide, small := random(full*qHeads*headDim, 3), random(full*2*4, 4)
	queries := func(from int) []Observation {
		first := rows(wide[from*qHeads*headDim:], qHeads)
		return []Observation{
			{0, SignalInputs{Queries: &first}},
			{1, SignalInputs{Queries: &Plane{}}},
			{3, SignalInputs{Queries: narrow(small[from*2*4:], 2)}},
		}
	}
	scratch := newMemory(t)(plan.Workspace(OperationEvict, 0))
	var kept [2][2][]int32
	for way := range kept {
		sequence := newSequence(t, plan)
		must(t, sequence.Append(full, 0))
		var options *EvictOptions
		if way == 0 {
			must(t, sequence.Observe(queries(0), full, 0, 0))
			short := queries(0)
			short[2].Inputs.Queries.Data = Slice(small[:2*4])
			fails(t, sequence.Observe(short, 4, 0, 0), StatusInvalidArgument,
				"observations[2]", "Queries holds 1 rows of 2 heads, not 4")
		} else {
			window := queries(full - 4)
			options = &EvictOptions{Inputs: []SignalInputs{
				window[0].Inputs, window[1].Inputs, {}, window[2].Inputs,
			}}
		}
		_, err := sequence.Evict(views, options, scratch, 0)
		must(t, err)
		for i := range kept[way] {
			kept[way][i], err = sequence.KeepPositions(3*i, 0)
			must(t, err)
			same(t, 16, len(kept[way][i]))
		}
		views, _ = unlikeViews(t) // undoes the change
	}
	same(t, kept[0], kept[1])
}

// Every job has its layer's shape, and one more layer than has a cache is an error.
func TestLayersThatDifferAreScored(t *testing.T) {
	plan := unlikePlan(t, "custom:sink=0,budget=3,pool=max3")
	ranks := []float32{0, 0, 5, 0, 0, 0, 0, 0, 0, 0}
	both := append(append([]float32(nil), ranks...), 7, 0, 0, 0, 0, 0, 0, 0, 0, 0)
	wide, one := make([]float32, 2*10), make([]float32, 10)
	scratch := newMemory(t)(plan.Workspace(OperationScore, 0))
	ofOne := scores(make([]float32, 2*10))
	ofOne.Data = Slice(ranks)
	jobs := []ScoreJob{
		{Layer: 0, Tokens: 10, Inputs: SignalInputs{Scores: scores(both)}, Scores: Slice(wide)},
		{Layer: 3, Tokens: 10, Inputs: SignalInputs{Scores: ofOne}, Scores: Slice(one)},
	}
	must(t, plan.Score(jobs, scratch, 0))
	same(t, []float32{0, 5, 5, 5, 0, 0, 0, 0, 0, 0, 7, 7, 0, 0, 0, 0, 0, 0, 0, 0}, wide)
	same(t, wide[:10], one)
	jobs[1].Layer = 1
	fails(t, plan.Score(jobs, scratch, 0), StatusInvalidArgument, "layer 1")
}

func TestHeadBudgetsOfLayersThatDiffer(t *testing.T) {
	plan := unlikePlan(t, "random:sink=0,budget=8", 3, 5, 7)
	sequence := newSequence(t, plan)
	views, _ := unlikeViews(t)
	must(t, sequence.Append(20, 0))
	_, err := sequence.Evict(views, nil, newMemory(t)(plan.Workspace(OperationEvict, 0)), 0)
	must(t, err)
	lists, err := sequence.ListReports()
	must(t, err)
	same(t, [][3]int{{0, 20, 3}, {0, 20, 5}, {3, 20, 7}}, tokensOf(lists))
}
