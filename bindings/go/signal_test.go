package kvevict

import (
	"fmt"
	"reflect"
	"testing"
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

	"ReferenceQueries": {4, 2, 8},
}

// give sets one input to a plane of so many elements less than its shape's.
func giveInput(inputs *SignalInputs, name string, shape [3]int, less int) {
	if name == "ReferenceQueries" {
		inputs.ReferenceRows = shape[1]
	}
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
	placed := SignalInputs{ReferenceRows: 2, ReferencePositions: Slice(make([]int32, 1))}
	_, err = putInputs(&placed)
	fails(t, err, StatusInvalidArgument, "ReferencePositions has 1 elements, 2 are needed")
	reduced.SumHeads = -1
	_, err = putInputs(&reduced)
	fails(t, err, StatusInvalidArgument, "SumHeads -1")
}
