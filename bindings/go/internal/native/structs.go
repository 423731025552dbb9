// Code generated from the headers by bindings/go/generate.sh. DO NOT EDIT.

package native

// Constants of the headers.
const (
	// A number of query rows that means: as many as the caller gives.
	QueryRowsAny = 4294967295
	// A number of query rows that means: one for each slot held.
	QueryRowsAll = 4294967294
	VersionMajor = 0
	VersionMinor = 1
	VersionPatch = 0
	// Rises with every incompatible change of this header; equals the SONAME.
	ABIVersion = 0
	// The most jobs or moves that one call takes.
	MaxJobs = 128
	// As a first position: the sequence's logical length. CUDA reads it from device memory when
	// the work runs, so that a captured graph continues at the sequence's end.
	PositionNext = 4294967295
)

// AttentionJob is kvevict_attention_job.
type AttentionJob struct {
	StructSize    uint32
	NTokens       uint32
	TokenCounts   uintptr
	View          uintptr
	Queries       uintptr
	Out           uintptr
	NQHeads       uint32
	NQueries      uint32
	VHeadDim      uint32
	Window        uint32
	NonCausal     uint32
	SoftmaxScale  float32
	LogitSoftcap  float32
	NSumHeads     uint32
	SinkLogits    uintptr
	SinkLogitsLen uint64
	RowLSE        uintptr
	AttentionSums uintptr
}

// InitAttentionJob is what its INIT macro sets.
func InitAttentionJob() AttentionJob {
	return AttentionJob{StructSize: 104}
}

// PositionLists is kvevict_position_lists.
type PositionLists struct {
	StructSize   uint32
	NLists       uint32
	Positions    uintptr
	PositionsLen uint64
	ListStride   uint64
	Count        uint32
	Reserved     uint32
	Counts       uintptr
}

// InitPositionLists is what its INIT macro sets.
func InitPositionLists() PositionLists {
	return PositionLists{StructSize: 48}
}

// ForkOptions is kvevict_fork_options.
type ForkOptions struct {
	StructSize  uint32
	Reserved    uint32
	Plan        uintptr
	Memory      uintptr
	MemoryBytes uint64
}

// InitForkOptions is what its INIT macro sets.
func InitForkOptions() ForkOptions {
	return ForkOptions{StructSize: 32}
}

// SequenceTokens is kvevict_sequence_tokens.
type SequenceTokens struct {
	StructSize uint32
	NTokens    uint32
	Sequence   uintptr
}

// InitSequenceTokens is what its INIT macro sets.
func InitSequenceTokens() SequenceTokens {
	return SequenceTokens{StructSize: 16}
}

// SequenceLength is kvevict_sequence_length.
type SequenceLength struct {
	StructSize uint32
	NewLength  uint32
	Sequence   uintptr
}

// InitSequenceLength is what its INIT macro sets.
func InitSequenceLength() SequenceLength {
	return SequenceLength{StructSize: 16}
}

// SequenceObservations is kvevict_sequence_observations.
type SequenceObservations struct {
	StructSize      uint32
	NRows           uint32
	Sequence        uintptr
	Observations    uintptr
	ObservationsLen uint64
	FirstPosition   uint32
	Reserved        uint32
}

// InitSequenceObservations is what its INIT macro sets.
func InitSequenceObservations() SequenceObservations {
	return SequenceObservations{StructSize: 40, FirstPosition: 4294967295}
}

// SequenceEviction is kvevict_sequence_eviction.
type SequenceEviction struct {
	StructSize uint32
	Reserved   uint32
	Sequence   uintptr
	Views      uintptr
	ViewsLen   uint64
	Options    uintptr
}

// InitSequenceEviction is what its INIT macro sets.
func InitSequenceEviction() SequenceEviction {
	return SequenceEviction{StructSize: 40}
}

// Rotation is kvevict_rotation.
type Rotation struct {
	StructSize  uint32
	Layer       uint32
	NTokens     uint32
	NLists      uint32
	TokenCounts uintptr
	View        uintptr
	Offsets     uintptr
	OffsetsLen  uint64
}

// InitRotation is what its INIT macro sets.
func InitRotation() Rotation {
	return Rotation{StructSize: 48, NLists: 1}
}

// Edit is kvevict_edit.
type Edit struct {
	StructSize uint32
	Kind       int32
	First      uint32
	End        uint32
	NNew       uint32
	To         uint32
	Positions  int32
	Reserved   uint32
}

// InitEdit is what its INIT macro sets.
func InitEdit() Edit {
	return Edit{StructSize: 32}
}

