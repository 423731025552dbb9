package kvevict

import (
	"strings"
	"unsafe"

	"kvevict.dev/kvevict/bindings/go/internal/native"
)

// Policy is what survives an eviction: signal, shaping, budget.
//
// Always kept are the first Sink tokens, the last Recent, the observation window (unless KeepWindow
// is false) and protected positions; they count inside the budget. The rest of the budget goes to
// the highest scores. Start from NewPolicy or ParsePolicy: the zero Policy is not valid.
type Policy struct {
	Kind PolicyKind
	// Budget is the tokens kept per KV head and layer, everything included; in (0, 1] a ratio of
	// the context.
	Budget    float64
	Sink      int // first tokens, always kept
	Recent    int // last tokens, always kept
	ObsWindow int // last queries that score
	// SinkShare, RecentShare and WindowShare, above 0, are shares of the budget that count in place
	// of Sink, Recent and ObsWindow.
	SinkShare    float64
	RecentShare  float64
	WindowShare  float64
	KeepWindow   bool // whether the window's own tokens are kept
	Pool         Pool
	PoolKernel   int // odd width of the pooling
	PoolEdge     PoolEdge
	WindowReduce Reduce      // over the window's rows, or the queries that saw a token, of which there is no max
	RowWeight    RowWeight   // what a row's weights are multiplied by
	SoftmaxKeys  SoftmaxKeys // over which a row's softmax goes
	RowSpread    float64     // so many times the variance of the window's rows is added to their mean
	GroupReduce  Reduce      // over the query heads of a KV head
	ShapingOrder ShapingOrder
	Scope        Scope
	ScopeReduce  Reduce // over heads (and layers) sharing a list
	Tie          Tie
	LayerSplit   LayerSplit
	PyramidAlpha float64 // geometric ratio in (0, 1]
	PyramidBeta  int     // steepness of the arithmetic splits
	CakeTau1     float64 // of the split CAKE: the root that is taken of a layer's entropy
	CakeTau2     float64 // likewise of its variance
	Seed         uint64  // of the random policy
	Block        int     // tokens that are compared with each other
	SelectBlock  int     // neighbouring slots that stay or go together; 1: each by itself
	Chunk        int     // neighbouring slots that are scored and chosen from as if they were the cache; 0: all
	// LazyThreshold is the attention to both ends above which a layer is lazy.
	LazyThreshold float64
	// ValueWeight is the weight of each token: a shaped score becomes (score + WeightEpsilon) * weight.
	ValueWeight   ValueWeight
	WeightEpsilon float64
	// Redundancy is the share that the likeness of keys has in a score; keys whose cosine is above
	// Similarity are similar.
	Redundancy float64
	Similarity float64
	// Secure is the share of what a head keeps that goes to shaped scores alone, before they are
	// weighed or lose redundancy.
	Secure float64
	// LagRanks: a token scores by its place within its partition. BudgetOfPartition: the budget is
	// that of each partition.
	LagRanks          bool
	BudgetOfPartition bool
	HeadSplit         HeadSplit // how the KV heads of a layer share its budget
	HeadFloor         float64   // of adaptive heads, in [0, 1]
	// ScoreThreshold is the least score that heads by threshold keep.
	ScoreThreshold float64
	// Merge is what becomes of the rows that go. Of values: MergeThreshold is the least similarity that
	// merges, MergeFraction the part of those that go, the most similar.
	Merge          Merge
	MergeThreshold float64
	MergeFraction  float64
	// HeadNormalize: heads compete by scores times the share that their best have in the sum of them.
	HeadNormalize bool
	// Rotate: keys that move are turned by RoPE to their new slots.
	Rotate bool
	// Margin is how many tokens more than it would keep leave a layer alone.
	Margin int
	// Every: behind the prompt an eviction works once per so many tokens; 0: every one does.
	Every  int
	Prompt Prompt // how the prompt counts, once it has ended
	// SumRows: whose attention a sequence adds up in one row of sums. SumPool: of a slot and the next
	// ones, so many in all, the most is added.
	SumRows SumRows
	SumPool int
	// Rescue is how many of the blocks that would go stay on top of the budget, chosen against Anchor.
	Rescue int
	Anchor Anchor
	// DiverseMass, above 0, is the share of the mass up to which the best blocks stay; others by how unlike
	// their keys are.
	DiverseMass float64
	// SumLast, above 0: sums are of so many last calls alone, and of none before a layer's last eviction.
	// SumRawFirst: a layer's first call is not pooled, as long as it is the only one.
	SumLast     int
	SumRawFirst bool

	rest native.Policy // what has no field above, otherwise zero
}

