package kvevict

import (
	"math"
	"reflect"
	"testing"
	"unsafe"

	"kvevict.dev/kvevict/bindings/go/internal/native"
)

const full = 64

func TestKeepsSinksAndRecents(t *testing.T) {
	k := random(full*row, 1)
	before := append([]float32(nil), k...)
	plan := newPlan(t, newContext(t, nil), 1, full, "streaming-llm:budget=8,sink=2")
	sequence := newSequence(t, plan)
	view := newView(t, k, random(full*row, 2))
	must(t, sequence.Append(full, 0))
	report, err := sequence.Evict([]*View{view}, nil, newMemory(t)(plan.Workspace(OperationEvict, 0)), 0)
	must(t, err)
	bytes := uint64(2 * row * 4)
	same(t, EvictReport{true, full * bytes, 8 * bytes, full, 8, 0, ReasonNone}, report)
	again, err := sequence.Report()
	must(t, err)
	same(t, report, again)
	lists, err := sequence.ListReports()
	must(t, err)
	same(t, [][3]int{{0, full, 8}}, tokensOf(lists))
	kept := []int32{0, 1, 58, 59, 60, 61, 62, 63}
	positions, err := sequence.KeepPositions(0, 0)
	must(t, err)
	same(t, kept, positions)
	for slot, position := range kept {
		same(t, before[position*row+5], k[slot*row+5])
	}
	is := func(expected int) func(int, error) {
		return func(n int, err error) { t.Helper(); must(t, err); same(t, expected, n) }
	}
	is(8)(sequence.StoredLength(0, 0))
	same(t, full, sequence.LogicalLength())
	is(58)(sequence.PositionOfSlot(0, 1, 2))
	is(2)(sequence.SlotOfPosition(0, 1, 58))
	is(-1)(sequence.SlotOfPosition(0, 1, 57))
	memory, err := sequence.MemoryOf(0)
	must(t, err)
	if memory.Lengths == 0 || memory.Lists < 1 {
		t.Error(memory)
	}
	must(t, sequence.Reset(0))
	same(t, 0, sequence.LogicalLength())
	report, err = sequence.Report()
	must(t, err)
	same(t, EvictReport{}, report)
}

// A view without V, where the geometry has V, is refused, and nothing moves.
func TestMissingValuesAreRefused(t *testing.T) {
	k, v, alone := random(full*row, 1), random(full*row, 2), random(full*row, 3)
	var before [3][]float32
	for i, data := range [][]float32{k, v, alone} {
		before[i] = append([]float32(nil), data...)
	}
	plan := newPlan(t, newContext(t, nil), 2, full, "streaming-llm:budget=8,sink=2")
	sequence := newSequence(t, plan)
	keysAlone, err := NewView(Layout{KVHeads: kvHeads, K: rows(alone, kvHeads)})
	must(t, err)
	t.Cleanup(func() { _ = keysAlone.Close() })
	must(t, sequence.Append(full, 0))
	_, err = sequence.Evict([]*View{newView(t, k, v), keysAlone}, nil,
		newMemory(t)(plan.Workspace(OperationEvict, 0)), 0)
	fails(t, err, StatusInvalidArgument, "views[1]: v.data is 0")
	for layer := 0; layer < 2; layer++ {
		stored, err := sequence.StoredLength(layer, 0)
		must(t, err)
		same(t, full, stored)
	}
	same(t, before, [3][]float32{k, v, alone})
}

