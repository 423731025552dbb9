package kvevict

import (
	"math"
	"runtime"
	"sync/atomic"
	"unsafe"

	"kvevict.dev/kvevict/bindings/go/internal/native"
)

// PositionNext is a firstPosition that stands for the logical length. On CUDA it is
// read when the work runs, so that a captured graph goes on where the sequence is.
const PositionNext = 1<<32 - 1

// Sequence is what one request carries between steps: the position of every slot, stored and logical
// length, and, while it observes, the last queries of every layer. It serves one goroutine at a time;
// a second one gets an error.
type Sequence struct {
	handle
	device      Device
	layers      []LayerInfo // layers of the plan
	maxTokens   uint32
	queryRows   int
	headsDiffer bool
	args        *arguments
	signals     signals // inputs of one call
	observed    []native.Observation
	ranges      []native.TokenRange // ranges of one call
	views       []native.View       // one per layer
	elsewhere   []native.View       // destinations, one per layer
	kept        []uint32            // slots kept in each layer
	caches      []*content
	stored      []uint32       // slots of a layer's heads
	ahead       uint32         // rows behind those, for arguments that are read once they are appended
	lent        unsafe.Pointer // memory of BeginObserving
	logical     atomic.Uint32  // length as of the last call that changed it
}

// arguments is memory for one call's arguments. It holds no pointers of Go, since
// cgo must not pass them to C.
type arguments struct {
	options native.EvictOptions
	report  native.EvictReport
	memory  native.SequenceMemory
	n       uint32
	place   int32
	length  uint64
}

// BeginObserving gives the sequence memory for query rows until EndObserving: the workspace of
// OperationObserve, or for the zero Memory some of the context's, which keeps what is given back.
// Policies that score by queries need it before the first Observe; for others it does nothing.
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

// EndObserving forgets the query rows and gives their memory back. The eviction that uses them must
// be done: on CUDA its work must have run. A sequence that only decodes needs no query memory.
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
func (s *Sequence) Reset(stream Stream) error {
	sequence, err := s.enterAlone()
	if err != nil {
		return err
	}
	defer s.leave()
	return s.changed(sequence, native.Kvevict_sequence_reset(sequence, uintptr(stream)))
}

// Observation is what a layer shows of one chunk of tokens: Queries, RowLSE, or both; or AttentionSums.
type Observation struct {
	Layer  int
	Inputs SignalInputs
}

// Observe shows nRows query rows of one chunk, for one layer or many in ascending order, and remembers
// the rows of the window. Showing earlier positions again replaces them and forgets what came after
// (rollback). Log-sum-exps may come with the rows or after them. It may show attention weights instead,
// which are added up; their rows follow those observed before. firstPosition is the position of row 0,
// or PositionNext. On CUDA neighbouring layers that lie alike take one launch.
func (s *Sequence) Observe(
	observations []Observation, nRows, firstPosition int, stream Stream,
) error {
	sequence, err := s.enterAlone()
	if err != nil {
		return err
	}
	defer s.leave()
	rows, position, err := s.show(sequence, observations, nRows, firstPosition)
	if err != nil {
		return err
	}
	err = native.Kvevict_sequence_observe(sequence, first(s.observed), uint64(len(observations)),
		rows, position, uintptr(stream))
	runtime.KeepAlive(observations)
	return err
}

// show puts what layers show among the arguments.
func (s *Sequence) show(
	sequence uintptr, observations []Observation, nRows, firstPosition int,
) (rows, position uint32, err error) {
	rows = count(&err, "nRows", nRows)
	position = count(&err, "firstPosition", firstPosition)
	if err != nil {
		return 0, 0, err
	}
	n := len(observations)
	s.signals.grow(n)
	if len(s.observed) < n {
		s.observed = make([]native.Observation, n)
	}
	for i := range observations {
		o := &observations[i]
		layer := count(&err, "Layer", o.Layer)
		var inputs uintptr
		if err == nil {
			shown, held := o.Inputs, uint32(0)
			shown.QueryRows = 0
			if shown.AttentionSums != nil && o.Layer < len(s.layers) {
				held, err = s.heldWith(sequence, o.Layer, position, rows)
			}
			if err == nil {
				inputs, err = s.signals.put(i, &shown, s.device, layerAt(s.layers, layer), int(rows), held)
			}
		}
		if err != nil {
			return 0, 0, at(err, "observations", i, n)
		}
		s.observed[i] = native.Observation{
			StructSize: uint32(unsafe.Sizeof(s.observed[i])), Layer: layer, Inputs: inputs,
		}
	}
	return rows, position, nil
}

