package kvevict

import (
	"errors"
	"math/rand"
	"reflect"
	"strings"
	"testing"
)

// Small caches for the tests: token-major [token, head, headDim] float32.
const (
	qHeads  = 4
	kvHeads = 2
	headDim = 8
	row     = kvHeads * headDim
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func same(t *testing.T, expected, actual any) {
	t.Helper()
	if !reflect.DeepEqual(expected, actual) {
		t.Errorf("expected %+v, got %+v", expected, actual)
	}
}

// fails wants an error of a code whose text contains every part.
func fails(t *testing.T, err error, code Status, parts ...string) {
	t.Helper()
	var e *Error
	if !errors.As(err, &e) || !errors.Is(err, code) {
		t.Errorf("expected %v, got %v", code, err)
		return
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("no %q in: %v", part, err)
		}
	}
}

func random(n int, seed int64) []float32 {
	r := rand.New(rand.NewSource(seed))
	s := make([]float32, n)
	for i := range s {
		s[i] = float32(r.NormFloat64())
	}
	return s
}

func rows(data []float32, heads int) Plane {
	return Plane{
		Data: Slice(data), DType: DTypeF32, HeadDim: headDim,
		TokenStride: int64(heads) * headDim * 4, HeadStride: headDim * 4,
	}
}

// scores are those of a layer's KV heads, one after the other.
func scores(data []float32) *Plane {
	return &Plane{
		Data: Slice(data), DType: DTypeF32, HeadDim: 1, TokenStride: 4,
		HeadStride: int64(len(data) / kvHeads * 4),
	}
}

func newView(t *testing.T, k, v []float32) *View {
	t.Helper()
	view, err := NewView(Layout{KVHeads: kvHeads, K: rows(k, kvHeads), V: rows(v, kvHeads)})
	must(t, err)
	t.Cleanup(func() { _ = view.Close() })
	return view
}

func newContext(t *testing.T, options *ContextOptions) *Context {
	t.Helper()
	context, err := NewContext(options)
	must(t, err)
	t.Cleanup(func() { _ = context.Close() })
	return context
}

// oneMove is a move of one layer by slots of one list or several.
func oneMove(view *View, tokens int, slots Memory, lists int) []Move {
	count := int(slots.bytes) / 4
	if lists > 0 {
		count /= lists
	}
	return []Move{{View: view, Tokens: tokens, Keep: KeepLists{Slots: slots, Lists: lists, Count: count}}}
}

// sized is a move that only asks for sizes.
func sized(view *View, count, lists int) []Move {
	return []Move{{View: view, Keep: KeepLists{Count: count, Lists: lists}}}
}

func newPlan(
	t *testing.T, context *Context, layers, maxTokens int, text string, headBudgets ...uint32,
) *Plan {
	t.Helper()
	policy, err := ParsePolicy(text)
	must(t, err)
	return planOf(t, context, policy,
		Geometry{Layers: layers, MaxTokens: maxTokens, Each: []LayerGeometry{smallLayer}}, headBudgets...)
}

// smallLayer has the heads of the tests' caches.
var smallLayer = LayerGeometry{
	QHeads: qHeads, KVHeads: kvHeads, KHeadDim: headDim, VHeadDim: headDim,
	QDType: DTypeF32, KDType: DTypeF32, VDType: DTypeF32,
}

func planOf(
	t *testing.T, context *Context, policy Policy, geometry Geometry, headBudgets ...uint32,
) *Plan {
	t.Helper()
	plan, err := context.NewPlan(geometry, policy, &PlanOptions{HeadBudgets: headBudgets})
	must(t, err)
	t.Cleanup(func() { _ = plan.Close() })
	return plan
}

func newSequence(t *testing.T, plan *Plan) *Sequence {
	t.Helper()
	sequence, err := plan.NewSequence()
	must(t, err)
	t.Cleanup(func() { _ = sequence.Close() })
	must(t, sequence.BeginObserving(Memory{}))
	return sequence
}

// shown is an observation of one layer.
func shown(layer int, queries *Plane) []Observation {
	return []Observation{{layer, SignalInputs{Queries: queries}}}
}

// newMemory is a workspace of what a plan or context says.
func newMemory(t *testing.T) func(Workspace, error) Memory {
	return func(need Workspace, err error) Memory {
		t.Helper()
		must(t, err)
		memory, err := need.New()
		must(t, err)
		return memory
	}
}

// tokensOf are layer and slots of each list; masses, which may be NaN, are left out.
func tokensOf(lists []ListReport) [][3]int {
	tokens := make([][3]int, len(lists))
	for i, list := range lists {
		tokens[i] = [3]int{list.Layer, list.TokensBefore, list.TokensAfter}
	}
	return tokens
}