// The length that is remembered in Go is the library's after every call.
func TestLogicalLengthIsTheLibrarys(t *testing.T) {
	plan := newPlan(t, newContext(t, nil), 1, full, "snapkv:budget=16,window=4,pool=none")
	sequence := newSequence(t, plan)
	view := newView(t, random(full*row, 1), random(full*row, 2))
	scratch := newMemory(t)(plan.Workspace(OperationEvict, 0))
	q := rows(random(full*qHeads*headDim, 3), qHeads)
	ignored := func(error) {} // a failed call may not change the length either
	for i, step := range []struct {
		expected int
		call     func()
	}{
		{0, func() {}},
		{40, func() { must(t, sequence.Append(40, 0)) }},
		{40, func() { ignored(sequence.Append(full, 0)) }},
		{40, func() { must(t, sequence.Observe(shown(0, &q), 40, 0, 0)) }},
		{40, func() { _, err := sequence.Evict([]*View{view}, nil, scratch, 0); must(t, err) }},
		{45, func() { must(t, sequence.Append(5, 0)) }},
		{42, func() { must(t, sequence.TrimTo(42, 0)) }},
		{42, func() { ignored(sequence.TrimTo(39, 0)) }},
		{42, func() { must(t, sequence.Observe(shown(0, &q), 10, 30, 0)) }},
		{0, func() { must(t, sequence.Reset(0)) }},
		{7, func() { must(t, sequence.Append(7, 0)) }},
	} {
		step.call()
		pointer, err := sequence.enterAlone()
		must(t, err)
		must(t, native.Kvevict_sequence_logical_length(pointer, &sequence.args.n))
		sequence.leave()
		if n := sequence.LogicalLength(); n != step.expected || n != int(sequence.args.n) {
			t.Errorf("step %d: %d, the library says %d, expected %d", i, n, sequence.args.n,
				step.expected)
		}
	}
}

// A sequence goes on in a fork, in what was saved, and in one that starts from its positions.
func TestStartsForksSavesAndLoads(t *testing.T) {
	plan := newPlan(t, newContext(t, nil), 1, full, "snapkv:budget=16,window=4,sink=4,scope=head")
	sequence := newSequence(t, plan)
	q := rows(random(full*qHeads*headDim, 3), qHeads)
	view := newView(t, random(full*row, 1), random(full*row, 2))
	scratch := newMemory(t)(plan.Workspace(OperationEvict, 0))
	must(t, sequence.Observe(shown(0, &q), full, 0, 0))
	must(t, sequence.Append(full, 0))
	observing, err := sequence.Fork(nil, 0)
	must(t, err)
	other := newView(t, random(full*row, 1), random(full*row, 2))
	for i, s := range []*Sequence{sequence, observing} {
		_, err := s.Evict([]*View{[]*View{view, other}[i]}, nil, scratch, 0)
		must(t, err)
	}
	must(t, observing.Close())
	prefix, err := sequence.ExactPrefix()
	must(t, err)
	if prefix < 4 || prefix > 16 {
		t.Error(prefix)
	}
	must(t, sequence.Append(5, 0))
	var lists [][]int32
	for head := 0; head < kvHeads; head++ {
		list, err := sequence.KeepPositions(0, head)
		must(t, err)
		lists = append(lists, list)
	}
	fork, err := sequence.Fork(nil, 0)
	must(t, err)
	saved, err := sequence.Save()
	must(t, err)
	loaded, started := newSequence(t, plan), newSequence(t, plan)
	must(t, loaded.Load(saved, 0))
	must(t, started.Start([][][]int32{lists}, full+5, 0))
	for _, copied := range []*Sequence{fork, loaded, started} {
		same(t, full+5, copied.LogicalLength())
		for head := range lists {
			list, err := copied.KeepPositions(0, head)
			must(t, err)
			same(t, lists[head], list)
		}
		must(t, copied.TrimTo(full, 0))
		fails(t, copied.TrimTo(prefix+1, 0), StatusInvalidArgument, "up to")
		must(t, copied.TrimTo(prefix, 0))
		same(t, prefix, copied.LogicalLength())
	}
	must(t, fork.Close())
	saved[40] ^= 1
	fails(t, loaded.Load(saved, 0), StatusInvalidArgument, "CRC-32")
	fails(t, loaded.Load(nil, 0), StatusInvalidArgument, "data_len 0")
	fails(t, started.Start(nil, 9, 0), StatusInvalidArgument, "reset")
	must(t, started.Reset(0))
	fails(t, started.Start([][][]int32{nil}, 9, 0), StatusInvalidArgument, "n_lists 0")
	must(t, started.Start(nil, 9, 0))
	same(t, 9, started.LogicalLength())
}

