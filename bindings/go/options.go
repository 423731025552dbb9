// Code generated from the headers by bindings/go/generate.sh. DO NOT EDIT.

package kvevict

import (
	"unsafe"

	"kvevict.dev/kvevict/bindings/go/internal/native"
)

// ContextOptions says how to make a context. Addresses of C functions have the header's types.
type ContextOptions struct {
	// Where the caches lie.
	Device Device
	// Lines above this level are not sent.
	LogLevel LogLevel
	// true: an eviction scores on the GPU, copies the scores, selects on the host and uploads the
	// keep lists. It waits for the stream, and the host knows the positions when it returns. Each
	// sequence then holds host memory for the scores of all layers at MaxTokens, 4 bytes per
	// token and KV head.
	SelectOnHost bool
	// true: wait after every kernel, so that a fault names it, and check on the device that keep
	// lists ascend and that slots of Context.Reorder() exist.
	Debug bool

	Threads int                                  // goroutines that share a call's work; 0 means 1
	Go      func(work func())                    // starts the others; nil: a go statement; its panics are dropped
	Log     func(level LogLevel, message string) // nil: silence; its panics are dropped

	SIMDTarget string // one of SIMDTargets(), for the CPU's kernels; "": the best one

	// C functions for the library's own memory: void *(size_t bytes, size_t alignment, void *userData), and
	// void (void *memory, size_t bytes, size_t alignment, void *userData).
	Alloc, Free   uintptr
	AllocUserData uintptr

	// The fields below concern CUDA.

	// CUcontext, which must outlive the handles; 0: the one current on the thread
	// (runtime.LockOSThread).
	CUDAContext    uintptr
	LibCUDAPath    string // "": the system's
	LibNVRTCPath   string // "": by the driver's version
	KernelCacheDir string // "": none; must belong to the user, nobody else may write

	DeviceAlloc, DeviceFree uintptr // the same for device memory of sequences
	DeviceAllocUserData     uintptr
}

// Plane is the rows of one tensor, one per token and head, in any layout.
//
// Element e of head h of token t lies at t*TokenStride + h*HeadStride + e*ElementStride bytes from
// the beginning of Data; in a paged cache the token counts inside its block, and
// table[t/BlockSize]*BlockStride is added. With GroupElems elements lie packed in groups of so many,
// GroupStride bytes from one to the next. With an AddressTable the blocks of a paged cache were
// allocated one by one, and there is no Data: a row is then looked for from InBlock bytes behind the
// address of its block. A plane without Data and AddressTable is absent. Strides may be negative.
type Plane struct {
	Data   Memory
	Before uint64 // bytes before Data that belong to it as well, for negative strides
	// Bytes from a token to the next.
	TokenStride int64
	// Bytes from a head to the next.
	HeadStride int64
	// Bytes from an element to the next; 0: packed. Elements of inner groups, and of u4,
	// u4_halves, q8_0 and q4_0, are always packed.
	ElementStride int64
	// Bytes to the next block; paged only.
	BlockStride int64
	// Dtype of the elements.
	DType DType
	// Elements per row; 0 for opaque.
	HeadDim int
	// Opaque: bytes per row, packed; otherwise 0.
	RowBytes int
	// What a companion holds; RoleNone for K, V.
	Role Role
	// Bytes to the next inner group; 0 without.
	GroupStride int64
	// Elements per group; divides HeadDim; 0: none.
	GroupElems int
	// How many tokens share a scale or minimum per element, 1 .. 256; 0: each number belongs to
	// one token, or to all.
	GroupTokens int
	// AddressTable holds uint64 by block id, or in token order in a layout without
	// BlockTable. Entries of blocks without tokens may be 0. The call's work reads it.
	AddressTable Memory
	InBlock      uint64
}

// Layout describes one layer's cache. K and V may differ in dtype, head size and strides.
type Layout struct {
	K          Plane
	V          Plane   // absent for caches with one row per token (MLA)
	Companions []Plane // other planes with a row per token and head that must move along
	BlockTable Memory  // paged: block ids in token order, int32; the call's work reads them
	// KV heads, 1 .. 65535; 0: the geometry's.
	KVHeads int
	// Tokens per block; 0: contiguous.
	BlockSize int
	// Elements from one head's table to the next's; 0: heads share one.
	BlockTableHeadStride uint64
	// Rows of a ring, as for a sliding window; 0: no ring. Calls still say slot t for token t;
	// its row lies where the formulas above put row (t + RingFirst) % RingSlots. A ring in blocks
	// uses every block that holds one of its rows.
	RingSlots int
	// Row of token 0, < RingSlots; 0 without.
	RingFirst int
	// Paged: the number of blocks at the start of every table that other sequences hold too, as
	// with forks and prefix caches. Calls read them, and are refused if they might write to them.
	// Compacting to a destination, or from a FirstSlot behind these blocks, is allowed. 0 for a
	// ring.
	SharedBlocks int
	// The first slot of the recent planes; slots before it are quantized. 0 without recent
	// planes.
	FirstRecent int
}