// Append notes that the engine stored nTokens more rows in every layer, each at the layer's next slot
// and with the next positions.
func (s *Sequence) Append(nTokens int, stream Stream) error {
	return s.note(native.Kvevict_sequence_append, "nTokens", nTokens, stream)
}

// EndPrompt says that what has been appended so far is the prompt: see Prompt and Every of Policy.
func (s *Sequence) EndPrompt() error {
	return s.note(func(sequence uintptr, _ uint32, _ uintptr) error {
		return native.Kvevict_sequence_end_prompt(sequence)
	}, "nTokens", 0, 0)
}

// Replayed notes on the host that a graph ran once more that observed and appended nTokens.
func (s *Sequence) Replayed(nTokens int) error {
	return s.note(func(sequence uintptr, n uint32, _ uintptr) error {
		return native.Kvevict_sequence_replayed(sequence, n)
	}, "nTokens", nTokens, 0)
}

// TrimTo takes back the last tokens, for example rejected speculation, down to a logical
// length. It is exact down to the logical length at the last eviction, and to lengths up to
// ExactPrefix, and changes no byte of a cache. The error for another length names the nearest
// exact ones. With a policy that scores by the last queries, DraftTokens of the plan may be
// taken back before each eviction. After more, some queries have to be observed again.
func (s *Sequence) TrimTo(newLength int, stream Stream) error {
	return s.note(native.Kvevict_sequence_trim_to, "newLength", newLength, stream)
}

func (s *Sequence) note(
	call func(sequence uintptr, n uint32, stream uintptr) error, name string, value int, stream Stream,
) error {
	sequence, err := s.enterAlone()
	if err != nil {
		return err
	}
	defer s.leave()
	n := count(&err, name, value)
	if err != nil {
		return err
	}
	return s.changed(sequence, call(sequence, n, uintptr(stream)))
}

// changed remembers the logical length after a call that may have changed it, and returns the call's
// error.
func (s *Sequence) changed(sequence uintptr, err error) error {
	if native.Kvevict_sequence_logical_length(sequence, &s.args.n) == nil {
		s.logical.Store(s.args.n)
	}
	return err
}

// sibling is a sequence of the same plan that owns no pointer yet.
func (s *Sequence) sibling() *Sequence {
	return &Sequence{
		device:      s.device,
		layers:      s.layers,
		maxTokens:   s.maxTokens,
		queryRows:   s.queryRows,
		headsDiffer: s.headsDiffer,
		args:        &arguments{},
		views:       make([]native.View, len(s.layers)),
		caches:      make([]*content, len(s.layers)),
	}
}

// Start begins an empty sequence from caches that are filled already: a restored session, a
// beam, a prefix that requests share. layers has the positions that each layer's slots hold,
// ascending: one list, or one for each of its keep lists, see LayerInfo; nil for layers without
// a full cache. If layers is nil, every list holds the nTokens tokens seen. nTokens, the
// logical length, is above every position. On CUDA a call with positions waits.
func (s *Sequence) Start(layers [][][]int32, nTokens int, stream Stream) error {
	structs := make([]native.PositionLists, len(layers))
	var positions []int32
	var counts []uint32
	for i, lists := range layers {
		n := &structs[i]
		n.StructSize = uint32(unsafe.Sizeof(*n))
		n.NLists = uint32(len(lists))
		for _, list := range lists {
			if len(list) > int(n.Count) {
				n.Count = uint32(len(list))
			}
		}
		n.PositionsLen = uint64(n.NLists) * uint64(n.Count)
		for _, list := range lists {
			counts = append(counts, uint32(len(list)))
			positions = append(positions, list...)
			positions = append(positions, make([]int32, int(n.Count)-len(list))...)
		}
	}
	firstPosition, firstCount := Slice(positions), Slice(counts)
	atPosition, atCount := uintptr(firstPosition.address), uintptr(firstCount.address)
	for i := range structs {
		n := &structs[i]
		if n.NLists == 0 {
			continue
		}
		n.Positions, n.Counts = atPosition, atCount
		atPosition += uintptr(n.PositionsLen) * unsafe.Sizeof(positions[0])
		atCount += uintptr(n.NLists) * unsafe.Sizeof(counts[0])
	}
	err := s.note(func(sequence uintptr, n uint32, stream uintptr) error {
		return native.Kvevict_sequence_start(
			sequence, first(structs), uint64(len(structs)), n, stream)
	}, "nTokens", nTokens, stream)
	runtime.KeepAlive(firstPosition.owner)
	runtime.KeepAlive(firstCount.owner)
	return err
}