// The same tokens stay for chunks with a rollback as for one call.
func TestObservesInAnyChunksAndRollsBack(t *testing.T) {
	plan := newPlan(t, newContext(t, nil), 2, full, "snapkv:budget=16,window=4,pool=none")
	q := random(full*qHeads*headDim, 3)
	from := func(position int) *Plane {
		plane := rows(q[position*qHeads*headDim:], qHeads)
		return &plane
	}
	both := func(first, second *Plane) []Observation {
		return append(shown(0, first), shown(1, second)...)
	}
	scratch := newMemory(t)(plan.Workspace(OperationEvict, 0))
	var kept [5][]int32
	for way := range kept {
		sequence := newSequence(t, plan)
		views := make([]*View, 2)
		for layer := range views {
			views[layer] = newView(t, random(full*row, int64(10+layer)), random(full*row, 20))
			switch way {
			case 0:
				must(t, sequence.Observe(shown(layer, from(0)), full, 0, 0))
			case 1:
				must(t, sequence.Observe(shown(layer, from(0)), 40, 0, 0))
				must(t, sequence.Observe(shown(layer, from(7)), 30, 40, 0)) // a wrong branch
				for p := 40; p < full; p++ {                                // takes them back
					must(t, sequence.Observe(shown(layer, from(p)), 1, p, 0))
				}
			case 2:
				must(t, sequence.Observe(shown(layer, from(0)), full, PositionNext, 0))
			}
		}
		var options *EvictOptions
		switch way {
		case 3:
			must(t, sequence.Observe(both(from(0), from(0)), 40, 0, 0))
			must(t, sequence.Observe(both(from(40), from(40)), full-40, 40, 0))
			refusesLayers(t, sequence, both, from)
		case 4: // nothing is observed: the window is handed over
			must(t, sequence.EndObserving())
			window := SignalInputs{Queries: from(full - 4)}
			options = &EvictOptions{Inputs: []SignalInputs{window, window}}
		}
		must(t, sequence.Append(full, 0))
		_, err := sequence.Evict(views, options, scratch, 0)
		must(t, err)
		kept[way], err = sequence.KeepPositions(1, 1)
		must(t, err)
		same(t, 16, len(kept[way]))
		same(t, kept[0], kept[way])
	}
}

// refusesLayers makes bad calls, which must leave every layer as it is.
func refusesLayers(
	t *testing.T, sequence *Sequence, both func(_, _ *Plane) []Observation, from func(int) *Plane,
) {
	t.Helper()
	wrong := from(0)
	wrong.HeadDim--
	for _, refused := range []struct {
		err   error
		parts []string
	}{
		{
			sequence.Observe(both(from(0), from(full-1)), 4, full-4, 0), // the second one has a row
			[]string{"observations[1]", "1 rows"},
		},
		{sequence.Observe(both(from(0), wrong), 4, full-4, 0), []string{"layer 1", "head_dim"}},
		{sequence.Observe(append(shown(1, from(0)), shown(0, from(0))...), 4, 0, 0), []string{"layer"}},
		{sequence.Observe(shown(2, from(0)), 4, 0, 0), []string{"layer 2"}},
		{sequence.Observe(both(from(0), from(0)), -1, 0, 0), []string{"nRows"}},
	} {
		fails(t, refused.err, StatusInvalidArgument, refused.parts...)
	}
}

func TestProtectedPositionsAndCustomScores(t *testing.T) {
	later := make([]float32, kvHeads*full) // is better
	for i := range later {
		later[i] = float32(i % full)
	}
	plan := newPlan(t, newContext(t, nil), 1, full, "custom:budget=6,sink=1,recent=1")
	sequence := newSequence(t, plan)
	views := []*View{newView(t, random(full*row, 1), random(full*row, 2))}
	scratch := newMemory(t)(plan.Workspace(OperationEvict, 0))
	must(t, sequence.Append(full, 0))
	_, err := sequence.Evict(views, nil, scratch, 0)
	fails(t, err, StatusInvalidArgument, "scores")
	_, err = sequence.Evict(views, &EvictOptions{
		Protected: []int32{9, 20}, Inputs: []SignalInputs{{Scores: scores(later)}},
	}, scratch, 0)
	must(t, err)
	kept, err := sequence.KeepPositions(0, 0)
	must(t, err)
	same(t, []int32{0, 9, 20, 61, 62, 63}, kept)
}

