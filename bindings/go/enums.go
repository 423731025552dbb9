// Code generated from the headers by bindings/go/generate.sh. DO NOT EDIT.

package kvevict

// EditKind: what an edit does.
type EditKind int32

// Values of EditKind.
const (
	// New tokens replace tokens [first, end). With New 0 the edit removes; with first = end it
	// inserts.
	EditReplace EditKind = 0
	// Tokens [first, end) move, so that the first of them gets position `to`.
	EditMove EditKind = 1
)

// EditPositions: how tokens that stay are numbered.
type EditPositions int32

// Values of EditPositions.
const (
	// Positions have no gaps, as before, and keys rotate to the new ones. The geometry has
	// RoPEInvFreq.
	EditRotate EditPositions = 0
	// The same, but keys stay as they are: for models without RoPE, and for engines that rotate
	// keys themselves.
	EditRenumber EditPositions = 1
	// Tokens keep their positions, so that a replacement may leave a gap.
	EditKeep EditPositions = 2
)

// ParameterType: the type of a parameter's values.
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
	// k of the view; it can be scored.
	InputKeys Input = 0
	// v of the view; it can be scored.
	InputValues Input = 1
	// Queries of the last or all tokens.
	InputQueries Input = 2
	// Log-sum-exps of these queries.
	InputRowLSE Input = 3
	// The caller's scores, given or observed.
	InputScores Input = 4
	// Attention that each slot received.
	InputAttentionSums Input = 5
	// Mean of the queries to come.
	InputQueryMean Input = 6
	// Their covariance.
	InputQueryCovariance Input = 7
	// A direction per KV head.
	InputKeyFilter Input = 8
	// Factors of the scores.
	InputTokenWeights Input = 9
	// Queries' statistics before RoPE.
	InputQueryCenters Input = 10
	// Queries of no token held.
	InputReferenceQueries Input = 11
	// The slots' positions. Sequences know them; for Plan.Score() a slot's position is its number.
	InputPositions Input = 12
)

// Need: whether a policy reads an input.
type Need int32

// Values of Need.
const (
	// It is not read.
	NeedNone Need = 0
	// It is read if it is given. h2o needs AttentionSums, observed or given, or else keys and
	// queries; each of the three is optional because the other way can replace it.
	NeedOptional Need = 1
	// Calls fail without it.
	NeedRequired Need = 2
)

// Status: the outcome of a call. Each value calls for a different reaction.
type Status int32