// LayerGeometry is the attention geometry of one layer.
type LayerGeometry struct {
	// What the layer keeps. Only full caches are evicted. Layers with another cache have no keep
	// lists, budget or stored length, and are not observed. Their fields below are not read, and
	// of their entries in arrays of views and inputs only StructSize is read.
	Cache LayerCache
	// Query heads, a multiple of KVHeads, to 65535.
	QHeads int
	// KV heads; query head h reads KV head h / (QHeads / KVHeads).
	KVHeads int
	// Elements of a key row, up to 65536; 0 if opaque.
	KHeadDim int
	// Elements of a value row; 0 if VDType is opaque. With any other VDType 0 means that there is
	// no V.
	VHeadDim int
	// Dtype of the queries that are given: f32, f16 or bf16, or opaque if the signal does not
	// read them. If it is f16 or bf16, a sequence may also observe f32 rows for window attention.
	// It rounds each element by at most 2^-11 of it (f16, up to 65504; 2^-25 near 0) or 2^-8
	// (bf16). It then keeps half the bytes, and CUDA multiplies half as much.
	QDType DType
	// Dtype of the keys.
	KDType DType
	// Dtype of the values.
	VDType DType
	// Multiplies q.k; 0 means 1/sqrt(KHeadDim).
	SoftmaxScale float32
	// The cap c: scaled logits x become c * tanh(x / c) (Gemma 2); 0: no cap. Window attention
	// reads it, and h2o when it scores by queries.
	LogitSoftcap float32
}

// Geometry is the attention geometry of a model.
type Geometry struct {
	// Layers, 1 .. 4096.
	Layers int
	// Most slots a layer will ever hold, 1 .. 2^31 - 1.
	MaxTokens int
	// Which elements of keys are a pair.
	RoPELayout RoPELayout
	Each       []LayerGeometry // one for all layers, or one for each
	// RoPEInvFreq says how RoPE rotated the keys of layers with a full cache: pair f of a key at
	// position p by p times number f radians, whatever scaling went into that. Elements beyond the
	// pairs are not rotated. Empty: unknown; policy triattention needs it.
	RoPEInvFreq []float32
	// SinkLogits are a logit per query head that takes part in its softmax and has no
	// value (gpt-oss), for all layers with a full cache, layer by layer; negative
	// infinity for a head without one. Empty: no head has one.
	SinkLogits []float32
}

// PlanOptions is what a plan may be told beside geometry and policy.
type PlanOptions struct {
	// HeadBudgets are tokens that each KV head keeps, everything included: the heads of all layers
	// with a full cache, layer by layer, in place of the policy's budget and layer split, for
	// ScopeKVHead. A budget above a head's length keeps everything. Empty: the policy's.
	HeadBudgets []uint32
	// LayerBudgets are a policy's Budget for each layer with a full cache, in place of
	// that and of the layer split. They exclude HeadBudgets. Empty: the policy's.
	LayerBudgets []float64
	// The most tokens that one speculative step takes back, at most 2^31 - 1. A policy that
	// scores by the last queries remembers this many rows beyond its window, so that a trim by as
	// many leaves the window complete. Other policies ignore it.
	DraftTokens int
	// true: evictions measure the mass that they keep, for ListReport. They read the scores once
	// more and may need a larger workspace; a sequence takes 12 bytes more per list.
	ReportMass bool
	// true: evictions may be given destinations; a sequence takes under 500 bytes more per layer.
	// false: they may not.
	HasDestinations bool
}