func TestUndoTakesAnEvictionBack(t *testing.T) {
	plan := newPlan(t, newContext(t, nil), 1, full, "knorm:budget=16")
	sequence := newSequence(t, plan)
	k, v := random(full*row, 1), random(full*row, 2)
	views := []*View{newView(t, k, v)}
	before := append(append([]float32{}, k...), v...)
	scratch := newMemory(t)(plan.Workspace(OperationEvict, 0))
	must(t, sequence.Append(full-4, 0))
	fails(t, sequence.Undo(views, scratch, 0), StatusInvalidArgument, "nothing to undo")
	n, err := sequence.UndoBytes(views)
	must(t, err)
	undo, err := Workspace{Alignment: 64, Best: n}.New()
	must(t, err)
	_, err = sequence.Evict(views, &EvictOptions{Undo: undo}, scratch, 0)
	must(t, err)
	must(t, sequence.Undo(views, undo, 0))
	stored, err := sequence.StoredLength(0, 0)
	must(t, err)
	same(t, []int{full - 4}, []int{stored})
	same(t, before[:(full-4)*row], k[:(full-4)*row])
	same(t, before[full*row:full*row+(full-4)*row], v[:(full-4)*row])
	fails(t, sequence.Undo(views, undo, 0), StatusInvalidArgument, "nothing to undo")
	fails(t, sequence.Undo(nil, undo, 0), StatusInvalidArgument, "0 views for 1 layers")
	_, err = sequence.UndoBytes(nil)
	fails(t, err, StatusInvalidArgument, "0 views for 1 layers")
	// This memory has no room for the returned tokens.
	short := []*View{newView(t, k[:20*row], v[:20*row])}
	must(t, sequence.Reset(0))
	must(t, sequence.Append(full-4, 0))
	_, err = sequence.Evict(views, &EvictOptions{Undo: undo}, scratch, 0)
	must(t, err)
	fails(t, sequence.Undo(short, undo, 0), StatusInvalidArgument, "20 rows", "not 60")
	must(t, sequence.Undo(views, undo, 0))
}

func TestEvictsToDestinations(t *testing.T) {
	const budget = 16
	context := newContext(t, nil)
	policy, err := ParsePolicy("knorm:budget=16")
	must(t, err)
	geometry := Geometry{Layers: 1, MaxTokens: full, Each: []LayerGeometry{smallLayer}}
	plan, err := context.NewPlan(geometry, policy, &PlanOptions{HasDestinations: true})
	must(t, err)
	defer plan.Close()
	sequence := newSequence(t, plan)
	k, v := random(full*row, 1), random(full*row, 2)
	views := []*View{newView(t, k, v)}
	before := append([]float32{}, k...)
	must(t, sequence.Append(full, 0))
	kept, err := sequence.KeptSlots(views)
	must(t, err)
	same(t, []int{budget}, kept)
	toK, toV := make([]float32, budget*row), make([]float32, budget*row)
	there := []*View{newView(t, toK, toV)}
	short := []*View{newView(t, toK[:row], toV)}
	scratch := newMemory(t)(plan.Workspace(OperationEvict, 0))
	_, err = sequence.Evict(views, &EvictOptions{Destinations: short}, scratch, 0)
	fails(t, err, StatusInvalidArgument, "1 rows", "not 16")
	_, err = sequence.Evict(views, &EvictOptions{Destinations: []*View{}}, Memory{}, 0)
	fails(t, err, StatusInvalidArgument, "workspace")
	_, err = sequence.Evict(views, &EvictOptions{Destinations: append(there, there[0])}, scratch, 0)
	fails(t, err, StatusInvalidArgument, "2 destinations for 1 layers")
	report, err := sequence.Evict(views, &EvictOptions{Destinations: there}, scratch, 0)
	must(t, err)
	same(t, report.BytesBefore/4, report.BytesAfter)
	same(t, before, k)
	positions, err := sequence.KeepPositions(0, 0)
	must(t, err)
	for slot, position := range positions {
		same(t, k[int(position)*row:int(position)*row+headDim], toK[slot*row:slot*row+headDim])
		same(t, v[int(position)*row:int(position)*row+headDim], toV[slot*row:slot*row+headDim])
	}
	other := newSequence(t, newPlan(t, context, 1, full, "knorm:budget=16"))
	must(t, other.Append(full, 0))
	_, err = other.Evict(views, &EvictOptions{Destinations: there}, scratch, 0)
	fails(t, err, StatusInvalidArgument, "has_destinations")
}

