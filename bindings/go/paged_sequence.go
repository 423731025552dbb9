package kvevict

import (
	"runtime"
	"unsafe"

	"kvevict.dev/kvevict/bindings/go/internal/native"
)

// PagedSequence is the blocks of one request. Close gives them back. A call that
// needs more blocks than are free fails with StatusOutOfMemory and changes nothing.
// It serves one goroutine at a time; a second one gets an error. On CUDA the
// sequences of one cache use one stream, or the caller orders them.
type PagedSequence struct {
	handle
	device Device
	layers []LayerInfo
	lent   unsafe.Pointer // the cache's memory
	rows   []native.PagedRows
}

func newPagedSequence(
	pointer uintptr, device Device, layers []LayerInfo, lent unsafe.Pointer, hooks *hooks,
) *PagedSequence {
	s := &PagedSequence{device: device, layers: layers, lent: lent}
	s.own(s, pointer, native.Kvevict_paged_sequence_destroy, hooks)
	return s
}

// Fork adds a sequence that holds what this one does, in the same blocks: to share a prefix, to part
// beams, or to keep what an eviction of one of the two drops.
func (s *PagedSequence) Fork(stream Stream) (*PagedSequence, error) {
	sequence, err := s.enterAlone()
	if err != nil {
		return nil, err
	}
	defer s.leave()
	var pointer uintptr
	if err := native.Kvevict_paged_sequence_fork(sequence, &pointer, uintptr(stream)); err != nil {
		return nil, err
	}
	return newPagedSequence(pointer, s.device, s.layers, s.lent, s.hooks), nil
}

// Append makes room for nTokens after the last one in every layer. Their rows have any content.
func (s *PagedSequence) Append(nTokens int, stream Stream) error {
	return s.change("nTokens", nTokens, func(sequence uintptr, n uint32) error {
		return native.Kvevict_paged_sequence_append(sequence, n, uintptr(stream))
	})
}

// Truncate drops the last tokens of layers that hold more than newLength slots.
func (s *PagedSequence) Truncate(newLength int) error {
	return s.change("newLength", newLength, native.Kvevict_paged_sequence_truncate)
}

// Own copies the blocks of all layers that others share and that hold slots from firstSlot on, so that
// they may be written through views.
func (s *PagedSequence) Own(firstSlot int, stream Stream) error {
	return s.change("firstSlot", firstSlot, func(sequence uintptr, n uint32) error {
		return native.Kvevict_paged_sequence_own(sequence, n, uintptr(stream))
	})
}

func (s *PagedSequence) change(
	name string, value int, call func(sequence uintptr, n uint32) error,
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
	return call(sequence, n)
}

// Fit drops the last rows of each layer that a sequence no longer stores, after its
// TrimTo or Reset, or an eviction by views.
func (s *PagedSequence) Fit(stored *Sequence) error {
	sequence, err := s.enterAlone()
	if err != nil {
		return err
	}
	defer s.leave()
	var b batch
	defer b.leave()
	positions, err := b.enter(stored)
	if err != nil {
		return err
	}
	return native.Kvevict_paged_sequence_fit(sequence, positions)
}

// Length is how many rows a layer with a full cache holds.
func (s *PagedSequence) Length(layer int) (int, error) {
	sequence, err := s.enterAlone()
	if err != nil {
		return 0, err
	}
	defer s.leave()
	l := count(&err, "layer", layer)
	if err != nil {
		return 0, err
	}
	var slots uint32
	err = native.Kvevict_paged_sequence_length(sequence, l, &slots)
	return int(slots), err
}

// View is the rows of a layer with a full cache, valid until a call changes the sequence. It keeps
// the blocks alive. Writing to blocks that other sequences share changes their rows too: see Own.
func (s *PagedSequence) View(layer int) (*View, error) {
	sequence, err := s.enterAlone()
	if err != nil {
		return nil, err
	}
	defer s.leave()
	l := count(&err, "layer", layer)
	if err != nil {
		return nil, err
	}
	n := &native.View{StructSize: uint32(unsafe.Sizeof(native.View{}))}
	if err := native.Kvevict_paged_sequence_view(sequence, l, n); err != nil {
		return nil, err
	}
	v := &View{}
	v.content.Store(&content{native: n, layout: layoutOf(n), cached: s})
	return v, nil
}

// Write copies rows into slots that layers hold. A layer may come up more than once. Blocks
// that others share are copied first. All is checked before the first row is written.
func (s *PagedSequence) Write(rows []PagedRows, stream Stream) error {
	return s.copy(native.Kvevict_paged_sequence_write, rows, stream)
}

// Read copies rows out of the slots of layers into the planes.
func (s *PagedSequence) Read(rows []PagedRows, stream Stream) error {
	return s.copy(native.Kvevict_paged_sequence_read, rows, stream)
}