// SignalInputs is what signals read of a layer beside its keys. Each policy's
// signal needs some of them; the rest may be nil.
type SignalInputs struct {
	// Queries are rows of the query heads after RoPE: those of the window, for h2o without
	// AttentionSums those of the last QueryRows tokens, for non-causal those of all slots.
	Queries *Plane
	RowLSE  *Plane // float32 log-sum-exps of the rows' logits, which save a pass over the keys
	Scores  *Plane // policy custom: float32 [KVHeads, slots held], HeadDim 1, tokens packed
	// AttentionSums are for policy h2o: float32 [SumHeads, slots held], HeadDim 1, tokens packed: the
	// attention weight that each slot got. A sequence adds up what it observes, summed over a chunk's
	// rows, for the slots including the chunk's. For scoring without a sequence it is summed over all
	// queries that saw a slot, and the engine keeps it: a companion of the view moves with its tokens.
	AttentionSums *Plane
	// QueryMean and QueryCovariance are for policy expected-attention: float32 [QHeads, 1, KHeadDim]
	// and [QHeads, KHeadDim, KHeadDim], packed, of the queries to come, rotated to their positions.
	QueryMean, QueryCovariance *Plane
	// KeyFilter is for policy q-filter: float32 [KVHeads, 1, KHeadDim], packed: the
	// direction in which a KV head's keys get no attention.
	KeyFilter *Plane
	// TokenWeights are for Weight=given: float32 [KVHeads, slots held], HeadDim 1,
	// tokens packed. Scores are multiplied by them under any policy.
	TokenWeights *Plane
	// QueryCenters are for policy triattention: float32 [QHeads, 3, pairs that RoPE
	// rotates], packed: for each pair of elements of the model's queries before RoPE,
	// the real and the imaginary part of their mean, and the mean length.
	QueryCenters *Plane
	// ReferenceQueries are for window attention with Reference above 0: ReferenceRows rows of the query
	// heads after RoPE, of no token held, such as those of a likely question.
	ReferenceQueries *Plane
	// ReferencePositions are int32 [ReferenceRows]: a row sees the slots up to its position. Absent: all.
	ReferencePositions Memory
	// Rows of AttentionSums: QHeads, or KVHeads if the query heads of each KV head are already
	// reduced, or 1 if all heads are reduced, which ScopeLayer and ScopeModel allow. 0: QHeads.
	SumHeads int
	// Rows of queries and RowLSE given to Plan.Score() and Sequence.Evict(), for the last tokens:
	// 1 .. the slots held. 0 selects the policy's own number: the window for window attention,
	// every held slot for h2o and non-causal. Only h2o accepts another.
	QueryRows int
	// The policy's `reference`; 0 without.
	ReferenceRows int
}

// ScoreJob is one layer's part of Plan.Score.
type ScoreJob struct {
	// Below Layers, with a full cache.
	Layer int
	// Slots held, 1 .. MaxTokens.
	Tokens int
	// Tokens seen so far, evicted ones included, Tokens .. 2^31 - 1; 0: Tokens. A policy that
	// rotates keys takes Tokens in any case.
	Seen        int
	TokenCounts Memory // slots held by each head if they differ: uint32 [KVHeads], each at most Tokens
	View        *View  // nil if no key is read
	Inputs      SignalInputs
	Scores      Memory // receives float32 [KVHeads, Tokens]: higher keeps
}

// KeepLists says which slots of a layer to keep: one list that all KV heads share, or one for each.
type KeepLists struct {
	Slots Memory // int32 [Lists, ListStride]
	// 1 or the view's KVHeads; at most 65535.
	Lists int
	// Elements from one list to the next, count .. 2^32 - 1; 0: count.
	ListStride uint64
	// Slots in every list; with counts, in the longest.
	Count  int
	Counts Memory // uint32 [Lists], each at most Count; absent: all are Count
}

// TokenRange is tokens that go later or sooner than others: whatever its score, a
// token of a higher rank stays before any of a lower one. Tokens in no range have
// rank 0. A call takes up to 64 ranges, none of which begins before the end of the
// one before. Ranges say which tokens a list keeps, never how many.
type TokenRange struct {
	// Any; tokens of a higher rank stay longer.
	Rank int32
	// First position, or slot.
	First int
	// One past the last; first .. 2^32 - 1.
	End int
}

// SelectOptions is what Select chooses from, and what must stay. Plan.Selection
// gives what a plan's policy wants.
type SelectOptions struct {
	// Slots held, 1 .. 2^31 - 1.
	Tokens int
	// A multiple of Lists: row r belongs to list r / (Rows / Lists). 0: one row per list.
	Rows int
	// How the rows of a list become one.
	Reduce Reduce
	// First slots that must stay.
	Sink int
	// Last slots that must stay.
	Recent int
	// Which of equal scores stays.
	Tie Tie
	// Slots stay or go in whole blocks of this many, as by the parameter of that name; a list
	// must lose a multiple of it. 0 means 1.
	SelectBlock int
	TokenCounts Memory // slots of each list's heads if they differ: uint32, each at most Tokens
	// Scores are float32 [Rows, Tokens]. Absent: nothing is ranked, and every list keeps what must
	// stay and then the first tokens, or the last with TieHigherPosition.
	Scores    Memory
	Protected []int32      // strictly ascending slots that must stay
	Ranges    []TokenRange // slots that go later or sooner than others
}

