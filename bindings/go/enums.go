package kvevict

import "kvevict.dev/kvevict/bindings/go/internal/native"

// The enums of kvevict.h. A constant is its C name without KVEVICT_, in Go's letters; a test
// compares names and values.

// Status is what a call came to: one value per reaction a caller could have.
type Status int32

// Values of Status.
const (
	StatusOK              Status = 0
	StatusInvalidArgument Status = 1 // A parameter is wrong; correct the call.
	StatusUnsupported     Status = 2 // Well-formed, but this layout, dtype or combination is not handled.
	StatusUnavailable     Status = 3 // The device or a library it needs is not on this machine.
	StatusOutOfMemory     Status = 4 // There was no memory.
	StatusInternal        Status = 5 // A bug in kvevict; please report the message.
	StatusDevice          Status = 6 // The driver reported an error; what the call had queued may have run in part.
)

// Device is where the cache lies and the work is done.
type Device int32

// Values of Device.
const (
	DeviceCPU  Device = 0 // The host.
	DeviceCUDA Device = 1 // An NVIDIA GPU.
)

// DType is an element type.
type DType int32

// Values of DType.
const (
	DTypeOpaque DType = 0 // Rows of bytes whose content is the engine's secret: they can be moved, not scored.
	DTypeF32    DType = 1 // IEEE 754 single precision.
	DTypeF16    DType = 2 // IEEE 754 half precision.
	DTypeBF16   DType = 3 // The upper half of an f32.
)

// LogLevel is how important a log line is.
type LogLevel int32

// Values of LogLevel.
const (
	LogWarning LogLevel = 0 // Something to act on.
	LogInfo    LogLevel = 1 // What was set up.
	LogDebug   LogLevel = 2 // Details.
)

// PolicyKind names a policy.
type PolicyKind int32

// Values of PolicyKind.
const (
	PolicyNone         PolicyKind = 0 // Touches nothing.
	PolicyStreamingLLM PolicyKind = 1 // First and last tokens: arXiv:2309.17453.
	PolicySnapKV       PolicyKind = 2 // Attention of the last queries, pooled: arXiv:2404.14469.
	PolicyPyramidKV    PolicyKind = 3 // SnapKV with more tokens for lower layers: arXiv:2406.02069.
	PolicyRandom       PolicyKind = 4 // A seeded baseline: every token and KV head draws its own number.
	PolicyCustom       PolicyKind = 5 // The caller's scores, see EvictOptions.
)

// Pool is the pooling of scores along the tokens, stride 1.
type Pool int32

// Values of Pool.
const (
	PoolNone Pool = 0 // No pooling.
	PoolAvg  Pool = 1 // The mean.
	PoolMax  Pool = 2 // The maximum.
)

// PoolEdge is what average pooling divides by where the kernel hangs over an edge.
type PoolEdge int32

// Values of PoolEdge.
const (
	PoolEdgePad    PoolEdge = 0 // The full width: outside counts as zeros. What published code does.
	PoolEdgeShrink PoolEdge = 1 // The number of terms inside.
)

// Reduce is how several numbers become one; NaN in, NaN out.
type Reduce int32

// Values of Reduce.
const (
	ReduceMean Reduce = 0 // The mean.
	ReduceMax  Reduce = 1 // The maximum.
	ReduceSum  Reduce = 2 // The sum.
)

// ShapingOrder is which comes first: reducing the query heads of a KV head, or pooling.
type ShapingOrder int32

// Values of ShapingOrder.
const (
	ShapingReduceThenPool ShapingOrder = 0 // Reduces first.
	ShapingPoolThenReduce ShapingOrder = 1 // Pools first.
)

// Scope is what shares one keep list.
type Scope int32

// Values of Scope.
const (
	ScopeKVHead Scope = 0 // Every KV head has its own.
	ScopeLayer  Scope = 1 // The heads of a layer.
	ScopeModel  Scope = 2 // All layers.
)

// Tie is which of two equal scores survives.
type Tie int32

// Values of Tie.
const (
	TieLowerPosition  Tie = 0 // The earlier token.
	TieHigherPosition Tie = 1 // The later token.
)

// LayerSplit is how the budget is spread over the layers.
type LayerSplit int32

// Values of LayerSplit.
const (
	LayerSplitUniform           LayerSplit = 0 // The same for every layer.
	LayerSplitGeometric         LayerSplit = 1 // Weights alpha^layer, largest-remainder rounding; the sum is exact.
	LayerSplitArithmeticKVF     LayerSplit = 2 // Integer steps from 2c - c/beta down to c/beta, as KVCache-Factory computes them.
	LayerSplitArithmeticKVPress LayerSplit = 3 // The same in floating point with the window on top, as kvpress computes it.
)

// Operation is an executing call that takes a workspace.
type Operation int32

// Values of Operation.
const (
	OperationEvict       Operation = 0 // Sequence.Evict.
	OperationScoreWindow Operation = 1 // Plan.ScoreWindow.
	OperationSelect      Operation = 2 // Plan.Select.
)

// Reason is why a plan cannot do something.
type Reason int32

// Values of Reason.
const (
	ReasonNone          Reason = 0 // It can.
	ReasonOpaqueKeys    Reason = 1 // Keys are opaque: nothing can be read from them.
	ReasonOpaqueQueries Reason = 2 // Queries are opaque.
	ReasonNoRotation    Reason = 3 // This release does not re-rotate keys.
)

// String is a sentence; "" for ReasonNone.
func (r Reason) String() string { return native.Kvevict_reason_text(int32(r)) }