func TestBlocksGoByTable(t *testing.T) {
	const block = 4
	plan := newPlan(t, newContext(t, nil), 1, full, "streaming-llm:budget=10,sink=4,select_block=4")
	sequence := newSequence(t, plan)
	can, err := plan.Capabilities(0)
	must(t, err)
	same(t, []any{4, false, false}, []any{can.TableBlock, can.NeedsHeadTables, can.NeedsLayerTables})
	k, v := random(4*block*row, 1), random(4*block*row, 2)
	before := append([]float32{}, k...)
	table := []int32{3, 1, 0, 2}
	layout := Layout{KVHeads: kvHeads, K: rows(k, kvHeads), V: rows(v, kvHeads), BlockSize: block, BlockTable: Slice(table)}
	layout.K.BlockStride, layout.V.BlockStride = block*row*4, block*row*4
	view, err := NewView(layout)
	must(t, err)
	defer view.Close()
	must(t, sequence.Append(14, 0))
	scratch := newMemory(t)(plan.Workspace(OperationEvict, 0))
	report, err := sequence.Evict([]*View{view}, &EvictOptions{ByTable: true}, scratch, 0)
	must(t, err)
	same(t, uint64(1), uint64(report.BlocksFreed))
	same(t, []int32{3, 0, 2, 1}, table)
	same(t, before, k)
	_, err = sequence.Evict([]*View{newView(t, random(full*row, 1), random(full*row, 2))},
		&EvictOptions{ByTable: true}, scratch, 0)
	fails(t, err, StatusUnsupported, "views[0]: by_table: block_size is 0")
}

func TestRangesAndTheMassThatStays(t *testing.T) {
	rising := make([]float32, kvHeads*full)
	for i := range rising {
		rising[i] = float32(i % full)
	}
	context := newContext(t, nil)
	policy, err := ParsePolicy("custom:budget=6,sink=1")
	must(t, err)
	geometry := Geometry{Layers: 1, MaxTokens: full, Each: []LayerGeometry{smallLayer}}
	plan, err := context.NewPlan(geometry, policy, &PlanOptions{ReportMass: true})
	must(t, err)
	defer plan.Close()
	sequence := newSequence(t, plan)
	views := []*View{newView(t, random(full*row, 1), random(full*row, 2))}
	must(t, sequence.Append(full, 0))
	options := EvictOptions{
		Inputs: []SignalInputs{{Scores: scores(rising)}},
		Ranges: []TokenRange{{First: 10, End: 12, Rank: 1}, {First: 62, End: math.MaxUint32, Rank: -1}},
	}
	scratch := newMemory(t)(plan.Workspace(OperationEvict, 0))
	_, err = sequence.Evict(views, &options, scratch, 0)
	must(t, err)
	kept, err := sequence.KeepPositions(0, 0)
	must(t, err)
	same(t, []int32{0, 10, 11, 59, 60, 61}, kept)
	lists, err := sequence.ListReports()
	must(t, err)
	same(t, ListReport{0, full, 6, 201.0 / 2016, 63.0 / 2016}, lists[0])
	options.Ranges[1].First = 11
	_, err = sequence.Evict(views, &options, scratch, 0)
	fails(t, err, StatusInvalidArgument, "ranges[1]: first 11 < 12")
}

func TestBudgetForMass(t *testing.T) {
	context := newContext(t, nil)
	layers := []LayerScores{
		{Rows: 1, Tokens: 4, Scores: []float32{1, 8, 4, 3}},
		{Rows: 2, Tokens: 2, Scores: []float32{1, 1, 0, 5}},
	}
	for _, found := range []struct {
		options  MassOptions
		expected []int
	}{
		{MassOptions{Mass: 0.75, Scope: ScopeLayer}, []int{2, 1}},
		{MassOptions{Mass: 0.75, Scope: ScopeLayer, EveryRow: true}, []int{2, 2}},
		{MassOptions{Mass: 0.75, Scope: ScopeKVHead}, []int{2, 2, 1}},
		{MassOptions{Mass: 0.9, Scope: ScopeModel}, []int{2}},
		{MassOptions{Mass: 0.75, Scope: ScopeLayer, Sink: 1, Recent: 1}, []int{3, 2}},
	} {
		budgets, err := context.BudgetForMass(layers, found.options)
		must(t, err)
		same(t, found.expected, budgets)
	}
	none, err := context.BudgetForMass(nil, MassOptions{Mass: 0.5, Scope: ScopeModel})
	must(t, err)
	same(t, []int{}, none)
	_, err = context.BudgetForMass(layers, MassOptions{})
	fails(t, err, StatusInvalidArgument, "mass 0")
	layers[0].Rows = 3
	_, err = context.BudgetForMass(layers, MassOptions{Mass: 0.5})
	fails(t, err, StatusInvalidArgument, "layers[0]: scores_len 4")
	layers[0].Rows = -1
	_, err = context.BudgetForMass(layers, MassOptions{Mass: 0.5})
	fails(t, err, StatusInvalidArgument, "Rows")
}