// NewPolicy returns the defaults of a kind.
func NewPolicy(kind PolicyKind) (Policy, error) {
	var n native.Policy
	if err := native.Kvevict_policy_init(&n, uint64(unsafe.Sizeof(n)), int32(kind)); err != nil {
		return Policy{}, err
	}
	return policyOf(&n), nil
}

// ParsePolicy reads the text form, `name` or `name:key=value,key=value`, where name is a policy or
// a preset. An error gives the column and what was expected there.
func ParsePolicy(text string) (Policy, error) {
	zeroTerminated, err := zeroTerminated("text", text)
	if err != nil {
		return Policy{}, err
	}
	n := native.Policy{StructSize: uint32(unsafe.Sizeof(native.Policy{}))}
	if err := native.Kvevict_policy_parse((*byte)(zeroTerminated.owner), &n); err != nil {
		return Policy{}, err
	}
	return policyOf(&n), nil
}

// With returns the policy with some keys of the text form changed: "budget=0.25,sink=8".
func (p Policy) With(keys string) (Policy, error) {
	text, err := p.Format()
	if err != nil {
		return Policy{}, err
	}
	if strings.Contains(text, ":") {
		return ParsePolicy(text + "," + keys)
	}
	return ParsePolicy(text + ":" + keys)
}

// Format writes the text form, with every key that differs from the kind's default.
func (p Policy) Format() (string, error) {
	n, err := p.native()
	if err != nil {
		return "", err
	}
	var length uint64
	if err := native.Kvevict_policy_format(&n, nil, 0, &length); err != nil {
		return "", err
	}
	text := make([]byte, length+1)
	if err := native.Kvevict_policy_format(&n, &text[0], length+1, nil); err != nil {
		return "", err
	}
	return string(text[:length]), nil
}

// String is Format, or the error's text for an invalid policy.
func (p Policy) String() string {
	text, err := p.Format()
	if err != nil {
		return "(" + err.Error() + ")"
	}
	return text
}

// Validate checks every field and their combination, for any context length.
func (p Policy) Validate() error {
	n, err := p.native()
	if err != nil {
		return err
	}
	return native.Kvevict_policy_validate(&n)
}

// ResolvedPolicy is a policy in tokens, for one context length.
type ResolvedPolicy struct {
	Budget    int // tokens kept in all
	Sink      int // first tokens kept
	Recent    int // last tokens kept, the observation window included
	Selected  int // tokens chosen by score
	ObsWindow int // last queries that score; 0 if none do

	ScoresAreMass bool // whether the scores by which lists are chosen are a mass
}

// Resolve turns the policy into token counts. A context that is left alone has a budget of all of
// it.
func (p Policy) Resolve(nContext int) (ResolvedPolicy, error) {
	n, err := p.native()
	context := count(&err, "nContext", nContext)
	if err != nil {
		return ResolvedPolicy{}, err
	}
	out := native.ResolvedPolicy{StructSize: uint32(unsafe.Sizeof(native.ResolvedPolicy{}))}
	if err := native.Kvevict_policy_resolve(&n, context, &out); err != nil {
		return ResolvedPolicy{}, err
	}
	return ResolvedPolicy{
		int(out.Budget), int(out.NSink), int(out.NRecent), int(out.NSelected), int(out.ObsWindow),
		out.ScoresAreMass != 0,
	}, nil
}

