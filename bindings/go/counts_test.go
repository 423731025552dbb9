package kvevict

import "testing"

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

// Heads hold 6 and 3 tokens; entries beyond them do not matter.
func TestHeadsOfAMoveMayHoldDifferentNumbers(t *testing.T) {
	context := newContext(t, nil)
	tables := []int32{0, 1, 2, 3, 4, nowhere}
	counts := []uint32{6, 3}
	slots := []int32{1, 5, 2, -1}
	for _, shape := range []func([]uint32) Memory{
		Slice[uint32],
		func(s []uint32) Memory { return Address(Slice(s).address, uint64(len(s)*4)) },
	} {
		for name, call := range map[string]func([]Move, Memory, Stream) error{
			"compact": context.Compact, "reorder": context.Reorder,
		} {
			view, keys := ofHeads(t, 5, tables)
			before := append([]float32(nil), keys...)
			move := Move{View: view, Tokens: 6, TokenCounts: shape(counts), Keep: KeepLists{
				Slots: Slice(slots), Lists: 2, Count: 2, Counts: Slice([]uint32{2, 1}),
			}}
			scratch := newMemory(t)(context.ReorderWorkspace([]Move{move}))
			must(t, call([]Move{move}, scratch, 0))
			at := func(head, slot int) int {
				return ((int(tables[head*3+slot/2])*2+slot%2)*kvHeads + head) * headDim
			}
			for _, m := range [][3]int{{0, 0, 1}, {0, 1, 5}, {1, 0, 2}, {1, 1, 1}} {
				to, from := at(m[0], m[1]), at(m[0], m[2])
				if before[from] != keys[to] {
					t.Errorf("%s: slot %d of head %d has not what slot %d had", name, m[1], m[0], m[2])
				}
			}
			move.Keep.Slots = Slice([]int32{1, 5, 3, -1})
			fails(t, call([]Move{move}, scratch, 0), StatusInvalidArgument, "keep[1][0] 3")
		}
	}
	view, _ := ofHeads(t, 5, tables)
	move := oneMove(view, 6, Slice([]int32{1, 2}), 1)
	move[0].TokenCounts = Slice([]uint32{6, 3})
	must(t, context.Compact(move, Memory{}, 0))
	for _, wrong := range []struct {
		counts Memory
		text   string
	}{
		{Memory{}, "K holds 5 blocks, the block table names 1000"},
		{Slice([]uint32{6, 5}), "K holds 5 blocks, the block table names 1000"},
		{Slice([]uint32{6}), "TokenCounts has 1 elements, 2 are needed"},
		{Slice([]int32{6, 3}), "TokenCounts is a slice of int32, not of uint32"},
		{Slice([]uint32{7, 3}), "token_counts[0] 7"},
	} {
		move[0].TokenCounts = wrong.counts
		fails(t, context.Compact(move, Memory{}, 0), StatusInvalidArgument, wrong.text)
		fails(t, context.Reorder(move, Memory{}, 0), StatusInvalidArgument, wrong.text)
	}
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
