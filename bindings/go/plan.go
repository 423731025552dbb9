package kvevict

import (
	"unsafe"

	"kvevict.dev/kvevict/bindings/go/internal/native"
)

// Geometry is the attention geometry of a model whose layers are alike.
type Geometry struct {
	Layers       int
	QHeads       int // query heads, a multiple of KVHeads
	KVHeads      int
	KHeadDim     int // elements of a key row; 0 if opaque
	VHeadDim     int // elements of a value row; 0 if opaque or no V
	QDType       DType
	KDType       DType
	VDType       DType
	MaxTokens    int     // most slots a layer will ever hold
	SoftmaxScale float32 // multiplies q.k; 0 means 1/sqrt(KHeadDim)
}

func (g *Geometry) native() (native.Geometry, error) {
	var err error
	n := native.Geometry{
		StructSize:   uint32(unsafe.Sizeof(native.Geometry{})),
		NLayers:      count(&err, "Layers", g.Layers),
		NQHeads:      count(&err, "QHeads", g.QHeads),
		NKVHeads:     count(&err, "KVHeads", g.KVHeads),
		KHeadDim:     count(&err, "KHeadDim", g.KHeadDim),
		VHeadDim:     count(&err, "VHeadDim", g.VHeadDim),
		QDType:       int32(g.QDType),
		KDType:       int32(g.KDType),
		VDType:       int32(g.VDType),
		MaxTokens:    count(&err, "MaxTokens", g.MaxTokens),
		SoftmaxScale: g.SoftmaxScale,
	}
	return n, err
}

// PlanOptions is what a plan may be told beside geometry and policy.
type PlanOptions struct {
	// HeadBudgets are tokens that each KV head keeps, everything included: [Layers, KVHeads], in place
	// of the policy's budget and layer split, for ScopeKVHead. Above a head's length it keeps all.
	// Empty: the policy's.
	HeadBudgets []uint32
}

// Plan is a geometry with a policy and a context, checked once. Immutable; safe for concurrent use.
type Plan struct {
	handle
	device      Device
	geometry    native.Geometry
	obsWindow   uint32
	headsDiffer bool
}

// NewSequence makes an empty sequence, for one request. It keeps what it needs of the plan alive.
func (p *Plan) NewSequence() (*Sequence, error) {
	plan, err := p.enter()
	if err != nil {
		return nil, err
	}
	defer p.leave()
	s := &Sequence{
		device:      p.device,
		geometry:    p.geometry,
		headsDiffer: p.headsDiffer,
		args:        &arguments{},
		planes:      make([]native.Plane, p.geometry.NLayers),
		views:       make([]native.View, p.geometry.NLayers),
		caches:      make([]*content, p.geometry.NLayers),
	}
	var pointer uintptr
	if err := native.Kvevict_sequence_create(plan, &pointer); err != nil {
		return nil, err
	}
	s.own(s, pointer, native.Kvevict_sequence_destroy, p.hooks)
	memory, err := s.MemoryOf(0)
	s.lists = memory.Lists
	return s, err
}

// WorkspaceBytes is the scratch in which an operation at MaxTokens is fastest, for any contents; 0
// means that the zero Memory may be passed.
func (p *Plan) WorkspaceBytes(operation Operation) (uint64, error) {
	_, best, err := p.WorkspaceSizes(operation, 0)
	return best, err
}

// WorkspaceSizes is the least scratch in which an operation runs, slower where it scores on the CPU,
// and that in which it is fastest. Results are the same in any. nTokens is the most slots that a
// layer will hold then; 0 stands for MaxTokens.
func (p *Plan) WorkspaceSizes(operation Operation, nTokens int) (least, best uint64, err error) {
	plan, err := p.enter()
	if err != nil {
		return 0, 0, err
	}
	defer p.leave()
	n := count(&err, "nTokens", nTokens)
	if err != nil {
		return 0, 0, err
	}
	err = native.Kvevict_plan_least_workspace_bytes(plan, int32(operation), n, &least)
	if err == nil {
		err = native.Kvevict_plan_workspace_bytes(plan, int32(operation), n, &best)
	}
	return least, best, err
}

// NewWorkspace makes scratch for an operation on the CPU; on CUDA it is an error. Calls that run at
// the same time must not share it.
func (p *Plan) NewWorkspace(operation Operation) (Memory, error) {
	bytes, err := p.WorkspaceBytes(operation)
	if err != nil {
		return Memory{}, err
	}
	return newWorkspace(p.device, "WorkspaceBytes", bytes)
}

// QueryMemoryBytes is the memory in which a sequence keeps query rows while it observes; 0 for
// policies that do not score by queries.
func (p *Plan) QueryMemoryBytes() (uint64, error) {
	plan, err := p.enter()
	if err != nil {
		return 0, err
	}
	defer p.leave()
	var bytes uint64
	err = native.Kvevict_plan_query_memory_bytes(plan, &bytes)
	return bytes, err
}

// LayerBudgets is the tokens that each layer keeps after so many seen.
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
	budgets := make([]uint32, p.geometry.NLayers)
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
	MoveReason, ScoreReason, RotateReason Reason // ReasonNone where it can
	NeedsScore                            bool   // the policy has to score keys to evict
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
	}, nil
}
