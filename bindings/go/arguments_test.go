package kvevict

import (
	"errors"
	"testing"
)

// What is found before the library is called: numbers that C cannot hold, slices of another type or
// too short, and objects that are missing or in use. The library's own checks are in the transcript.

// refusals are errors and what they say.
type refusals []struct {
	err  error
	text string
}

func (r refusals) check(t *testing.T) {
	t.Helper()
	for _, wrong := range r {
		fails(t, wrong.err, StatusInvalidArgument, wrong.text)
	}
}

func second[T any](_ T, err error) error { return err }

const ten = 10

func TestDoorsCheckTheirArguments(t *testing.T) {
	context := newContext(t, nil)
	view := newView(t, random(ten*row, 1), random(ten*row, 2))
	short := newView(t, random(8*row, 3), random(8*row, 4))
	slots, floats := Slice(make([]int32, ten)), Slice(make([]float32, ten))
	move := func(change func(*Move)) error {
		m := oneMove(view, ten, Slice([]int32{0, 1}), 1)
		change(&m[0])
		err := context.Compact(m, Memory{}, 0)
		if other := context.Reorder(m, Memory{}, 0); m[0].Destination == nil && other.Error() != err.Error() {
			t.Errorf("%v, and Reorder says %v", err, other)
		}
		return err
	}
	attend := func(change func(*Attention)) error {
		plane := rows(random(qHeads*headDim, 5), qHeads)
		a := Attention{View: view, Tokens: ten, QHeads: qHeads, Rows: 1, Queries: plane, Out: plane}
		change(&a)
		return context.Attend([]Attention{a}, Memory{}, 0)
	}
	plan := newPlan(t, context, 2, ten, "none")
	rotate := func(change func(*Rotation)) error {
		r := Rotation{Tokens: ten, View: view, Offsets: slots}
		change(&r)
		return plan.Rotate([]Rotation{r}, 0)
	}
	window := newPlan(t, context, 2, ten, "snapkv:budget=9,window=4")
	queries, lse := rows(random(4*qHeads*headDim, 6), qHeads), *scores(make([]float32, 4*qHeads-1))
	lse.TokenStride, lse.HeadStride = 0, 0 // packed
	score := func(change func(*ScoreJob)) error {
		j := ScoreJob{View: view, Tokens: ten, Inputs: SignalInputs{Queries: &queries}, Scores: floats}
		change(&j)
		return window.Score([]ScoreJob{j}, Memory{}, 0)
	}
	choose := func(change func(*SelectOptions, *KeepLists)) error {
		o, k := SelectOptions{Tokens: ten, Scores: floats}, KeepLists{Slots: slots, Lists: 2, Count: 5}
		change(&o, &k)
		return context.Select(&o, k, Memory{}, 0)
	}
	two := oneMove(view, ten, Slice([]int32{0, 1}), 1)
	refusals{
		{move(func(m *Move) { m.View = nil }), "view is nil"},
		{move(func(m *Move) { m.Tokens = -1 }), "Tokens -1"},
		{move(func(m *Move) { m.Tokens++ }), "K holds 10 rows of 2 heads, not 11"},
		{move(func(m *Move) { m.Keep.Lists = -1 }), "Lists -1"},
		{move(func(m *Move) { m.Keep.Count = -1 }), "Count -1"},
		{move(func(m *Move) { m.Keep.Slots = floats }), "Slots is a slice of float32, not of int32"},
		{move(func(m *Move) { m.Keep.Counts = floats }), "Counts is a slice of float32, not of uint32"},
		{move(func(m *Move) { m.FirstSlot = -1 }), "FirstSlot -1"},
		{move(func(m *Move) { m.FirstSlot, m.Destination = 7, short }), "K holds 8 rows of 2 heads, not 9"},
		{move(func(m *Move) { m.TokenCounts = Slice([]uint32{1}) }), "TokenCounts has 1 elements, 2 are needed"},
		{move(func(m *Move) { m.TokenCounts = Slice([]int32{6, 3}) }), "TokenCounts is a slice of int32"},
		{context.Compact([]Move{two[0], {Tokens: 1}}, Memory{}, 0), "moves[1]: kvevict: INVALID_ARGUMENT: view is nil"},
		{second(context.CompactWorkspace(sized(nil, ten, 1))), "view is nil"},
		{second(context.ReorderWorkspace(sized(view, -1, 1))), "Count -1"},
		{second(context.ReorderWorkspace(sized(view, ten+1, 1))), "K holds 10 rows"},

		{attend(func(a *Attention) { a.View = nil }), "view is nil"},
		{attend(func(a *Attention) { a.Tokens = -1 }), "Tokens -1"},
		{attend(func(a *Attention) { a.Tokens++ }), "K holds 10 rows of 2 heads, not 11"},
		{attend(func(a *Attention) { a.QHeads = -1 }), "QHeads -1"},
		{attend(func(a *Attention) { a.Rows = 2 }), "Queries holds 1 rows of 4 heads, not 2"},
		{attend(func(a *Attention) { a.Window = -1 }), "Window -1"},
		{attend(func(a *Attention) { a.SinkLogits = slots }), "SinkLogits is a slice of int32"},
		{context.Attend(make([]Attention, 2), Memory{}, 0), "jobs[0]"},

		{rotate(func(r *Rotation) { r.View = nil }), "view is nil"},
		{rotate(func(r *Rotation) { r.Tokens = -1 }), "Tokens -1"},
		{rotate(func(r *Rotation) { r.Layer = -1 }), "Layer -1"},
		{rotate(func(r *Rotation) { r.Lists = -1 }), "Lists -1"},
		{rotate(func(r *Rotation) { r.Offsets = floats }), "Offsets is a slice of float32"},
		{rotate(func(r *Rotation) { r.TokenCounts = Slice([]uint32{1}) }), "TokenCounts has 1 elements"},
		{plan.Rotate([]Rotation{{Tokens: ten, View: view, Offsets: slots}, {}}, 0), "rotations[1]"},

		{score(func(j *ScoreJob) { j.Layer = -1 }), "Layer -1"},
		{score(func(j *ScoreJob) { j.Seen = -1 }), "Seen -1"},
		{score(func(j *ScoreJob) { j.Scores = slots }), "Scores is a slice of int32, not of float32"},
		{score(func(j *ScoreJob) { j.TokenCounts = Slice([]uint32{1}) }), "TokenCounts has 1 elements"},
		{score(func(j *ScoreJob) { j.Inputs.RowLSE = &lse }), "RowLSE holds 3 rows of 4 heads, not 4"},

		{choose(func(o *SelectOptions, _ *KeepLists) { o.Sink = -1 }), "Sink -1"},
		{choose(func(_ *SelectOptions, k *KeepLists) { k.Counts = Slice([]uint32{1}) }), "Counts has 1 elements"},
		{second(context.BudgetForMass([]LayerScores{{Rows: -1}}, MassOptions{Mass: 0.5})), "Rows"},
	}.check(t)
}

