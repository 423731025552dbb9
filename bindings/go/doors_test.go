package kvevict

import (
	"math"
	"reflect"
	"runtime"
	"sort"
	"sync"
	"testing"
	"unsafe"
)

const nTokens = 48

func scoresOf(t *testing.T, context *Context, n, window int) []float32 {
	plan := newPlan(t, context, 1, n, "snapkv:budget=0.5,window=4")
	queries := rows(random(window*qHeads*headDim, 2), qHeads)
	scores := make([]float32, kvHeads*n)
	must(t, plan.Score([]ScoreJob{{
		View: newView(t, random(n*row, 1), random(n*row, 3)), Tokens: n,
		Inputs: SignalInputs{Queries: &queries}, Scores: Slice(scores),
	}}, newMemory(t)(plan.Workspace(OperationScore, 0)), 0))
	return scores
}

func TestScoresOfSlicesPointersAndAddressesAreEqual(t *testing.T) {
	context := newContext(t, nil)
	expected := scoresOf(t, context, nTokens, 4)
	plan := newPlan(t, context, 1, 64, "snapkv:budget=0.5,window=4")
	queries := rows(random(4*qHeads*headDim, 2), qHeads)
	lse := Plane{
		Data: Slice(make([]float32, 4*qHeads)), DType: DTypeF32, HeadDim: 1,
		TokenStride: qHeads * 4, HeadStride: 4,
	}
	k, v := random(nTokens*row, 1), random(nTokens*row, 3)
	scratch := newMemory(t)(plan.Workspace(OperationScore, 0))
	job := ScoreJob{
		View: newView(t, k, v), Tokens: nTokens, TokenCounts: Slice([]uint32{nTokens, nTokens}),
		Inputs: SignalInputs{Queries: &queries, RowLSE: &lse},
	}
	for _, shape := range []func([]float32) Memory{
		Slice[float32],
		func(s []float32) Memory { return Pointer(unsafe.Pointer(&s[0]), uint64(len(s)*4)) },
		func(s []float32) Memory { return Address(Slice(s).address, uint64(len(s)*4)) },
	} {
		scores := make([]float32, kvHeads*nTokens)
		job.Scores = shape(scores)
		must(t, plan.Score([]ScoreJob{job}, scratch, 0))
		same(t, expected, scores)
	}
	lse.TokenStride, lse.HeadStride = 0, 0 // packed
	must(t, plan.Score([]ScoreJob{job}, scratch, 0))
	lse.Data = Slice(make([]float32, 4*qHeads-1))
	fails(t, plan.Score([]ScoreJob{job}, scratch, 0), StatusInvalidArgument,
		"RowLSE holds 3 rows of 4 heads, not 4")
	if !math.IsInf(float64(expected[nTokens-1]), 1) || expected[0] <= 0 || expected[0] >= 1 {
		t.Error("a kept window and a mean of weights:", expected[nTokens-1], expected[0])
	}
}

func TestPoliciesWithoutQueriesScoreToo(t *testing.T) {
	context := newContext(t, nil)
	plan := newPlan(t, context, 2, 64, "random:sink=0,budget=16,seed=7")
	view := newView(t, make([]float32, nTokens*row), make([]float32, nTokens*row))
	scratch := newMemory(t)(plan.Workspace(OperationScore, 0))
	both := make([]float32, 2*kvHeads*nTokens)
	first, second := both[:kvHeads*nTokens], both[kvHeads*nTokens:]
	jobs := []ScoreJob{
		{View: view, Tokens: nTokens, Scores: Slice(first)},
		{Tokens: nTokens, Layer: 1, Scores: Slice(second)}, // reads no key
	}
	must(t, plan.Score(jobs, scratch, 0))
	together := append([]float32(nil), both...)
	must(t, plan.Score(jobs[:1], scratch, 0))
	must(t, plan.Score(jobs[1:], scratch, 0))
	same(t, both, together)
	if reflect.DeepEqual(first, second) {
		t.Error("layers draw alike")
	}
	jobs[1].Layer = 2
	fails(t, plan.Score(jobs, scratch, 0), StatusInvalidArgument, "layer 2")
	jobs[1].Layer, jobs[1].TokenCounts = 1, Slice([]uint32{nTokens})
	fails(t, plan.Score(jobs, scratch, 0), StatusInvalidArgument,
		"jobs[1]", "TokenCounts has 1 elements, 2 are needed")
	must(t, plan.Score(nil, scratch, 0))
	fails(t, plan.Score(make([]ScoreJob, MaxJobs+1), scratch, 0), StatusInvalidArgument, "129 > 128")
	none := newPlan(t, context, 1, 64, "streaming-llm:budget=16")
	fails(t, none.Score(jobs[:1], scratch, 0), StatusInvalidArgument, "nothing to score")
}

