// A program of one's own, see consumer.sh.
package main

import (
	"fmt"
	"log"

	kvevict "kvevict.dev/kvevict/bindings/go"
)

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func main() {
	keys := make([]float32, 64*4)
	values := make([]float32, 64*4)
	context, err := kvevict.NewContext(nil)
	check(err)
	defer context.Close()
	policy, err := kvevict.ParsePolicy("streaming-llm:budget=16")
	check(err)
	plan, err := context.NewPlan(kvevict.Geometry{
		Layers: 1, MaxTokens: 64, Each: []kvevict.LayerGeometry{{
			QHeads: 1, KVHeads: 1, KHeadDim: 4, VHeadDim: 4, QDType: kvevict.DTypeF32,
			KDType: kvevict.DTypeF32, VDType: kvevict.DTypeF32,
		}},
	}, policy, nil)
	check(err)
	sequence, err := plan.NewSequence()
	check(err)
	plane := func(rows []float32) kvevict.Plane {
		return kvevict.Plane{
			Data: kvevict.Slice(rows), DType: kvevict.DTypeF32, HeadDim: 4, TokenStride: 16,
			HeadStride: 16,
		}
	}
	view, err := kvevict.NewView(kvevict.Layout{KVHeads: 1, K: plane(keys), V: plane(values)})
	check(err)
	need, err := plan.Workspace(kvevict.OperationEvict, 0)
	check(err)
	workspace, err := need.New()
	check(err)
	check(sequence.Append(64, 0))
	report, err := sequence.Evict([]*kvevict.View{view}, nil, workspace, 0)
	check(err)
	fmt.Printf("%+v\n", report)
	if report.TokensAfter != 16 {
		log.Fatal("not evicted")
	}
}
