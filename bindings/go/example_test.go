package kvevict_test

import (
	"fmt"
	"log"

	kvevict "kvevict.dev/kvevict/bindings/go"
)

// A prompt of 1,024 tokens is evicted to 512: what an engine does after prefill.
func Example() {
	const layers, qHeads, kvHeads, dim, prompt = 2, 8, 2, 64, 1024
	rows := func(data []float32, heads int) kvevict.Plane { // [token, head, dim]
		return kvevict.Plane{
			Data: kvevict.Slice(data), DType: kvevict.DTypeF32, HeadDim: dim,
			TokenStride: int64(heads) * dim * 4, HeadStride: dim * 4,
		}
	}
	context, err := kvevict.NewContext(nil)
	check(err)
	defer context.Close()
	policy, err := kvevict.ParsePolicy("snapkv:budget=512,window=32")
	check(err)
	plan, err := context.NewPlan(kvevict.Geometry{
		Layers: layers, QHeads: qHeads, KVHeads: kvHeads, KHeadDim: dim, VHeadDim: dim,
		QDType: kvevict.DTypeF32, KDType: kvevict.DTypeF32, VDType: kvevict.DTypeF32,
		MaxTokens: prompt,
	}, policy, nil)
	check(err)
	defer plan.Close()
	sequence, err := plan.NewSequence() // one per request
	check(err)
	defer sequence.Close()
	workspace, err := plan.NewWorkspace(kvevict.OperationEvict)
	check(err)

	check(sequence.BeginObserving(kvevict.Memory{})) // lends it memory for queries
	views := make([]*kvevict.View, layers)
	for layer := range views {
		q := make([]float32, prompt*qHeads*dim) // an engine has these already
		k, v := make([]float32, prompt*kvHeads*dim), make([]float32, prompt*kvHeads*dim)
		queries := rows(q, qHeads)
		check(sequence.Observe(layer, &queries, prompt, 0)) // after RoPE, chunk by chunk or at once
		views[layer], err = kvevict.NewView(kvevict.Layout{
			KVHeads: kvHeads, K: rows(k, kvHeads), V: rows(v, kvHeads),
		})
		check(err)
	}
	check(sequence.Append(prompt))
	_, err = sequence.Evict(views, nil, workspace)
	check(err)
	check(sequence.EndObserving()) // small from here on

	slot, err := sequence.StoredLength(0, 0)
	check(err)
	fmt.Printf("the next token goes to slot %d with RoPE position %d\n", slot,
		sequence.LogicalLength())
	// Output: the next token goes to slot 512 with RoPE position 1024
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