func TestEveryListMayHaveACountOfItsOwn(t *testing.T) {
	context := newContext(t, nil)
	scratch := newMemory(t)(context.SelectWorkspace(10, 2))
	scores := []float32{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0}
	slots := []int32{-1, -1, -1, -1, -1, -1, -1, -1, -1, -1}
	counts := []uint32{4, 2}
	lists := KeepLists{Slots: Slice(slots), Lists: 2, Count: 4, ListStride: 5, Counts: Slice(counts)}
	options := &SelectOptions{
		Tokens: 10, TokenCounts: Slice([]uint32{10, 6}), Scores: Slice(scores), Sink: 1,
	}
	must(t, context.Select(options, lists, scratch, 0))
	same(t, []int32{0, 7, 8, 9, -1, 0, 1, -1, -1, -1}, slots)
	// Without scores the first or the last tokens stay.
	options = &SelectOptions{Tokens: 10, Sink: 1, Tie: TieHigherPosition}
	must(t, context.Select(options, lists, scratch, 0))
	same(t, []int32{0, 7, 8, 9, -1, 0, 9, -1, -1, -1}, slots)
	// Two rows of a list are reduced to one.
	both := &SelectOptions{Tokens: 10, Scores: Slice(scores), Rows: 2, Reduce: ReduceMax, Recent: 1}
	must(t, context.Select(both, KeepLists{Slots: Slice(slots), Lists: 1, Count: 4}, scratch, 0))
	same(t, []int32{0, 1, 8, 9}, slots[:4])

	// Whole blocks of slots stay: the two slots left, and the best mean.
	blocks := &SelectOptions{Tokens: 10, Scores: Slice(scores[:10]), SelectBlock: 4}
	must(t, context.Select(blocks, KeepLists{Slots: Slice(slots), Lists: 1, Count: 6}, scratch, 0))
	same(t, []int32{4, 5, 6, 7, 8, 9}, slots[:6])

	counts[1] = 5
	fails(t, context.Select(options, lists, scratch, 0), StatusInvalidArgument, "keep.counts[1] 5 > 4")
	counts[1] = 0
	fails(t, context.Select(options, lists, scratch, 0), StatusInvalidArgument, "sink 1")
	lists.Counts = Slice(counts[:1])
	fails(t, context.Select(options, lists, scratch, 0), StatusInvalidArgument,
		"Counts has 1 elements, 2 are needed")
	lists.Counts = Slice([]float32{1, 2})
	fails(t, context.Select(options, lists, scratch, 0), StatusInvalidArgument,
		"Counts is a slice of float32, not of uint32")
	lists.Counts, lists.Count = Memory{}, -1
	fails(t, context.Select(options, lists, scratch, 0), StatusInvalidArgument, "Count -1")
}

