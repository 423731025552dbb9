// This measures what a call costs, in ns: plain C (bindings/benchmark/call_cost.c, given as
// argument), minimal cgo (by_hand.go), and the public layer, on the same work in the same run.
package main

import (
	"bytes"
	"fmt"
	"log"
	"math"
	"os"
	"os/exec"
	"time"

	kvevict "kvevict.dev/kvevict/bindings/go"
)

const (
	layers, qHeads, kvHeads, dim = 2, 8, 2, 64
	tokens, window               = 256, 8
)

var sink uint32

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func must[T any](value T, err error) T {
	check(err)
	return value
}

func main() {
	plainC := map[string]float64{}
	for _, line := range bytes.Split(must(exec.Command(os.Args[1]).Output()), []byte("\n")) {
		var name string
		var ns float64
		if n, _ := fmt.Sscan(string(line), &name, &ns); n == 2 {
			plainC[name] = ns
		}
	}
	context := must(kvevict.NewContext(nil))
	plan := must(context.NewPlan(kvevict.Geometry{
		Layers: layers, MaxTokens: tokens, Each: []kvevict.LayerGeometry{{
			QHeads: qHeads, KVHeads: kvHeads, KHeadDim: dim, VHeadDim: dim,
			QDType: kvevict.DTypeF32, KDType: kvevict.DTypeF32, VDType: kvevict.DTypeF32,
		}},
	}, must(kvevict.ParsePolicy("snapkv:budget=64,window=8")), nil))
	sequence := must(plan.NewSequence())
	check(sequence.BeginObserving(kvevict.Memory{}))
	workspace := must(must(plan.Workspace(kvevict.OperationEvict, 0)).New())
	scoring := must(must(plan.Workspace(kvevict.OperationScore, 0)).New())
	scores := make([]float32, kvHeads*tokens)
	queries := plane(rows(qHeads), qHeads)
	views := make([]*kvevict.View, layers)
	for l := range views {
		views[l] = must(kvevict.NewView(kvevict.Layout{
			KVHeads: kvHeads, K: plane(rows(kvHeads), kvHeads), V: plane(rows(kvHeads), kvHeads),
		}))
	}
	inputs := kvevict.SignalInputs{Queries: &queries}
	shown := []kvevict.Observation{{Inputs: inputs}}
	jobs := []kvevict.ScoreJob{{
		View: views[0], Tokens: tokens, Inputs: inputs, Scores: kvevict.Slice(scores),
	}}
	hand := newByHand()

	fmt.Printf("%-12s%10s%10s%10s%12s\n", "ns per call", "plain C", "by hand", "kvevict", "/ by hand")
	report := func(name string, byHand, layer func(n int)) {
		best := [2]float64{math.MaxFloat64, math.MaxFloat64}
		for round := 0; round < 40; round++ { // they take turns, so that a change of the clock meets both
			best[0] = math.Min(best[0], measure(byHand))
			best[1] = math.Min(best[1], measure(layer))
		}
		fmt.Printf("%-12s%10.1f%10.1f%10.1f%12.2f\n", name, plainC[name], best[0], best[1],
			best[1]/best[0])
	}
	report("no-op", hand.noOp, func(n int) {
		for i := 0; i < n; i++ {
			sink += kvevict.ABIVersion()
		}
	})
	report("length", hand.length, func(n int) {
		for i := 0; i < n; i++ {
			sink += uint32(must(sequence.StoredLength(0, 0)))
		}
	})
	report("score", hand.score, func(n int) {
		for i := 0; i < n; i++ {
			check(plan.Score(jobs, scoring, 0))
		}
	})
	report("evict", hand.evict, func(n int) {
		for i := 0; i < n; i++ {
			check(sequence.Reset(0))
			for l := 0; l < layers; l++ {
				shown[0].Layer = l
				check(sequence.Observe(shown, window, tokens-window, 0))
			}
			check(sequence.Append(tokens, 0))
			must(sequence.Evict(views, nil, workspace, 0))
		}
	})
}

func rows(heads int) []float32 {
	data := make([]float32, tokens*heads*dim)
	for i := range data {
		data[i] = float32(i*37%101)/50 - 1
	}
	return data
}

func plane(data []float32, heads int) kvevict.Plane {
	return kvevict.Plane{
		Data: kvevict.Slice(data), DType: kvevict.DTypeF32, HeadDim: dim,
		TokenStride: int64(heads) * dim * 4, HeadStride: dim * 4,
	}
}

// measure is a batch of 20 ms.
func measure(run func(n int)) float64 {
	calls, begin := 0, time.Now()
	for {
		run(64)
		calls += 64
		if elapsed := time.Since(begin); elapsed >= 20*time.Millisecond {
			return float64(elapsed.Nanoseconds()) / float64(calls)
		}
	}
}
