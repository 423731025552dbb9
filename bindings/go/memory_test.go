package kvevict

import (
	"math"
	"testing"
	"unsafe"
)

func TestEndsOfPlanes(t *testing.T) {
	plane := func(floats int, token, head, element int64) *Plane {
		return &Plane{
			Data: Slice(make([]float32, floats)), DType: DTypeF32, HeadDim: 8,
			TokenStride: token, HeadStride: head, ElementStride: element,
		}
	}
	capacity := func(p *Plane, heads uint32) uint64 { return p.steps(heads, 1, p.TokenStride) }
	same(t, uint64(10), capacity(plane(160, 64, 32, 0), 2))
	same(t, uint64(9), capacity(plane(159, 64, 32, 0), 2))
	same(t, uint64(0), capacity(plane(15, 64, 32, 0), 2))
	same(t, uint64(0), capacity(plane(0, 64, 32, 0), 2))
	same(t, uint64(5), capacity(plane(80, 32, 160, 0), 2))   // head-major [2, 5, 8]
	same(t, uint64(10), capacity(plane(160, 4, 320, 40), 2)) // transposed [16, 10]
	same(t, uint64(0), capacity(plane(160, 64, -32, 0), 2))
	same(t, uint64(0), capacity(plane(160, 64, math.MaxInt64, 0), 4)) // beyond 64 bits

	backwards := plane(16, -64, 32, 0) // the last of 10 rows
	backwards.Before = 9 * 64
	same(t, uint64(10), capacity(backwards, 2))
	paged := plane(4*2*16, 64, 32, 0) // 4 blocks of 2 tokens
	same(t, uint64(4), paged.steps(2, 2, 128))
	paged.Data = Address(1, 0)
	same(t, uint64(unlimited), paged.steps(2, 2, 128))
}

// Element e of head h of token t lies where the layout's name says.
func TestLayouts(t *testing.T) {
	const tokens, heads, dim, size, row = 6, 2, 4, 3, 2 * 4
	data := Slice(make([]uint16, tokens*heads*dim))
	with := func(change func(*Plane)) Plane {
		p := Plane{Data: data, DType: DTypeBF16, HeadDim: dim}
		change(&p)
		return p
	}
	same(t, with(func(p *Plane) { p.TokenStride, p.HeadStride = row*heads, row }),
		TokenMajor(data, DTypeBF16, heads, dim))
	same(t, with(func(p *Plane) { p.TokenStride, p.HeadStride = row, row*tokens }),
		HeadMajor(data, DTypeBF16, tokens, dim))
	same(t, with(func(p *Plane) { p.TokenStride, p.HeadStride, p.ElementStride = 2, row*tokens, 2*tokens }),
		Transposed(data, DTypeBF16, tokens, dim))
	same(t, with(func(p *Plane) { p.TokenStride, p.HeadStride, p.BlockStride = row*heads, row, row*heads*size }),
		PagedTokenMajor(data, DTypeBF16, size, heads, dim))
	same(t, with(func(p *Plane) { p.TokenStride, p.HeadStride, p.BlockStride = row, row*size, row*heads*size }),
		PagedHeadMajor(data, DTypeBF16, size, heads, dim))
	same(t, with(func(p *Plane) {
		p.TokenStride, p.HeadStride, p.BlockStride = 4, row*size, row*heads*size
		p.GroupElems, p.GroupStride = 2, 4*size
	}), Vectorised(data, DTypeBF16, size, heads, dim, 2))
	table := Slice(make([]uint64, 2))
	same(t, with(func(p *Plane) {
		p.Data, p.AddressTable, p.InBlock = Memory{}, table, 10
		p.TokenStride, p.HeadStride = row*heads, row
	}), InBlocks(table, DTypeBF16, heads, dim, 10))
	same(t, Plane{Data: data, DType: DTypeQ8_0, HeadDim: 64, TokenStride: 2 * 68, HeadStride: 68},
		TokenMajor(data, DTypeQ8_0, 2, 64))
	same(t, int64(unlimited), PagedTokenMajor(data, DTypeF32, 1<<31, 1<<31, 1<<31).BlockStride)
	_, err := NewView(Layout{KVHeads: 1, K: TokenMajor(data, DTypeBF16, 1, -1)})
	fails(t, err, StatusInvalidArgument, "HeadDim -1")
}

