package kvevict

import "testing"

func TestWorkspacesAreWhatTheLibrarySays(t *testing.T) {
	context := newContext(t, nil)
	plan := newPlan(t, context, 2, 4096, "snapkv:budget=16,window=4")
	for _, operation := range []Operation{OperationEvict, OperationScore} {
		most, err := plan.Workspace(operation, 0)
		must(t, err)
		again, err := plan.Workspace(operation, 4096)
		must(t, err)
		same(t, most, again)
		fewer, err := plan.Workspace(operation, 256)
		must(t, err)
		if most.Alignment != 64 || most.Least == 0 || most.Least > most.Best || fewer.Best >= most.Best {
			t.Error(operation, most, fewer)
		}
	}
	observe, err := plan.Workspace(OperationObserve, 0)
	must(t, err)
	if rows := uint64(2 * 4 * qHeads * headDim * 4); observe.Least < rows || observe.Best < observe.Least {
		t.Error(rows, observe)
	}
	none, err := newPlan(t, context, 2, 64, "streaming-llm:budget=16").Workspace(OperationObserve, 0)
	must(t, err)
	same(t, [2]uint64{0, 0}, [2]uint64{none.Least, none.Best})
	_, err = plan.Workspace(OperationEvict, 4097)
	fails(t, err, StatusInvalidArgument, "4097")
	_, err = plan.Workspace(OperationEvict, -1)
	fails(t, err, StatusInvalidArgument, "nTokens -1")
	_, err = plan.Workspace(99, 0)
	fails(t, err, StatusInvalidArgument, "99")
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
