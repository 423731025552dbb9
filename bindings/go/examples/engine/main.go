// A small engine that owns its cache and uses kvevict; bindings/examples/engine has the model.
package main

import (
	"fmt"
	"log"
	"math"
	"os"

	kvevict "kvevict.dev/kvevict/bindings/go"
)

const layers, qHeads, kvHeads, dim, room, x, kv = 2, 4, 2, 16, 160, qHeads * dim, kvHeads * dim
const prompt, steps, drafts, f32 = 104, 12, 3, kvevict.DTypeF32

type engine struct {
	seed     uint32
	sequence *kvevict.Sequence
	k, v     [layers][]float32 // the cache, by slot
	q        [layers][]float32 // the queries of one token
	x        [x]int
	checksum uint64
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func must[T any](value T, err error) T {
	check(err)
	return value
}

func (e *engine) hash(a uint32) uint32 {
	h := (a ^ e.seed) * 2654435761
	h = (h ^ h>>15) * 2246822519
	return h ^ h>>13
}

// rows of so many heads, one after the other.
func rows(data []float32, heads int) kvevict.Plane {
	return kvevict.TokenMajor(kvevict.Slice(data), f32, heads, dim)
}

func (e *engine) attend(layer, nSlots int, q []float32) {
	for h := 0; h < qHeads; h++ {
		sum, out := 0.0, [dim]float64{}
		for s := 0; s < nSlots; s++ {
			dot, at := 0.0, s*kv+h/(qHeads/kvHeads)*dim
			k, v := e.k[layer][at:at+dim], e.v[layer][at:at+dim]
			for i := range k {
				dot += float64(q[h*dim+i]) * float64(k[i])
			}
			dot = math.Max(dot, 0)
			weight := 1 + dot*dot
			for i := range v {
				out[i] += weight * float64(v[i])
			}
			sum += weight
		}
		for i := range out {
			e.x[h*dim+i] = (e.x[h*dim+i]+int(math.Floor(4*(out[i]/sum)+0.5))+8)&15 - 8
		}
	}
}

// step runs one token through all layers; returns the next one.
func (e *engine) step(token uint32) (next uint32) {
	position := e.sequence.LogicalLength()
	for i := range e.x {
		e.x[i] = int(e.hash((token*1024+uint32(position))*x+uint32(i))>>28) - 8
	}
	for l := 0; l < layers; l++ {
		slot := must(e.sequence.StoredLength(l, 0))
		for i := range e.x {
			e.q[l][i] = float32(e.x[(5*i+3*l+1)%x])
		}
		for i := 0; i < kv; i++ {
			e.k[l][slot*kv+i] = float32(e.x[(7*i+l)%x])
			e.v[l][slot*kv+i] = float32(e.x[(3*i+2*l+5)%x])
		}
		queries := rows(e.q[l], qHeads)
		shown := kvevict.Observation{Layer: l, Inputs: kvevict.SignalInputs{Queries: &queries}}
		check(e.sequence.Observe([]kvevict.Observation{shown}, 1, position, 0))
		e.attend(l, slot+1, e.q[l])
	}
	check(e.sequence.Append(1, 0))
	for i, value := range e.x {
		next += uint32((value + 8) * (i + 1))
	}
	return next % 256
}

// speculate runs a token and drafts of the next ones through all layers. The first draft that
// the model does not say, and all after it, are taken back. Returns the next token.
func (e *engine) speculate(token uint32) (next uint32) {
	length, accepted, right := e.sequence.LogicalLength(), 0, true
	for i := 0; i <= drafts; i++ {
		said := e.step(token)
		// This stands for a draft model that is wrong now and then.
		token = said ^ 1>>(e.hash(uint32(1000+length+i))%4)
		if right {
			accepted, next, right = accepted+1, said, token == said
			for _, value := range e.x {
				e.checksum = (e.checksum ^ uint64(value+8)) * 1099511628211
			}
		}
	}
	check(e.sequence.TrimTo(length+accepted, 0))
	return next
}

func main() {
	e, token := &engine{checksum: 14695981039346656037}, uint32(0)
	must(fmt.Sscan(append(os.Args, "1")[1], &e.seed))
	plan := must(must(kvevict.NewContext(nil)).NewPlan(kvevict.Geometry{
		Layers: layers, MaxTokens: room, Each: []kvevict.LayerGeometry{{
			QHeads: qHeads, KVHeads: kvHeads, KHeadDim: dim, VHeadDim: dim, QDType: f32, KDType: f32, VDType: f32}},
	}, must(kvevict.ParsePolicy("snapkv:budget=40,window=8,sink=2")),
		&kvevict.PlanOptions{DraftTokens: drafts})) // all of them may be taken back
	e.sequence = must(plan.NewSequence())
	check(e.sequence.BeginObserving(kvevict.Memory{}))
	scratch := must(must(plan.Workspace(kvevict.OperationEvict, 0)).New())
	views := make([]*kvevict.View, layers)
	for l := range views {
		e.q[l], e.k[l], e.v[l] = make([]float32, x), make([]float32, room*kv), make([]float32, room*kv)
		views[l] = must(kvevict.NewView(kvevict.Layout{
			KVHeads: kvHeads, K: rows(e.k[l], kvHeads), V: rows(e.v[l], kvHeads)}))
	}
	for i := uint32(0); i < prompt; i++ {
		token = e.step(e.hash(i) % 256)
	}
	must(e.sequence.Evict(views, nil, scratch, 0))
	for i := 0; i < steps; i++ {
		token = e.speculate(token)
		must(e.sequence.Evict(views, nil, scratch, 0))
	}
	for i := 0; i < layers*kvHeads; i++ {
		kept := fmt.Sprint(must(e.sequence.KeepPositions(i/kvHeads, i%kvHeads)))
		fmt.Printf("layer %d head %d keeps %s\n", i/kvHeads, i%kvHeads, kept[1:len(kept)-1])
	}
	fmt.Printf("length %d, last token %d, checksum %016x\n", e.sequence.LogicalLength(), token, e.checksum)
}
