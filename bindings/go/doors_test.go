package kvevict

import (
	"math"
	"sort"
	"sync"
	"testing"
	"unsafe"
)

const nTokens = 48

func scoresOf(t *testing.T, context *Context, n, window int) []float32 {
	plan := newPlan(t, context, 1, n, "snapkv:budget=0.5,window=4")
	queries := rows(random(window*qHeads*headDim, 2), qHeads)
	scores := make([]float32, kvHeads*n)
	must(t, plan.ScoreWindow(&queries, nil, newView(t, random(n*row, 1), random(n*row, 3)), n,
		Slice(scores), workspace(t, plan, OperationScoreWindow), 0))
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
	scratch := workspace(t, plan, OperationScoreWindow)
	for _, shape := range []func([]float32) Memory{
		Slice[float32],
		func(s []float32) Memory { return Pointer(unsafe.Pointer(&s[0]), uint64(len(s)*4)) },
		func(s []float32) Memory { return Address(Slice(s).address, uint64(len(s)*4)) },
	} {
		scores := make([]float32, kvHeads*nTokens)
		err := plan.ScoreWindow(&queries, &lse, newView(t, k, v), nTokens, shape(scores), scratch, 0)
		must(t, err)
		same(t, expected, scores)
	}
	if !math.IsInf(float64(expected[nTokens-1]), 1) || expected[0] <= 0 || expected[0] >= 1 {
		t.Error("a kept window and a mean of weights:", expected[nTokens-1], expected[0])
	}
}

func TestKeepList(t *testing.T) {
	plan := newPlan(t, newContext(t, nil), 1, 64, "custom:budget=6,sink=1,recent=1")
	scores := make([]float32, kvHeads*nTokens)
	for i := range scores {
		scores[i] = float32((i * 37) % 101)
	}
	keep := make([]int32, kvHeads*6)
	kept, err := plan.Select(0, Slice(scores), nTokens, []int32{7}, Slice(keep),
		workspace(t, plan, OperationSelect), 0)
	must(t, err)
	same(t, 6, kept)
	// Sink 0, protected 7, recent 47 and the three highest others of head 0.
	var others []int
	for i := 1; i < nTokens-1; i++ {
		if i != 7 {
			others = append(others, i)
		}
	}
	sort.Slice(others, func(a, b int) bool { return scores[others[a]] > scores[others[b]] })
	expected := append([]int{0, 7, nTokens - 1}, others[:3]...)
	sort.Ints(expected)
	for i, slot := range expected {
		same(t, int32(slot), keep[i])
	}
}

func TestRowsMoveAsTheKeepListSays(t *testing.T) {
	context := newContext(t, nil)
	keep := []int32{0, 3, 5, 1, 2, 47} // per head
	k, v := random(nTokens*row, 4), random(nTokens*row, 5)
	before := append([]float32(nil), k...)
	view := newView(t, k, v)
	must(t, context.Compact(view, nTokens, Slice(keep), 2, Memory{}, 0))
	for head := 0; head < 2; head++ {
		for slot := 0; slot < 3; slot++ {
			from := (int(keep[head*3+slot])*2 + head) * headDim
			to := (slot*2 + head) * headDim
			same(t, before[from:from+headDim], k[to:to+headDim])
		}
	}
	err := context.Compact(view, nTokens, Slice([]int32{3, 2}), 1, Memory{}, 0)
	fails(t, err, StatusInvalidArgument, "keep")
}

// Blocks of a pool in any order, values opaque, scales along.
func TestPagedCachesAndCompanions(t *testing.T) {
	blocks := []int32{2, 0, 3}
	values := make([]byte, 4*2*2*3) // 4 blocks, 2 tokens, 2 heads, 3 bytes
	for i := range values {
		values[i] = byte(i)
	}
	scales, keys := random(4*2*2, 6), random(4*2*row, 7)
	scalesBefore, keysBefore := append([]float32(nil), scales...), append([]float32(nil), keys...)
	k := rows(keys, kvHeads)
	k.BlockStride = 2 * row * 4
	view, err := NewView(Layout{
		KVHeads: kvHeads,
		K:       k,
		V: Plane{
			Data: Slice(values), RowBytes: 3, TokenStride: 6, HeadStride: 3, BlockStride: 12,
		},
		Companions: []Plane{{
			Data: Slice(scales), DType: DTypeF32, HeadDim: 1, TokenStride: 8, HeadStride: 4,
			BlockStride: 16,
		}},
		BlockSize:  2,
		BlockTable: Slice(blocks),
	})
	must(t, err)
	kept := []int32{1, 4, 5}
	must(t, newContext(t, nil).Compact(view, 6, Slice(kept), 1, Memory{}, 0))
	for slot := 0; slot < 3; slot++ {
		to := int(blocks[slot/2])*2 + slot%2
		from := int(blocks[kept[slot]/2])*2 + int(kept[slot])%2
		same(t, byte(from*6), values[to*6])
		same(t, byte(from*6+5), values[to*6+5])
		same(t, scalesBefore[from*2+1], scales[to*2+1])
		same(t, keysBefore[from*row+9], keys[to*row+9])
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