// MassOptions says what BudgetForMass looks for.
type MassOptions struct {
	// Which rows share a budget: with ScopeKVHead none, with ScopeLayer those of a layer, with
	// ScopeModel all.
	Scope Scope
	// Share to keep, in (0, 1].
	Mass float64
	// First slots that must stay; they count.
	Sink int
	// Last slots that must stay, the window included.
	Recent int
	// true: every row that shares the budget keeps the mass; false: the mean of their shares
	// does.
	EveryRow bool
}

// Edit is one change of a text whose cache is already computed. Positions are those before it,
// except To.
type Edit struct {
	// What it does.
	Kind EditKind
	// First position of the span.
	First int
	// One past the last; first .. the logical length.
	End int
	// New tokens; 0 for a move.
	New int
	// The first position of the span after a move; 0 for a replacement.
	To int
	// See there.
	Positions EditPositions
}

// LayerScores are scores of one layer, by which its budget is found.
type LayerScores struct {
	// Keep lists, usually KV heads; 1 .. 65535.
	Rows int
	// Tokens of a row, 1 .. 2^31 - 1.
	Tokens int
	Scores []float32 // [Rows, Tokens], as Plan.Score writes them
}

// Move is one layer's part of Compact or Reorder.
type Move struct {
	View *View
	// Slots held before, by the longest head.
	Tokens int
	// What happens to dropped rows. All but MergeNone need K and V of f32, f16 or bf16; a view
	// without V is an error only for MergeValues.
	Merge Merge
	// Slot of the first survivor of every head. Without a destination it is at most Tokens, and
	// no listed slot is below it. 0 with merge.
	FirstSlot int
	// As the policy's parameter of that name.
	MergeThreshold float64
	// As the policy's parameter; 0 means 1.
	MergeFraction float64
	// TokenCounts are the slots held by each head, if they differ: uint32 [KVHeads],
	// each at most Tokens. Blocks beyond a head's own count need not be in its table.
	TokenCounts Memory
	Keep        KeepLists // slots that are held; none, with a Destination: all of them
	// Destination is another cache to which Compact copies rows; the view then stays
	// as it is. It has the same KV heads and head sizes in any layout. If K or V have
	// another dtype there, rows are requantised. nil: rows move in place.
	Destination *View
}

// Rotation is one layer's part of Plan.Rotate.
type Rotation struct {
	// Below Layers, with a full cache.
	Layer int
	// Slots held, 1 .. MaxTokens.
	Tokens int
	// Rows of offsets: 1 for all heads, or KVHeads.
	Lists int
	View  *View
	// Offsets are int32 [Lists, Tokens]: the positions by which the key in each slot
	// moves, new position - old one. 0 leaves it alone.
	Offsets     Memory
	TokenCounts Memory // slots held by each head if they differ: uint32 [KVHeads], each at most Tokens
}

// Attention is one layer of one sequence in Context.Attend.
type Attention struct {
	View *View // the cache, which also holds the queries' own tokens
	// Slots held by the longest head, 0 .. 2^31 - 1.
	Tokens int
	// Query heads, a multiple of KVHeads; query heads h * group to (h + 1) * group - 1 read KV
	// head h.
	QHeads int
	// Queries of each head; 0 does nothing.
	Rows int
	// Elements of a value. With V: its HeadDim, or 0 for that. Without V (MLA): values are the
	// first VHeadDim elements of the keys' rows, 0: all of them.
	VHeadDim int
	// Sliding window: a query sees no slot that is Window or more before its own; 0: no window.
	Window int
	// true: queries also see slots after their own.
	NonCausal bool
	// Multiplies q.k; 0 means 1/sqrt(KHeadDim).
	SoftmaxScale float32
	// c: scaled logits x become c * tanh(x / c); 0: no cap.
	LogitSoftcap float32
	// Rows of AttentionSums: QHeads, or KVHeads, whose query heads are added up; 0: QHeads.
	SumHeads int
	// TokenCounts are the slots held by each head, if they differ: uint32 [KVHeads], each at most Tokens.
	TokenCounts Memory
	Queries     Plane // query row i belongs to slot Tokens - Rows + i
	Out         Plane // receives [QHeads, Rows, VHeadDim], float32 or 16-bit floats
	// SinkLogits are float32 [QHeads], each a term of its head's softmax that has no value; or absent.
	SinkLogits Memory
	// RowLSE, if not nil, receives float32 [QHeads, Rows], HeadDim 1: the log-sum-exp
	// of each query's logits, as in SignalInputs.RowLSE.
	RowLSE *Plane
	// AttentionSums, if not nil, receives float32 [SumHeads, Tokens], HeadDim 1: the weight that
	// each slot got from all queries, as in SignalInputs.AttentionSums of a step or chunk.
	AttentionSums *Plane
}

