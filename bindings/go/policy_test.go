package kvevict

import (
	"testing"

	"kvevict.dev/kvevict/bindings/go/internal/native"
)

func TestPolicyTextGoesThereAndBack(t *testing.T) {
	policy, err := ParsePolicy("snapkv:budget=512,window=16,pool=max5")
	must(t, err)
	same(t, PolicySnapKV, policy.Kind)
	same(t, 512.0, policy.Budget)
	same(t, 16, policy.ObsWindow)
	same(t, PoolMax, policy.Pool)
	text, err := policy.Format()
	must(t, err)
	again, err := ParsePolicy(text)
	must(t, err)
	same(t, policy, again)
	same(t, text, policy.String())
	plain, err := NewPolicy(PolicySnapKV)
	must(t, err)
	changed, err := plain.With("pool=max5,window=16,budget=512")
	must(t, err)
	same(t, policy, changed)
	changed, err = changed.With("budget=0.25")
	must(t, err)
	same(t, 0.25, changed.Budget)
}

func TestPolicyTypoSaysWhere(t *testing.T) {
	_, err := ParsePolicy("snapkv:bugdet=512")
	fails(t, err, StatusInvalidArgument, "column 8", "bugdet")
	_, err = ParsePolicy("snapkv\x00")
	fails(t, err, StatusInvalidArgument, "zero byte at 6")
	_, err = ParsePolicy("")
	fails(t, err, StatusInvalidArgument, "column")
}

func TestPolicyFieldsArriveEachInItsPlace(t *testing.T) {
	policy := Policy{
		PolicyPyramidKV, 0.5, 11, 12, 13, 0.1, 0.2, 0.3, false, PoolMax, 15, PoolEdgeShrink, ReduceSum, RowWeightPast,
		SoftmaxPast, 1.5, ReduceMax, ShapingReduceLogits, ScopeLayer, ReduceMax, TieHigherPosition, LayerSplitArithmeticKVF,
		0.25, 17, 0.375, 2, 18, 19, 20, 21, 0.875, ValueWeightGiven, 0.125, 0.75, 0.625, 0.375, false, true,
		HeadSplitThreshold, 0.0625, -4, MergeWeighted, 0.4375, 0.875, true, true, 22, 23, PromptPinned,
		SumRowsLayer, 24, 25, AnchorOnes, 0.1875, 26, true,
		native.Policy{},
	}
	n, err := policy.native()
	must(t, err)
	same(t, policy, policyOf(&n))
	same(t, [14]uint32{11, 12, 13, 0, 15, 17, 19, 20, 21, 22, 23, 24, 25, 26}, [14]uint32{
		n.NSink, n.NRecent, n.ObsWindow, n.KeepWindow, n.PoolKernel, n.PyramidBeta, n.Block, n.SelectBlock, n.Chunk,
		n.Margin, n.Every, n.SumPool, n.Rescue, n.SumLast,
	})
	same(t, [5]uint32{0, 1, 1, 1, 1}, [5]uint32{
		n.LagRanks, n.BudgetOfPartition, n.HeadNormalize, n.Rotate, n.SumRawFirst,
	})
	same(t, [11]int32{3, 2, 1, 2, 1, 2, 3, 3, 2, 2, 2}, [11]int32{
		n.Kind, n.WindowReduce, n.GroupReduce, n.Pool, n.PoolEdge, n.ValueWeight, n.HeadSplit, n.Merge, n.Prompt,
		n.SumRows, n.Anchor,
	})
	same(t, [3]float64{0.4375, 0.875, 0.1875}, [3]float64{n.MergeThreshold, n.MergeFraction, n.DiverseMass})
	same(t, [3]int32{1, 1, 2}, [3]int32{n.RowWeight, n.SoftmaxKeys, n.ShapingOrder})
	same(t, [4]float64{1.5, 0.375, 2, 0.875}, [4]float64{n.RowSpread, n.CakeTau1, n.CakeTau2, n.LazyThreshold})
	same(t, [8]float64{0.5, 0.25, 0.125, 0.75, 0.625, 0.375, 0.0625, -4}, [8]float64{
		n.Budget, n.PyramidAlpha, n.WeightEpsilon, n.Redundancy, n.Similarity, n.Secure, n.HeadFloor, n.ScoreThreshold,
	})
}

func TestPolicyNumbersAreChecked(t *testing.T) {
	policy, err := NewPolicy(PolicySnapKV)
	must(t, err)
	must(t, policy.Validate())
	negative := policy
	negative.Sink = -1
	fails(t, negative.Validate(), StatusInvalidArgument, "Sink -1")
	huge := policy
	huge.PyramidBeta = 1 << 32
	fails(t, huge.Validate(), StatusInvalidArgument, "PyramidBeta 4294967296 is not in 0 .. 4294967295")
	fails(t, Policy{}.Validate(), StatusInvalidArgument, "budget")
	_, err = NewPolicy(99)
	fails(t, err, StatusInvalidArgument, "99")
	_, err = ParsePolicy("streaming-llm:sink=64,budget=64")
	fails(t, err, StatusInvalidArgument, "64")
}

func TestPolicyInTokens(t *testing.T) {
	policy, err := ParsePolicy("snapkv:budget=512,window=32")
	must(t, err)
	resolved, err := policy.Resolve(4096)
	must(t, err)
	same(t, ResolvedPolicy{512, 4, 32, 476, 32, true}, resolved)
	half, err := ParsePolicy("h2o:budget=1024,recent=0.5")
	must(t, err)
	resolved, err = half.Resolve(5000)
	must(t, err)
	same(t, 512, resolved.Recent)
	budgets, err := policy.LayerBudgets(4096, 3)
	must(t, err)
	same(t, []uint32{512, 512, 512}, budgets)
	_, err = policy.Resolve(0)
	fails(t, err, StatusInvalidArgument, "n_context")
	_, err = policy.LayerBudgets(64, -1)
	fails(t, err, StatusInvalidArgument, "nLayers -1")
	_, err = policy.LayerBudgets(64, 0)
	fails(t, err, StatusInvalidArgument)
}

// What the header's struct has beside what the fields of Policy say is neither lost nor makes policies differ.
func TestPolicyKeepsWhatItHasNoFieldFor(t *testing.T) {
	parsed, err := ParsePolicy("random:sink=0,budget=100,seed=7")
	must(t, err)
	n, err := parsed.native()
	must(t, err)
	n.KeepWindow = 5 // of which a bool has one bit
	changed := policyOf(&n)
	kept, err := changed.native()
	must(t, err)
	same(t, n, kept)
	changed.Budget = 200
	n.Budget = 200
	same(t, policyOf(&n), changed)
}

func TestPolicySaysWhatItReads(t *testing.T) {
	policy, err := ParsePolicy("snapkv:budget=100,weight=norm")
	must(t, err)
	for input, want := range map[Input]Need{
		InputQueries: NeedRequired, InputValues: NeedRequired, InputRowLSE: NeedOptional,
		InputTokenWeights: NeedNone,
	} {
		need, err := policy.NeedOf(input)
		must(t, err)
		same(t, want, need)
	}
	_, err = policy.NeedOf(99)
	fails(t, err, StatusInvalidArgument, "input 99")
	policy.Budget = -1
	_, err = policy.NeedOf(InputKeys)
	fails(t, err, StatusInvalidArgument, "budget -1")
}