// LayerBudgets is the tokens that each layer keeps of a context.
func (p Policy) LayerBudgets(nContext, nLayers int) ([]uint32, error) {
	n, err := p.native()
	context := count(&err, "nContext", nContext)
	layers := count(&err, "nLayers", nLayers)
	if err == nil && layers > maxLayers {
		err = invalid("nLayers %d > %d", layers, maxLayers)
	}
	if err != nil {
		return nil, err
	}
	budgets := make([]uint32, layers)
	err = native.Kvevict_policy_layer_budgets(&n, context, first(budgets), uint64(layers))
	if err != nil {
		return nil, err
	}
	return budgets, nil
}

// NeedOf says whether the policy wants an input, so that an engine makes no others.
func (p Policy) NeedOf(input Input) (Need, error) {
	n, err := p.native()
	if err != nil {
		return 0, err
	}
	var need int32
	err = native.Kvevict_policy_need(&n, int32(input), &need)
	return Need(need), err
}

// maxLayers is the header's bound, checked before memory is made for so many.
const maxLayers = 4096

// first is a slice's memory as cgo checks it.
func first[T any](s []T) *T {
	if len(s) == 0 {
		return nil
	}
	return &s[0]
}

func (p *Policy) native() (native.Policy, error) {
	var err error
	n := native.Policy{
		StructSize:   uint32(unsafe.Sizeof(native.Policy{})),
		Kind:         int32(p.Kind),
		Budget:       p.Budget,
		NSink:        count(&err, "Sink", p.Sink),
		NRecent:      count(&err, "Recent", p.Recent),
		ObsWindow:    count(&err, "ObsWindow", p.ObsWindow),
		SinkShare:    p.SinkShare,
		RecentShare:  p.RecentShare,
		WindowShare:  p.WindowShare,
		KeepWindow:   flag(p.KeepWindow),
		Pool:         int32(p.Pool),
		PoolKernel:   count(&err, "PoolKernel", p.PoolKernel),
		PoolEdge:     int32(p.PoolEdge),
		WindowReduce: int32(p.WindowReduce),
		RowWeight:    int32(p.RowWeight),
		SoftmaxKeys:  int32(p.SoftmaxKeys),
		RowSpread:    p.RowSpread,
		GroupReduce:  int32(p.GroupReduce),
		ShapingOrder: int32(p.ShapingOrder),
		Scope:        int32(p.Scope),
		ScopeReduce:  int32(p.ScopeReduce),
		Tie:          int32(p.Tie),
		LayerSplit:   int32(p.LayerSplit),
		PyramidAlpha: p.PyramidAlpha,
		PyramidBeta:  count(&err, "PyramidBeta", p.PyramidBeta),
		CakeTau1:     p.CakeTau1,
		CakeTau2:     p.CakeTau2,
		Seed:         p.Seed,

		Block:         count(&err, "Block", p.Block),
		SelectBlock:   count(&err, "SelectBlock", p.SelectBlock),
		Chunk:         count(&err, "Chunk", p.Chunk),
		LazyThreshold: p.LazyThreshold,
		ValueWeight:   int32(p.ValueWeight),
		WeightEpsilon: p.WeightEpsilon,
		Redundancy:    p.Redundancy,
		Similarity:    p.Similarity,
		Secure:        p.Secure,

		LagRanks:          flag(p.LagRanks),
		BudgetOfPartition: flag(p.BudgetOfPartition),
		HeadSplit:         int32(p.HeadSplit),
		HeadFloor:         p.HeadFloor,
		ScoreThreshold:    p.ScoreThreshold,

		Merge:          int32(p.Merge),
		MergeThreshold: p.MergeThreshold,
		MergeFraction:  p.MergeFraction,
		HeadNormalize:  flag(p.HeadNormalize),

		Rotate: flag(p.Rotate),
		Margin: count(&err, "Margin", p.Margin),
		Every:  count(&err, "Every", p.Every),
		Prompt: int32(p.Prompt),

		SumRows: int32(p.SumRows),
		SumPool: count(&err, "SumPool", p.SumPool),
		Rescue:  count(&err, "Rescue", p.Rescue),
		Anchor:  int32(p.Anchor),

		DiverseMass: p.DiverseMass,
		SumLast:     count(&err, "SumLast", p.SumLast),
		SumRawFirst: flag(p.SumRawFirst),
	}
	return merged(n, p.rest), err
}