// ForkOptions is what a fork may be told.
type ForkOptions struct {
	// Plan is the new sequence's plan, with another policy and the same context and
	// layers. Observed queries are copied if both plans have equally wide windows; on
	// CUDA the call waits. nil: this one's.
	Plan *Plan
	// Memory is as in BeginObserving, if the new sequence observes.
	Memory Memory
}

// Fork makes a sequence that goes on from here: with positions, lengths, prompt
// and, if this one observes, queries. The caller copies or shares the cache.
// options may be nil. stream comes after this one's work.
func (s *Sequence) Fork(options *ForkOptions, stream Stream) (*Sequence, error) {
	sequence, err := s.enterAlone()
	if err != nil {
		return nil, err
	}
	defer s.leave()
	var none ForkOptions
	if options == nil {
		options = &none
	}
	memory := options.Memory
	if err := memory.on(s.device, "memory"); err != nil {
		return nil, err
	}
	fork, hooks := s.sibling(), s.hooks
	o := native.ForkOptions{
		StructSize:  uint32(unsafe.Sizeof(native.ForkOptions{})),
		Memory:      uintptr(memory.address),
		MemoryBytes: memory.bytes,
	}
	if plan := options.Plan; plan != nil {
		if o.Plan, err = plan.enter(); err != nil {
			return nil, err
		}
		defer plan.leave()
		fork, hooks = plan.sequence(), plan.hooks
	}
	var pointer uintptr
	err = native.Kvevict_sequence_fork(sequence, &o, &pointer, uintptr(stream))
	runtime.KeepAlive(memory.owner)
	if err != nil {
		return nil, err
	}
	fork.own(fork, pointer, native.Kvevict_sequence_destroy, hooks)
	fork.lent = memory.owner
	fork.logical.Store(s.logical.Load())
	return fork, nil
}

// Save returns positions and lengths as bytes, with a version and a CRC-32, for Load in any
// process on any machine, without the cache, the queries or the report. On CUDA it waits.
func (s *Sequence) Save() ([]byte, error) {
	sequence, err := s.enterAlone()
	if err != nil {
		return nil, err
	}
	defer s.leave()
	if err := native.Kvevict_sequence_save(sequence, 0, 0, &s.args.length); err != nil {
		return nil, err
	}
	data := make([]byte, s.args.length)
	out := Slice(data)
	err = native.Kvevict_sequence_save(sequence, uintptr(out.address), out.bytes, &s.args.length)
	runtime.KeepAlive(out.owner)
	if err != nil {
		return nil, err
	}
	return data, nil
}

// Load restores what Save saved of a sequence whose plan has the same layers and
// keep lists. An error leaves the sequence as before. On CUDA it waits.
func (s *Sequence) Load(data []byte, stream Stream) error {
	sequence, err := s.enterAlone()
	if err != nil {
		return err
	}
	defer s.leave()
	in := Slice(append(append([]byte(nil), data...), 0)) // never NULL
	err = native.Kvevict_sequence_load(
		sequence, uintptr(in.address), uint64(len(data)), uintptr(stream))
	runtime.KeepAlive(in.owner)
	return s.changed(sequence, err)
}

