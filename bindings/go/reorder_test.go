package kvevict

import (
	"fmt"
	"testing"
	"unsafe"
)

const ringLen = 10

var (
	ring    = []int32{4, 5, 6, 7, 8, 9, 0, 1, 2, 3} // slot 4 has the oldest token
	inPlace = []int32{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}
)

// cache has elements that differ, and remembers them.
type cache struct{ k, v, oldK, oldV []float32 }

func newCache() *cache {
	k, v := random(ringLen*row, 1), random(ringLen*row, 2)
	return &cache{k, v, append([]float32(nil), k...), append([]float32(nil), v...)}
}

// holds wants in slot i of a head the row that slots[i] held; table has the places of slots.
func (c *cache) holds(t *testing.T, head int, table, slots []int32) {
	t.Helper()
	for i, slot := range slots {
		to := (int(table[i])*kvHeads + head) * headDim
		from := (int(table[slot])*kvHeads + head) * headDim
		same(t, c.oldK[from:from+headDim], c.k[to:to+headDim])
		same(t, c.oldV[from:from+headDim], c.v[to:to+headDim])
	}
}

func reorderWorkspace(t *testing.T, context *Context, view *View, nSlots, nSlotLists int) Memory {
	t.Helper()
	return newMemory(t)(context.ReorderWorkspace(sized(view, nSlots, nSlotLists)))
}

func TestAWrappedRingIsStraightened(t *testing.T) {
	context := newContext(t, nil)
	for _, slots := range []Memory{
		Slice(ring), Pointer(unsafe.Pointer(&ring[0]), 4*ringLen),
		Address(Slice(ring).address, 4*ringLen),
	} {
		c := newCache()
		view := newView(t, c.k, c.v)
		scratch := reorderWorkspace(t, context, view, ringLen, 1)
		must(t, context.Reorder(oneMove(view, ringLen, slots, 1), scratch, 0))
		c.holds(t, 0, inPlace, ring)
		c.holds(t, 1, inPlace, ring)
	}
}

func TestAWrappedRingInAPoolOfTokensIsStraightened(t *testing.T) {
	context := newContext(t, nil)
	table := []int32{7, 2, 9, 0, 4, 1, 8, 3, 6, 5}
	c := newCache()
	k, v := rows(c.k, kvHeads), rows(c.v, kvHeads)
	k.BlockStride, v.BlockStride = row*4, row*4
	view, err := NewView(Layout{
		KVHeads: kvHeads, K: k, V: v, BlockSize: 1, BlockTable: Slice(table),
	})
	must(t, err)
	scratch := reorderWorkspace(t, context, view, ringLen, 1)
	must(t, context.Reorder(oneMove(view, ringLen, Slice(ring), 1), scratch, 0))
	c.holds(t, 0, table, ring)
	c.holds(t, 1, table, ring)
}

func TestARowMayGoToSeveralSlots(t *testing.T) {
	context, c := newContext(t, nil), newCache()
	view := newView(t, c.k, c.v)
	forMore := reorderWorkspace(t, context, view, ringLen, 1)
	must(t, context.Reorder(oneMove(view, ringLen, Slice([]int32{9, 0, 9, 0}), 1), forMore, 0))
	c.holds(t, 1, inPlace, []int32{9, 0, 9, 0, 4, 5, 6, 7, 8, 9})
}

func TestHeadsHaveSlotsOfTheirOwn(t *testing.T) {
	context, c := newContext(t, nil), newCache()
	view := newView(t, c.k, c.v)
	scratch := reorderWorkspace(t, context, view, 3, 2)
	slots := Slice([]int32{2, 1, 0, 8, 8, 1})
	must(t, context.Reorder(oneMove(view, ringLen, slots, 2), scratch, 0))
	c.holds(t, 0, inPlace, []int32{2, 1, 0})
	c.holds(t, 1, inPlace, []int32{8, 8, 1})
}

