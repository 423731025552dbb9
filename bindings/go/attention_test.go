package kvevict

import (
	"math"
	"testing"
)

func attentionOf(view *View, queries, out []float32, n int) Attention {
	return Attention{
		View: view, Tokens: ringLen, QHeads: qHeads, Rows: n,
		Queries: rows(queries, qHeads), Out: rows(out, qHeads),
	}
}

// attended is the plain formula for one query head and row.
func attended(c *cache, query []float32, head, slots int, element int) (out, lse float64) {
	var sum float64
	for t := 0; t < slots; t++ {
		at := (t*kvHeads + head) * headDim
		var dot float64
		for e := 0; e < headDim; e++ {
			dot += float64(query[e]) * float64(c.k[at+e])
		}
		weight := math.Exp(dot / math.Sqrt(headDim))
		sum += weight
		out += weight * float64(c.v[at+element])
	}
	return out / sum, math.Log(sum)
}

func TestAttentionIsThePlainFormula(t *testing.T) {
	context, c := newContext(t, nil), newCache()
	view := newView(t, c.k, c.v)
	const n = 3
	queries, out := random(n*qHeads*headDim, 5), make([]float32, n*qHeads*headDim)
	lse, sums := make([]float32, n*qHeads), make([]float32, kvHeads*ringLen)
	job := attentionOf(view, queries, out, n)
	job.RowLSE = &Plane{
		Data: Slice(lse), DType: DTypeF32, HeadDim: 1, TokenStride: qHeads * 4, HeadStride: 4,
	}
	job.AttentionSums, job.SumHeads = scores(sums), kvHeads
	size, err := context.AttendWorkspace([]Attention{job})
	must(t, err)
	workspace, err := size.New()
	must(t, err)
	must(t, context.Attend([]Attention{job}, workspace, 0))
	for i := 0; i < n; i++ {
		for h := 0; h < qHeads; h++ {
			at := (i*qHeads + h) * headDim
			for e := 0; e < headDim; e++ {
				want, wantLSE := attended(c, queries[at:], h/2, ringLen-n+i+1, e)
				if math.Abs(float64(out[at+e])-want) > 1e-5 {
					t.Errorf("query %d, head %d, element %d: %v, not %v", i, h, e, out[at+e], want)
				}
				if math.Abs(float64(lse[i*qHeads+h])-wantLSE) > 1e-5 {
					t.Errorf("query %d, head %d: lse %v, not %v", i, h, lse[i*qHeads+h], wantLSE)
				}
			}
		}
	}
	var all float64
	for _, sum := range sums {
		all += float64(sum)
	}
	if math.Abs(all-n*qHeads) > 1e-4 {
		t.Errorf("weights add up to %v, not %v", all, n*qHeads)
	}
	must(t, context.Attend(nil, Memory{}, 0))
}

func TestAttentionTakesItsOptions(t *testing.T) {
	context, c := newContext(t, nil), newCache()
	view := newView(t, c.k, c.v)
	queries, plain := random(qHeads*headDim, 5), make([]float32, qHeads*headDim)
	attend := func(change func(*Attention)) []float32 {
		out := make([]float32, qHeads*headDim)
		job := attentionOf(view, queries, out, 1)
		change(&job)
		size, err := context.AttendWorkspace([]Attention{job})
		must(t, err)
		workspace, err := size.New()
		must(t, err)
		must(t, context.Attend([]Attention{job}, workspace, 0))
		return out
	}
	copy(plain, attend(func(*Attention) {}))
	for name, change := range map[string]func(*Attention){
		"window": func(a *Attention) { a.Window = 2 },
		"scale":  func(a *Attention) { a.SoftmaxScale = 2 },
		"cap":    func(a *Attention) { a.LogitSoftcap = 0.5 },
		"sinks":  func(a *Attention) { a.SinkLogits = Slice([]float32{3, 3, 3, 3}) },
		"counts": func(a *Attention) { a.TokenCounts = Slice([]uint32{3, 4}) },
	} {
		if out := attend(change); out[0] == plain[0] || out[3*headDim] == plain[3*headDim] {
			t.Errorf("%s changes nothing", name)
		}
	}
	same(t, plain, attend(func(a *Attention) { a.NonCausal = true }))
}

func TestAttentionRefusesWrongUse(t *testing.T) {
	context, c := newContext(t, nil), newCache()
	view := newView(t, c.k, c.v)
	out := make([]float32, qHeads*headDim)
	good := attentionOf(view, random(qHeads*headDim, 5), out, 1)
	attend := func(change func(*Attention)) error {
		bad := good
		change(&bad)
		return context.Attend([]Attention{bad}, Memory{}, 0)
	}
	for _, wrong := range []struct {
		err  error
		text string
	}{
		{attend(func(a *Attention) { a.View = nil }), "view is nil"},
		{attend(func(a *Attention) { a.Tokens = -1 }), "Tokens -1"},
		{attend(func(a *Attention) { a.Tokens++ }), "K holds 10 rows of 2 heads, not 11"},
		{attend(func(a *Attention) { a.QHeads = -1 }), "QHeads -1"},
		{attend(func(a *Attention) { a.QHeads = 3 }), "n_q_heads 3"},
		{attend(func(a *Attention) { a.Rows = 2 }), "Queries holds 1 rows of 4 heads, not 2"},
		{attend(func(a *Attention) { a.VHeadDim = 9 }), "v_head_dim 9"},
		{attend(func(a *Attention) { a.Window = -1 }), "Window -1"},
		{attend(func(a *Attention) { a.SumHeads = 3 }), "n_sum_heads 3"},
		{attend(func(a *Attention) { a.SinkLogits = Slice(out[:3]) }), "sink_logits_len 3"},
		{attend(func(a *Attention) { a.Out = a.Queries }), "jobs[0].out overlaps jobs[0].queries"},
		{attend(func(a *Attention) {}), "workspace_bytes 0"},
		{context.Attend(make([]Attention, 2), Memory{}, 0), "jobs[0]"},
	} {
		fails(t, wrong.err, StatusInvalidArgument, wrong.text)
	}
	same(t, make([]float32, qHeads*headDim), out)
	must(t, context.Close())
	same(t, ErrClosed, context.Attend([]Attention{good}, Memory{}, 0))
	_, err := context.AttendWorkspace(nil)
	same(t, ErrClosed, err)
}

func TestAttentionKeepsItsMemory(t *testing.T) {
	var w watch
	const n = 512
	context := collecting(t, &w)
	job := Attention{
		View: temporaryView(t, &w, n), Tokens: n, TokenCounts: w.counts(n, n), QHeads: qHeads, Rows: 2,
		Queries:    rows(w.floats(random(2*qHeads*headDim, 3)), qHeads),
		Out:        rows(w.floats(make([]float32, 2*qHeads*headDim)), qHeads),
		SinkLogits: Slice(w.floats(random(qHeads, 4))),
	}
	must(t, context.Attend([]Attention{job}, Slice(w.floats(make([]float32, 1<<20))), 0))
}