// Memory that ends too early, in every kind of layout.
func TestLayoutsCheckTheirMemory(t *testing.T) {
	numbers := func(n int, role Role) Plane {
		return Plane{
			Data: Slice(make([]float32, n)), DType: DTypeF32, HeadDim: 4, TokenStride: 32, HeadStride: 16,
			Role: role,
		}
	}
	codes := Plane{Data: Slice(make([]byte, 64)), DType: DTypeU8, HeadDim: 4, TokenStride: 8, HeadStride: 4}
	packed := Plane{Data: Slice(make([]byte, 40)), DType: DTypeU4, HeadDim: 4, TokenStride: 4, HeadStride: 2}
	groups := numbers(16, RoleKeyScale)
	groups.GroupTokens = 4
	ring := Layout{KVHeads: 1, RingSlots: ten + 1, K: Plane{
		Data: Slice(make([]float32, ten*headDim)), DType: DTypeF32, HeadDim: headDim, TokenStride: 8,
		GroupElems: 2, GroupStride: ten * 8,
	}}
	table := rows([]float32(nil), kvHeads)
	table.Data, table.AddressTable = Memory{}, Slice([]int32{1})
	both := table
	both.Data, both.AddressTable = Slice(make([]float32, row)), Slice([]uint64{1})
	validate := func(layout Layout, n int) error {
		view, err := NewView(layout)
		if err != nil {
			return err
		}
		return view.Validate(n)
	}
	refusals{
		{validate(ring, 1), "K holds 10 rows of 1 heads, not 11"},
		{validate(Layout{KVHeads: 2, K: packed}, 11), "K holds 10 rows of 2 heads, not 11"},
		{validate(Layout{KVHeads: 2, K: codes, Companions: []Plane{groups}}, 9), "not 9"},
		{validate(Layout{KVHeads: 2, K: codes, Companions: []Plane{groups, numbers(24, RoleKeyRecent)},
			FirstRecent: 8}, 12), "Companions[1] holds 3 rows of 2 heads, not 4"},
		{validate(Layout{KVHeads: 2, K: table, BlockSize: 2}, 1), "K.AddressTable is a slice of int32"},
		{validate(Layout{KVHeads: 2, K: both, BlockSize: 2}, 1), "both Data and an AddressTable"},
	}.check(t)
}