// Observation is what a layer shows of one chunk of tokens: Queries, RowLSE, or both; or AttentionSums.
type Observation struct {
	// Below Layers.
	Layer  int
	Inputs SignalInputs
}

// EvictOptions is what an eviction may be told beside the policy.
type EvictOptions struct {
	// Protected are strictly ascending positions that must stay; those already evicted are ignored.
	Protected []int32
	// Inputs are one for each layer, if the policy's signal needs more than keys: scores, or query
	// rows of the window as for Plan.Score, in place of observed ones. Empty: none.
	Inputs []SignalInputs
	// Undo is memory aligned like a workspace that receives the rows that go, at least
	// UndoBytes: see Sequence.Undo. The zero Memory: they are gone for good.
	Undo Memory
	// Ranges are positions that go later or sooner than others; those not held are ignored.
	Ranges []TokenRange
	// Destinations are other caches, one for each layer, to which the rows that stay
	// are copied, in the types there; Views keep theirs. They need room for KeptSlots.
	// The plan must have PlanOptions.HasDestinations. Empty: rows stay in the views.
	Destinations []*View
	// false: survivors move. true: rows stay, and the views' tables are permuted: surviving
	// blocks come first, in order, then the others. The engine frees the blocks of the entries
	// from ceil(stored length / BlockSize) on. Whole blocks stay or go: BlockSize of each view
	// divides SelectBlock, or both are 1. The tables are BlockTable, or without one the planes'
	// address tables; they must be writable. Heads with lists of their own need tables of their
	// own, and layers that share a table must keep the same tokens. Other tables must not
	// overlap. Blocks that other sequences hold (SharedBlocks) are left to them. See
	// Plan.Capabilities().
	ByTable bool
}

// Prefill is a prompt that is read in chunks.
type Prefill struct {
	// Tokens of the prompt.
	Tokens int
	// Tokens per chunk, >= 1.
	Chunk int
	// true: evict after every chunk, so that no layer ever holds more than its budget and a
	// chunk; false: evict once, at the end.
	EvictEachChunk bool
	// Forward runs the model over nTokens tokens, the first of which has position firstToken. In
	// each layer it writes their rows after those that are stored, attends to all of them, causal
	// within the chunk, and shows what the policy needs by Sequence.Observe. It may use the
	// sequence and Cached, but appends nothing. An error or a panic ends the prefill.
	Forward func(firstToken, nTokens int) error

	Views  []*View        // one for each layer, see Sequence.Evict; or nil, with Cached
	Cached *PagedSequence // gets room before each chunk, and gives back what evictions leave empty

	Evict     *EvictOptions // options of each eviction, read again before it, without Destinations; nil for none
	Workspace Memory        // scratch for OperationEvict
}

// PagedCacheOptions says how to make a paged cache.
type PagedCacheOptions struct {
	// Blocks per layer; layers of equal geometry together have 1 .. 2^31 - 1.
	Blocks int
	// Tokens per block, 1 .. 65536; 0: GroupTokens, or 16 if that is 0.
	BlockSize int
	// How rows lie in a block.
	Layout BlockLayout
	// Dtype of the scales and minima of u8, i8, u4 and u4_halves rows: f32, f16 or bf16. 0: f32.
	// Rows of fp8 have a scale if this is not 0.
	NumberDType DType
	// How many tokens share the scales and minima of keys, one per element (see Plane), 1 .. 256;
	// it divides BlockSize. Values have theirs per token. Keys are then u8, i8, u4 or u4_halves,
	// and values are quantized. 0: keys have theirs per token too.
	GroupTokens int
	// The least number of last rows that are not quantized, up to MaxTokens; keys and values must
	// have quantized dtypes. 0: all rows are quantized; with GroupTokens all but those that do
	// not fill a block yet.
	RecentTokens int
	// Dtype of these rows: f32, f16 or bf16. 0: f32.
	RecentDType DType
	// Memory for the blocks, Plan.PagedCacheBytes or more, aligned to 256; the zero Memory: the context
	// allocates.
	Memory Memory
}

// PagedRows are rows of one layer, outside the cache.
type PagedRows struct {
	// Below Layers, with a full cache.
	Layer int
	// Where row 0 goes.
	FirstSlot int
	// Rows of each KV head; 0 is valid.
	Tokens int
	K, V   Plane // Tokens rows of each KV head; an absent one is left alone
}

// SequenceTokens is how many tokens a sequence appends.
type SequenceTokens struct {
	Sequence *Sequence
	// Tokens to append.
	Tokens int
}