// One layer has a list for all heads, the other one lists of 3 and 2.
func TestAllLayersMoveInOneCall(t *testing.T) {
	context := newContext(t, nil)
	k := [2][]float32{random(nTokens*row, 4), random(nTokens*row, 5)}
	before := [2][]float32{append([]float32(nil), k[0]...), append([]float32(nil), k[1]...)}
	views := [2]*View{
		newView(t, k[0], random(nTokens*row, 6)), newView(t, k[1], random(nTokens*row, 7)),
	}
	isRow := func(layer, slot, head int, from int32) {
		t.Helper()
		to, old := (slot*kvHeads+head)*headDim, (int(from)*kvHeads+head)*headDim
		same(t, before[layer][old:old+headDim], k[layer][to:to+headDim])
	}
	slots := []int32{1, 5, 9, 2, 40, 0}
	counts := Slice([]uint32{3, 2})
	moves := []Move{
		{View: views[0], Tokens: nTokens, Keep: KeepLists{Slots: Slice(slots), Lists: 1, Count: 3}},
		{View: views[1], Tokens: nTokens, Keep: KeepLists{Slots: Slice(slots), Lists: 2, Count: 3, Counts: counts}},
	}
	need, err := context.CompactWorkspace(moves)
	must(t, err)
	same(t, Workspace{Alignment: 64}, need)
	must(t, context.Compact(moves, Memory{}, 0))
	for i := 0; i < 5; i++ {
		isRow(0, i%3, i/3, slots[i%3])
		isRow(1, i%3, i/3, slots[i])
	}

	// The rows are the mean of 2 and of those between 2 and 4.
	merged := make([]float32, 2*row)
	for i := range merged {
		merged[i] = 2 + 2*float32(i/row)
	}
	one := oneMove(newView(t, merged, append([]float32(nil), merged...)), 2, Slice([]int32{0}), 1)
	one[0].Merge = MergePivot
	must(t, context.Compact(one, newMemory(t)(context.CompactWorkspace(one)), 0))
	same(t, float32(2.5), merged[0])
	one[0].MergeFraction = 2
	fails(t, context.Compact(one, Memory{}, 0), StatusInvalidArgument, "merge_fraction 2")

	backwards := Slice([]int32{2, 1, 0, 1, 0, 9})
	moves = []Move{
		{View: views[0], Tokens: 3, Keep: KeepLists{Slots: backwards, Lists: 1, Count: 3}},
		{View: views[1], Tokens: 3, Keep: KeepLists{Slots: backwards, Lists: 2, Count: 3, Counts: counts}},
	}
	must(t, context.Reorder(moves, newMemory(t)(context.ReorderWorkspace(moves)), 0))
	for i := 0; i < 5; i++ {
		last := []int{2, 4}[i/3]
		isRow(0, i%3, i/3, slots[2-i%3])
		isRow(1, i%3, i/3, slots[last-i%3])
	}

	first := oneMove(views[0], 3, Slice([]int32{0}), 1)[0]
	err = context.Compact([]Move{first, first}, Memory{}, 0)
	fails(t, err, StatusInvalidArgument, "moves[1]")
	err = context.Compact([]Move{first, {Tokens: 3, Keep: first.Keep}}, Memory{}, 0)
	fails(t, err, StatusInvalidArgument, "moves[1]", "view is nil")
	many := make([]Move, MaxJobs+1)
	for i := range many {
		many[i] = first
	}
	fails(t, context.Compact(many, Memory{}, 0), StatusInvalidArgument, "moves_len 129 > 128")
	must(t, context.Compact(nil, Memory{}, 0))
}

// Compacts in place from a slot on, and to another cache; only that one then changes.
func TestRowsMoveFromASlotOnAndToAnotherCache(t *testing.T) {
	context := newContext(t, nil)
	k, to := random(nTokens*row, 4), random(8*row, 5)
	before, toBefore := append([]float32(nil), k...), append([]float32(nil), to...)
	move := oneMove(newView(t, k, random(nTokens*row, 6)), nTokens, Slice([]int32{12, 40}), 1)
	move[0].FirstSlot = 10
	need, err := context.CompactWorkspace(move)
	must(t, err)
	same(t, Workspace{Alignment: 64}, need)
	must(t, context.Compact(move, Memory{}, 0))
	same(t, before[:10*row], k[:10*row])
	same(t, before[12*row:13*row], k[10*row:11*row])
	same(t, before[40*row:41*row], k[11*row:12*row])
	move[0].FirstSlot = 13
	fails(t, context.Compact(move, Memory{}, 0), StatusInvalidArgument, "[13, n_tokens")
	move[0].FirstSlot = -1
	fails(t, context.Compact(move, Memory{}, 0), StatusInvalidArgument, "FirstSlot -1")

	before = append([]float32(nil), k...)
	move[0].FirstSlot = 6
	move[0].Destination = newView(t, to, random(8*row, 7))
	_, err = context.CompactWorkspace(move)
	must(t, err)
	must(t, context.Compact(move, Memory{}, 0))
	same(t, before, k)
	same(t, toBefore[:6*row], to[:6*row])
	same(t, before[12*row:13*row], to[6*row:7*row])
	same(t, before[40*row:41*row], to[7*row:])
	move[0].FirstSlot = 7 // the memory ends before
	fails(t, context.Compact(move, Memory{}, 0), StatusInvalidArgument, "K holds 8 rows of 2 heads, not 9")
	move[0].FirstSlot, move[0].Destination = 0, move[0].View
	fails(t, context.Compact(move, Memory{}, 0), StatusInvalidArgument, "destination is the view itself")
}

