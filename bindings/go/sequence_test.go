package kvevict

import (
	"testing"

	"kvevict.dev/kvevict/bindings/go/internal/native"
)

const full = 64

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