// SequenceLength is the logical length that a sequence returns to.
type SequenceLength struct {
	Sequence *Sequence
	// The length to return to.
	NewLength int
}

// SequenceObservations is what the layers of a sequence show, for Observe.
type SequenceObservations struct {
	Sequence     *Sequence
	Observations []Observation
	// Rows of each layer.
	Rows int
	// Position of row 0, or PositionNext.
	FirstPosition int
}

// scalars is the struct of C with the fields of o that are plain values.
func (o *Attention) scalars(err *error) native.AttentionJob {
	return native.AttentionJob{
		StructSize:   uint32(unsafe.Sizeof(native.AttentionJob{})),
		NTokens:      count(err, "Tokens", o.Tokens),
		NQHeads:      count(err, "QHeads", o.QHeads),
		NQueries:     count(err, "Rows", o.Rows),
		VHeadDim:     count(err, "VHeadDim", o.VHeadDim),
		Window:       count(err, "Window", o.Window),
		NonCausal:    flag(o.NonCausal),
		SoftmaxScale: o.SoftmaxScale,
		LogitSoftcap: o.LogitSoftcap,
		NSumHeads:    count(err, "SumHeads", o.SumHeads),
	}
}

// scalars is the struct of C with the fields of o that are plain values.
func (o *SequenceTokens) scalars(err *error) native.SequenceTokens {
	return native.SequenceTokens{
		StructSize: uint32(unsafe.Sizeof(native.SequenceTokens{})),
		NTokens:    count(err, "Tokens", o.Tokens),
	}
}

// scalars is the struct of C with the fields of o that are plain values.
func (o *SequenceLength) scalars(err *error) native.SequenceLength {
	return native.SequenceLength{
		StructSize: uint32(unsafe.Sizeof(native.SequenceLength{})),
		NewLength:  count(err, "NewLength", o.NewLength),
	}
}

// scalars is the struct of C with the fields of o that are plain values.
func (o *SequenceObservations) scalars(err *error) native.SequenceObservations {
	return native.SequenceObservations{
		StructSize:    uint32(unsafe.Sizeof(native.SequenceObservations{})),
		NRows:         count(err, "Rows", o.Rows),
		FirstPosition: count(err, "FirstPosition", o.FirstPosition),
	}
}

// scalars is the struct of C with the fields of o that are plain values.
func (o *Rotation) scalars(err *error) native.Rotation {
	return native.Rotation{
		StructSize: uint32(unsafe.Sizeof(native.Rotation{})),
		Layer:      count(err, "Layer", o.Layer),
		NTokens:    count(err, "Tokens", o.Tokens),
		NLists:     count(err, "Lists", o.Lists),
	}
}

// scalars is the struct of C with the fields of o that are plain values.
func (o *Edit) scalars(err *error) native.Edit {
	return native.Edit{
		StructSize: uint32(unsafe.Sizeof(native.Edit{})),
		Kind:       int32(o.Kind),
		First:      count(err, "First", o.First),
		End:        count(err, "End", o.End),
		NNew:       count(err, "New", o.New),
		To:         count(err, "To", o.To),
		Positions:  int32(o.Positions),
	}
}

// scalars is the struct of C with the fields of o that are plain values.
func (o *LayerScores) scalars(err *error) native.LayerScores {
	return native.LayerScores{
		StructSize: uint32(unsafe.Sizeof(native.LayerScores{})),
		NRows:      count(err, "Rows", o.Rows),
		NTokens:    count(err, "Tokens", o.Tokens),
	}
}

// scalars is the struct of C with the fields of o that are plain values.
func (o *MassOptions) scalars(err *error) native.MassOptions {
	return native.MassOptions{
		StructSize: uint32(unsafe.Sizeof(native.MassOptions{})),
		Scope:      int32(o.Scope),
		Mass:       o.Mass,
		NSink:      count(err, "Sink", o.Sink),
		NRecent:    count(err, "Recent", o.Recent),
		EveryRow:   flag(o.EveryRow),
	}
}

// scalars is the struct of C with the fields of o that are plain values.
func (o *ContextOptions) scalars(err *error) native.ContextOptions {
	return native.ContextOptions{
		StructSize:   uint32(unsafe.Sizeof(native.ContextOptions{})),
		Device:       int32(o.Device),
		NThreads:     count(err, "Threads", o.Threads),
		LogLevel:     int32(o.LogLevel),
		SelectOnHost: flag(o.SelectOnHost),
		Debug:        flag(o.Debug),
	}
}

