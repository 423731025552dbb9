package kvevict

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"
)

// watch counts memory that the collector has found unreachable.
type watch struct{ lost atomic.Int32 }

func (w *watch) floats(s []float32) []float32 {
	runtime.SetFinalizer(&s[0], func(*float32) { w.lost.Add(1) })
	return s
}

func (w *watch) slots(s []int32) Memory {
	runtime.SetFinalizer(&s[0], func(*int32) { w.lost.Add(1) })
	return Slice(s)
}

func (w *watch) counts(a, b uint32) Memory {
	s := []uint32{a, b}
	runtime.SetFinalizer(&s[0], func(*uint32) { w.lost.Add(1) })
	return Slice(s)
}

func (w *watch) move(t *testing.T, n int, slots []int32) []Move {
	moves := oneMove(temporaryView(t, w, n), n, w.slots(slots), 1)
	moves[0].Keep.Counts = w.counts(uint32(len(slots)), 0)
	moves[0].TokenCounts = w.counts(uint32(n), uint32(n))
	return moves
}

// scratch is an aligned workspace, larger than a few slots need.
func (w *watch) scratch() Memory {
	s := new([1024]uint64) // a size that the allocator aligns
	runtime.SetFinalizer(s, func(*[1024]uint64) { w.lost.Add(1) })
	return Slice(s[:])
}

// collecting is a context whose calls collect before they work.
func collecting(t *testing.T, w *watch) *Context {
	collected := false
	t.Cleanup(func() {
		if !collected {
			t.Error("the calls had no work to share")
		}
	})
	return newContext(t, &ContextOptions{Threads: 2, Go: func(work func()) {
		collected = true
		for i := 0; i < 5; i++ {
			runtime.GC()
			time.Sleep(time.Millisecond)
		}
		if n := w.lost.Load(); n != 0 {
			t.Errorf("%d slices were given up during the call", n)
		}
		work()
	}})
}

func temporaryView(t *testing.T, w *watch, n int) *View {
	layout := Layout{
		KVHeads: kvHeads,
		K:       rows(w.floats(random(n*row, 1)), kvHeads),
		V:       rows(w.floats(random(n*row, 2)), kvHeads),
	}
	view, err := NewView(layout)
	must(t, err)
	return view
}

func TestScoringKeepsItsMemory(t *testing.T) {
	var w watch
	const n = 512
	plan := newPlan(t, collecting(t, &w), 1, n, "snapkv:budget=0.5,window=4")
	queries := rows(w.floats(random(4*qHeads*headDim, 3)), qHeads)
	must(t, plan.Score([]ScoreJob{{
		View: temporaryView(t, &w, n), Tokens: n, TokenCounts: w.counts(n, n),
		Inputs: SignalInputs{Queries: &queries},
		Scores: Slice(w.floats(make([]float32, kvHeads*n))),
	}}, newMemory(t)(plan.Workspace(OperationScore, 0)), 0))
}

func TestSelectingKeepsItsMemory(t *testing.T) {
	var w watch
	const n = 4096
	context := collecting(t, &w)
	must(t, context.Select(&SelectOptions{
		Tokens: n, Scores: Slice(w.floats(random(kvHeads*n, 1))), TokenCounts: w.counts(n, n-1),
	}, KeepLists{
		Slots: w.slots(make([]int32, n)), Lists: 2, Count: n / 2, Counts: w.counts(n/2, 7),
	}, newMemory(t)(context.SelectWorkspace(n, 2)), 0))
}

func TestEvictingKeepsItsMemory(t *testing.T) {
	var w watch
	const n = 512
	plan := newPlan(t, collecting(t, &w), 1, n, "custom:sink=0,budget=0.5")
	sequence := newSequence(t, plan)
	must(t, sequence.Append(n, 0))
	_, err := sequence.Evict([]*View{temporaryView(t, &w, n)}, &EvictOptions{
		Inputs:    []SignalInputs{{Scores: scores(w.floats(random(kvHeads*n, 3)))}},
		Protected: []int32{7},
	}, newMemory(t)(plan.Workspace(OperationEvict, 0)), 0)
	must(t, err)
}

func TestCompactingKeepsItsMemory(t *testing.T) {
	var w watch
	const n = 512
	must(t, collecting(t, &w).Compact(w.move(t, n, []int32{1, 3, 5, 7}),
		Slice(w.floats(make([]float32, 16))), 0))
}

func TestReorderingKeepsItsMemory(t *testing.T) {
	var w watch
	const n = 512
	must(t, collecting(t, &w).Reorder(w.move(t, n, []int32{5, 1, 3, 1}), w.scratch(), 0))
}

func TestAttentionKeepsItsMemory(t *testing.T) {
	var w watch
	const n = 512
	context := collecting(t, &w)
	job := Attention{
		View: temporaryView(t, &w, n), Tokens: n, TokenCounts: w.counts(n, n), QHeads: qHeads, Rows: 2,
		Queries:    rows(w.floats(random(2*qHeads*headDim, 3)), qHeads),
		Out:        rows(w.floats(make([]float32, 2*qHeads*headDim)), qHeads),
		SinkLogits: Slice(w.floats(random(qHeads, 4))),
	}
	must(t, context.Attend([]Attention{job}, Slice(w.floats(make([]float32, 1<<20))), 0))
}

func TestRotatingKeepsItsMemory(t *testing.T) {
	var w watch
	const n = 512
	policy, err := NewPolicy("none")
	must(t, err)
	plan := planOf(t, collecting(t, &w), policy, Geometry{
		Layers: 1, MaxTokens: n, Each: []LayerGeometry{smallLayer}, RoPEInvFreq: []float32{1, 0.1, 0.01, 0.001},
	})
	must(t, plan.Rotate([]Rotation{{
		View: temporaryView(t, &w, n), Tokens: n, Offsets: w.slots(make([]int32, n)),
		TokenCounts: w.counts(uint32(n), uint32(n)),
	}}, 0))
}
