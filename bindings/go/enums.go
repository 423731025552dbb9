// Code generated from kvevict.h by bindings/go/generate.sh. DO NOT EDIT.

package kvevict

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
	// A bug in kvevict; please report the message.
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
// byte and read as the f32 that they stand for, rounded once, or on SIMD targets without a
// fused multiply-add twice; there are no copies of them in memory. Quantized keys can be
// scored, but neither turned nor merged, for that would round them again; queries are f32, f16
// or bf16. U8, I8, U4 and DTypeU4Halves stand for code * scale + minimum, FP8 for value *
// scale, with the scale and minimum of their token and head or of more: see Role. Without one
// the minimum is 0, and the scale of fp8 is 1; codes must have a scale to be scored. Keys
// quantized per channel over a group of tokens (KIVI) are codes whose scale and minimum have
// GroupTokens: see Plane. A codec that only the engine can read, and that packs a group of
// tokens together, has no row per token. An engine may call such a group a token (an opaque
// row of all its bytes) and keep whole groups, or store rows in another type.
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

// PolicyKind: the named policies. Values are ABI and never reused.
type PolicyKind int32

// Values of PolicyKind.
const (
	// Touches nothing.
	PolicyNone PolicyKind = 0
	// First and last tokens: arXiv:2309.17453.
	PolicyStreamingLLM PolicyKind = 1
	// Attention of the last queries, pooled: arXiv:2404.14469.
	PolicySnapKV PolicyKind = 2
	// SnapKV with more tokens for lower layers: arXiv:2406.02069.
	PolicyPyramidKV PolicyKind = 3
	// A seeded baseline: every token and KV head draws its own number.
	PolicyRandom PolicyKind = 4
	// The caller's scores, in EvictOptions.
	PolicyCustom PolicyKind = 5
	// The keys of the smallest Euclidean norm: arXiv:2406.11430.
	PolicyKnorm PolicyKind = 6
	// Attention that tokens have got so far, summed: arXiv:2306.14048. The engine hands the sums
	// over.
	PolicyH2O PolicyKind = 7
	// Attention of the last query, over all heads: arXiv:2401.06104.
	PolicyTOVA PolicyKind = 8
	// The keys least like their mean: arXiv:2504.15364.
	PolicyKeyDiff PolicyKind = 9
	// Keys and values that stand out against the tokens after them: arXiv:2504.04704.
	PolicyLagKV PolicyKind = 10
	// Keys and values of large norm among their neighbours: arXiv:2509.15038.
	PolicyCUR PolicyKind = 11
	// Keys against a direction per KV head, found beforehand: arXiv:2503.02812.
	PolicyQFilter PolicyKind = 12
	// Attention of queries to come, from their mean and covariance: arXiv:2510.00636.
	PolicyExpectedAttention PolicyKind = 13
	// Keys against where the model's queries lie before RoPE, found beforehand: arXiv:2604.04921.
	PolicyTriattention PolicyKind = 14
	// Attention of the last queries, less the redundancy of the keys: arXiv:2505.24133.
	PolicyRKV PolicyKind = 15
	// Attention within chunks of the prompt, to tokens before and after alike, times the value's
	// norm: arXiv:2507.08143.
	PolicyNonCausal PolicyKind = 16
	// Attention of the last queries and its variance, with more tokens for layers whose attention
	// is spread and shifts: arXiv:2503.12491.
	PolicyCake PolicyKind = 17
)

// Pool: pooling of scores along the tokens, stride 1.
type Pool int32

// Values of Pool.
const (
	// Scores stay as they are.
	PoolNone Pool = 0
	// The mean over the kernel.
	PoolAvg Pool = 1
	// The maximum over the kernel.
	PoolMax Pool = 2
)

// PoolEdge: what average pooling divides by where the kernel hangs over an edge. Max pooling
// ignores what is outside either way.
type PoolEdge int32