// scalars is the struct of C with the fields of o that are plain values.
func (o *Plane) scalars(err *error) native.Plane {
	return native.Plane{
		TokenStrideBytes:   o.TokenStride,
		HeadStrideBytes:    o.HeadStride,
		ElementStrideBytes: o.ElementStride,
		BlockStrideBytes:   o.BlockStride,
		DType:              int32(o.DType),
		HeadDim:            count(err, "HeadDim", o.HeadDim),
		RowBytes:           count(err, "RowBytes", o.RowBytes),
		Role:               int32(o.Role),
		GroupStrideBytes:   o.GroupStride,
		GroupElems:         count(err, "GroupElems", o.GroupElems),
		GroupTokens:        uint64(count(err, "GroupTokens", o.GroupTokens)),
	}
}

// read sets these fields to those of a struct that C filled.
func (o *Plane) read(n *native.Plane) {
	o.TokenStride = int64(n.TokenStrideBytes)
	o.HeadStride = int64(n.HeadStrideBytes)
	o.ElementStride = int64(n.ElementStrideBytes)
	o.BlockStride = int64(n.BlockStrideBytes)
	o.DType = DType(n.DType)
	o.HeadDim = int(n.HeadDim)
	o.RowBytes = int(n.RowBytes)
	o.Role = Role(n.Role)
	o.GroupStride = int64(n.GroupStrideBytes)
	o.GroupElems = int(n.GroupElems)
	o.GroupTokens = int(n.GroupTokens)
}

// scalars is the struct of C with the fields of o that are plain values.
func (o *Layout) scalars(err *error) native.View {
	return native.View{
		StructSize:           uint32(unsafe.Sizeof(native.View{})),
		NKVHeads:             count(err, "KVHeads", o.KVHeads),
		BlockSize:            count(err, "BlockSize", o.BlockSize),
		BlockTableHeadStride: o.BlockTableHeadStride,
		RingSlots:            count(err, "RingSlots", o.RingSlots),
		RingFirst:            count(err, "RingFirst", o.RingFirst),
		NSharedBlocks:        count(err, "SharedBlocks", o.SharedBlocks),
		FirstRecent:          count(err, "FirstRecent", o.FirstRecent),
	}
}

// scalars is the struct of C with the fields of o that are plain values.
func (o *LayerGeometry) scalars(err *error) native.LayerGeometry {
	return native.LayerGeometry{
		StructSize:   uint32(unsafe.Sizeof(native.LayerGeometry{})),
		Cache:        int32(o.Cache),
		NQHeads:      count(err, "QHeads", o.QHeads),
		NKVHeads:     count(err, "KVHeads", o.KVHeads),
		KHeadDim:     count(err, "KHeadDim", o.KHeadDim),
		VHeadDim:     count(err, "VHeadDim", o.VHeadDim),
		QDType:       int32(o.QDType),
		KDType:       int32(o.KDType),
		VDType:       int32(o.VDType),
		SoftmaxScale: o.SoftmaxScale,
		LogitSoftcap: o.LogitSoftcap,
	}
}

// scalars is the struct of C with the fields of o that are plain values.
func (o *Geometry) scalars(err *error) native.Geometry {
	return native.Geometry{
		StructSize: uint32(unsafe.Sizeof(native.Geometry{})),
		NLayers:    count(err, "Layers", o.Layers),
		MaxTokens:  count(err, "MaxTokens", o.MaxTokens),
		RoPELayout: int32(o.RoPELayout),
	}
}

// scalars is the struct of C with the fields of o that are plain values.
func (o *PlanOptions) scalars(err *error) native.PlanOptions {
	return native.PlanOptions{
		StructSize:      uint32(unsafe.Sizeof(native.PlanOptions{})),
		DraftTokens:     count(err, "DraftTokens", o.DraftTokens),
		ReportMass:      flag(o.ReportMass),
		HasDestinations: flag(o.HasDestinations),
	}
}

// scalars is the struct of C with the fields of o that are plain values.
func (o *SignalInputs) scalars(err *error) native.SignalInputs {
	return native.SignalInputs{
		StructSize:     uint32(unsafe.Sizeof(native.SignalInputs{})),
		NSumHeads:      count(err, "SumHeads", o.SumHeads),
		NQueryRows:     count(err, "QueryRows", o.QueryRows),
		NReferenceRows: count(err, "ReferenceRows", o.ReferenceRows),
	}
}

// scalars is the struct of C with the fields of o that are plain values.
func (o *ScoreJob) scalars(err *error) native.ScoreJob {
	return native.ScoreJob{
		StructSize: uint32(unsafe.Sizeof(native.ScoreJob{})),
		Layer:      count(err, "Layer", o.Layer),
		NTokens:    count(err, "Tokens", o.Tokens),
		NSeen:      count(err, "Seen", o.Seen),
	}
}