// ExactPrefix is how many tokens are still where they were stored, in every list of every layer.
// Another request with the same tokens can use these. 0 after an eviction that merged. On CUDA it
// waits.
func (s *Sequence) ExactPrefix() (int, error) {
	sequence, err := s.enterAlone()
	if err != nil {
		return 0, err
	}
	defer s.leave()
	if err := native.Kvevict_sequence_exact_prefix(sequence, &s.args.n); err != nil {
		return 0, err
	}
	return int(s.args.n), nil
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
	// ByTable leaves rows where they are and writes the views' block tables, or their
	// planes' address tables: blocks that stay come first, then those that go, which
	// are then free. Whole blocks have to stay or go: see Plan.Capabilities.
	ByTable bool
	// Destinations are other caches, one for each layer, to which the rows that stay
	// are copied, in the types there; Views keep theirs. They need room for KeptSlots.
	// The plan must have PlanOptions.Destinations. Empty: rows stay in the views.
	Destinations []*View
}

// TokenRange is tokens that go later or sooner than others: whatever its score, a
// token of a higher rank stays before any of a lower one. Tokens in no range have
// rank 0. A call takes up to 64 ranges, none of which begins before the end of the
// one before. Ranges say which tokens a list keeps, never how many.
type TokenRange struct {
	First, End uint32 // positions, or slots; End is the one after the last, up to math.MaxUint32
	Rank       int32
}

// nativeRanges are ranges as calls take them, on the heap.
func nativeRanges(ranges []TokenRange) []native.TokenRange {
	if len(ranges) == 0 {
		return nil
	}
	n := make([]native.TokenRange, len(ranges))
	for i, r := range ranges {
		n[i] = native.TokenRange{
			StructSize: uint32(unsafe.Sizeof(n[i])), Rank: r.Rank, First: r.First, End: r.End,
		}
	}
	return n
}

// Evict scores, selects and compacts the cache of a whole model in place. Every check is made before
// the first byte moves. Afterwards the next token goes to slot StoredLength with position
// LogicalLength. views has one for each layer, where those without a full cache may be nil; options
// may be nil; workspace is for OperationEvict.
func (s *Sequence) Evict(
	views []*View, options *EvictOptions, workspace Memory, stream Stream,
) (EvictReport, error) {
	sequence, err := s.enterAlone()
	if err != nil {
		return EvictReport{}, err
	}
	defer s.leave()
	defer s.release()
	protected, err := s.arrange(sequence, views, options)
	if err != nil {
		return EvictReport{}, err
	}
	if err := workspace.on(s.device, "workspace"); err != nil {
		return EvictReport{}, err
	}
	err = native.Kvevict_sequence_evict(sequence, &s.views[0], uint64(len(views)), &s.args.options,
		uintptr(workspace.address), workspace.bytes, uintptr(stream))
	runtime.KeepAlive(options)
	runtime.KeepAlive(protected.owner)
	runtime.KeepAlive(workspace.owner)
	if options != nil {
		runtime.KeepAlive(options.Undo.owner)
	}
	if err != nil {
		return EvictReport{}, err
	}
	return s.report(sequence)
}

// KeptSlots is how many slots an eviction now would leave in each layer's longest list, for which a
// destination needs room. If scores decide how many, it is what the layer holds; 0 without a full cache.
func (s *Sequence) KeptSlots(views []*View) ([]int, error) {
	sequence, err := s.enterAlone()
	if err != nil {
		return nil, err
	}
	defer s.leave()
	defer s.release()
	if err := s.placeAll(sequence, views, nil); err != nil {
		return nil, err
	}
	if err := s.findKept(sequence); err != nil {
		return nil, err
	}
	kept := make([]int, len(s.kept))
	for layer, n := range s.kept {
		kept[layer] = int(n)
	}
	return kept, nil
}

// findKept asks the same of the views among the arguments.
func (s *Sequence) findKept(sequence uintptr) error {
	if s.kept == nil {
		s.kept = make([]uint32, len(s.layers))
	}
	return native.Kvevict_sequence_kept_slots(
		sequence, &s.views[0], uint64(len(s.views)), &s.kept[0], uint64(len(s.kept)))
}

