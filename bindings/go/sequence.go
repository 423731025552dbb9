package kvevict

import (
	"runtime"
	"sync/atomic"
	"unsafe"

	"kvevict.dev/kvevict/bindings/go/internal/native"
)

// PositionNext, as firstPosition, is the sequence's logical length. On CUDA it is read when the work
// runs, so that a captured graph goes on where the sequence is.
const PositionNext = native.PositionNext

// Sequence is what one request carries between steps: the position of every slot, stored and logical
// length, and, while it observes, the last queries of every layer. It serves one goroutine at a time;
// a second one gets an error.
type Sequence struct {
	handle
	device      Device
	geometry    native.Geometry
	headsDiffer bool
	lists       int // of a layer
	args        *arguments
	planes      []native.Plane // one per layer, as views
	views       []native.View
	caches      []*content
	lent        unsafe.Pointer // memory of BeginObserving
	logical     atomic.Uint32  // length as of the last call that changed it
}

// arguments is memory for one call's arguments. It holds no pointers of Go, as cgo demands of what
// is passed to C.
type arguments struct {
	options native.EvictOptions
	report  native.EvictReport
	memory  native.SequenceMemory
	n       uint32
	place   int32
	length  uint64
}

// SetStream sets the stream of the next calls. The caller orders it after the one before.
func (s *Sequence) SetStream(stream Stream) error {
	sequence, err := s.enterAlone()
	if err != nil {
		return err
	}
	defer s.leave()
	return native.Kvevict_sequence_set_stream(sequence, uintptr(stream))
}

// BeginObserving gives the sequence memory for query rows until EndObserving: Plan.QueryMemoryBytes
// bytes, aligned as a workspace, or the zero Memory for some of the context's, which keeps what is
// given back. For policies that score by queries it comes before the first Observe; for others it
// does nothing.
func (s *Sequence) BeginObserving(memory Memory) error {
	sequence, err := s.enterAlone()
	if err != nil {
		return err
	}
	defer s.leave()
	if err := memory.on(s.device, "memory"); err != nil {
		return err
	}
	err = native.Kvevict_sequence_begin_observing(sequence, uintptr(memory.address), memory.bytes)
	runtime.KeepAlive(memory.owner)
	if err == nil {
		s.lent = memory.owner
	}
	return err
}

// EndObserving forgets the query rows and gives their memory back, once the eviction that uses them
// is done: on CUDA its work must have run. A sequence that only decodes does without.
func (s *Sequence) EndObserving() error {
	sequence, err := s.enterAlone()
	if err != nil {
		return err
	}
	defer s.leave()
	err = native.Kvevict_sequence_end_observing(sequence)
	if err == nil {
		s.lent = nil
	}
	return err
}

// Reset forgets everything, as if newly created, but keeps query memory.
func (s *Sequence) Reset() error {
	sequence, err := s.enterAlone()
	if err != nil {
		return err
	}
	defer s.leave()
	return s.changed(sequence, native.Kvevict_sequence_reset(sequence))
}

// Observe shows a layer's query rows of one chunk, [QHeads, nRows] after RoPE; the last ObsWindow are
// copied and remembered. Showing earlier positions again replaces them and forgets what came after
// (rollback). firstPosition is that of row 0, or PositionNext.
func (s *Sequence) Observe(layer int, queries *Plane, nRows, firstPosition int) error {
	return s.observe("queries", native.Kvevict_sequence_observe, layer, queries, nRows, firstPosition)
}

// ObserveLayers shows the query rows of one chunk in every layer: Observe for all layers or, with an
// error, for none. On CUDA that is one launch, where the strides of all layers are the same.
func (s *Sequence) ObserveLayers(queries []*Plane, nRows, firstPosition int) error {
	sequence, err := s.enterAlone()
	if err != nil {
		return err
	}
	defer s.leave()
	if len(queries) != len(s.planes) {
		return invalid("%d queries for %d layers", len(queries), len(s.planes))
	}
	rows := count(&err, "nRows", nRows)
	position := count(&err, "firstPosition", firstPosition)
	if err != nil {
		return err
	}
	for layer, plane := range queries {
		if s.planes[layer], err = s.rows("queries", plane, rows); err != nil {
			return invalid("layer %d: %v", layer, err)
		}
	}
	err = native.Kvevict_sequence_observe_layers(
		sequence, &s.planes[0], uint64(len(queries)), rows, position)
	runtime.KeepAlive(queries)
	return err
}