// scalars is the struct of C with the fields of o that are plain values.
func (o *KeepLists) scalars(err *error) native.KeepLists {
	return native.KeepLists{
		StructSize: uint32(unsafe.Sizeof(native.KeepLists{})),
		NLists:     count(err, "Lists", o.Lists),
		ListStride: o.ListStride,
		Count:      count(err, "Count", o.Count),
	}
}

// scalars is the struct of C with the fields of o that are plain values.
func (o *TokenRange) scalars(err *error) native.TokenRange {
	return native.TokenRange{
		StructSize: uint32(unsafe.Sizeof(native.TokenRange{})),
		Rank:       o.Rank,
		First:      count(err, "First", o.First),
		End:        count(err, "End", o.End),
	}
}

// scalars is the struct of C with the fields of o that are plain values.
func (o *SelectOptions) scalars(err *error) native.SelectOptions {
	return native.SelectOptions{
		StructSize:  uint32(unsafe.Sizeof(native.SelectOptions{})),
		NTokens:     count(err, "Tokens", o.Tokens),
		NRows:       count(err, "Rows", o.Rows),
		Reduce:      int32(o.Reduce),
		NSink:       count(err, "Sink", o.Sink),
		NRecent:     count(err, "Recent", o.Recent),
		Tie:         int32(o.Tie),
		SelectBlock: count(err, "SelectBlock", o.SelectBlock),
	}
}

// read sets these fields to those of a struct that C filled.
func (o *SelectOptions) read(n *native.SelectOptions) {
	o.Tokens = int(n.NTokens)
	o.Rows = int(n.NRows)
	o.Reduce = Reduce(n.Reduce)
	o.Sink = int(n.NSink)
	o.Recent = int(n.NRecent)
	o.Tie = Tie(n.Tie)
	o.SelectBlock = int(n.SelectBlock)
}

// scalars is the struct of C with the fields of o that are plain values.
func (o *Move) scalars(err *error) native.Move {
	return native.Move{
		StructSize:     uint32(unsafe.Sizeof(native.Move{})),
		NTokens:        count(err, "Tokens", o.Tokens),
		Merge:          int32(o.Merge),
		FirstSlot:      count(err, "FirstSlot", o.FirstSlot),
		MergeThreshold: o.MergeThreshold,
		MergeFraction:  o.MergeFraction,
	}
}

// scalars is the struct of C with the fields of o that are plain values.
func (o *Observation) scalars(err *error) native.Observation {
	return native.Observation{
		StructSize: uint32(unsafe.Sizeof(native.Observation{})),
		Layer:      count(err, "Layer", o.Layer),
	}
}

// scalars is the struct of C with the fields of o that are plain values.
func (o *EvictOptions) scalars(err *error) native.EvictOptions {
	return native.EvictOptions{
		StructSize: uint32(unsafe.Sizeof(native.EvictOptions{})),
		ByTable:    flag(o.ByTable),
	}
}

// scalars is the struct of C with the fields of o that are plain values.
func (o *PagedCacheOptions) scalars(err *error) native.PagedCacheOptions {
	return native.PagedCacheOptions{
		StructSize:   uint32(unsafe.Sizeof(native.PagedCacheOptions{})),
		NBlocks:      count(err, "Blocks", o.Blocks),
		BlockSize:    count(err, "BlockSize", o.BlockSize),
		Layout:       int32(o.Layout),
		NumberDType:  int32(o.NumberDType),
		GroupTokens:  count(err, "GroupTokens", o.GroupTokens),
		RecentTokens: count(err, "RecentTokens", o.RecentTokens),
		RecentDType:  int32(o.RecentDType),
	}
}

// scalars is the struct of C with the fields of o that are plain values.
func (o *PagedRows) scalars(err *error) native.PagedRows {
	return native.PagedRows{
		StructSize: uint32(unsafe.Sizeof(native.PagedRows{})),
		Layer:      count(err, "Layer", o.Layer),
		FirstSlot:  count(err, "FirstSlot", o.FirstSlot),
		NTokens:    count(err, "Tokens", o.Tokens),
	}
}

// scalars is the struct of C with the fields of o that are plain values.
func (o *Prefill) scalars(err *error) native.PrefillOptions {
	return native.PrefillOptions{
		StructSize:     uint32(unsafe.Sizeof(native.PrefillOptions{})),
		NTokens:        count(err, "Tokens", o.Tokens),
		Chunk:          count(err, "Chunk", o.Chunk),
		EvictEachChunk: flag(o.EvictEachChunk),
	}
}