// UndoBytes is the undo memory that an eviction would need now; 0 if it would leave
// every layer alone. Policies that merge or rotate cannot be undone: an error.
func (s *Sequence) UndoBytes(views []*View) (uint64, error) {
	sequence, err := s.enterAlone()
	if err != nil {
		return 0, err
	}
	defer s.leave()
	defer s.release()
	if err := s.placeAll(sequence, views, nil); err != nil {
		return 0, err
	}
	err = native.Kvevict_sequence_undo_bytes(
		sequence, &s.views[0], uint64(len(views)), &s.args.length)
	return s.args.length, err
}

// Undo takes back the last eviction, whose rows EvictOptions.Undo received. They are again where
// they were, and positions and lengths are as before it. Tokens appended since stay after them;
// trim first what is not wanted. It works once, until the next eviction that evicts, a Reset, a
// Load, or a TrimTo to before. views are the eviction's, each with rows for max tokens of the plan,
// or for the logical length if that is less; undo may be a copy of what Evict left.
func (s *Sequence) Undo(views []*View, undo Memory, stream Stream) error {
	sequence, err := s.enterAlone()
	if err != nil {
		return err
	}
	defer s.leave()
	defer s.release()
	if err := s.placeAll(sequence, views, nil); err != nil {
		return err
	}
	most := s.logical.Load()
	if most > s.maxTokens {
		most = s.maxTokens
	}
	for layer, cache := range s.caches {
		if cache == nil {
			continue
		}
		if err := cache.require(most, Memory{}); err != nil {
			return at(err, "layers", layer, len(views))
		}
	}
	if err := undo.on(s.device, "undo"); err != nil {
		return err
	}
	err = native.Kvevict_sequence_undo(sequence, &s.views[0], uint64(len(views)),
		uintptr(undo.address), undo.bytes, uintptr(stream))
	runtime.KeepAlive(undo.owner)
	return err
}

// placeAll puts the views of all layers, and their inputs if there are any, among the arguments.
func (s *Sequence) placeAll(sequence uintptr, views []*View, inputs []SignalInputs) error {
	if n := len(s.layers); len(views) != n {
		return invalid("%d views for %d layers", len(views), n)
	}
	for layer, view := range views {
		if err := s.place(sequence, layer, view, inputs); err != nil {
			return at(err, "layers", layer, len(views))
		}
	}
	return nil
}

// arrange puts an eviction's arguments among the others, until release().
func (s *Sequence) arrange(
	sequence uintptr, views []*View, options *EvictOptions,
) (protected Memory, err error) {
	if protected, err = s.tell(options); err != nil {
		return protected, err
	}
	if options == nil {
		return protected, s.placeAll(sequence, views, nil)
	}
	if err = s.placeAll(sequence, views, options.Inputs); err != nil {
		return protected, err
	}
	return protected, s.placeElsewhere(sequence, options.Destinations)
}

// placeElsewhere puts destinations, if there are any, among the arguments of an eviction, after all others.
func (s *Sequence) placeElsewhere(sequence uintptr, views []*View) error {
	n := len(s.layers)
	if len(views) == 0 {
		return nil
	}
	if len(views) != n {
		return invalid("%d destinations for %d layers", len(views), n)
	}
	if err := s.findKept(sequence); err != nil {
		return err
	}
	if s.elsewhere == nil {
		s.elsewhere = make([]native.View, n)
	}
	for layer, view := range views {
		s.elsewhere[layer] = native.View{StructSize: uint32(unsafe.Sizeof(native.View{}))}
		if s.layers[layer].Cache != LayerCacheFull {
			continue
		}
		cache, err := view.open(s.device)
		if err == nil {
			err = cache.require(s.kept[layer], Memory{})
		}
		if err != nil {
			return at(err, "destinations", layer, n)
		}
		s.elsewhere[layer] = *cache.native
		s.caches = append(s.caches, cache)
	}
	s.args.options.Destinations = inHeap(unsafe.Pointer(&s.elsewhere[0]))
	s.args.options.DestinationsLen = uint64(n)
	return nil
}