// Values of Status.
const (
	// The call succeeded.
	StatusOK Status = 0
	// A parameter is wrong; correct the call.
	StatusInvalidArgument Status = 1
	// The library cannot handle this layout, dtype or combination.
	StatusUnsupported Status = 2
	// The device or a library it needs is not on this machine.
	StatusUnavailable Status = 3
	// The allocator hook returned nil.
	StatusOutOfMemory Status = 4
	// A bug; please report the message.
	StatusInternal Status = 5
	// The driver reported an error; the message names the driver's call and the error. Work that
	// was already queued may have run in part. "context lost" in the message means that nothing
	// more will run in this CUcontext.
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
// byte. To score them, their elements are converted to f32, which rounds once (twice on SIMD
// targets without a fused multiply-add). Quantized keys cannot be rotated, and quantized rows
// cannot be merged, because that would round them again. Queries are f32, f16 or bf16. An
// element of U8, I8, U4 or DTypeU4Halves stands for code * scale + minimum, and an element of
// FP8 for value * scale. Scales and minima lie in companion planes: see Role. A missing
// minimum is 0, and a missing scale of FP8 is 1; codes without a scale cannot be scored. If
// only the engine can decode a format that packs tokens together, describe each group as an
// opaque row: docs/dtypes.md.
type DType int32

// Values of DType.
const (
	// Bytes that only the engine can read: they are moved, never scored.
	DTypeOpaque DType = 0
	// IEEE 754 single precision.
	DTypeF32 DType = 1
	// IEEE 754 half precision.
	DTypeF16 DType = 2
	// The upper half of an f32.
	DTypeBF16 DType = 3
	// 1 sign, 4 exponent (bias 7) and 3 mantissa bits: the "fn" variant, up to 448, without
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
	// Codes 0 .. 15, two per byte: byte j of a row holds element j in the low nibble and element j
	// + HeadDim / 2 in the high one. HeadDim is even.
	DTypeU4Halves DType = 9
	// ggml's format: 32 elements take 34 bytes, an f16 d and 32 I8 codes. An element is code * d.
	// HeadDim is a multiple of 32.
	DTypeQ8_0 DType = 10
	// ggml's format: 32 elements take 18 bytes, an f16 d and 16 bytes. Byte j holds element j in
	// the low nibble and element j + 16 in the high one. An element is (code - 8) * d. HeadDim is
	// a multiple of 32.
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
	// Details for debugging.
	LogDebug LogLevel = 2
)

// Reduce: how several numbers become one. NaN among them gives NaN.
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

// Merge: what happens to the rows that compaction drops: they are lost, or each is merged into
// a row that stays. Each KV head is merged by itself. An evicted token e is merged into the
// surviving token t whose key has the highest cosine with e's key, which is called their
// similarity. If several have the highest, the lowest slot is t. The row of t becomes a mean
// of itself and of the rows merged into it. It is computed in f32 and rounded once to the
// plane's dtype. Rows that receive nothing keep their bytes, and so do companions. A token
// whose key or value has no finite norm in f32 takes no part. See
// docs/policies/refinements.md.
type Merge int32

// Values of Merge.
const (
	// They are lost.
	MergeNone Merge = 0
	// Values only, weighted by the similarity of their keys. MergeThreshold and MergeFraction
	// select the rows. arXiv:2210.09461, arXiv:2406.13035.
	MergeValues Merge = 1
	// Keys and values, each halfway to its target. LOOK-M, arXiv:2406.18139.
	MergePivot Merge = 2
	// Keys and values, weighted by similarity. KVMerger, arXiv:2407.08454.
	MergeWeighted Merge = 3
)

// Role: what a companion plane holds for the rows of K or V.
type Role int32

// Values of Role.
const (
	// Nothing that this library reads.
	RoleNone Role = 0
	// Factors for the keys' codes.
	RoleKeyScale Role = 1
	// Added to code * scale of keys.
	RoleKeyMinimum Role = 2
	// Factors for the values' codes.
	RoleValueScale Role = 3
	// Added to code * scale of values.
	RoleValueMinimum Role = 4
	// Unquantized keys of the slots from Layout.FirstRecent on.
	RoleKeyRecent Role = 5
	// Values of the same slots.
	RoleValueRecent Role = 6
	// Added to the logits of a slot's key.
	RoleBias Role = 7
)

// LayerCache: which tokens a layer's cache holds before any eviction.
type LayerCache int32

// Values of LayerCache.
const (
	// All tokens.
	LayerCacheFull LayerCache = 0
	// Those of a sliding window: the engine drops the others.
	LayerCacheWindow LayerCache = 1
	// None: a recurrent layer, or one that reads another layer's cache.
	LayerCacheNone LayerCache = 2
)

// RoPELayout: which elements of a key RoPE rotates as a pair.
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
	// Sequence.BeginObserving(). It holds what a sequence observes, until Sequence.EndObserving().
	// A policy that scores by the last queries needs (window + DraftTokens) * QHeads rows of
	// KHeadDim elements per layer, and on CUDA one float per row. h2o needs MaxTokens floats per
	// KV head, query head or layer (see `sums`), and SumLast times more if that is set; custom
	// needs them per KV head. Others need none.
	OperationObserve Operation = 2
)

// Reason: why a plan cannot do something, or why an eviction did nothing.
type Reason int32

// Values of Reason.
const (
	// No reason: it can, or it did.
	ReasonNone Reason = 0
	// Keys are opaque: nothing can be read from them.
	ReasonOpaqueKeys Reason = 1
	// Queries are opaque.
	ReasonOpaqueQueries Reason = 2
	// The geometry does not say how RoPE rotated the keys (RoPEInvFreq).
	ReasonNoRoPE Reason = 3
	// The layer has no cache, or only that of a sliding window.
	ReasonNoFullCache Reason = 4
	// Values are opaque, or there are none.
	ReasonOpaqueValues Reason = 5
	// Keys are quantized: rotating would round them again, and merges and fits take f32, f16 and
	// bf16.
	ReasonQuantizedKeys Reason = 6
	// Queries are quantized: queries must be f32, f16 or bf16.
	ReasonQuantizedQueries Reason = 7
	// Values are quantized: a merge or a fit would round them again.
	ReasonQuantizedValues Reason = 8
	// Groups of tokens share scales, or the view has recent planes, so rows cannot move one by
	// one. Calls with such a view report it, plans do not.
	ReasonTokenGroups Reason = 9
	// An eviction did nothing: the policy's `prompt` is not inside, and Sequence.EndPrompt() has
	// not been called.
	ReasonOpenPrompt Reason = 10
	// An eviction left a layer alone because the context is still too short: the tokens that must
	// stay do not fit a budget that is a ratio of it, or it has fewer tokens than the window.
	ReasonSmallBudget Reason = 11
)

// BlockLayout: the order of rows in a block.
type BlockLayout int32

// Values of BlockLayout.
const (
	// [KVHeads, BlockSize, HeadDim], "HND".
	BlockLayoutHeadMajor BlockLayout = 0
	// [BlockSize, KVHeads, HeadDim], "NHD".
	BlockLayoutTokenMajor BlockLayout = 1
)