func TestBudgetsAndCapabilities(t *testing.T) {
	context := newContext(t, nil)
	plan := newPlan(t, context, 2, full, "snapkv:budget=16,window=4")
	must(t, context.Prepare(plan))
	budgets, err := plan.LayerBudgets(full)
	must(t, err)
	same(t, []uint32{16, 16}, budgets)
	can, err := plan.Capabilities(1)
	must(t, err)
	same(t, Capabilities{true, true, false, ReasonNone, ReasonNone, ReasonNoRoPE, true, 1, true, true}, can)
	_, err = plan.Capabilities(2)
	fails(t, err, StatusInvalidArgument, "layer 2")
	fails(t, newSequence(t, plan).Replayed(1), StatusUnsupported, "CPU")
}

func TestTrimTakesTokensBack(t *testing.T) {
	plan := newPlan(t, newContext(t, nil), 1, full, "snapkv:budget=16,window=4")
	sequence := newSequence(t, plan)
	must(t, sequence.Append(20, 0))
	must(t, sequence.TrimTo(17, 0))
	stored, err := sequence.StoredLength(0, 0)
	must(t, err)
	if stored != 17 {
		t.Fatalf("%d tokens are stored, not 17", stored)
	}
	fails(t, sequence.TrimTo(18, 0), StatusInvalidArgument, "new_length 18")
}

// A call per token must not allocate.
func TestCallsPerTokenDoNotAllocate(t *testing.T) {
	plan := newPlan(t, newContext(t, nil), 1, full, "snapkv:budget=16,window=4")
	sequence := newSequence(t, plan)
	views := []*View{newView(t, random(full*row, 1), random(full*row, 2))}
	scratch := newMemory(t)(plan.Workspace(OperationEvict, 0))
	queries := rows(random(qHeads*headDim, 1), qHeads)
	layers := []Observation{{0, SignalInputs{Queries: &queries}}}
	allocations := testing.AllocsPerRun(100, func() {
		must(t, sequence.Observe(layers, 1, PositionNext, 0))
		must(t, sequence.Append(1, 0))
		_, err := sequence.StoredLength(0, 0)
		must(t, err)
		_, err = sequence.Evict(views, nil, scratch, 0)
		must(t, err)
	})
	same(t, 0.0, allocations)
}

func TestQueryMemoryIsTheContextsOrLent(t *testing.T) {
	plan := newPlan(t, newContext(t, nil), 1, full, "snapkv:budget=16,window=4,pool=none")
	sequence := newSequence(t, plan) // observes in the context's memory
	fails(t, sequence.BeginObserving(Memory{}), StatusInvalidArgument, "Sequence.EndObserving() first")
	memory := newMemory(t)(plan.Workspace(OperationObserve, 0))
	need, err := plan.Workspace(OperationEvict, full)
	must(t, err)
	need.Best = need.Least
	scratch := newMemory(t)(need, nil)
	queries := rows(random(full*qHeads*headDim, 3), qHeads)
	var kept [2][]int32
	for way := range kept {
		must(t, sequence.Observe(shown(0, &queries), full, 0, 0))
		must(t, sequence.Append(full, 0))
		view := newView(t, random(full*row, 10), random(full*row, 20))
		_, err := sequence.Evict([]*View{view}, nil, scratch, 0)
		must(t, err)
		kept[way], err = sequence.KeepPositions(0, 1)
		must(t, err)
		must(t, sequence.EndObserving())
		must(t, sequence.Reset(0))
		fails(t, sequence.Observe(shown(0, &queries), 1, 0, 0), StatusInvalidArgument, "Sequence.BeginObserving() first")
		fails(t, sequence.BeginObserving(Slice(make([]byte, 8))), StatusInvalidArgument, "memory_bytes 8")
		must(t, sequence.BeginObserving(memory))
	}
	if !reflect.DeepEqual(kept[0], kept[1]) {
		t.Errorf("lent: %v, the context's: %v", kept[1], kept[0])
	}
}

