// Code generated from the headers by bindings/go/generate.sh. DO NOT EDIT.

package kvevict

// ParameterType: what the values of a parameter are.
type ParameterType int32

// Values of ParameterType.
const (
	// A number in [least, most].
	ParameterNumber ParameterType = 0
	// A whole number in [least, most].
	ParameterCount ParameterType = 1
	// A count, or a share of the budget above 0 and below 1.
	ParameterCountOrShare ParameterType = 2
	// A whole number below 2^64.
	ParameterSeed ParameterType = 3
	// `no` or `yes`; as a number 0 or 1.
	ParameterFlag ParameterType = 4
	// One of a few words.
	ParameterWord ParameterType = 5
	// `none`, `avgN` or `maxN`.
	ParameterPool ParameterType = 6
)

// Input: what a policy may read of a layer: rows of its view, or a plane of SignalInputs.
type Input int32

// Values of Input.
const (
	// k of the view, of a scored dtype.
	InputKeys Input = 0
	// v of the view, likewise.
	InputValues Input = 1
	// The last tokens'; non-causal: all.
	InputQueries Input = 2
	// Log-sum-exps of these queries.
	InputRowLSE Input = 3
	// The caller's own.
	InputScores Input = 4
	// Attention that each slot got.
	InputAttentionSums Input = 5
	// Mean of the queries to come.
	InputQueryMean Input = 6
	// Their covariance.
	InputQueryCovariance Input = 7
	// A direction per KV head.
	InputKeyFilter Input = 8
	// What scores are multiplied by.
	InputTokenWeights Input = 9
	// Where queries lie before RoPE.
	InputQueryCenters Input = 10
)

// Need: whether a policy wants an input.
type Need int32

// Values of Need.
const (
	// It is not read.
	NeedNone Need = 0
	// It is used where it is given. h2o needs AttentionSums, observed or given, or else keys and
	// queries. Each of these is optional, since the other way may replace it.
	NeedOptional Need = 1
	// Without it calls fail.
	NeedRequired Need = 2
)

// Status: what a call came to. One value per reaction a caller could have.
type Status int32

// Values of Status.
const (
	// It worked.
	StatusOK Status = 0
	// A parameter is wrong; correct the call.
	StatusInvalidArgument Status = 1
	// Well-formed, but this layout, dtype or combination is not handled.
	StatusUnsupported Status = 2
	// The device or a library it needs is not on this machine.
	StatusUnavailable Status = 3
	// The allocator hook returned nil.
	StatusOutOfMemory Status = 4
	// A bug; please report the message.
	StatusInternal Status = 5
	// The driver reported an error; the message has the call and its name. What the call had
	// queued may have run in part. "context lost" in the message means that nothing more will run
	// in this CUcontext.
	StatusDevice Status = 6
)

// Device: where the cache lies and the work is done.
type Device int32

// Values of Device.
const (
	// Host memory, and the threads of the caller.
	DeviceCPU Device = 0
	// Memory of an NVIDIA GPU, and a CUDA stream.
	DeviceCUDA Device = 1
)

// DType: element types. Values are ABI and never reused. Quantized rows are moved byte for
// byte and read as the f32 that they stand for, rounded once (twice on SIMD targets without a
// fused multiply-add). Quantized keys can be scored, but neither turned nor merged, for that
// would round them again. Queries are f32, f16 or bf16. U8, I8, U4 and DTypeU4Halves stand for
// code * scale + minimum, FP8 for value * scale. Role says where scale and minimum lie.
// Without one the minimum is 0, and the scale of fp8 is 1; codes must have a scale to be
// scored. A codec that packs tokens together and that only the engine can read is an opaque
// row per group: docs/dtypes.md.
type DType int32

// Values of DType.
const (
	// Rows of bytes whose content is the engine's secret: they can be moved, not scored.
	DTypeOpaque DType = 0
	// IEEE 754 single precision.
	DTypeF32 DType = 1
	// IEEE 754 half precision.
	DTypeF16 DType = 2
	// The upper half of an f32.
	DTypeBF16 DType = 3
	// Sign, 4 bits of exponent with bias 7, 3 of mantissa: the "fn" variant, up to 448, without
	// infinities; 0x7F and 0xFF are NaN.
	DTypeFP8E4M3 DType = 4
	// The upper half of an f16: up to 57344, with infinities and NaN.
	DTypeFP8E5M2 DType = 5
	// Codes 0 .. 255.
	DTypeU8 DType = 6
	// Codes -128 .. 127, in two's complement.
	DTypeI8 DType = 7
	// Codes 0 .. 15, two per byte: element 2j in the high nibble of byte j, 2j + 1 in the low one.
	// HeadDim is even.
	DTypeU4 DType = 8
	// Codes 0 .. 15, two per byte: of a row, element j in the low nibble of byte j, j + HeadDim /
	// 2 in the high one. HeadDim is even.
	DTypeU4Halves DType = 9
	// ggml's: of 32 elements 34 bytes, an f16 d and 32 codes as I8; code * d. HeadDim is a
	// multiple of 32.
	DTypeQ8_0 DType = 10
	// ggml's: of 32 elements 18 bytes, an f16 d and 16 bytes, of which byte j has element j in the
	// low nibble and j + 16 in the high one; (code - 8) * d. HeadDim is a multiple of 32.
	DTypeQ4_0 DType = 11
)

// LogLevel: how important a log line is.
type LogLevel int32

// Values of LogLevel.
const (
	// Something to act on.
	LogWarning LogLevel = 0
	// What was found and chosen.
	LogInfo LogLevel = 1
	// Details for whoever looks for an error.
	LogDebug LogLevel = 2
)

// Reduce: how several numbers become one; NaN in, NaN out.
type Reduce int32