// Rows are quantized on their way to another cache, and read on the way back.
func TestRowsAreStoredAnew(t *testing.T) {
	context := newContext(t, nil)
	source, back := random(8*row, 1), make([]float32, 3*row)
	codes := make([]uint8, 3*row)
	scales, minima := make([]float32, 3*kvHeads), make([]float32, 3*kvHeads)
	number := func(data []float32, role Role) Plane {
		return Plane{
			Data: Slice(data), DType: DTypeF32, HeadDim: 1, Role: role, TokenStride: kvHeads * 4, HeadStride: 4,
		}
	}
	view := func(k Plane, companions ...Plane) *View {
		view, err := NewView(Layout{KVHeads: kvHeads, K: k, Companions: companions})
		must(t, err)
		t.Cleanup(func() { _ = view.Close() })
		return view
	}
	ofCodes := Plane{Data: Slice(codes), DType: DTypeU8, HeadDim: headDim, TokenStride: row, HeadStride: headDim}
	quantized := view(ofCodes, number(scales, RoleKeyScale), number(minima, RoleKeyMinimum))
	slots := []int32{1, 4, 7}
	move := oneMove(view(rows(source, kvHeads)), 8, Slice(slots), 1)
	move[0].Destination = quantized
	must(t, context.Compact(move, Memory{}, 0))
	there := oneMove(quantized, 3, Slice([]int32{0, 1, 2}), 1)
	there[0].Destination = view(rows(back, kvHeads))
	must(t, context.Compact(there, Memory{}, 0))
	for i := 0; i < 3*kvHeads; i++ {
		from := source[int(slots[i/kvHeads])*row+i%kvHeads*headDim:][:headDim]
		least, most := from[0], from[0]
		for e, v := range from {
			if v < least {
				least = v
			}
			if v > most {
				most = v
			}
			if off := math.Abs(float64(back[i*headDim+e] - v)); off > 0.5001*float64(scales[i]) {
				t.Errorf("row %d element %d is off by %v of %v", i, e, off, scales[i])
			}
		}
		same(t, least, minima[i])
		same(t, (most-least)/255, scales[i])
	}
	move[0].Destination = view(ofCodes)
	fails(t, context.Compact(move, Memory{}, 0), StatusInvalidArgument, "scale")
}

func TestKeepList(t *testing.T) {
	context := newContext(t, nil)
	plan := newPlan(t, context, 1, 64, "custom:budget=6,sink=1,recent=1")
	scores := make([]float32, kvHeads*nTokens)
	for i := range scores {
		scores[i] = float32((i * 37) % 101)
	}
	keep := make([]int32, kvHeads*6)
	options, lists, err := plan.Selection(0, nTokens, 0)
	must(t, err)
	same(t, KeepLists{Lists: kvHeads, Count: 6}, lists)
	options.Scores, options.Protected, lists.Slots = Slice(scores), []int32{7}, Slice(keep)
	must(t, context.Select(&options, lists, newMemory(t)(context.SelectWorkspace(nTokens, kvHeads)), 0))
	// Sink 0, protected 7, recent 47 and the three highest others of head 0.
	var others []int
	for i := 1; i < nTokens-1; i++ {
		if i != 7 {
			others = append(others, i)
		}
	}
	sort.Slice(others, func(a, b int) bool { return scores[others[a]] > scores[others[b]] })
	expected := append([]int{0, 7, nTokens - 1}, others[:3]...)
	sort.Ints(expected)
	for i, slot := range expected {
		same(t, int32(slot), keep[i])
	}
}

