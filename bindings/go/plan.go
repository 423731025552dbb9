package kvevict

import (
	"runtime"
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

// Plan is a geometry with a policy and a context, checked once. Immutable; safe for concurrent use.
type Plan struct {
	handle
	device    Device
	geometry  native.Geometry
	obsWindow uint32
}

// NewSequence makes an empty sequence, for one request. It keeps what it needs of the plan alive.
func (p *Plan) NewSequence() (*Sequence, error) {
	plan, err := p.enter()
	if err != nil {
		return nil, err
	}
	defer p.leave()
	s := &Sequence{
		device:   p.device,
		geometry: p.geometry,
		args:     &arguments{},
		planes:   make([]native.Plane, p.geometry.NLayers),
		views:    make([]native.View, p.geometry.NLayers),
		caches:   make([]*content, p.geometry.NLayers),
	}
	var pointer uintptr
	if err := native.Kvevict_sequence_create(plan, &pointer); err != nil {
		return nil, err
	}
	s.own(s, pointer, native.Kvevict_sequence_destroy, p.hooks)
	return s, nil
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

// ScoreWindow scores one layer's cached tokens by the attention of the last queries.
//
// queries is [QHeads, ObsWindow] rows, after RoPE. rowLSE is nil, or the f32 log-sum-exps of the
// rows' scaled logits, which save CUDA a pass over the keys. scores, float32 [KVHeads, nTokens], is
// written: higher keeps. workspace is for OperationScoreWindow.
func (p *Plan) ScoreWindow(
	queries *Plane, rowLSE *Plane, view *View, nTokens int, scores, workspace Memory, stream Stream,
) error {
	plan, err := p.enter()
	if err != nil {
		return err
	}
	defer p.leave()
	q, err := p.window("queries", queries)
	if err != nil {
		return err
	}
	var lse *native.Plane
	if rowLSE != nil {
		n, err := p.window("rowLSE", rowLSE)
		if err != nil {
			return err
		}
		lse = &n
	}
	cache, n, err := view.use(p.device, nTokens)
	if err != nil {
		return err
	}
	scoresLen, err := scores.floats(p.device, "scores")
	if err != nil {
		return err
	}
	if err := workspace.on(p.device, "workspace"); err != nil {
		return err
	}
	err = native.Kvevict_score_window(plan, &q, lse, cache.native, n, uintptr(scores.address),
		scoresLen, uintptr(workspace.address), workspace.bytes, uintptr(stream))
	runtime.KeepAlive(queries)
	runtime.KeepAlive(rowLSE)
	runtime.KeepAlive(cache)
	runtime.KeepAlive(scores.owner)
	runtime.KeepAlive(workspace.owner)
	return err
}

// window converts a plane that must hold the observation window of every query head.
func (p *Plan) window(name string, plane *Plane) (native.Plane, error) {
	return plane.rows(p.device, name, p.obsWindow, p.geometry.NQHeads)
}

// Select chooses the slots of a layer that survive under the policy's budget, and returns how many
// are kept per list.
//
// layer decides the budget (0 with ScopeModel). scores is float32 [KVHeads, nTokens]; absent if the
// policy chooses nothing by score. protected are strictly ascending slots that must stay. keep, int32
// [lists, kept] slots ascending per list, is written. workspace is for OperationSelect.
func (p *Plan) Select(
	layer int, scores Memory, nTokens int, protected []int32, keep, workspace Memory, stream Stream,
) (int, error) {
	plan, err := p.enter()
	if err != nil {
		return 0, err
	}
	defer p.leave()
	l := count(&err, "layer", layer)
	n := count(&err, "nTokens", nTokens)
	if err != nil {
		return 0, err
	}
	scoresLen, err := scores.floats(p.device, "scores")
	if err != nil {
		return 0, err
	}
	keepCapacity, err := keep.slots(p.device, "keep")
	if err != nil {
		return 0, err
	}
	if err := workspace.on(p.device, "workspace"); err != nil {
		return 0, err
	}
	var kept uint32
	err = native.Kvevict_select(plan, l, uintptr(scores.address), scoresLen, n, first(protected),
		uint64(len(protected)), uintptr(keep.address), keepCapacity, uintptr(workspace.address),
		workspace.bytes, &kept, uintptr(stream))
	runtime.KeepAlive(scores.owner)
	runtime.KeepAlive(keep.owner)
	runtime.KeepAlive(workspace.owner)
	return int(kept), err
}
