package kvevict

import "testing"

const batchPolicy = "snapkv:budget=16,window=4,sink=4,scope=head"

// requests are sequences of different lengths, and the same caches for each:
// their content and evictions depend on i and the length alone.
type requests struct {
	sequences []*Sequence
	views     [][]*View
	queries   []Plane
	lengths   []int
}

func newRequests(t *testing.T, plan *Plan) *requests {
	r := &requests{lengths: []int{30, 12, 47}}
	for i := range r.lengths {
		seed := int64(10 * i)
		r.sequences = append(r.sequences, newSequence(t, plan))
		r.views = append(r.views,
			[]*View{newView(t, random(full*row, seed+1), random(full*row, seed+2))})
		r.queries = append(r.queries, rows(random(full*qHeads*headDim, seed+3), qHeads))
	}
	return r
}

// A batch does what single calls do, one after the other.
func TestBatchesEqualSingleCalls(t *testing.T) {
	plan := newPlan(t, newContext(t, nil), 1, full, batchPolicy)
	one, all := newRequests(t, plan), newRequests(t, plan)
	scratch := newMemory(t)(plan.Workspace(OperationEvict, 0))
	var singles []EvictReport
	var shows []SequenceObservations
	var tokens []SequenceTokens
	var lengths []SequenceLength
	var evictions []SequenceEviction
	for i, s := range one.sequences {
		must(t, s.Observe(shown(0, &one.queries[i]), one.lengths[i]+3, 0, 0))
		must(t, s.Append(one.lengths[i]+3, 0))
		must(t, s.TrimTo(one.lengths[i], 0))
		must(t, s.Observe(shown(0, &one.queries[i]), one.lengths[i], 0, 0))
		report, err := s.Evict(one.views[i], &EvictOptions{Protected: []int32{7}}, scratch, 0)
		must(t, err)
		singles = append(singles, report)
		s = all.sequences[i]
		shows = append(shows, SequenceObservations{s, shown(0, &all.queries[i]), one.lengths[i], 0})
		tokens = append(tokens, SequenceTokens{s, one.lengths[i] + 3})
		lengths = append(lengths, SequenceLength{s, one.lengths[i]})
		evictions = append(evictions,
			SequenceEviction{s, all.views[i], &EvictOptions{Protected: []int32{7}}})
	}
	must(t, AppendAll(tokens, 0))
	same(t, 50, all.sequences[2].LogicalLength())
	must(t, TrimAllTo(lengths, 0))
	same(t, 47, all.sequences[2].LogicalLength())
	must(t, ObserveAll(shows, 0))
	small := newMemory(t)(EvictAllWorkspace(all.sequences))
	reports, err := EvictAll(evictions, small, 0)
	must(t, err)
	same(t, singles, reports)
	for i := range one.sequences {
		for head := 0; head < kvHeads; head++ {
			expected, err := one.sequences[i].KeepPositions(0, head)
			must(t, err)
			actual, err := all.sequences[i].KeepPositions(0, head)
			must(t, err)
			same(t, expected, actual)
		}
	}
}

