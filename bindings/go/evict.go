package kvevict

import (
	"runtime"
	"unsafe"

	"kvevict.dev/kvevict/bindings/go/internal/native"
)

// nativeRanges are ranges as calls take them, on the heap.
func nativeRanges(ranges []TokenRange) (n []native.TokenRange, err error) {
	if len(ranges) == 0 {
		return nil, nil
	}
	n = make([]native.TokenRange, len(ranges))
	for i := range ranges {
		n[i] = ranges[i].scalars(&err)
	}
	return n, err
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

// Edit removes, replaces, inserts or moves tokens in the middle. Rows move to their new slots in every
// layer with a full cache, and keys rotate by as many positions as their tokens move. Tokens that were
// evicted stay so. Keys and values behind the edit still remember the old text; only ExactPrefix tokens
// are as if it had always been the new one. Make room in the views, call, then write the rows of the
// New tokens, in each layer and head from the slot of position First on. views are as for Evict, with
// room for all slots held before and after. It allocates and waits for the stream. The last eviction
// cannot be undone any more. An error other than StatusDevice has changed nothing.
func (s *Sequence) Edit(views []*View, edit Edit, stream Stream) error {
	sequence, err := s.enterAlone()
	if err != nil {
		return err
	}
	defer s.leave()
	defer s.release()
	n := edit.scalars(&err)
	if err != nil {
		return err
	}
	if err := s.placeAll(sequence, views, nil); err != nil {
		return err
	}
	for layer, cache := range s.caches {
		if cache == nil {
			continue
		}
		most, counts, err := s.heldAfter(sequence, layer, &n)
		if err == nil {
			err = cache.require(most, counts)
		}
		if err != nil {
			return at(err, "layers", layer, len(views))
		}
	}
	return s.changed(sequence, native.Kvevict_sequence_edit(
		sequence, &s.views[0], uint64(len(views)), &n, uintptr(stream)))
}

// heldAfter is what held will be after an edit.
func (s *Sequence) heldAfter(
	sequence uintptr, layer int, edit *native.Edit,
) (most uint32, counts Memory, err error) {
	most, counts, err = s.held(sequence, layer)
	if err != nil || edit.NNew == 0 {
		return most, counts, err
	}
	positions := make([]int32, most)
	for head, before := range s.stored {
		if before == 0 {
			s.stored[head] = edit.NNew
			continue
		}
		err := native.Kvevict_sequence_keep_positions(
			sequence, uint32(layer), uint32(head), &positions[0], uint64(before), &s.args.length)
		if err != nil {
			return 0, Memory{}, err
		}
		after := edit.NNew
		for _, position := range positions[:before] {
			if p := uint32(position); p < edit.First || p >= edit.End {
				after++
			}
		}
		s.stored[head] = after
	}
	most = 0
	for _, after := range s.stored {
		if after > most {
			most = after
		}
	}
	return most, counts, nil
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
	if s.ranges, err = nativeRanges(options.Ranges); err != nil {
		return protected, err
	}
	*o = options.scalars(&err)
	o.ProtectedPositions = uintptr(protected.address)
	o.ProtectedPositionsLen = uint64(len(options.Protected))
	o.InputsLen = uint64(len(options.Inputs))
	o.Undo, o.UndoBytes = uintptr(options.Undo.address), options.Undo.bytes
	o.Ranges, o.RangesLen = inHeap(unsafe.Pointer(first(s.ranges))), uint64(len(s.ranges))
	if err != nil {
		return protected, err
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