// tell puts the options of an eviction among the arguments, except for the layers' inputs.
func (s *Sequence) tell(options *EvictOptions) (protected Memory, err error) {
	var none EvictOptions
	if options == nil {
		options = &none
	}
	o := &s.args.options
	protected = Slice(options.Protected)
	s.ranges = nativeRanges(options.Ranges)
	*o = native.EvictOptions{
		StructSize:            uint32(unsafe.Sizeof(*o)),
		ProtectedPositions:    uintptr(protected.address),
		ProtectedPositionsLen: uint64(len(options.Protected)),
		InputsLen:             uint64(len(options.Inputs)),
		Undo:                  uintptr(options.Undo.address),
		UndoBytes:             options.Undo.bytes,
		Ranges:                inHeap(unsafe.Pointer(first(s.ranges))),
		RangesLen:             uint64(len(s.ranges)),
	}
	if options.ByTable {
		o.ByTable = 1
	}
	if err := options.Undo.on(s.device, "options.Undo"); err != nil {
		return protected, err
	}
	if n := len(s.layers); len(options.Inputs) > 0 {
		if len(options.Inputs) != n {
			return protected, invalid("%d inputs for %d layers", len(options.Inputs), n)
		}
		s.signals.grow(n)
		o.Inputs = inHeap(unsafe.Pointer(&s.signals.inputs[0]))
	}
	return protected, nil
}

// place puts a layer's view, and its inputs if there are any, among the arguments, and keeps the
// view's memory until release().
func (s *Sequence) place(sequence uintptr, layer int, view *View, inputs []SignalInputs) error {
	info, most := s.layers[layer], uint32(0)
	s.views[layer] = native.View{StructSize: uint32(unsafe.Sizeof(native.View{}))}
	if info.Cache == LayerCacheFull {
		cache, err := view.open(s.device)
		if err != nil {
			return err
		}
		if !cache.holds(s.maxTokens) || len(inputs) > 0 {
			var counts Memory
			if most, counts, err = s.held(sequence, layer); err != nil {
				return err
			}
			if err := cache.require(most, counts); err != nil {
				return err
			}
		}
		s.views[layer], s.caches[layer] = *cache.native, cache
	}
	if len(inputs) == 0 {
		return nil
	}
	_, err := s.signals.put(layer, &inputs[layer], s.device, info, s.queryRows, most)
	return err
}

// give puts inputs whose rows are not of views among the arguments.
func (s *Sequence) give(sequence uintptr, inputs []SignalInputs) error {
	for layer := range inputs {
		info, most := s.layers[layer], uint32(0)
		var err error
		if info.Cache == LayerCacheFull {
			most, _, err = s.held(sequence, layer)
		}
		if err == nil {
			_, err = s.signals.put(layer, &inputs[layer], s.device, info, s.queryRows, most)
		}
		if err != nil {
			return at(err, "layers", layer, len(inputs))
		}
	}
	return nil
}

// held is the slots in use by a layer, the most of any head, and by each head if these differ.
func (s *Sequence) held(sequence uintptr, layer int) (most uint32, counts Memory, err error) {
	heads := 1
	if s.headsDiffer {
		heads = s.layers[layer].KVHeads
	}
	s.stored = s.stored[:0]
	for head := 0; head < heads; head++ {
		err := native.Kvevict_sequence_stored_length(
			sequence, uint32(layer), uint32(head), &s.args.n)
		if err != nil {
			return 0, Memory{}, err
		}
		stored := s.args.n + s.ahead
		s.stored = append(s.stored, stored)
		if stored > most {
			most = stored
		}
	}
	if s.headsDiffer {
		counts = Slice(s.stored)
	}
	return most, counts, nil
}

func (s *Sequence) release() {
	for layer := range s.caches {
		s.caches[layer] = nil
	}
	s.caches = s.caches[:len(s.layers)] // drops those of destinations
}

// EvictReport is what an eviction did. Bytes count K, V and companions of all layers.
type EvictReport struct {
	Evicted      bool // whether any layer lost a token
	BytesBefore  uint64
	BytesAfter   uint64
	TokensBefore uint64 // slots in use, summed over the layers; the longest head counts if heads differ
	TokensAfter  uint64
	BlocksFreed  uint64 // paged: blocks of all tables that no longer hold anything
	// Reason is why layers that may be over their budgets were left alone:
	// ReasonOpenPrompt if all were, ReasonSmallBudget if at least one was.
	Reason Reason
}