func TestReorderWorkspacesHaveTheLibrarysSize(t *testing.T) {
	context, c := newContext(t, nil), newCache()
	view := newView(t, c.k, c.v)
	need, err := context.ReorderWorkspace(sized(view, ringLen, 1))
	must(t, err)
	ofTwo, err := context.ReorderWorkspace(sized(view, ringLen, 2))
	must(t, err)
	n := need.Least
	if n < 8*ringLen || ofTwo.Least <= n {
		t.Error(need, ofTwo)
	}
	same(t, Memory{}, reorderWorkspace(t, context, view, 0, 1))
	must(t, context.Reorder(oneMove(view, ringLen, Memory{}, 1), Memory{}, 0))
	scratch := reorderWorkspace(t, context, view, ringLen, 1)
	same(t, need.Best, scratch.bytes)
	err = context.Reorder(oneMove(view, ringLen, Slice(ring), 1), Address(scratch.address, n-1), 0)
	fails(t, err, StatusInvalidArgument, fmt.Sprintf("workspace_bytes %d < %d", n-1, n))
	c.holds(t, 0, inPlace, inPlace)
}

func TestCompactionTakesAWorkspaceToo(t *testing.T) {
	context, c := newContext(t, nil), newCache()
	view := newView(t, c.k, c.v)
	moves := oneMove(view, ringLen, Slice([]int32{1, 5}), 1)
	need, err := context.CompactWorkspace(moves)
	must(t, err)
	need.Best += 64
	must(t, context.Compact(moves, newMemory(t)(need, nil), 0))
	c.holds(t, 0, inPlace, []int32{1, 5})
}

func TestReorderingRefusesWrongUse(t *testing.T) {
	context, c := newContext(t, nil), newCache()
	view := newView(t, c.k, c.v)
	scratch := reorderWorkspace(t, context, view, ringLen, 1)
	reorder := func(nTokens int, slots []int32, nSlotLists int) error {
		return context.Reorder(oneMove(view, nTokens, Slice(slots), nSlotLists), scratch, 0)
	}
	bytes := func(view *View, nSlots, nSlotLists int) error {
		_, err := context.ReorderWorkspace(sized(view, nSlots, nSlotLists))
		return err
	}
	compactBytes := func(view *View, nKeep int) error {
		_, err := context.CompactWorkspace(sized(view, nKeep, 1))
		return err
	}
	for _, wrong := range []struct {
		err  error
		text string
	}{
		{context.Reorder(oneMove(nil, ringLen, Slice(ring), 1), scratch, 0), "view is nil"},
		{bytes(nil, ringLen, 1), "view is nil"},
		{compactBytes(nil, ringLen), "view is nil"},
		{reorder(-1, ring, 1), "Tokens -1"},
		{reorder(ringLen, ring, -1), "Lists -1"},
		{bytes(view, -1, 1), "Count -1"},
		{bytes(view, ringLen, -1), "Lists -1"},
		{compactBytes(view, -1), "Count -1"},
		{reorder(ringLen+1, ring, 1), "K holds 10 rows of 2 heads, not 11"},
		{bytes(view, ringLen+1, 1), "K holds 10 rows"},
		{
			context.Reorder(oneMove(view, ringLen, Slice(c.k), 1), scratch, 0),
			"Slots is a slice of float32",
		},
		{
			context.Reorder(oneMove(view, ringLen, Slice(ring), 1), Memory{}, 0),
			"workspace_bytes 0 < ",
		},
		{reorder(ringLen, []int32{0, ringLen}, 1), "keep[0][1] 10 is not in [0, n_tokens 10)"},
		{reorder(ringLen, []int32{-1}, 1), "keep[0][0] -1"},
		{reorder(9, ring, 1), "keep.count 10 > n_tokens 9"},
		{reorder(ringLen, ring[:3], 3), "keep.n_lists 3"},
		{bytes(view, ringLen, 3), "keep.n_lists 3"},
	} {
		fails(t, wrong.err, StatusInvalidArgument, wrong.text)
	}
	c.holds(t, 0, inPlace, inPlace)
	must(t, view.Close())
	same(t, ErrClosed, reorder(ringLen, ring, 1))
	must(t, context.Close())
	same(t, ErrClosed, bytes(view, ringLen, 1))
}