func TestTypesThatDoNotHoldTheDType(t *testing.T) {
	for _, wrong := range []Plane{
		{Data: Slice([]float32{1}), DType: DTypeF16, HeadDim: 2},
		{Data: Slice([]uint16{1}), DType: DTypeF32, HeadDim: 2},
		{Data: Slice([]int32{1}), DType: DTypeF32, HeadDim: 2},
	} {
		_, err := NewView(Layout{KVHeads: 1, K: wrong})
		fails(t, err, StatusInvalidArgument, "K.DType is "+dtypeInfo(wrong.DType).Name+", which", "does not hold")
	}
	for _, right := range []Plane{
		{Data: Slice([]byte{1, 2, 3, 4}), DType: DTypeF32, HeadDim: 1},
		{Data: Slice([]uint16{1}), DType: DTypeBF16, HeadDim: 1},
		{Data: Slice([]float64{1}), DType: DTypeOpaque, RowBytes: 8},
	} {
		_, err := NewView(Layout{KVHeads: 1, K: right})
		must(t, err)
	}
	context := newContext(t, nil)
	err := context.Select(&SelectOptions{Tokens: 64, Scores: Slice([]int32{1})}, KeepLists{}, Memory{}, 0)
	fails(t, err, StatusInvalidArgument, "Scores is a slice of int32, not of float32")
	err = context.Select(
		&SelectOptions{Tokens: 64}, KeepLists{Slots: Slice([]float32{1})}, Memory{}, 0)
	fails(t, err, StatusInvalidArgument, "Slots is a slice of float32, not of int32")
}

func TestSlicesThatAreTooShort(t *testing.T) {
	plan := newPlan(t, newContext(t, nil), 1, 64, "snapkv:budget=16,window=4")
	sequence := newSequence(t, plan)
	view := newView(t, make([]float32, 64*row), make([]float32, 63*row))
	must(t, view.Validate(63))
	must(t, sequence.Append(64, 0))
	scratch := newMemory(t)(plan.Workspace(OperationEvict, 0))
	whole := []*View{newView(t, make([]float32, 64*row), make([]float32, 64*row))}
	queries := rows(make([]float32, 3*qHeads*headDim), qHeads)
	evict := func(views []*View, inputs ...SignalInputs) error {
		return second(sequence.Evict(views, &EvictOptions{Inputs: inputs}, scratch, 0))
	}
	refusals{
		{view.Validate(64), "V holds 63 rows of 2 heads, not 64"},
		{evict([]*View{view}), "V holds 63 rows of 2 heads, not 64"},
		{plan.Score([]ScoreJob{{View: view, Tokens: 64}}, Memory{}, 0), "V holds 63 rows"},
		{evict(whole, SignalInputs{Queries: &queries}), "Queries holds 3 rows of 4 heads, not 4"},
		{evict(whole, SignalInputs{Scores: scores(make([]float32, kvHeads*63))}), "Scores holds 63 rows of 2 heads, not 64"},
		{second(sequence.KeepPositionsInto(0, 0, make([]int32, 63))), "63"},
	}.check(t)
}

func TestBlockTablesThatNameMissingBlocks(t *testing.T) {
	table := []int32{3, 4}
	pool := rows(make([]float32, 4*2*row), kvHeads)
	pool.BlockStride = 2 * row * 4
	view, err := NewView(Layout{KVHeads: kvHeads, K: pool, BlockSize: 2, BlockTable: Slice(table)})
	must(t, err)
	must(t, view.Validate(2))
	fails(t, view.Validate(3), StatusInvalidArgument, "K holds 4 blocks, the block table names 4")
	table[1] = 2 // read when calls are made
	must(t, view.Validate(4))

	// A table for each head: {0, 1} and {3, 4}.
	tables := []int32{0, 1, 3, 4}
	view, err = NewView(Layout{
		KVHeads: kvHeads, K: pool, BlockSize: 2, BlockTable: Slice(tables), BlockTableHeadStride: 2,
	})
	must(t, err)
	must(t, view.Validate(2))
	fails(t, view.Validate(3), StatusInvalidArgument, "K holds 4 blocks, the block table names 4")
	tables[3] = 2
	must(t, view.Validate(4))
}