// DTypeInfo is kvevict_dtype_info.
type DTypeInfo struct {
	StructSize    uint32
	DType         int32
	Name          uintptr
	ElementBytes  uint32
	CanMove       uint32
	CanScore      uint32
	CanRotate     uint32
	BlockElements uint32
	BlockBytes    uint32
	TakesScale    uint32
	TakesMinimum  uint32
}

// GPUInfo is kvevict_gpu_info.
type GPUInfo struct {
	StructSize        uint32
	ComputeCapability uint32
	DriverVersion     uint32
	NVRTCVersion      uint32
	Name              uintptr
	NVRTC             uintptr
	Target            uintptr
	Problem           uintptr
}

// ParameterInfo is kvevict_parameter_info.
type ParameterInfo struct {
	StructSize    uint32
	Type          int32
	Key           uintptr
	Words         uintptr
	Doc           uintptr
	Least         float64
	Most          float64
	ExcludesLeast uint32
	TakesZero     uint32
	DefaultText   [40]byte
}

// PolicyInfo is kvevict_policy_info.
type PolicyInfo struct {
	StructSize uint32
	Reserved   uint32
	Name       uintptr
	Signal     uintptr
	Summary    uintptr
	Trigger    uintptr
	Paper      uintptr
	Defaults   uintptr
}

// PresetInfo is kvevict_preset_info.
type PresetInfo struct {
	StructSize uint32
	Reserved   uint32
	Name       uintptr
	PolicyText uintptr
	Reproduces uintptr
}

// ResolvedPolicy is kvevict_resolved_policy.
type ResolvedPolicy struct {
	StructSize    uint32
	Budget        uint32
	NSink         uint32
	NRecent       uint32
	NSelected     uint32
	NQueryRows    uint32
	ScoresAreMass uint32
}

// Capabilities is kvevict_capabilities.
type Capabilities struct {
	StructSize       uint32
	CanMove          uint32
	CanScore         uint32
	CanRotate        uint32
	MoveReason       int32
	ScoreReason      int32
	RotateReason     int32
	NeedsScore       uint32
	TableBlock       uint32
	NeedsHeadTables  uint32
	NeedsLayerTables uint32
	Reserved         uint32
}

// LayerScores is kvevict_layer_scores.
type LayerScores struct {
	StructSize uint32
	NRows      uint32
	Scores     uintptr
	ScoresLen  uint64
	NTokens    uint32
	Reserved   uint32
}

// InitLayerScores is what its INIT macro sets.
func InitLayerScores() LayerScores {
	return LayerScores{StructSize: 32}
}

// MassOptions is kvevict_mass_options.
type MassOptions struct {
	StructSize uint32
	Scope      int32
	Mass       float64
	NSink      uint32
	NRecent    uint32
	EveryRow   uint32
	Reserved   uint32
}

// InitMassOptions is what its INIT macro sets.
func InitMassOptions() MassOptions {
	return MassOptions{StructSize: 32, Scope: 1}
}

// SequenceMemory is kvevict_sequence_memory.
type SequenceMemory struct {
	StructSize   uint32
	NLists       uint32
	Lengths      uint64
	Positions    uint64
	ListedCounts uint64
	NListed      uint32
	NSumHeads    uint32
	Sums         uint64
	SumStride    uint64
}

// ContextOptions is kvevict_context_options.
type ContextOptions struct {
	StructSize          uint32
	Device              int32
	NThreads            uint32
	LogLevel            int32
	Alloc               uintptr
	Free                uintptr
	AllocUserData       uintptr
	Parallel            uintptr
	ParallelUserData    uintptr
	Log                 uintptr
	LogUserData         uintptr
	SIMDTarget          uintptr
	CUDAContext         uintptr
	LibCUDAPath         uintptr
	LibNVRTCPath        uintptr
	KernelCacheDir      uintptr
	DeviceAlloc         uintptr
	DeviceFree          uintptr
	DeviceAllocUserData uintptr
	SelectOnHost        uint32
	Debug               uint32
}

// InitContextOptions is what its INIT macro sets.
func InitContextOptions() ContextOptions {
	return ContextOptions{StructSize: 144}
}

// Plane is kvevict_plane.
type Plane struct {
	Data               uint64
	TokenStrideBytes   int64
	HeadStrideBytes    int64
	ElementStrideBytes int64
	BlockStrideBytes   int64
	DType              int32
	HeadDim            uint32
	RowBytes           uint32
	Role               int32
	GroupStrideBytes   int64
	AddressTable       uint64
	AddressTableLen    uint32
	GroupElems         uint32
	GroupTokens        uint64
	Reserved           [5]uint64
}

// View is kvevict_view.
type View struct {
	StructSize           uint32
	NKVHeads             uint32
	K                    Plane
	V                    Plane
	Companions           uintptr
	NCompanions          uint32
	BlockSize            uint32
	BlockTable           uintptr
	BlockTableLen        uint64
	BlockTableHeadStride uint64
	RingSlots            uint32
	RingFirst            uint32
	NSharedBlocks        uint32
	FirstRecent          uint32
}

