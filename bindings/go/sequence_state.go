package kvevict

import (
	"runtime"
	"unsafe"

	"kvevict.dev/kvevict/bindings/go/internal/native"
)

// Reset forgets everything, as if newly created, but keeps query memory.
func (s *Sequence) Reset(stream Stream) error {
	sequence, err := s.enterAlone()
	if err != nil {
		return err
	}
	defer s.leave()
	return s.changed(sequence, native.Kvevict_sequence_reset(sequence, uintptr(stream)))
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