// Heads of a layer hold different numbers of tokens, through two evictions.
func TestHeadsMayDiffer(t *testing.T) {
	context := newContext(t, nil)
	plan := newPlan(t, context, 2, full, "snapkv:budget=24,window=4,sink=0", 4, 9, 12, 40)
	sequence := newSequence(t, plan)
	scratch := newMemory(t)(plan.Workspace(OperationEvict, 0))
	q := random(full*qHeads*headDim, 3)
	var k [2][]float32
	var views []*View
	for layer := range k {
		k[layer] = make([]float32, full*row)
		views = append(views, newView(t, k[layer], make([]float32, full*row)))
	}
	// An element of every head's row says which token it is of.
	content := func(i, position int) float32 { return float32(position) + float32(i)/8 }
	element := func(i, slot int) *float32 { return &k[i/kvHeads][(slot*kvHeads+i%kvHeads)*headDim] }
	observe := func(from, n int) {
		plane := rows(q[from*qHeads*headDim:], qHeads)
		for layer := range k {
			must(t, sequence.Observe(shown(layer, &plane), n, from, 0))
		}
	}
	add := func(n int) {
		from := sequence.LogicalLength()
		for i := 0; i < 2*kvHeads; i++ {
			stored, err := sequence.StoredLength(i/kvHeads, i%kvHeads)
			must(t, err)
			for j := 0; j < n; j++ {
				*element(i, stored+j) = content(i, from+j)
			}
		}
		observe(from, n)
		must(t, sequence.Append(n, 0))
	}
	holds := func(lengths ...uint32) {
		t.Helper()
		for i, length := range lengths {
			stored, err := sequence.StoredLength(i/kvHeads, i%kvHeads)
			must(t, err)
			same(t, int(length), stored)
			positions, err := sequence.KeepPositions(i/kvHeads, i%kvHeads)
			must(t, err)
			same(t, int(length), len(positions))
			for slot, position := range positions {
				same(t, content(i, int(position)), *element(i, slot))
			}
		}
	}
	evict := func(before, after []uint32) EvictReport {
		t.Helper()
		report, err := sequence.Evict(views, nil, scratch, 0)
		must(t, err)
		lists, err := sequence.ListReports()
		must(t, err)
		same(t, 2*kvHeads, len(lists))
		for i, list := range tokensOf(lists) {
			same(t, [3]int{i / kvHeads, int(before[i]), int(after[i])}, list)
		}
		holds(after...)
		return report
	}

	add(30)
	report := evict([]uint32{30, 30, 30, 30}, []uint32{4, 9, 12, 30})
	same(t, [2]uint64{60, 9 + 30}, [2]uint64{report.TokensBefore, report.TokensAfter})
	add(6)
	holds(10, 15, 18, 36)
	must(t, sequence.TrimTo(34, 0))
	holds(8, 13, 16, 34)
	observe(30, 4)
	evict([]uint32{8, 13, 16, 34}, []uint32{4, 9, 12, 34})
	same(t, 34, sequence.LogicalLength())
	memory, err := sequence.MemoryOf(0)
	must(t, err)
	same(t, 2, memory.Lists)
	same(t, [4]uint32{4, 34, 9, 34}, **(**[4]uint32)(unsafe.Pointer(&memory.Lengths)))
	same(t, [2]uint32{4, 9}, **(**[2]uint32)(unsafe.Pointer(&memory.ListedCounts)))

	_, _, err = plan.Selection(0, 34, 0)
	fails(t, err, StatusUnsupported, "budgets of their own")
	geometry := Geometry{Layers: 2, MaxTokens: full, Each: []LayerGeometry{smallLayer}}
	policy, err := ParsePolicy("snapkv:budget=24,window=4")
	must(t, err)
	_, err = context.NewPlan(geometry, policy, &PlanOptions{HeadBudgets: []uint32{1, 2, 3}})
	fails(t, err, StatusInvalidArgument, "head_budgets_len 3")
}