// ObserveLSE shows the log-sum-exps of query rows that were observed before, f32 with HeadDim 1,
// which saves CUDA a pass over the keys.
func (s *Sequence) ObserveLSE(layer int, rowLSE *Plane, nRows, firstPosition int) error {
	return s.observe(
		"rowLSE", native.Kvevict_sequence_observe_lse, layer, rowLSE, nRows, firstPosition)
}

func (s *Sequence) observe(
	name string, call func(uintptr, uint32, *native.Plane, uint32, uint32) error,
	layer int, plane *Plane, nRows, firstPosition int,
) error {
	sequence, err := s.enterAlone()
	if err != nil {
		return err
	}
	defer s.leave()
	l := count(&err, "layer", layer)
	rows := count(&err, "nRows", nRows)
	position := count(&err, "firstPosition", firstPosition)
	if err != nil {
		return err
	}
	if s.planes[0], err = s.rows(name, plane, rows); err != nil {
		return err
	}
	err = call(sequence, l, &s.planes[0], rows, position)
	runtime.KeepAlive(plane)
	return err
}

// rows converts a plane that holds nRows rows of the query heads; name is for errors.
func (s *Sequence) rows(name string, plane *Plane, nRows uint32) (native.Plane, error) {
	return plane.rows(s.device, name, nRows, s.geometry.NQHeads)
}

// Append notes that the engine stored nTokens more rows in every layer, each at the layer's next slot
// and with the next positions.
func (s *Sequence) Append(nTokens int) error {
	return s.note(native.Kvevict_sequence_append, nTokens)
}

// Replayed notes on the host that a graph ran once more which observed and appended nTokens.
func (s *Sequence) Replayed(nTokens int) error {
	return s.note(native.Kvevict_sequence_replayed, nTokens)
}

// Trim takes back the last tokens, for example rejected speculation, down to a logical length of
// nTokens. It is exact down to the logical length at the last eviction and changes no byte of a cache.
func (s *Sequence) Trim(nTokens int) error {
	return s.note(native.Kvevict_sequence_trim, nTokens)
}

func (s *Sequence) note(call func(uintptr, uint32) error, nTokens int) error {
	sequence, err := s.enterAlone()
	if err != nil {
		return err
	}
	defer s.leave()
	n := count(&err, "nTokens", nTokens)
	if err != nil {
		return err
	}
	return s.changed(sequence, call(sequence, n))
}

// changed remembers the logical length after a call that may have changed it, and returns the call's
// error.
func (s *Sequence) changed(sequence uintptr, err error) error {
	if native.Kvevict_sequence_logical_length(sequence, &s.args.n) == nil {
		s.logical.Store(s.args.n)
	}
	return err
}

// EvictOptions is what an eviction may be told beside the policy.
type EvictOptions struct {
	// Protected are strictly ascending positions that must stay; those already evicted are ignored.
	Protected []int32
	// Scores, for PolicyCustom: float32 scores of every layer's slots, [Layers, KVHeads, stored
	// length, the most of any head] with the strides below, in elements.
	Scores            Memory
	ScoresLayerStride uint64
	ScoresHeadStride  uint64
}

// EvictReport is what an eviction did. Bytes count K, V and companions of all layers.
type EvictReport struct {
	Evicted      bool // whether any layer lost a token
	BytesBefore  uint64
	BytesAfter   uint64
	TokensBefore uint64 // slots in use, summed over the layers: where heads differ, the most of any
	TokensAfter  uint64
	BlocksFreed  uint64 // paged: blocks, summed over the block tables, that hold nothing any more

	// ListTokens are the slots in use by each list, [Layers, Lists], see SequenceMemory.
	ListTokensBefore []uint32
	ListTokensAfter  []uint32
}