// merged takes known fields away from a struct, which leaves the rest, or adds them to the rest:
// equal bytes cancel out, and a byte beside 0 stays.
func merged(a, b native.Policy) native.Policy {
	to := (*[unsafe.Sizeof(a)]byte)(unsafe.Pointer(&a))
	for i, from := range *(*[unsafe.Sizeof(b)]byte)(unsafe.Pointer(&b)) {
		to[i] ^= from
	}
	return a
}

func policyOf(n *native.Policy) Policy {
	p := Policy{
		Kind:         PolicyKind(n.Kind),
		Budget:       n.Budget,
		Sink:         int(n.NSink),
		Recent:       int(n.NRecent),
		ObsWindow:    int(n.ObsWindow),
		SinkShare:    n.SinkShare,
		RecentShare:  n.RecentShare,
		WindowShare:  n.WindowShare,
		KeepWindow:   n.KeepWindow != 0,
		Pool:         Pool(n.Pool),
		PoolKernel:   int(n.PoolKernel),
		PoolEdge:     PoolEdge(n.PoolEdge),
		WindowReduce: Reduce(n.WindowReduce),
		RowWeight:    RowWeight(n.RowWeight),
		SoftmaxKeys:  SoftmaxKeys(n.SoftmaxKeys),
		RowSpread:    n.RowSpread,
		GroupReduce:  Reduce(n.GroupReduce),
		ShapingOrder: ShapingOrder(n.ShapingOrder),
		Scope:        Scope(n.Scope),
		ScopeReduce:  Reduce(n.ScopeReduce),
		Tie:          Tie(n.Tie),
		LayerSplit:   LayerSplit(n.LayerSplit),
		PyramidAlpha: n.PyramidAlpha,
		PyramidBeta:  int(n.PyramidBeta),
		CakeTau1:     n.CakeTau1,
		CakeTau2:     n.CakeTau2,
		Seed:         n.Seed,

		Block:         int(n.Block),
		SelectBlock:   int(n.SelectBlock),
		Chunk:         int(n.Chunk),
		LazyThreshold: n.LazyThreshold,
		ValueWeight:   ValueWeight(n.ValueWeight),
		WeightEpsilon: n.WeightEpsilon,
		Redundancy:    n.Redundancy,
		Similarity:    n.Similarity,
		Secure:        n.Secure,

		LagRanks:          n.LagRanks != 0,
		BudgetOfPartition: n.BudgetOfPartition != 0,
		HeadSplit:         HeadSplit(n.HeadSplit),
		HeadFloor:         n.HeadFloor,
		ScoreThreshold:    n.ScoreThreshold,

		Merge:          Merge(n.Merge),
		MergeThreshold: n.MergeThreshold,
		MergeFraction:  n.MergeFraction,
		HeadNormalize:  n.HeadNormalize != 0,

		Rotate: n.Rotate != 0,
		Margin: int(n.Margin),
		Every:  int(n.Every),
		Prompt: Prompt(n.Prompt),

		SumRows: SumRows(n.SumRows),
		SumPool: int(n.SumPool),
		Rescue:  int(n.Rescue),
		Anchor:  Anchor(n.Anchor),

		DiverseMass: n.DiverseMass,
		SumLast:     int(n.SumLast),
		SumRawFirst: n.SumRawFirst != 0,
	}
	known, _ := p.native()
	p.rest = merged(*n, known)
	return p
}