func TestSequencesCheckTheirArguments(t *testing.T) {
	context := newContext(t, nil)
	policy, err := ParsePolicy("knorm:budget=16")
	must(t, err)
	unlike := Geometry{Layers: 2, MaxTokens: full, Each: []LayerGeometry{smallLayer, {Cache: LayerCacheNone}}}
	plan, err := context.NewPlan(unlike, policy, &PlanOptions{HasDestinations: true})
	must(t, err)
	s := newSequence(t, plan)
	must(t, s.Append(20, 0))
	k, v := random(full*row, 1), random(full*row, 2)
	views := []*View{newView(t, k, v), nil}
	scratch := newMemory(t)(plan.Workspace(OperationEvict, 0))
	undo := newMemory(t)(Workspace{Alignment: 64, Best: 1 << 16}, nil)
	one := scores(make([]float32, kvHeads))
	evict := func(views []*View, options EvictOptions) error {
		return second(s.Evict(views, &options, scratch, 0))
	}
	queries := rows(random(qHeads*headDim, 3), qHeads)
	sums := []Observation{{0, SignalInputs{AttentionSums: one, SumHeads: kvHeads}}}
	to := newView(t, k[:row], v)
	refusals{
		{evict(nil, EvictOptions{}), "0 views for 2 layers"},
		{evict([]*View{nil, nil}, EvictOptions{}), "layers[0]: kvevict: INVALID_ARGUMENT: view is nil"},
		{evict(views, EvictOptions{Inputs: make([]SignalInputs, 1)}), "1 inputs for 2 layers"},
		{evict(views, EvictOptions{Inputs: []SignalInputs{{Scores: one}, {}}}),
			"layers[0]: kvevict: INVALID_ARGUMENT: Scores holds 1 rows of 2 heads, not 20"},
		{evict(views, EvictOptions{Destinations: views[:1]}), "1 destinations for 2 layers"},
		{evict(views, EvictOptions{Destinations: []*View{to, nil}}), "K holds 1 rows of 2 heads, not 16"},
		{second(s.KeptSlots(nil)), "0 views for 2 layers"},
		{second(s.UndoBytes(nil)), "0 views for 2 layers"},
		{s.Undo(nil, undo, 0), "0 views for 2 layers"},
		{s.Observe(shown(0, &queries), -1, 0, 0), "nRows -1"},
		{s.Observe(shown(0, &queries), 2, 0, 0), "Queries holds 1 rows of 4 heads, not 2"},
		{s.Observe(append(shown(1, &Plane{}), shown(0, &queries)...), 2, 0, 0), "observations[1]"},
		{s.Observe(sums, 1, PositionNext, 0), "AttentionSums holds 1 rows of 2 heads, not 21"},
		{s.TrimTo(-1, 0), "newLength -1"},
		{second(s.PositionOfSlot(0, 0, -1)), "slot -1"},
	}.check(t)
	must(t, evict(views, EvictOptions{Undo: undo}))
	short := []*View{newView(t, k[:18*row], v[:18*row]), nil}
	fails(t, s.Undo(short, undo, 0), StatusInvalidArgument, "18 rows", "not 20")
	must(t, s.Undo(views, undo, 0))

	other := newSequence(t, plan)
	refusals{
		{AppendAll([]SequenceTokens{{s, 1}, {s, 1}}, 0), "items[1]: kvevict: INVALID_ARGUMENT: the sequence is in use"},
		{AppendAll([]SequenceTokens{{other, 1}, {s, -1}}, 0), "items[1]: kvevict: INVALID_ARGUMENT: Tokens -1"},
		{TrimAllTo([]SequenceLength{{nil, 1}}, 0), "items[0]: kvevict: INVALID_ARGUMENT: Sequence is nil"},
		{TrimAllTo([]SequenceLength{{s, -1}}, 0), "NewLength -1"},
		{ObserveAll([]SequenceObservations{{s, shown(0, &queries), 2, 0}}, 0), "Queries holds 1 rows"},
		{second(EvictAll([]SequenceEviction{{s, nil, nil}}, scratch, 0)), "items[0]: kvevict: INVALID_ARGUMENT: 0 views"},
		{second(EvictAllWorkspace([]*Sequence{nil})), "Sequence is nil"},
	}.check(t)
	must(t, AppendAll(nil, 0)) // the failed calls have left them
	must(t, AppendAll([]SequenceTokens{{s, 1}, {other, 1}}, 0))
}