// Evict scores, selects and compacts the cache of a whole model in place. Every check is made before
// the first byte moves. Afterwards the next token goes to slot StoredLength with position
// LogicalLength. options may be nil; workspace is for OperationEvict.
func (s *Sequence) Evict(views []*View, options *EvictOptions, workspace Memory) (
	EvictReport, error,
) {
	sequence, err := s.enterAlone()
	if err != nil {
		return EvictReport{}, err
	}
	defer s.leave()
	if len(views) != len(s.views) {
		return EvictReport{}, invalid("%d views for %d layers", len(views), len(s.views))
	}
	defer s.release()
	for layer, view := range views {
		if err := s.place(sequence, layer, view); err != nil {
			return EvictReport{}, err
		}
	}
	var none EvictOptions
	if options == nil {
		options = &none
	}
	scoresLen, err := options.Scores.floats(s.device, "Scores")
	if err != nil {
		return EvictReport{}, err
	}
	if err := workspace.on(s.device, "workspace"); err != nil {
		return EvictReport{}, err
	}
	protected := Slice(options.Protected)
	s.args.options = native.EvictOptions{
		StructSize:            uint32(unsafe.Sizeof(s.args.options)),
		ProtectedPositions:    uintptr(protected.address),
		ProtectedPositionsLen: uint64(len(options.Protected)),
		Scores:                uintptr(options.Scores.address),
		ScoresLen:             scoresLen,
		ScoresLayerStride:     options.ScoresLayerStride,
		ScoresHeadStride:      options.ScoresHeadStride,
	}
	r := &s.args.report
	tokens := make([]uint32, 2*len(views)*s.lists)
	before, after := tokens[:len(tokens)/2:len(tokens)/2], tokens[len(tokens)/2:]
	*r = native.EvictReport{
		StructSize:       uint32(unsafe.Sizeof(*r)),
		ListTokensBefore: uintptr(Slice(before).address),
		ListTokensAfter:  uintptr(Slice(after).address),
		ListTokensLen:    uint64(len(before)),
	}
	err = native.Kvevict_sequence_evict(sequence, &s.views[0], uint64(len(views)), &s.args.options,
		uintptr(workspace.address), workspace.bytes, r)
	runtime.KeepAlive(options)
	runtime.KeepAlive(tokens)
	runtime.KeepAlive(protected.owner)
	runtime.KeepAlive(workspace.owner)
	if err != nil {
		return EvictReport{}, err
	}
	return EvictReport{
		r.Evicted != 0, r.BytesBefore, r.BytesAfter, r.TokensBefore, r.TokensAfter, r.BlocksFreed,
		before, after,
	}, nil
}

// place puts a layer's view among the arguments and keeps its memory until release().
func (s *Sequence) place(sequence uintptr, layer int, view *View) error {
	cache, err := view.open(s.device)
	if err != nil {
		return err
	}
	if !cache.holds(s.geometry.MaxTokens) {
		stored, err := s.mostStored(sequence, uint32(layer))
		if err != nil {
			return err
		}
		if err := cache.require(stored); err != nil {
			return err
		}
	}
	s.views[layer], s.caches[layer] = *cache.native, cache
	return nil
}

// mostStored is the slots in use by any head of a layer.
func (s *Sequence) mostStored(sequence uintptr, layer uint32) (most uint32, err error) {
	heads := uint32(1)
	if s.headsDiffer {
		heads = s.geometry.NKVHeads
	}
	for head := uint32(0); head < heads; head++ {
		err := native.Kvevict_sequence_stored_length(sequence, layer, head, &s.args.n)
		if err != nil {
			return 0, err
		}
		if s.args.n > most {
			most = s.args.n
		}
	}
	return most, nil
}

func (s *Sequence) release() {
	for layer := range s.caches {
		s.caches[layer] = nil
	}
}

// SequenceMemory is where a sequence keeps a layer's state, on the device of its context.
type SequenceMemory struct {
	// Lengths is the address of u32 [Layers, Lists, 2]: stored and logical length; fixed for life.
	Lengths uint64
	// Positions is the address of i32 [Lists, Listed]: positions of a layer's first Listed slots;
	// those after count up by one. Moves with every eviction.
	Positions uint64
	// ListedCounts is the address of u32 [Lists]: how many slots of a list are listed, where lists
	// differ; 0 where all list Listed. Moves with every eviction.
	ListedCounts uint64
	Listed       int // of any list, the most
	Lists        int // 1, or the KV heads
}