func TestRowsMoveAsTheKeepListSays(t *testing.T) {
	context := newContext(t, nil)
	keep := []int32{0, 3, 5, 1, 2, 47} // per head
	k, v := random(nTokens*row, 4), random(nTokens*row, 5)
	before := append([]float32(nil), k...)
	view := newView(t, k, v)
	must(t, context.Compact(oneMove(view, nTokens, Slice(keep), 2), Memory{}, 0))
	for head := 0; head < 2; head++ {
		for slot := 0; slot < 3; slot++ {
			from := (int(keep[head*3+slot])*2 + head) * headDim
			to := (slot*2 + head) * headDim
			same(t, before[from:from+headDim], k[to:to+headDim])
		}
	}
	err := context.Compact(oneMove(view, nTokens, Slice([]int32{3, 2}), 1), Memory{}, 0)
	fails(t, err, StatusInvalidArgument, "keep")
}

// Blocks of a pool come in any order, values are opaque, and scales move along.
func TestPagedCachesAndCompanions(t *testing.T) {
	blocks := []int32{2, 0, 3}
	values := make([]byte, 4*2*2*3) // 4 blocks, 2 tokens, 2 heads, 3 bytes
	for i := range values {
		values[i] = byte(i)
	}
	scales, keys := random(4*2*2, 6), random(4*2*row, 7)
	scalesBefore, keysBefore := append([]float32(nil), scales...), append([]float32(nil), keys...)
	k := rows(keys, kvHeads)
	k.BlockStride = 2 * row * 4
	view, err := NewView(Layout{
		KVHeads: kvHeads,
		K:       k,
		V: Plane{
			Data: Slice(values), RowBytes: 3, TokenStride: 6, HeadStride: 3, BlockStride: 12,
		},
		Companions: []Plane{{
			Data: Slice(scales), DType: DTypeF32, HeadDim: 1, TokenStride: 8, HeadStride: 4,
			BlockStride: 16,
		}},
		BlockSize:  2,
		BlockTable: Slice(blocks),
	})
	must(t, err)
	kept := []int32{1, 4, 5}
	must(t, newContext(t, nil).Compact(oneMove(view, 6, Slice(kept), 1), Memory{}, 0))
	for slot := 0; slot < 3; slot++ {
		to := int(blocks[slot/2])*2 + slot%2
		from := int(blocks[kept[slot]/2])*2 + int(kept[slot])%2
		same(t, byte(from*6), values[to*6])
		same(t, byte(from*6+5), values[to*6+5])
		same(t, scalesBefore[from*2+1], scales[to*2+1])
		same(t, keysBefore[from*row+9], keys[to*row+9])
	}
}