// Values of PoolEdge.
const (
	// The full width: outside counts as zeros. What published code does.
	PoolEdgePad PoolEdge = 0
	// The number of terms inside.
	PoolEdgeShrink PoolEdge = 1
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

// ShapingOrder: which comes first: reducing the query heads of a KV head, pooling, or weighing
// by ValueWeight. Reducing and pooling commute, but for rounding, unless a maximum is
// involved.
type ShapingOrder int32

// Values of ShapingOrder.
const (
	// Reduces, pools, weighs.
	ShapingReduceThenPool ShapingOrder = 0
	// Pools, reduces, weighs.
	ShapingPoolThenReduce ShapingOrder = 1
	// Reduces logits, before the softmax: window attention by maximum. R-KV, arXiv:2505.24133.
	ShapingReduceLogits ShapingOrder = 2
	// Reduces, weighs, pools: weights of neighbours count too.
	ShapingWeighThenPool ShapingOrder = 3
)

// SoftmaxKeys: window attention: the keys over which a row's softmax goes.
type SoftmaxKeys int32

// Values of SoftmaxKeys.
const (
	// All up to the row's own token.
	SoftmaxCausal SoftmaxKeys = 0
	// Those before the window. Those of the window score 0 where it is not kept. R-KV,
	// arXiv:2505.24133.
	SoftmaxPast SoftmaxKeys = 1
)

// RowWeight: window attention: what a row's weights are multiplied by before rows are reduced.
type RowWeight int32

// Values of RowWeight.
const (
	// Nothing.
	RowWeightNone RowWeight = 0
	// The slots before its own: a row that sees more keys has less for each. FINCH,
	// arXiv:2408.00167.
	RowWeightPast RowWeight = 1
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

// LayerSplit: how the budget is spread over the layers.
type LayerSplit int32

// Values of LayerSplit.
const (
	// The same for every layer.
	LayerSplitUniform LayerSplit = 0
	// Weights alpha^layer, largest-remainder rounding, the sum is exact.
	LayerSplitGeometric LayerSplit = 1
	// Integer steps down from 2c - c/beta to c/beta past tokens, as KVCache-Factory computes them;
	// the floor in the step makes the sum run over.
	LayerSplitArithmeticKVF LayerSplit = 2
	// The same in floating point with the window on top, falling back to uniform where the
	// schedule does not fit, as kvpress computes it.
	LayerSplitArithmeticKVPress LayerSplit = 3
	// The integer steps of LayerSplitArithmeticKVF for every context over the budget, as AdaKV's
	// authors compute them.
	LayerSplitArithmeticAdakv LayerSplit = 4
	// By preference, E^(1/CakeTau1) * V^(1/CakeTau2): E is the entropy of a layer's weights, -sum
	// a ln(a + 1e-10); V the variance of a weight over the window's rows, summed over slots and
	// query heads. Beside what every layer keeps, the budgets' sum is spread by preference,
	// rounded down; what a layer would get beyond the context goes to the others in equal parts,
	// and so does what rounding took, one more to lower layers; never beyond the context.
	// Variances below 2^-17 of a mean square are rounding, and count as 0. A layer whose
	// preference is no number or 0 gets none; if all are like that, uniform. ObsWindow >= 2. CAKE,
	// arXiv:2503.12491.
	LayerSplitCake LayerSplit = 5
	// Lazy layers keep the budget, others everything. A layer is lazy if its weights, averaged
	// over rows and query heads, add up to more than LazyThreshold over the first Sink slots and
	// the Recent + ObsWindow last ones before the window. One that holds fewer than Sink + Recent
	// + 2 * ObsWindow slots is not. The budget may be what must stay, no more. SimLayerKV,
	// arXiv:2410.13846, as kvpress computes it.
	LayerSplitLazy LayerSplit = 6
)

// HeadSplit: how the KV heads of a layer share its budget, which is that of a head times their
// number. A head keeps what must stay, and at least one token.
type HeadSplit int32

// Values of HeadSplit.
const (
	// Alike.
	HeadSplitEqual HeadSplit = 0
	// A contest: the layer keeps its highest scores, whichever head has them, and of each head at
	// least the best HeadFloor of a head's budget, rounded down. The layer keeps exactly its
	// budget. Of scores that are equal at the cut every head gets one in turn. AdaKV,
	// arXiv:2407.11550, as kvpress computes it.
	HeadSplitAdaptive HeadSplit = 1
	// The same contest without a floor, then a mean: beside what must stay, a head keeps 1 -
	// HeadFloor of the tokens that it won, and HeadFloor of an equal share, which is rounded down
	// first. The sum is rounded to the nearest, halves to even, in f32; so a layer may keep more
	// or less than its budget, by half a token per head and by what rounding down took. AdaKV as
	// its authors compute it.
	HeadSplitAdaptiveBlend HeadSplit = 2
	// Nothing is shared: a head keeps the tokens whose final score is at least ScoreThreshold, but
	// no more than its budget, the best ones; what must stay counts first. NaN is below every
	// threshold. With Recent as the sliding window: DMS, arXiv:2506.05345, and KVzap,
	// arXiv:2601.07891.
	HeadSplitThreshold HeadSplit = 3
)

// ValueWeight: A weight of each token by which its score is multiplied.
type ValueWeight int32

// Values of ValueWeight.
const (
	// None.
	ValueWeightNone ValueWeight = 0
	// The Euclidean norm of its value row, which has to be readable.
	ValueWeightNorm ValueWeight = 1
	// The caller's, in SignalInputs.
	ValueWeightGiven ValueWeight = 2
)

// Merge: what becomes of a row that compaction drops: nothing, or it is merged into one that
// stays. For each KV head by itself, with u = k / max(|k|, 1e-6): a token e that goes has a
// target, the token t of those that stay whose u_t . u_e, the similarity, is the highest; of
// equals the lowest slot. Rows are changed where they lie, before survivors move: x_t becomes
// a mean of what x_t and the x_e were, added up in ascending order of the slots in f32 and
// rounded once to the plane's dtype, to the nearest, halves to even. Targets that get nothing
// keep their bytes, and so do companions. A token whose key or value row has no finite norm in
// f32, as with NaN or infinity, takes no part.
type Merge int32

// Values of Merge.
const (
	// Nothing.
	MergeNone Merge = 0
	// Values only, by how similar their keys are: with w_e = max(similarity, 0) |v_e| / (|v_e| +
	// |v_t| + 1e-6), v_t = (v_t + sum w_e v_e) / (1 + sum w_e), where the sum of weights is above
	// 0. MergeThreshold and MergeFraction say which e take part. MergingPress of kvpress, after
	// arXiv:2210.09461 and arXiv:2406.13035.
	MergeValues Merge = 1
	// Keys and values: x_t = the mean of x_t and of (x_e + x_t) / 2 of every e. Keys that RoPE has
	// turned are averaged over positions. LOOK-M, arXiv:2406.18139.
	MergePivot Merge = 2
	// Keys, likewise, and values: with w_e = max((similarity + 1) / 2, 1e-6), x_t = (x_t + sum w_e
	// x_e) / (1 + sum w_e). KVMerger, arXiv:2407.08454.
	MergeWeighted Merge = 3
)

// Prompt: how the prompt counts, once Sequence.EndPrompt() has said where it ends; of it, what
// was stored then.
type Prompt int32

// Values of Prompt.
const (
	// As all tokens do: within the budget, and it may go.
	PromptInside Prompt = 0
	// On top of the budget, which is then one of the tokens behind it, a ratio too. It may go.
	PromptBeside Prompt = 1
	// Within the budget; it stays.
	PromptPinned Prompt = 2
	// On top of the budget, and it stays.
	PromptPinnedBeside Prompt = 3
	// As inside, but evictions do nothing until it has ended.
	PromptAtEnd Prompt = 4
)

// SumRows: whose attention a sequence adds up in one row of sums, see Sequence.Observe().
type SumRows int32

// Values of SumRows.
const (
	// That of a KV head, reduced over its query heads by GroupReduce as it comes.
	SumRowsKVHead SumRows = 0
	// That of a query head.
	SumRowsQueryHead SumRows = 1
	// That of the layer: the sum over its heads.
	SumRowsLayer SumRows = 2
)

// Anchor: against what blocks are held of which some are rescued: a bit for each slot of a
// block.
type Anchor int32

// Values of Anchor.
const (
	// Of each place in a block what most blocks have there.
	AnchorMean Anchor = 0
	// 0: the blocks with the fewest slots that matter come first.
	AnchorZeros Anchor = 1
	// 1: those with the most.
	AnchorOnes Anchor = 2
	// 0, 1, 0, 1 ..
	AnchorAlternating Anchor = 3
	// Drawn from (seed, layer, tokens seen, place).
	AnchorRandom Anchor = 4
)

// Input: what a policy may read of a layer: rows of its view, or a plane of SignalInputs.
type Input int32

// Values of Input.
const (
	// k of the view, of a scored dtype.
	InputKeys Input = 0
	// v of the view, likewise.
	InputValues Input = 1
	// Of the last tokens; non-causal: of all.
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
	// It is used where it is given. h2o wants AttentionSums, observed or given to the eviction, or
	// else keys and queries: each of them is optional, not all.
	NeedOptional Need = 1
	// Without it calls fail.
	NeedRequired Need = 2
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
	// Sequence.BeginObserving(): there a sequence keeps what it observes until
	// Sequence.EndObserving(). Of policies that score by the last queries, for each layer
	// (ObsWindow + DraftTokens) * QHeads rows of KHeadDim elements, and on CUDA a float with each;
	// of h2o MaxTokens floats for each KV head, query head or layer, as SumRows says, and with
	// SumLast so many more times as many; 0 for others.
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
	// has no room for what must stay, or it has fewer tokens than ObsWindow.
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