// MemoryOf tells where the state of a layer lies, for the engine's own kernels.
func (s *Sequence) MemoryOf(layer int) (SequenceMemory, error) {
	sequence, err := s.enterAlone()
	if err != nil {
		return SequenceMemory{}, err
	}
	defer s.leave()
	l := count(&err, "layer", layer)
	if err != nil {
		return SequenceMemory{}, err
	}
	m := &s.args.memory
	m.StructSize = uint32(unsafe.Sizeof(*m))
	if err := native.Kvevict_sequence_memory_of(sequence, l, m); err != nil {
		return SequenceMemory{}, err
	}
	return SequenceMemory{
		m.Lengths, m.Positions, m.ListedCounts, int(m.NListed), int(m.NLists),
	}, nil
}

// StoredLength is the slots in use by a layer and KV head: where its next row goes. Heads are all
// alike, unless the plan has budgets for each.
func (s *Sequence) StoredLength(layer, kvHead int) (int, error) {
	sequence, err := s.enterAlone()
	if err != nil {
		return 0, err
	}
	defer s.leave()
	l := count(&err, "layer", layer)
	h := count(&err, "kvHead", kvHead)
	if err == nil {
		err = native.Kvevict_sequence_stored_length(sequence, l, h, &s.args.n)
	}
	if err != nil {
		return 0, err
	}
	return int(s.args.n), nil
}

// LogicalLength is the tokens seen so far: the position (for RoPE) of the next one. Any goroutine may
// ask, also while a call is under way (then it is the length before or after that call) and after
// Close.
func (s *Sequence) LogicalLength() int { return int(s.logical.Load()) }

// PositionOfSlot is the position of the token in a slot.
func (s *Sequence) PositionOfSlot(layer, kvHead, slot int) (int, error) {
	return s.find(native.Kvevict_sequence_position_of_slot, layer, kvHead, "slot", slot)
}

// SlotOfPosition is the slot that holds the token of a position; -1 if it was evicted.
func (s *Sequence) SlotOfPosition(layer, kvHead, position int) (int, error) {
	return s.find(native.Kvevict_sequence_slot_of_position, layer, kvHead, "position", position)
}

func (s *Sequence) find(
	call func(uintptr, uint32, uint32, uint32, *int32) error,
	layer, kvHead int, name string, value int,
) (int, error) {
	sequence, err := s.enterAlone()
	if err != nil {
		return 0, err
	}
	defer s.leave()
	l := count(&err, "layer", layer)
	h := count(&err, "kvHead", kvHead)
	v := count(&err, name, value)
	if err == nil {
		err = call(sequence, l, h, v, &s.args.place)
	}
	if err != nil {
		return 0, err
	}
	return int(s.args.place), nil
}

// KeepPositions is the positions of all slots of a layer and KV head, ascending.
func (s *Sequence) KeepPositions(layer, kvHead int) ([]int32, error) {
	n, err := s.StoredLength(layer, kvHead)
	if err != nil {
		return nil, err
	}
	positions := make([]int32, n)
	n, err = s.KeepPositionsInto(layer, kvHead, positions)
	return positions[:n], err
}

// KeepPositionsInto is KeepPositions into a slice that holds the stored length, and returns
// that length.
func (s *Sequence) KeepPositionsInto(layer, kvHead int, positions []int32) (int, error) {
	sequence, err := s.enterAlone()
	if err != nil {
		return 0, err
	}
	defer s.leave()
	l := count(&err, "layer", layer)
	h := count(&err, "kvHead", kvHead)
	if err != nil {
		return 0, err
	}
	err = native.Kvevict_sequence_keep_positions(
		sequence, l, h, first(positions), uint64(len(positions)), &s.args.length)
	if err != nil {
		return 0, err
	}
	return int(s.args.length), nil
}