// The pool has keys, then values of two tokens in blocks that were allocated one by one.
func TestBlocksWithAddresses(t *testing.T) {
	const half = 2 * row
	context := newContext(t, nil)
	blocks := [][]float32{random(2*half, 8), random(2*half, 9), random(2*half, 10)}
	for _, ids := range [][]int32{nil, {6, 0, 3}} {
		var was [][]float32
		table := make([]uint64, 7) // the others stay 0
		for i, block := range blocks {
			was = append(was, append([]float32(nil), block...))
			id := i
			if ids != nil {
				id = int(ids[i])
			}
			table[id] = uint64(uintptr(unsafe.Pointer(&block[0])))
		}
		k := rows([]float32(nil), kvHeads)
		k.Data, k.AddressTable = Memory{}, Slice(table)
		v := k
		v.InBlock = half * 4
		layout := Layout{KVHeads: kvHeads, K: k, V: v, BlockSize: 2, BlockTable: Slice(ids)}
		if ids == nil {
			layout.BlockTable = Memory{}
		}
		view, err := NewView(layout)
		must(t, err)
		kept := []int32{1, 4, 5}
		must(t, context.Compact(oneMove(view, 6, Slice(kept), 1), Memory{}, 0))
		for slot, from := range kept {
			for _, place := range []int{3, half + 3} {
				same(t, was[from/2][int(from%2)*row+place], blocks[slot/2][slot%2*row+place])
			}
		}
		layout.SharedBlocks = 1
		shared, err := NewView(layout)
		must(t, err)
		fails(t, context.Compact(oneMove(shared, 6, Slice(kept), 1), Memory{}, 0),
			StatusInvalidArgument, "n_shared_blocks 1")
		last := 2
		if ids != nil {
			last = int(ids[2])
		}
		table[last] = 0 // read when calls are made
		must(t, view.Validate(4))
		fails(t, view.Validate(5), StatusInvalidArgument, "is 0, but block 2")
		k.AddressTable = Slice([]int32{1})
		_, err = NewView(Layout{KVHeads: kvHeads, K: k, BlockSize: 2})
		fails(t, err, StatusInvalidArgument, "K.AddressTable is a slice of int32")
		k.Data = Slice(blocks[0])
		_, err = NewView(Layout{KVHeads: kvHeads, K: k, BlockSize: 2})
		fails(t, err, StatusInvalidArgument, "both Data and an AddressTable")
	}
	runtime.KeepAlive(blocks)
}

// The plane is a ring of one head: [groups, tokens, elements of a group].
func TestGroupsOfElementsInARing(t *testing.T) {
	const tokens, group = 10, 2
	data := make([]float32, tokens*headDim)
	place := func(token int) int { return (token+7)%tokens*group + group*tokens + 1 } // element 3
	for i := 0; i < tokens; i++ {
		data[place(i)] = float32(i)
	}
	layout := Layout{KVHeads: 1, RingSlots: tokens, RingFirst: 7, K: Plane{
		Data: Slice(data), DType: DTypeF32, HeadDim: headDim, TokenStride: group * 4,
		GroupElems: group, GroupStride: tokens * group * 4,
	}}
	view, err := NewView(layout)
	must(t, err)
	kept := []int32{2, 5, 8}
	must(t, newContext(t, nil).Compact(oneMove(view, tokens, Slice(kept), 1), Memory{}, 0))
	for slot, from := range kept {
		same(t, float32(from), data[place(slot)])
	}
	layout.RingSlots = tokens + 1 // all of a ring is in memory
	longer, err := NewView(layout)
	must(t, err)
	fails(t, longer.Validate(1), StatusInvalidArgument, "K holds 10 rows of 1 heads, not 11")
}

// A byte has two codes, with the scales that they are multiplied by.
func TestCodesMoveWithTheirScales(t *testing.T) {
	codes := make([]byte, 10*2*2) // 10 tokens, 2 heads, 4 codes
	for i := range codes {
		codes[i] = byte(i)
	}
	scales := random(10*2, 6)
	before := append([]float32(nil), scales...)
	layout := Layout{
		KVHeads: 2,
		K: Plane{
			Data: Slice(codes), DType: DTypeU4, HeadDim: 4, TokenStride: 4, HeadStride: 2,
		},
		Companions: []Plane{{
			Data: Slice(scales), DType: DTypeF32, HeadDim: 1, TokenStride: 8, HeadStride: 4,
			Role: RoleKeyScale,
		}},
	}
	view, err := NewView(layout)
	must(t, err)
	context := newContext(t, nil)
	fails(t, context.Compact(oneMove(view, 11, Slice([]int32{1, 7}), 1), Memory{}, 0),
		StatusInvalidArgument, "10 rows")
	must(t, context.Compact(oneMove(view, 10, Slice([]int32{1, 7}), 1), Memory{}, 0))
	same(t, []byte{4, 5, 6, 7, 28, 29, 30, 31}, codes[:8])
	same(t, []float32{before[2], before[3], before[14], before[15]}, scales[:4])

	layout.K.Role = RoleKeyScale
	view, err = NewView(layout)
	must(t, err)
	fails(t, context.Compact(oneMove(view, 10, Slice([]int32{1, 7}), 1), Memory{}, 0),
		StatusInvalidArgument, "k.role 1")
}

