package kvevict

import "testing"

const full = 64

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
