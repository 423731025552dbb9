package kvevict_test

import (
	"fmt"
	"log"

	kvevict "kvevict.dev/kvevict/bindings/go"
)

// An engine does this after prefill: a prompt of 1,024 tokens is evicted to 512.
func Example() {
	const layers, qHeads, kvHeads, dim, prompt = 2, 8, 2, 64, 1024
	rows := func(data []float32, heads int) kvevict.Plane { // [token, head, dim]
		return kvevict.TokenMajor(kvevict.Slice(data), kvevict.DTypeF32, heads, dim)
	}
	context, err := kvevict.NewContext(nil)
	check(err)
	defer context.Close()
	policy, err := kvevict.ParsePolicy("snapkv:budget=512,window=32")
	check(err)
	plan, err := context.NewPlan(kvevict.Geometry{
		Layers: layers, MaxTokens: prompt, Each: []kvevict.LayerGeometry{{
			QHeads: qHeads, KVHeads: kvHeads, KHeadDim: dim, VHeadDim: dim,
			QDType: kvevict.DTypeF32, KDType: kvevict.DTypeF32, VDType: kvevict.DTypeF32,
		}},
	}, policy, nil)
	check(err)
	defer plan.Close()
	sequence, err := plan.NewSequence() // one per request
	check(err)
	defer sequence.Close()
	need, err := plan.Workspace(kvevict.OperationEvict, prompt)
	check(err)
	workspace, err := need.New()
	check(err)

	check(sequence.BeginObserving(kvevict.Memory{})) // lends it memory for queries
	views := make([]*kvevict.View, layers)
	for layer := range views {
		q := make([]float32, prompt*qHeads*dim) // an engine has these already
		k, v := make([]float32, prompt*kvHeads*dim), make([]float32, prompt*kvHeads*dim)
		queries := rows(q, qHeads)
		shown := kvevict.Observation{Layer: layer, Inputs: kvevict.SignalInputs{Queries: &queries}}
		// Queries are shown after RoPE, layer by layer or all, chunk by chunk or at once.
		check(sequence.Observe([]kvevict.Observation{shown}, prompt, 0, 0))
		views[layer], err = kvevict.NewView(kvevict.Layout{
			KVHeads: kvHeads, K: rows(k, kvHeads), V: rows(v, kvHeads),
		})
		check(err)
	}
	check(sequence.Append(prompt, 0))
	_, err = sequence.Evict(views, nil, workspace, 0)
	check(err)
	check(sequence.EndObserving()) // small from here on

	for layer := range views {
		info, err := plan.Layer(layer)
		check(err)
		if info.Lists == 0 { // no full cache, as some layers of a hybrid
			continue
		}
		slot, err := sequence.StoredLength(layer, 0)
		check(err)
		fmt.Printf("layer %d: the next token goes to slot %d with RoPE position %d\n", layer, slot,
			sequence.LogicalLength())
	}
	// Output:
	// layer 0: the next token goes to slot 512 with RoPE position 1024
	// layer 1: the next token goes to slot 512 with RoPE position 1024
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
