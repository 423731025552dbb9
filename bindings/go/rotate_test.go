package kvevict

import (
	"math"
	"testing"
)

const pairs = headDim / 2

var invFreq = []float32{1, 0.1, 0.01, 0.001}

func ropePlan(t *testing.T, context *Context, layers, maxTokens int, frequencies []float32) *Plan {
	t.Helper()
	policy, err := ParsePolicy("none")
	must(t, err)
	return planOf(t, context, policy, Geometry{
		Layers: layers, MaxTokens: maxTokens, Each: []LayerGeometry{smallLayer},
		RoPEInvFreq: frequencies, RoPELayout: RoPELayoutHalf,
	})
}

// turned wants every key of a head rotated by its slot's offset.
func turned(t *testing.T, old, k []float32, head int, offsets []int32) {
	t.Helper()
	for slot, offset := range offsets {
		at := (slot*kvHeads + head) * headDim
		for f := 0; f < pairs; f++ {
			sin, cos := math.Sincos(float64(offset) * float64(invFreq[f]))
			re, im := float64(old[at+f]), float64(old[at+f+pairs])
			if math.Abs(float64(k[at+f])-(re*cos-im*sin)) > 4e-6 ||
				math.Abs(float64(k[at+f+pairs])-(re*sin+im*cos)) > 4e-6 {
				t.Errorf("head %d, slot %d, pair %d", head, slot, f)
			}
		}
	}
}

func TestKeysAreTurnedAsAtOtherPositions(t *testing.T) {
	plan := ropePlan(t, newContext(t, nil), 2, ringLen, invFreq)
	can, err := plan.Capabilities(0)
	must(t, err)
	same(t, true, can.CanRotate)
	same(t, ReasonNone, can.RotateReason)

	a, b := newCache(), newCache()
	shared := []int32{0, -1, 7, -300, 2, 2, 0, 1, 5, -2}
	each := []int32{3, 0, -5, 8, 9, 9, -9, 1}
	must(t, plan.Rotate([]Rotation{
		{Layer: 0, Tokens: ringLen, View: newView(t, a.k, a.v), Offsets: Slice(shared)},
		{
			Layer: 1, Tokens: 4, View: newView(t, b.k, b.v), Offsets: Slice(each), Lists: kvHeads,
			TokenCounts: Slice([]uint32{4, 2}),
		},
	}, 0))
	turned(t, a.oldK, a.k, 0, shared)
	turned(t, a.oldK, a.k, 1, shared)
	turned(t, b.oldK, b.k, 0, append(each[:4:4], 0, 0, 0, 0, 0, 0))
	turned(t, b.oldK, b.k, 1, append(each[4:6:6], 0, 0, 0, 0, 0, 0, 0, 0))
	same(t, a.oldV, a.v)
	same(t, b.oldV, b.v)
	must(t, plan.Rotate(nil, 0))
}

func TestRotatingRefusesWrongUse(t *testing.T) {
	context, c := newContext(t, nil), newCache()
	plan, without := ropePlan(t, context, 1, 2*ringLen, invFreq), ropePlan(t, context, 1, ringLen, nil)
	view := newView(t, c.k, c.v)
	good := Rotation{Tokens: ringLen, View: view, Offsets: Slice(ring)}
	rotate := func(change func(*Rotation)) error {
		bad := good
		change(&bad)
		return plan.Rotate([]Rotation{bad}, 0)
	}
	for _, wrong := range []struct {
		err  error
		text string
	}{
		{rotate(func(r *Rotation) { r.View = nil }), "view is nil"},
		{rotate(func(r *Rotation) { r.Tokens = -1 }), "Tokens -1"},
		{rotate(func(r *Rotation) { r.Layer = -1 }), "Layer -1"},
		{rotate(func(r *Rotation) { r.Layer = 1 }), "layer 1"},
		{rotate(func(r *Rotation) { r.Lists = -1 }), "Lists -1"},
		{rotate(func(r *Rotation) { r.Lists = 3 }), "n_lists 3"},
		{rotate(func(r *Rotation) { r.Tokens++ }), "K holds 10 rows of 2 heads, not 11"},
		{rotate(func(r *Rotation) { r.Offsets = Slice(ring[:9]) }), "offsets_len 9"},
		{rotate(func(r *Rotation) { r.Offsets = Slice(c.k) }), "Offsets is a slice of float32"},
		{
			rotate(func(r *Rotation) { r.TokenCounts = Slice([]uint32{1}) }),
			"TokenCounts has 1 elements, 2 are needed",
		},
		{plan.Rotate([]Rotation{good, {Tokens: 1}}, 0), "rotations[1]: kvevict: INVALID_ARGUMENT: view is nil"},
		{plan.Rotate(make([]Rotation, 2), 0), "rotations[0]"},
	} {
		fails(t, wrong.err, StatusInvalidArgument, wrong.text)
	}
	fails(t, without.Rotate([]Rotation{good}, 0), StatusUnsupported, "rope_inv_freq")
	same(t, c.oldK, c.k)
	must(t, plan.Close())
	same(t, ErrClosed, plan.Rotate([]Rotation{good}, 0))
}

func TestRotatingKeepsItsMemory(t *testing.T) {
	var w watch
	const n = 512
	plan := ropePlan(t, collecting(t, &w), 1, n, invFreq)
	must(t, plan.Rotate(rotationOf(t, &w, n), 0))
}

func rotationOf(t *testing.T, w *watch, n int) []Rotation {
	return []Rotation{{
		View: temporaryView(t, w, n), Tokens: n, Offsets: w.slots(make([]int32, n)),
		TokenCounts: w.counts(uint32(n), uint32(n)),
	}}
}