// An invalid item leaves all as they were, and the error says which one it is.
func TestBatchesAreCheckedFirst(t *testing.T) {
	plan := newPlan(t, newContext(t, nil), 1, full, "knorm:budget=8")
	r := newRequests(t, plan)
	must(t, AppendAll([]SequenceTokens{{r.sequences[0], 30}, {r.sequences[1], 12}}, 0))
	scratch := newMemory(t)(plan.Workspace(OperationEvict, 0))
	_, err := EvictAll([]SequenceEviction{
		{r.sequences[0], r.views[0], nil},
		{r.sequences[1], r.views[1], &EvictOptions{Protected: []int32{99}}},
	}, scratch, 0)
	fails(t, err, StatusInvalidArgument, "items[1]: protected_positions[0] 99")
	_, err = EvictAll([]SequenceEviction{
		{r.sequences[0], r.views[0], nil}, {r.sequences[1], r.views[0], nil},
	}, scratch, 0)
	fails(t, err, StatusInvalidArgument, "items[0] and [1]: views[0].k", "overlap")
	_, err = EvictAll([]SequenceEviction{{r.sequences[0], nil, nil}}, scratch, 0)
	fails(t, err, StatusInvalidArgument, "items[0]: ", "0 views")
	stored, err := r.sequences[0].StoredLength(0, 0)
	must(t, err)
	same(t, 30, stored)
	err = AppendAll([]SequenceTokens{{r.sequences[1], 1}, {r.sequences[0], full}}, 0)
	fails(t, err, StatusInvalidArgument, "items[1]: n_tokens")
	err = AppendAll([]SequenceTokens{{r.sequences[1], 1}, {r.sequences[1], 1}}, 0)
	fails(t, err, StatusInvalidArgument, "items[1]: ", "in use")
	fails(t, TrimAllTo([]SequenceLength{{nil, 1}}, 0), StatusInvalidArgument, "items[0]: ", "nil")
	fails(t, TrimAllTo([]SequenceLength{{r.sequences[0], -1}}, 0), StatusInvalidArgument, "NewLength -1")
	same(t, 12, r.sequences[1].LogicalLength())
	must(t, AppendAll(nil, 0))
	must(t, ObserveAll(nil, 0))
	need, err := EvictAllWorkspace(nil)
	must(t, err)
	same(t, uint64(0), need.Best)
	reports, err := EvictAll(nil, Memory{}, 0)
	must(t, err)
	same(t, 0, len(reports))
}

// One policy evicts the prompt, and another one decodes.
func TestForksGoOnUnderAnotherPlan(t *testing.T) {
	context := newContext(t, nil)
	prompt := newPlan(t, context, 1, full, "snapkv:budget=16,window=4,sink=4,scope=layer")
	decode := newPlan(t, context, 1, full, "streaming-llm:budget=8,sink=2")
	s := newSequence(t, prompt)
	view := newView(t, random(full*row, 1), random(full*row, 2))
	q := rows(random(full*qHeads*headDim, 3), qHeads)
	must(t, s.Observe(shown(0, &q), 40, 0, 0))
	must(t, s.Append(40, 0))
	_, err := s.Evict([]*View{view}, nil, newMemory(t)(prompt.Workspace(OperationEvict, 0)), 0)
	must(t, err)
	must(t, s.EndPrompt())
	before, err := s.KeepPositions(0, 1)
	must(t, err)
	fork, err := s.Fork(&ForkOptions{Plan: decode}, 0)
	must(t, err)
	must(t, s.Close())
	must(t, prompt.Close())
	after, err := fork.KeepPositions(0, 1)
	must(t, err)
	same(t, before, after)
	must(t, fork.Append(1, 0))
	_, err = fork.Evict([]*View{view}, nil, newMemory(t)(decode.Workspace(OperationEvict, 0)), 0)
	must(t, err)
	after, err = fork.KeepPositions(0, 1)
	must(t, err)
	same(t, append(append(before[:2:2], before[11:]...), 40), after)
	other := newPlan(t, context, 2, full, "none")
	_, err = fork.Fork(&ForkOptions{Plan: other}, 0)
	fails(t, err, StatusInvalidArgument, "plan: n_layers 2")
	must(t, fork.Close())
}

func TestLayersHaveBudgetsOfTheirOwn(t *testing.T) {
	context := newContext(t, nil)
	policy, err := ParsePolicy("knorm:budget=5")
	must(t, err)
	geometry := Geometry{Layers: 2, MaxTokens: full, Each: []LayerGeometry{smallLayer}}
	plan, err := context.NewPlan(geometry, policy, &PlanOptions{LayerBudgets: []float64{0.5, 9}})
	must(t, err)
	budgets, err := plan.LayerBudgets(30)
	must(t, err)
	same(t, []uint32{15, 9}, budgets)
	must(t, plan.Close())
	_, err = context.NewPlan(geometry, policy, &PlanOptions{LayerBudgets: []float64{1}})
	fails(t, err, StatusInvalidArgument, "layer_budgets_len 1")
}