// InitView is what its INIT macro sets.
func InitView() View {
	return View{StructSize: 320}
}

// LayerGeometry is kvevict_layer_geometry.
type LayerGeometry struct {
	StructSize   uint32
	Cache        int32
	NQHeads      uint32
	NKVHeads     uint32
	KHeadDim     uint32
	VHeadDim     uint32
	QDType       int32
	KDType       int32
	VDType       int32
	SoftmaxScale float32
	LogitSoftcap float32
	Reserved     uint32
}

// InitLayerGeometry is what its INIT macro sets.
func InitLayerGeometry() LayerGeometry {
	return LayerGeometry{StructSize: 48, QDType: 1, KDType: 1, VDType: 1}
}

// Geometry is kvevict_geometry.
type Geometry struct {
	StructSize     uint32
	NLayers        uint32
	MaxTokens      uint32
	RoPELayout     int32
	Layers         uintptr
	LayersLen      uint64
	RoPEInvFreq    uintptr
	RoPEInvFreqLen uint64
	SinkLogits     uintptr
	SinkLogitsLen  uint64
}

// InitGeometry is what its INIT macro sets.
func InitGeometry() Geometry {
	return Geometry{StructSize: 64}
}

// PlanOptions is kvevict_plan_options.
type PlanOptions struct {
	StructSize      uint32
	DraftTokens     uint32
	HeadBudgets     uintptr
	HeadBudgetsLen  uint64
	LayerBudgets    uintptr
	LayerBudgetsLen uint64
	ReportMass      uint32
	HasDestinations uint32
}

// InitPlanOptions is what its INIT macro sets.
func InitPlanOptions() PlanOptions {
	return PlanOptions{StructSize: 48}
}

// LayerInfo is kvevict_layer_info.
type LayerInfo struct {
	StructSize uint32
	Cache      int32
	NQHeads    uint32
	NKVHeads   uint32
	NLists     uint32
	FirstList  uint32
}

// Workspace is kvevict_workspace.
type Workspace struct {
	StructSize uint32
	Alignment  uint32
	LeastBytes uint64
	BestBytes  uint64
}

// InitWorkspace is what its INIT macro sets.
func InitWorkspace() Workspace {
	return Workspace{StructSize: 24}
}

// SignalInputs is kvevict_signal_inputs.
type SignalInputs struct {
	StructSize         uint32
	NSumHeads          uint32
	Queries            uintptr
	RowLSE             uintptr
	Scores             uintptr
	AttentionSums      uintptr
	QueryMean          uintptr
	QueryCovariance    uintptr
	KeyFilter          uintptr
	TokenWeights       uintptr
	QueryCenters       uintptr
	NQueryRows         uint32
	NReferenceRows     uint32
	ReferenceQueries   uintptr
	ReferencePositions uintptr
}

// InitSignalInputs is what its INIT macro sets.
func InitSignalInputs() SignalInputs {
	return SignalInputs{StructSize: 104}
}

// ScoreJob is kvevict_score_job.
type ScoreJob struct {
	StructSize  uint32
	Layer       uint32
	NTokens     uint32
	NSeen       uint32
	TokenCounts uintptr
	View        uintptr
	Inputs      uintptr
	Scores      uintptr
	ScoresLen   uint64
}

// InitScoreJob is what its INIT macro sets.
func InitScoreJob() ScoreJob {
	return ScoreJob{StructSize: 56}
}

// KeepLists is kvevict_keep_lists.
type KeepLists struct {
	StructSize uint32
	NLists     uint32
	Slots      uintptr
	SlotsLen   uint64
	ListStride uint64
	Count      uint32
	Reserved   uint32
	Counts     uintptr
}

// InitKeepLists is what its INIT macro sets.
func InitKeepLists() KeepLists {
	return KeepLists{StructSize: 48}
}

// TokenRange is kvevict_token_range.
type TokenRange struct {
	StructSize uint32
	Rank       int32
	First      uint32
	End        uint32
}

// InitTokenRange is what its INIT macro sets.
func InitTokenRange() TokenRange {
	return TokenRange{StructSize: 16}
}

// SelectOptions is kvevict_select_options.
type SelectOptions struct {
	StructSize        uint32
	NTokens           uint32
	TokenCounts       uintptr
	Scores            uintptr
	ScoresLen         uint64
	NRows             uint32
	Reduce            int32
	NSink             uint32
	NRecent           uint32
	Tie               int32
	SelectBlock       uint32
	ProtectedSlots    uintptr
	ProtectedSlotsLen uint64
	Ranges            uintptr
	RangesLen         uint64
}