func (s *PagedSequence) copy(
	call func(uintptr, *native.PagedRows, uint64, uintptr) error, rows []PagedRows, stream Stream,
) error {
	sequence, err := s.enterAlone()
	if err != nil {
		return err
	}
	defer s.leave()
	if len(s.rows) < len(rows) {
		s.rows = make([]native.PagedRows, len(rows))
	}
	for i := range rows {
		if s.rows[i], err = rows[i].native(s.device, s.layers); err != nil {
			return at(err, "rows", i, 0)
		}
	}
	err = call(sequence, first(s.rows), uint64(len(rows)), uintptr(stream))
	runtime.KeepAlive(rows)
	return err
}

func (r *PagedRows) native(device Device, layers []LayerInfo) (n native.PagedRows, err error) {
	n = r.scalars(&err)
	if err != nil {
		return n, err
	}
	heads := uint32(layerAt(layers, n.Layer).KVHeads)
	if n.K, err = r.K.rows(device, "K", n.NTokens, heads); err != nil || r.V.absent() {
		return n, err
	}
	n.V, err = r.V.rows(device, "V", n.NTokens, heads)
	return n, err
}

// Evict is EvictAllPaged for one sequence.
func (s *PagedSequence) Evict(
	sequence *Sequence, options *EvictOptions, workspace Memory, stream Stream,
) (EvictReport, error) {
	reports, err := EvictAllPaged([]PagedEviction{{s, sequence, options}}, workspace, stream)
	if err != nil {
		return EvictReport{}, err
	}
	return reports[0], nil
}

// Edit is Sequence.Edit where this holds the rows of a sequence's tokens. Blocks that others share are
// copied before their rows change; blocks for New tokens are taken, and empty ones given back. Too few
// free blocks are StatusOutOfMemory.
func (s *PagedSequence) Edit(sequence *Sequence, edit Edit, stream Stream) error {
	cached, err := s.enterAlone()
	if err != nil {
		return err
	}
	defer s.leave()
	var b batch
	defer b.leave()
	positions, err := b.enter(sequence)
	if err != nil {
		return err
	}
	n := edit.scalars(&err)
	if err != nil {
		return err
	}
	return sequence.changed(positions, native.Kvevict_paged_edit(cached, positions, &n, uintptr(stream)))
}

// PagedEviction holds the arguments of a paged sequence's eviction.
type PagedEviction struct {
	Cached   *PagedSequence // the rows
	Sequence *Sequence      // the tokens that they belong to
	Options  *EvictOptions  // nil for none; neither Undo, which a fork made before replaces, nor Destinations
}

// EvictAllPaged evicts as EvictAll does and gives emptied blocks back. All items are of one
// cache. Blocks that others share are copied before survivors move to them; the others hold
// theirs unchanged. workspace is the largest of the plans' for OperationEvict.
func EvictAllPaged(
	items []PagedEviction, workspace Memory, stream Stream,
) ([]EvictReport, error) {
	n := make([]native.PagedEviction, len(items))
	protected := make([]Memory, len(items))
	var b batch
	defer b.leave()
	for i := range items {
		item := &items[i]
		if item.Cached == nil {
			return nil, at(invalid("Cached is nil"), "items", i, 0)
		}
		cached, err := item.Cached.enterAlone()
		if err != nil {
			return nil, at(err, "items", i, 0)
		}
		defer item.Cached.leave()
		sequence, err := b.enter(item.Sequence)
		if err != nil {
			return nil, at(err, "items", i, 0)
		}
		s := item.Sequence
		if protected[i], err = s.tell(item.Options); err == nil && item.Options != nil {
			err = s.give(sequence, item.Options.Inputs)
		}
		if err == nil && item.Options != nil && len(item.Options.Destinations) > 0 {
			err = invalid("Destinations are for Sequence.Evict")
		}
		if err != nil {
			return nil, at(err, "items", i, 0)
		}
		if err := workspace.on(s.device, "workspace"); err != nil {
			return nil, err
		}
		n[i] = native.PagedEviction{
			StructSize: uint32(unsafe.Sizeof(n[i])),
			Cached:     cached,
			Sequence:   sequence,
			Options:    inHeap(unsafe.Pointer(&s.args.options)),
		}
	}
	err := native.Kvevict_paged_evict(first(n), uint64(len(n)), uintptr(workspace.address),
		workspace.bytes, uintptr(stream))
	runtime.KeepAlive(items)
	runtime.KeepAlive(protected)
	runtime.KeepAlive(workspace.owner)
	if err != nil {
		return nil, err
	}
	reports := make([]EvictReport, len(items))
	for i := range n {
		if reports[i], err = items[i].Sequence.report(n[i].Sequence); err != nil {
			return nil, err
		}
	}
	return reports, nil
}
