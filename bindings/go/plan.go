package kvevict

import (
	"unsafe"

	"kvevict.dev/kvevict/bindings/go/internal/native"
)

// native converts; the struct holds the addresses of the slices.
func (g *Geometry) native() (native.Geometry, []native.LayerGeometry, error) {
	var err error
	each := make([]native.LayerGeometry, len(g.Each))
	for i, layer := range g.Each {
		each[i] = layer.scalars(&err)
		if err != nil {
			return native.Geometry{}, nil, at(err, "Each", i, len(g.Each))
		}
	}
	n := g.scalars(&err)
	n.Layers, n.LayersLen = inHeap(unsafe.Pointer(first(each))), uint64(len(each))
	n.RoPEInvFreq = inHeap(unsafe.Pointer(first(g.RoPEInvFreq)))
	n.RoPEInvFreqLen = uint64(len(g.RoPEInvFreq))
	n.SinkLogits, n.SinkLogitsLen = inHeap(unsafe.Pointer(first(g.SinkLogits))), uint64(len(g.SinkLogits))
	return n, each, err
}

// Plan is a geometry with a policy and a context, checked once. Immutable; safe for concurrent use.
type Plan struct {
	handle
	device      Device
	layers      []LayerInfo
	maxTokens   uint32
	queryRows   int // rows that score a layer; below 0: as many as there are slots
	headsDiffer bool
	keyDims     []int // of each layer
	pairs       int   // that RoPE rotates
}

// LayerInfo is what a layer is for a plan.
type LayerInfo struct {
	Cache   LayerCache
	QHeads  int
	KVHeads int // 0 without a full cache
	// Lists are its keep lists: one per KV head if heads may keep different tokens (ScopeKVHead
	// of a policy that ranks, or HeadBudgets), otherwise one; 0 without a full cache.
	Lists     int
	FirstList int // the index of its first list among all layers' lists
}

// Layer tells what a layer is for the plan.
func (p *Plan) Layer(layer int) (LayerInfo, error) {
	plan, err := p.enter()
	if err != nil {
		return LayerInfo{}, err
	}
	defer p.leave()
	l := count(&err, "layer", layer)
	if err != nil {
		return LayerInfo{}, err
	}
	n := native.LayerInfo{StructSize: uint32(unsafe.Sizeof(native.LayerInfo{}))}
	if err := native.Kvevict_plan_layer(plan, l, &n); err != nil {
		return LayerInfo{}, err
	}
	return LayerInfo{
		LayerCache(n.Cache), int(n.NQHeads), int(n.NKVHeads), int(n.NLists), int(n.FirstList),
	}, nil
}

// layerAt is a layer, without heads if the library will refuse the number.
func layerAt(layers []LayerInfo, layer uint32) LayerInfo {
	if uint64(layer) < uint64(len(layers)) {
		return layers[layer]
	}
	return LayerInfo{}
}

// sequence is one of this plan that owns no pointer yet.
func (p *Plan) sequence() *Sequence {
	return (&Sequence{
		device:      p.device,
		layers:      p.layers,
		maxTokens:   p.maxTokens,
		queryRows:   p.queryRows,
		headsDiffer: p.headsDiffer,
	}).sibling()
}

// NewSequence makes an empty sequence, for one request. It keeps what it needs of the plan alive.
func (p *Plan) NewSequence() (*Sequence, error) {
	plan, err := p.enter()
	if err != nil {
		return nil, err
	}
	defer p.leave()
	s := p.sequence()
	var pointer uintptr
	if err := native.Kvevict_sequence_create(plan, &pointer); err != nil {
		return nil, err
	}
	s.own(s, pointer, native.Kvevict_sequence_destroy, p.hooks)
	return s, nil
}

// Workspace is the workspace of an operation. nTokens is the most slots that a
// layer will hold; 0 stands for MaxTokens. With the least, scoring on the CPU is
// slower, and an eviction does fewer layers at once.
func (p *Plan) Workspace(operation Operation, nTokens int) (Workspace, error) {
	plan, err := p.enter()
	if err != nil {
		return Workspace{}, err
	}
	defer p.leave()
	n := count(&err, "nTokens", nTokens)
	if err != nil {
		return Workspace{}, err
	}
	return workspaceOf(p.device, func(out *native.Workspace) error {
		return native.Kvevict_plan_workspace(plan, int32(operation), n, out)
	})
}

// LayerBudgets is the tokens that each layer keeps after so many seen; 0 without a full cache.
func (p *Plan) LayerBudgets(nTokens int) ([]uint32, error) {
	plan, err := p.enter()
	if err != nil {
		return nil, err
	}
	defer p.leave()
	n := count(&err, "nTokens", nTokens)
	if err != nil {
		return nil, err
	}
	budgets := make([]uint32, len(p.layers))
	err = native.Kvevict_plan_layer_budgets(plan, n, &budgets[0], uint64(len(budgets)))
	if err != nil {
		return nil, err
	}
	return budgets, nil
}

// String is a sentence; "" for ReasonNone.
func (r Reason) String() string { return native.Kvevict_reason_text(int32(r)) }

// Capabilities is what a plan can do with a layer, and why not.
type Capabilities struct {
	CanMove, CanScore, CanRotate          bool
	MoveReason, ScoreReason, RotateReason Reason // ReasonNone if it can
	NeedsScore                            bool   // the policy has to score keys to evict
	// TableBlock is the number that a view's block size must divide for an eviction with EvictOptions.ByTable;
	// 0 if MoveReason says why not. With NeedsHeadTables each KV head must have its own block table, since
	// lists differ. With NeedsLayerTables no table may be another layer's, since that keeps other tokens.
	TableBlock                        int
	NeedsHeadTables, NeedsLayerTables bool
}

// Capabilities says what the plan can do with a layer.
func (p *Plan) Capabilities(layer int) (Capabilities, error) {
	plan, err := p.enter()
	if err != nil {
		return Capabilities{}, err
	}
	defer p.leave()
	l := count(&err, "layer", layer)
	if err != nil {
		return Capabilities{}, err
	}
	n := native.Capabilities{StructSize: uint32(unsafe.Sizeof(native.Capabilities{}))}
	if err := native.Kvevict_plan_capabilities(plan, l, &n); err != nil {
		return Capabilities{}, err
	}
	return Capabilities{
		CanMove: n.CanMove != 0, CanScore: n.CanScore != 0, CanRotate: n.CanRotate != 0,
		MoveReason: Reason(n.MoveReason), ScoreReason: Reason(n.ScoreReason),
		RotateReason: Reason(n.RotateReason), NeedsScore: n.NeedsScore != 0,
		TableBlock: int(n.TableBlock), NeedsHeadTables: n.NeedsHeadTables != 0,
		NeedsLayerTables: n.NeedsLayerTables != 0,
	}, nil
}