func TestNumbersAndNils(t *testing.T) {
	context := newContext(t, nil)
	sequence := newSequence(t, newPlan(t, context, 1, 64, "snapkv:budget=16,window=4"))
	policy, err := NewPolicy("none")
	must(t, err)
	planOf := func(geometry Geometry) error { return second(context.NewPlan(geometry, policy, nil)) }
	refusals{
		{sequence.Append(-1, 0), "nTokens -1 is not in 0 .. 4294967295"},
		{sequence.Append(1<<32, 0), "nTokens 4294967296"},
		{newView(t, make([]float32, 64), make([]float32, 64)).Validate(-1), "nTokens -1"},
		{sequence.Observe(shown(-1, nil), 1, 0, 0), "Layer -1"},
		{second(sequence.StoredLength(-1, 0)), "layer -1"},
		{second(NewView(Layout{KVHeads: -1})), "KVHeads -1"},
		{second(NewView(Layout{K: Plane{HeadDim: -8}})), "HeadDim -8"},
		{planOf(Geometry{Layers: -1}), "Layers -1"},
		{planOf(Geometry{Layers: 2, Each: []LayerGeometry{smallLayer, {KVHeads: -1}}}), "KVHeads -1"},
		{second(context.SelectWorkspace(-1, 1)), "nTokens -1"},
		{second(NewContext(&ContextOptions{KernelCacheDir: "a\x00b"})), "KernelCacheDir has a zero byte at 1"},
	}.check(t)
}

// A slice given to the library leaves the stack, whose addresses change when it grows.
func TestSlicesStayInPlace(t *testing.T) {
	var local [64]float32
	memory := Slice(local[:])
	deepen(100)
	same(t, uint64(uintptr(unsafe.Pointer(&local[0]))), memory.address)
}

func deepen(n int) (sum byte) {
	var frame [1024]byte
	frame[n] = byte(n)
	if n > 0 {
		sum = deepen(n - 1)
	}
	return sum + frame[n]
}

const nowhere = 1000 // a block that no pool has

// ofHeads is a pool of blocks of two tokens with a table of three blocks for each head.
func ofHeads(t *testing.T, nBlocks int, tables []int32) (*View, []float32) {
	t.Helper()
	keys := random(nBlocks*2*row, 1)
	k, v := rows(keys, kvHeads), rows(random(nBlocks*2*row, 2), kvHeads)
	k.BlockStride, v.BlockStride = 2*row*4, 2*row*4
	view, err := NewView(Layout{
		KVHeads: kvHeads, K: k, V: v, BlockSize: 2, BlockTable: Slice(tables),
		BlockTableHeadStride: uint64(len(tables) / kvHeads),
	})
	must(t, err)
	return view, keys
}

// An eviction looks at the blocks that each head's tokens are in.
func TestBlocksBeyondAHeadsOwnTokensMayBeAnything(t *testing.T) {
	plan := newPlan(t, newContext(t, nil), 1, 6, "random:sink=0,budget=4", 1, 4)
	sequence := newSequence(t, plan)
	tables := []int32{0, 1, 2, 3, 4, 5}
	view, _ := ofHeads(t, 6, tables)
	scratch := newMemory(t)(plan.Workspace(OperationEvict, 0))
	must(t, sequence.Append(6, 0))
	report, err := sequence.Evict([]*View{view}, nil, scratch, 0)
	must(t, err)
	same(t, uint64(2+1), report.BlocksFreed)
	tables[1], tables[2], tables[5] = nowhere, nowhere, nowhere
	must(t, sequence.Append(1, 0)) // 2 and 5 tokens
	_, err = sequence.Evict([]*View{view}, nil, scratch, 0)
	fails(t, err, StatusInvalidArgument, "the block table names 1000")
	tables[5] = 5
	_, err = sequence.Evict([]*View{view}, nil, scratch, 0)
	must(t, err)
}

func TestNewWorkspacesAreAligned(t *testing.T) {
	for best := uint64(1); best < 200; best += 33 {
		memory, err := Workspace{Alignment: 256, Best: best}.New()
		must(t, err)
		same(t, [2]uint64{0, best}, [2]uint64{memory.address % 256, memory.bytes})
	}
	nothing, err := Workspace{Alignment: 64}.New()
	must(t, err)
	same(t, Memory{}, nothing)
}
