package kvevict

import (
	"fmt"
	"reflect"
	"testing"
	"unsafe"

	"kvevict.dev/kvevict/bindings/go/internal/native"
)

// inputShapes are [heads, rows, elements] for a layer of 4 query heads of 8
// elements on 2 KV heads, with 3 query rows and 5 slots held.
var inputShapes = map[string][3]int{
	"Queries":         {4, 3, 8},
	"RowLSE":          {4, 3, 1},
	"Scores":          {2, 5, 1},
	"AttentionSums":   {4, 5, 1},
	"QueryMean":       {4, 1, 8},
	"QueryCovariance": {4, 8, 8},
	"KeyFilter":       {2, 1, 8},
	"TokenWeights":    {2, 5, 1},
	"QueryCenters":    {4, 3, 4},
}

// give sets one input to a plane of so many elements less than its shape's.
func giveInput(inputs *SignalInputs, name string, shape [3]int, less int) {
	data := make([]float32, shape[0]*shape[1]*shape[2]-less)
	reflect.ValueOf(inputs).Elem().FieldByName(name).Set(reflect.ValueOf(&Plane{
		Data: Slice(data), DType: DTypeF32, HeadDim: shape[2],
		TokenStride: int64(shape[2]) * 4, HeadStride: int64(shape[1]*shape[2]) * 4,
	}))
}

func putInputs(inputs *SignalInputs) (*signals, error) {
	var s signals
	s.grow(1)
	layer := LayerInfo{Cache: LayerCacheFull, QHeads: 4, KVHeads: 2}
	_, err := s.put(0, inputs, DeviceCPU, layer, 3, 5)
	return &s, err
}

// Every pointer of the header's struct is one of ours of the same name.
func TestInputsArriveEachInItsPlace(t *testing.T) {
	var inputs SignalInputs
	for name, shape := range inputShapes {
		giveInput(&inputs, name, shape, 0)
	}
	inputs.SumHeads = 4
	s, err := putInputs(&inputs)
	must(t, err)
	same(t, uint32(4), s.inputs[0].NSumHeads)
	n, from := reflect.ValueOf(s.inputs[0]), reflect.ValueOf(inputs)
	for i := 2; i < 2+nPlanes; i++ {
		name := n.Type().Field(i).Name
		expected, err := from.FieldByName(name).Interface().(*Plane).native(name)
		must(t, err)
		index := (uintptr(n.Field(i).Uint()) - uintptr(unsafe.Pointer(&s.planes[0]))) /
			unsafe.Sizeof(native.Plane{})
		same(t, expected, s.planes[0][index])
	}
	same(t, nPlanes, n.NumField()-4) // beside two numbers on either side
}

func TestInputsThatAreTooShort(t *testing.T) {
	for name, shape := range inputShapes {
		var inputs SignalInputs
		giveInput(&inputs, name, shape, 0)
		_, err := putInputs(&inputs)
		must(t, err)
		giveInput(&inputs, name, shape, 1)
		_, err = putInputs(&inputs)
		fails(t, err, StatusInvalidArgument, fmt.Sprintf(
			"%s holds %d rows of %d heads, not %d", name, shape[1]-1, shape[0], shape[1]))
	}
	reduced := SignalInputs{SumHeads: kvHeads, AttentionSums: scores(make([]float32, kvHeads*5))}
	_, err := putInputs(&reduced)
	must(t, err)
	reduced.SumHeads = 0
	_, err = putInputs(&reduced)
	fails(t, err, StatusInvalidArgument, "AttentionSums", "of 4 heads")
	reduced.SumHeads = -1
	_, err = putInputs(&reduced)
	fails(t, err, StatusInvalidArgument, "SumHeads -1")
}

// Sums are used as they are, and divided by the queries that saw a token: 5 the first, 1 the last.
func TestAccumulatedAttention(t *testing.T) {
	const n = 5
	context := newContext(t, nil)
	scored := make([]float32, kvHeads*n)
	score := func(text string, inputs SignalInputs) error {
		plan := newPlan(t, context, 1, n, text)
		return plan.Score([]ScoreJob{{Tokens: n, Inputs: inputs, Scores: Slice(scored)}},
			newMemory(t)(plan.Workspace(OperationScore, 0)), 0)
	}
	sums := []float32{5, 4, 3, 2, 1, 10, 8, 3, 0, 7}
	reduced := SignalInputs{AttentionSums: scores(sums), SumHeads: kvHeads}
	must(t, score("h2o", reduced))
	same(t, sums, scored)
	must(t, score("h2o:rows=mean", reduced))
	same(t, []float32{1, 1, 1, 1, 1, 2, 2, 1, 0, 7}, scored)
	all := &Plane{
		Data: Slice(append(append(sums, sums...), 9)), DType: DTypeF32, HeadDim: 1,
		TokenStride: 4, HeadStride: n * 4,
	}
	must(t, score("h2o:group=max", SignalInputs{AttentionSums: all}))
	same(t, []float32{10, 8, 3, 2, 7, 10, 8, 3, 2, 7}, scored)
	reduced.SumHeads = 3
	all.HeadStride = 8
	reduced.AttentionSums = all
	fails(t, score("h2o", reduced), StatusInvalidArgument, "n_sum_heads 3", "n_kv_heads 2")
	fails(t, score("h2o", SignalInputs{}), StatusInvalidArgument, "attention_sums is NULL")
}

func TestAttentionThatIsObservedIsAddedUp(t *testing.T) {
	const n = 5
	plan := newPlan(t, newContext(t, nil), 1, n, "h2o:budget=3,recent=1")
	sequence := newSequence(t, plan)
	observe := func(sums []float32, nRows, first int) error {
		return sequence.Observe([]Observation{{0, SignalInputs{
			AttentionSums: scores(sums), SumHeads: kvHeads, QueryRows: 77,
		}}}, nRows, first, 0)
	}
	must(t, observe([]float32{5, 0, 3, 0, 0, 9, 0, 1}, 4, PositionNext))
	must(t, sequence.Append(n, 0))
	fails(t, observe([]float32{0, 0, 0, 0, 0, 0, 0, 0}, 1, 4), StatusInvalidArgument,
		"AttentionSums holds 4 rows of 2 heads, not 5")
	must(t, observe([]float32{0, 1, 0, 0, 0, 0, 0, 0, 8, 0}, 1, 4))
	fails(t, observe([]float32{0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, 1, 4), StatusInvalidArgument,
		"do not follow")
	view := newView(t, random(n*row, 1), random(n*row, 2))
	_, err := sequence.Evict([]*View{view}, nil, newMemory(t)(plan.Workspace(OperationEvict, 0)), 0)
	must(t, err)
	for head, kept := range [][]int32{{0, 2, 4}, {1, 3, 4}} {
		positions, err := sequence.KeepPositions(0, head)
		must(t, err)
		same(t, kept, positions)
	}
	memory, err := sequence.MemoryOf(0)
	must(t, err)
	same(t, kvHeads, memory.SumHeads)
	same(t, n, int(memory.SumStride))
	same(t, true, memory.Sums != 0)
}
