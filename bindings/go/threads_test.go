package kvevict

import (
	"math"
	"reflect"
	"sync"
	"testing"
	"unsafe"
)

const nTokens = 48

func scoresOf(t *testing.T, context *Context, n, window int) []float32 {
	plan := newPlan(t, context, 1, n, "snapkv:budget=0.5,window=4")
	queries := rows(random(window*qHeads*headDim, 2), qHeads)
	scores := make([]float32, kvHeads*n)
	must(t, plan.Score([]ScoreJob{{
		View: newView(t, random(n*row, 1), random(n*row, 3)), Tokens: n,
		Inputs: SignalInputs{Queries: &queries}, Scores: Slice(scores),
	}}, newMemory(t)(plan.Workspace(OperationScore, 0)), 0))
	return scores
}

func TestScoresOfSlicesPointersAndAddressesAreEqual(t *testing.T) {
	context := newContext(t, nil)
	expected := scoresOf(t, context, nTokens, 4)
	plan := newPlan(t, context, 1, 64, "snapkv:budget=0.5,window=4")
	queries := rows(random(4*qHeads*headDim, 2), qHeads)
	lse := Plane{
		Data: Slice(make([]float32, 4*qHeads)), DType: DTypeF32, HeadDim: 1,
		TokenStride: qHeads * 4, HeadStride: 4,
	}
	k, v := random(nTokens*row, 1), random(nTokens*row, 3)
	scratch := newMemory(t)(plan.Workspace(OperationScore, 0))
	job := ScoreJob{
		View: newView(t, k, v), Tokens: nTokens, TokenCounts: Slice([]uint32{nTokens, nTokens}),
		Inputs: SignalInputs{Queries: &queries, RowLSE: &lse},
	}
	for _, shape := range []func([]float32) Memory{
		Slice[float32],
		func(s []float32) Memory { return Pointer(unsafe.Pointer(&s[0]), uint64(len(s)*4)) },
		func(s []float32) Memory { return Address(Slice(s).address, uint64(len(s)*4)) },
	} {
		scores := make([]float32, kvHeads*nTokens)
		job.Scores = shape(scores)
		must(t, plan.Score([]ScoreJob{job}, scratch, 0))
		same(t, expected, scores)
	}
	lse.TokenStride, lse.HeadStride = 0, 0 // packed
	must(t, plan.Score([]ScoreJob{job}, scratch, 0))
	lse.Data = Slice(make([]float32, 4*qHeads-1))
	fails(t, plan.Score([]ScoreJob{job}, scratch, 0), StatusInvalidArgument,
		"RowLSE holds 3 rows of 4 heads, not 4")
	if !math.IsInf(float64(expected[nTokens-1]), 1) || expected[0] <= 0 || expected[0] >= 1 {
		t.Error("a kept window and a mean of weights:", expected[nTokens-1], expected[0])
	}
}

func TestEveryNumberOfThreadsGivesTheSameBytes(t *testing.T) {
	const n = 512
	alone := scoresOf(t, newContext(t, nil), n, 4)
	for _, threads := range []int{2, 4, 16} {
		context := newContext(t, &ContextOptions{Threads: threads})
		var all sync.WaitGroup
		for g := 0; g < 4; g++ { // a context is shared
			all.Add(1)
			go func() {
				defer all.Done()
				same(t, alone, scoresOf(t, context, n, 4))
			}()
		}
		all.Wait()
	}
	for name, start := range map[string]func(work func()){
		"never":       func(func()) {},
		"at once":     func(work func()) { work() },
		"panics":      func(func()) { panic("no goroutine") },
		"then panics": func(work func()) { go work(); panic("no more") },
		"three times": func(work func()) { go work(); go work(); go work() },
	} {
		context := newContext(t, &ContextOptions{Threads: 2, Go: start})
		for i := 0; i < 20; i++ {
			if scores := scoresOf(t, context, n, 4); !reflect.DeepEqual(alone, scores) {
				t.Fatalf("%s: other scores", name)
			}
		}
	}
	_, err := NewContext(&ContextOptions{Threads: 5000})
	fails(t, err, StatusInvalidArgument, "5000")
}

func TestLogLinesArrive(t *testing.T) {
	var lines []string
	context := newContext(t, &ContextOptions{
		LogLevel: LogDebug,
		Log: func(level LogLevel, message string) {
			lines = append(lines, message)
			if level == LogDebug {
				panic("is dropped")
			}
		},
	})
	newPlan(t, context, 1, 64, "snapkv:budget=16,window=4")
	if len(lines) < 2 || lines[0][:14] != "context on cpu" {
		t.Error(lines)
	}
}