// Values of Reduce.
const (
	// Their mean.
	ReduceMean Reduce = 0
	// Their maximum.
	ReduceMax Reduce = 1
	// Their sum.
	ReduceSum Reduce = 2
)

// Scope: what shares one keep list.
type Scope int32

// Values of Scope.
const (
	// Nothing: every KV head of every layer has its own.
	ScopeKVHead Scope = 0
	// The heads of a layer.
	ScopeLayer Scope = 1
	// All layers and their heads.
	ScopeModel Scope = 2
)

// Tie: which of two equal scores survives.
type Tie int32

// Values of Tie.
const (
	// The earlier token.
	TieLowerPosition Tie = 0
	// The later token.
	TieHigherPosition Tie = 1
)

// Merge: what becomes of a row that compaction drops: nothing, or it is merged into one that
// stays. For each KV head by itself, a token e that goes is merged into the token t that stays
// whose key has the highest cosine with its own, the similarity; of equals the lowest slot.
// x_t becomes a mean of what x_t and the x_e were, computed in f32 and rounded once to the
// plane's dtype. Rows that get nothing keep their bytes, and so do companions. A token whose
// key or value has no finite norm in f32 takes no part. docs/policies/refinements.md has the
// formulas.
type Merge int32

// Values of Merge.
const (
	// Nothing.
	MergeNone Merge = 0
	// Values only, weighted by the similarity of their keys. MergeThreshold and MergeFraction say
	// which take part. arXiv:2210.09461, arXiv:2406.13035.
	MergeValues Merge = 1
	// Keys and values, each halfway to its target. LOOK-M, arXiv:2406.18139.
	MergePivot Merge = 2
	// Keys and values, weighted by similarity. KVMerger, arXiv:2407.08454.
	MergeWeighted Merge = 3
)

// Role: what a companion plane is for the rows that it goes with.
type Role int32

// Values of Role.
const (
	// Nothing that this library reads.
	RoleNone Role = 0
	// What codes of keys are multiplied by.
	RoleKeyScale Role = 1
	// What is added to codes of keys then.
	RoleKeyMinimum Role = 2
	// What codes of values are multiplied by.
	RoleValueScale Role = 3
	// What is added to codes of values then.
	RoleValueMinimum Role = 4
	// Keys of the slots from Layout.FirstRecent on, not quantized.
	RoleKeyRecent Role = 5
	// Values of the same slots.
	RoleValueRecent Role = 6
)

// LayerCache: what a layer keeps of the tokens that it has seen.
type LayerCache int32

// Values of LayerCache.
const (
	// A row of every token, until it is evicted.
	LayerCacheFull LayerCache = 0
	// The tokens of a sliding window: the engine drops the others.
	LayerCacheWindow LayerCache = 1
	// No keys and values: recurrent layers, and those that read another layer's.
	LayerCacheNone LayerCache = 2
)

// RoPELayout: which elements of a key RoPE turns together.
type RoPELayout int32

// Values of RoPELayout.
const (
	// f and f + len(RoPEInvFreq) (NeoX, Hugging Face).
	RoPELayoutHalf RoPELayout = 0
	// 2 f and 2 f + 1 (GPT-J; Llama's keys in llama.cpp).
	RoPELayoutInterleaved RoPELayout = 1
)

// Operation: what a plan's workspace is for.
type Operation int32

// Values of Operation.
const (
	// Sequence.Evict().
	OperationEvict Operation = 0
	// Plan.Score().
	OperationScore Operation = 1
	// Sequence.BeginObserving(): holds what a sequence observes until Sequence.EndObserving(). A
	// policy that scores by the last queries needs, for each layer, (window + DraftTokens) *
	// QHeads rows of KHeadDim elements, and on CUDA a float with each. h2o needs MaxTokens floats
	// for each KV head, query head or layer, as `sums` says, and with SumLast that many times
	// more. Others need nothing.
	OperationObserve Operation = 2
)

// Reason: why a plan cannot do something, or why an eviction did nothing.
type Reason int32

// Values of Reason.
const (
	// It can.
	ReasonNone Reason = 0
	// Keys are opaque: nothing can be read from them.
	ReasonOpaqueKeys Reason = 1
	// Queries are opaque.
	ReasonOpaqueQueries Reason = 2
	// The geometry does not say how RoPE turned the keys (RoPEInvFreq).
	ReasonNoRoPE Reason = 3
	// The layer has no cache, or only that of a sliding window.
	ReasonNoFullCache Reason = 4
	// Values are opaque, or there are none.
	ReasonOpaqueValues Reason = 5
	// Keys are quantized: turned or merged they would be rounded again.
	ReasonQuantizedKeys Reason = 6
	// Queries are quantized, and have no scales of their own.
	ReasonQuantizedQueries Reason = 7
	// Values are quantized: merged they would be rounded again.
	ReasonQuantizedValues Reason = 8
	// Rows share scales by groups of tokens, or the last ones lie apart: they do not move one by
	// one. Calls that are given such a view say so; a plan never does.
	ReasonTokenGroups Reason = 9
	// An eviction does nothing: the policy's prompt is not INSIDE, and Sequence.EndPrompt() has
	// not been called.
	ReasonOpenPrompt Reason = 10
	// An eviction leaves a layer alone, since the context is too short yet: its budget, a ratio,
	// has no room for what must stay, or it has fewer tokens than the window.
	ReasonSmallBudget Reason = 11
)

// BlockLayout: how rows lie in a block.
type BlockLayout int32

// Values of BlockLayout.
const (
	// [KVHeads, BlockSize, HeadDim], "HND".
	BlockLayoutHeadMajor BlockLayout = 0
	// [BlockSize, KVHeads, HeadDim], "NHD".
	BlockLayoutTokenMajor BlockLayout = 1
)