// Views need rows for what an edit adds, and no more. The views here have 44.
func TestEditsCheckTheirArguments(t *testing.T) {
	policy, err := NewPolicy("none")
	must(t, err)
	plan := planOf(t, newContext(t, nil), policy, Geometry{
		Layers: 2, MaxTokens: full, Each: []LayerGeometry{smallLayer}, RoPEInvFreq: []float32{1, 0.25},
	})
	s := newSequence(t, plan)
	must(t, s.Append(40, 0))
	k, v := random(44*row, 1), random(44*row, 2)
	views := []*View{newView(t, k, v), newView(t, k, v)}
	cache, err := plan.NewPagedCache(PagedCacheOptions{Blocks: 4})
	must(t, err)
	cached, err := cache.NewSequence()
	must(t, err)
	edit := func(e Edit) error { return s.Edit(views, e, 0) }
	refusals{
		{edit(Edit{First: -1, End: 6}), "First -1"},
		{edit(Edit{First: 1, End: 2, New: -3}), "New -3"},
		{edit(Edit{First: 9, End: 9, New: 5}), "layers[0]: kvevict: INVALID_ARGUMENT: K holds 44 rows of 2 heads, not 45"},
		{s.Edit(views[:1], Edit{}, 0), "1 views for 2 layers"},
		{s.Edit([]*View{views[0], nil}, Edit{}, 0), "layers[1]: kvevict: INVALID_ARGUMENT: view is nil"},
		{cached.Edit(nil, Edit{}, 0), "Sequence is nil"},
		{cached.Edit(s, Edit{First: -1}, 0), "First -1"},
	}.check(t)
	must(t, edit(Edit{First: 9, End: 9, New: 4}))   // all rows are in use
	must(t, edit(Edit{First: 20, End: 26, New: 6})) // and may be replaced
	must(t, edit(Edit{Kind: EditMove, First: 3, End: 5, To: 9}))
	same(t, 44, s.LogicalLength())
	must(t, s.Close())
	for _, err := range []error{edit(Edit{}), cached.Edit(s, Edit{}, 0)} {
		if !errors.Is(err, ErrClosed) {
			t.Error(err)
		}
	}
	must(t, cached.Close())
	if err := cached.Edit(newSequence(t, plan), Edit{}, 0); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
}

