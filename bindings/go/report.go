package kvevict

import (
	"unsafe"

	"kvevict.dev/kvevict/bindings/go/internal/native"
)

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
	// WeakFits is the number of KV heads whose values were fitted to fewer than twice as
	// many queries as slots, so that FitRidge decides.
	WeakFits int
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
		Reason(r.Reason), int(r.NWeakFits),
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