// InitSelectOptions is what its INIT macro sets.
func InitSelectOptions() SelectOptions {
	return SelectOptions{StructSize: 88}
}

// Move is kvevict_move.
type Move struct {
	StructSize     uint32
	NTokens        uint32
	View           uintptr
	Keep           uintptr
	TokenCounts    uintptr
	Merge          int32
	FirstSlot      uint32
	MergeThreshold float64
	MergeFraction  float64
	Destination    uintptr
}

// InitMove is what its INIT macro sets.
func InitMove() Move {
	return Move{StructSize: 64}
}

// Observation is kvevict_observation.
type Observation struct {
	StructSize uint32
	Layer      uint32
	Inputs     uintptr
}

// InitObservation is what its INIT macro sets.
func InitObservation() Observation {
	return Observation{StructSize: 16}
}

// EvictOptions is kvevict_evict_options.
type EvictOptions struct {
	StructSize            uint32
	ByTable               uint32
	ProtectedPositions    uintptr
	ProtectedPositionsLen uint64
	Inputs                uintptr
	InputsLen             uint64
	Undo                  uintptr
	UndoBytes             uint64
	Ranges                uintptr
	RangesLen             uint64
	Destinations          uintptr
	DestinationsLen       uint64
}

// InitEvictOptions is what its INIT macro sets.
func InitEvictOptions() EvictOptions {
	return EvictOptions{StructSize: 88}
}

// EvictReport is kvevict_evict_report.
type EvictReport struct {
	StructSize   uint32
	Evicted      uint32
	BytesBefore  uint64
	BytesAfter   uint64
	TokensBefore uint64
	TokensAfter  uint64
	BlocksFreed  uint64
	Reason       int32
	NWeakFits    uint32
}

// InitEvictReport is what its INIT macro sets.
func InitEvictReport() EvictReport {
	return EvictReport{StructSize: 56}
}

// ListReport is kvevict_list_report.
type ListReport struct {
	StructSize         uint32
	Layer              uint32
	TokensBefore       uint32
	TokensAfter        uint32
	MassKept           float32
	LargestMassEvicted float32
}

// InitListReport is what its INIT macro sets.
func InitListReport() ListReport {
	return ListReport{StructSize: 24}
}

// PagedCacheOptions is kvevict_paged_cache_options.
type PagedCacheOptions struct {
	StructSize   uint32
	NBlocks      uint32
	BlockSize    uint32
	Layout       int32
	Memory       uintptr
	MemoryBytes  uint64
	NumberDType  int32
	GroupTokens  uint32
	RecentTokens uint32
	RecentDType  int32
}

// InitPagedCacheOptions is what its INIT macro sets.
func InitPagedCacheOptions() PagedCacheOptions {
	return PagedCacheOptions{StructSize: 48}
}

// PagedCacheUsage is kvevict_paged_cache_usage.
type PagedCacheUsage struct {
	StructSize uint32
	NSequences uint32
	NBlocks    uint64
	NFree      uint64
	NShared    uint64
	NSlots     uint64
	Bytes      uint64
	BytesInUse uint64
	F32Bytes   uint64
}

// PagedRows is kvevict_paged_rows.
type PagedRows struct {
	StructSize uint32
	Layer      uint32
	FirstSlot  uint32
	NTokens    uint32
	K          Plane
	V          Plane
}

// InitPagedRows is what its INIT macro sets.
func InitPagedRows() PagedRows {
	return PagedRows{StructSize: 272}
}

// PagedEviction is kvevict_paged_eviction.
type PagedEviction struct {
	StructSize uint32
	Reserved   uint32
	Cached     uintptr
	Sequence   uintptr
	Options    uintptr
}

// InitPagedEviction is what its INIT macro sets.
func InitPagedEviction() PagedEviction {
	return PagedEviction{StructSize: 32}
}

// PrefillOptions is kvevict_prefill_options.
type PrefillOptions struct {
	StructSize     uint32
	NTokens        uint32
	Chunk          uint32
	EvictEachChunk uint32
	Forward        uintptr
	UserData       uintptr
	Views          uintptr
	ViewsLen       uint64
	Cached         uintptr
	Evict          uintptr
	Workspace      uintptr
	WorkspaceBytes uint64
}

// InitPrefillOptions is what its INIT macro sets.
func InitPrefillOptions() PrefillOptions {
	return PrefillOptions{StructSize: 80}
}

// PrefillReport is kvevict_prefill_report.
type PrefillReport struct {
	StructSize uint32
	NChunks    uint32
	NEvictions uint32
	PeakTokens uint32
	PeakBytes  uint64
	EndBytes   uint64
}