func TestPagedCachesCheckTheirArguments(t *testing.T) {
	p := newPool(t, PagedCacheOptions{Blocks: 8})
	cached, sequence := p.sequence(t)
	must(t, cached.Append(9, 0))
	must(t, sequence.Append(9, 0))
	one := rows(make([]float32, row), kvHeads)
	item := PagedEviction{cached, sequence, nil}
	refusals{
		{second(p.plan.NewPagedCache(PagedCacheOptions{Blocks: -1})), "Blocks -1"},
		{second(p.plan.PagedCacheBytes(PagedCacheOptions{Blocks: 1, RecentTokens: -1})), "RecentTokens -1"},
		{cached.Append(-1, 0), "nTokens -1"},
		{cached.Truncate(-1), "newLength -1"},
		{second(cached.Length(-1)), "layer -1"},
		{cached.Fit(nil), "nil"},
		{cached.Write([]PagedRows{{0, 0, 1, one, Plane{}}, {0, 0, 2, one, Plane{}}}, 0), "rows[1]: "},
		{cached.Read([]PagedRows{{0, 0, 2, one, Plane{}}}, 0), "K holds 1 rows of 2 heads, not 2"},
		{second(cached.Evict(sequence, &EvictOptions{Destinations: []*View{nil}}, p.scratch, 0)), "Destinations"},
		{second(EvictAllPaged([]PagedEviction{item, item}, p.scratch, 0)), "items[1]: "},
		{second(EvictAllPaged([]PagedEviction{{nil, sequence, nil}}, p.scratch, 0)), "items[0]: "},
	}.check(t)
	undo := &EvictOptions{Undo: p.scratch}
	fails(t, second(cached.Evict(sequence, undo, p.scratch, 0)), StatusInvalidArgument, "undo")
	report, err := cached.Evict(sequence, nil, p.scratch, 0) // the failed calls have left them
	must(t, err)
	same(t, false, report.Evicted)
}

// A paged sequence's view tells where its rows lie.
func TestPagedViewsHaveALayout(t *testing.T) {
	layer := smallLayer
	layer.KDType, layer.VDType = DTypeU8, DTypeU8
	policy, err := NewPolicy("none")
	must(t, err)
	plan := planOf(t, newContext(t, nil), policy, Geometry{Layers: 1, MaxTokens: full, Each: []LayerGeometry{layer}})
	cache, err := plan.NewPagedCache(PagedCacheOptions{Blocks: 10, GroupTokens: 4, RecentTokens: 3})
	must(t, err)
	cached, err := cache.NewSequence()
	must(t, err)
	must(t, cached.Append(20, 0))
	view, err := cached.View(0)
	must(t, err)
	layout := view.Layout()
	same(t, [3]int{kvHeads, 4, headDim}, [3]int{layout.KVHeads, layout.BlockSize, layout.V.HeadDim})
	same(t, [3]int{16, 6, 4}, [3]int{layout.FirstRecent, len(layout.Companions), layout.Companions[0].GroupTokens})
	same(t, int64(row*4), layout.K.BlockStride)
	if layout.K.Data.Address() == 0 || layout.BlockTable.Address() == 0 {
		t.Error(layout)
	}
	must(t, view.Close())
	must(t, cached.Close())
	same(t, Layout{}, view.Layout())
	if err := cached.Append(1, 0); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	must(t, cache.Close())
}