// Groups of 4 tokens share scales and minima, the last tokens are not quantized.
func TestSurvivorsAreGroupedAnew(t *testing.T) {
	codes := make([]byte, 8*2*4) // 8 tokens, 2 heads, 4 elements
	for i := range codes {
		codes[i] = byte(i * 3)
	}
	scales, minima := make([]float32, 2*2*4), make([]float32, 2*2*4)
	for i := range scales {
		scales[i], minima[i] = 1, float32(i)
	}
	recent := random(3*2*4, 7)
	before := append([]float32(nil), recent...)
	numbers := Plane{DType: DTypeF32, HeadDim: 4, TokenStride: 32, HeadStride: 16}
	scale, minimum, last := numbers, numbers, numbers
	scale.Data, scale.Role, scale.GroupTokens = Slice(scales), RoleKeyScale, 4
	minimum.Data, minimum.Role, minimum.GroupTokens = Slice(minima), RoleKeyMinimum, 4
	last.Data, last.Role = Slice(recent), RoleKeyRecent
	view, err := NewView(Layout{
		KVHeads:     2,
		K:           Plane{Data: Slice(codes), DType: DTypeU8, HeadDim: 4, TokenStride: 8, HeadStride: 4},
		Companions:  []Plane{scale, minimum, last},
		FirstRecent: 8,
	})
	must(t, err)
	must(t, view.Validate(11))
	fails(t, view.Validate(12), StatusInvalidArgument, "Companions[2] holds 3 rows")
	context := newContext(t, nil)
	fails(t, context.Compact(oneMove(view, 11, Slice([]int32{1, 6, 9, 10}), 1), Memory{}, 0),
		StatusInvalidArgument, "first_recent 8")
	must(t, context.Compact(oneMove(view, 11, Slice([]int32{1, 6, 8, 9, 10}), 1), Memory{}, 0))
	same(t, []byte{0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255}, codes[:12])
	same(t, []float32{24, 28, 32, 36}, minima[:4])
	same(t, before, recent)
}

func TestEveryNumberOfThreadsGivesTheSameBytes(t *testing.T) {
	const n = 512
	alone := scoresOf(t, newContext(t, nil), n, 4)
	for _, threads := range []int{2, 4, 16} {
		context := newContext(t, &ContextOptions{Threads: threads})
		var all sync.WaitGroup
		for g := 0; g < 4; g++ { // a context is shared
			all.Add(1)
			go func() {
				defer all.Done()
				same(t, alone, scoresOf(t, context, n, 4))
			}()
		}
		all.Wait()
	}
	for name, start := range map[string]func(work func()){
		"never":       func(func()) {},
		"at once":     func(work func()) { work() },
		"panics":      func(func()) { panic("no goroutine") },
		"then panics": func(work func()) { go work(); panic("no more") },
		"three times": func(work func()) { go work(); go work(); go work() },
	} {
		context := newContext(t, &ContextOptions{Threads: 2, Go: start})
		for i := 0; i < 20; i++ {
			if scores := scoresOf(t, context, n, 4); !reflect.DeepEqual(alone, scores) {
				t.Fatalf("%s: other scores", name)
			}
		}
	}
	_, err := NewContext(&ContextOptions{Threads: 5000})
	fails(t, err, StatusInvalidArgument, "5000")
}

func TestLogLinesArrive(t *testing.T) {
	var lines []string
	context := newContext(t, &ContextOptions{
		LogLevel: LogDebug,
		Log: func(level LogLevel, message string) {
			lines = append(lines, message)
			if level == LogDebug {
				panic("is dropped")
			}
		},
	})
	newPlan(t, context, 1, 64, "snapkv:budget=16,window=4")
	if len(lines) < 2 || lines[0][:14] != "context on cpu" {
		t.Error(lines)
	}
}