// Report tells what the last successful Evict did; all 0 before it and after a Reset.
func (s *Sequence) Report() (EvictReport, error) {
	sequence, err := s.enterAlone()
	if err != nil {
		return EvictReport{}, err
	}
	defer s.leave()
	return s.report(sequence)
}

func (s *Sequence) report(sequence uintptr) (EvictReport, error) {
	r := &s.args.report
	r.StructSize = uint32(unsafe.Sizeof(*r))
	if err := native.Kvevict_sequence_report(sequence, r, nil, 0); err != nil {
		return EvictReport{}, err
	}
	return EvictReport{
		r.Evicted != 0, r.BytesBefore, r.BytesAfter, r.TokensBefore, r.TokensAfter, r.BlocksFreed,
		Reason(r.Reason),
	}, nil
}

// ListReport is what an eviction did to one keep list.
type ListReport struct {
	Layer, TokensBefore, TokensAfter int // slots in use
	// MassKept is the share of the list's mass that stayed: of the scores that chose
	// it, if these are attention or the caller's. NaN if it is not known, as without
	// PlanOptions.ReportMass.
	MassKept float32
	// LargestMassEvicted is the largest mass of a token that went, as a share; NaN if it is not known.
	LargestMassEvicted float32
}

// ListReports is Report for the lists of all layers end to end, see Plan.Layer.
func (s *Sequence) ListReports() ([]ListReport, error) {
	sequence, err := s.enterAlone()
	if err != nil {
		return nil, err
	}
	defer s.leave()
	n := 0
	for _, layer := range s.layers {
		n += layer.Lists
	}
	lists := make([]native.ListReport, n)
	for i := range lists {
		lists[i].StructSize = uint32(unsafe.Sizeof(lists[i]))
	}
	if err := native.Kvevict_sequence_report(sequence, nil, first(lists), uint64(n)); err != nil {
		return nil, err
	}
	reports := make([]ListReport, n)
	for i, list := range lists {
		reports[i] = ListReport{
			int(list.Layer), int(list.TokensBefore), int(list.TokensAfter),
			list.MassKept, list.LargestMassEvicted,
		}
	}
	return reports, nil
}

// SequenceMemory has the addresses of a layer's state on the device of its context.
type SequenceMemory struct {
	// Lengths is the address of u32 [Lists, 2]: stored and logical length; fixed for life. Those of all
	// layers lie end to end. 0 with policy none and without a full cache.
	Lengths uint64
	// Positions is the address of i32 [Lists, Listed]: positions of a layer's first Listed slots;
	// those after count up by one. Moves with every eviction.
	Positions uint64
	// ListedCounts is the address of u32 [Lists]: how many slots each list has listed,
	// if lists differ; 0 if all have Listed. Moves with every eviction.
	ListedCounts uint64
	Listed       int // the most of any list
	Lists        int // those of LayerInfo
	// Sums is the address of float32 [SumHeads, SumStride]: the observed attention of
	// each slot; fixed while the sequence observes. 0 if it keeps none.
	Sums      uint64
	SumHeads  int
	SumStride uint64 // elements from row to row
}

// heldWith is the slots of a layer once rows from a position on are stored, or 0 if C refuses them.
func (s *Sequence) heldWith(sequence uintptr, layer int, position, rows uint32) (uint32, error) {
	most, _, err := s.held(sequence, layer)
	n := int64(most) + int64(rows)
	if position != PositionNext {
		n += int64(position) - int64(s.logical.Load())
	}
	if n < 0 || n > math.MaxInt32 {
		n = 0
	}
	return uint32(n), err
}

// MemoryOf returns the addresses of a layer's state for the engine's own kernels.
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
		m.Sums, int(m.NSumHeads), m.SumStride,
	}, nil
}

// StoredLength is the slots in use by a layer with a full cache, see Plan.Layer, and a KV head.
// The next row goes to this slot. All heads are alike unless the plan has budgets for each.
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
