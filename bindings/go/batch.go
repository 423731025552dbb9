package kvevict

import (
	"runtime"
	"unsafe"

	"kvevict.dev/kvevict/bindings/go/internal/native"
)

// Calls for many sequences of one context, of any lengths and plans. No sequence may come up
// twice. They do to each, in order and to the same bytes, what the method of one does. All are
// checked before the first one changes. An error begins with the item that it is about.

// AppendAll calls Append for each item.
func AppendAll(items []SequenceTokens, stream Stream) error {
	n := make([]native.SequenceTokens, len(items))
	var b batch
	defer b.leave()
	for i := range items {
		sequence, err := b.enter(items[i].Sequence)
		n[i] = items[i].scalars(&err)
		n[i].Sequence = sequence
		if err != nil {
			return at(err, "items", i, 0)
		}
	}
	err := native.Kvevict_sequences_append(first(n), uint64(len(n)), uintptr(stream))
	for i := range n {
		_ = b.sequences[i].changed(n[i].Sequence, nil)
	}
	return err
}

// TrimAllTo calls TrimTo for each item: a batch of speculations, each accepted up to another token.
func TrimAllTo(items []SequenceLength, stream Stream) error {
	n := make([]native.SequenceLength, len(items))
	var b batch
	defer b.leave()
	for i := range items {
		sequence, err := b.enter(items[i].Sequence)
		n[i] = items[i].scalars(&err)
		n[i].Sequence = sequence
		if err != nil {
			return at(err, "items", i, 0)
		}
	}
	err := native.Kvevict_sequences_trim_to(first(n), uint64(len(n)), uintptr(stream))
	for i := range n {
		_ = b.sequences[i].changed(n[i].Sequence, nil)
	}
	return err
}

// ObserveAll calls Observe for each item.
func ObserveAll(items []SequenceObservations, stream Stream) error {
	n := make([]native.SequenceObservations, len(items))
	var b batch
	defer b.leave()
	for i := range items {
		item := &items[i]
		sequence, err := b.enter(item.Sequence)
		if err != nil {
			return at(err, "items", i, 0)
		}
		n[i] = item.scalars(&err)
		if err == nil {
			err = item.Sequence.show(sequence, item.Observations, n[i].NRows, n[i].FirstPosition)
		}
		if err != nil {
			return at(err, "items", i, 0)
		}
		n[i].Sequence = sequence
		n[i].Observations = inHeap(unsafe.Pointer(first(item.Sequence.observed)))
		n[i].ObservationsLen = uint64(len(item.Observations))
	}
	err := native.Kvevict_sequences_observe(first(n), uint64(len(n)), uintptr(stream))
	runtime.KeepAlive(items)
	return err
}

// SequenceEviction holds the arguments of Evict for a sequence.
type SequenceEviction struct {
	Sequence *Sequence
	Views    []*View
	Options  *EvictOptions
}

// EvictAllWorkspace is the workspace of EvictAll for sequences as long as they are now: the
// largest that any of them needs. The workspace of the plans' MaxTokens serves at any length.
func EvictAllWorkspace(sequences []*Sequence) (Workspace, error) {
	n := make([]native.SequenceEviction, len(sequences))
	device := DeviceCPU
	var b batch
	defer b.leave()
	for i, s := range sequences {
		sequence, err := b.enter(s)
		if err != nil {
			return Workspace{}, at(err, "sequences", i, 0)
		}
		device = s.device
		n[i].StructSize = uint32(unsafe.Sizeof(n[i]))
		n[i].Sequence = sequence
	}
	return workspaceOf(device, func(out *native.Workspace) error {
		return native.Kvevict_sequences_workspace(first(n), uint64(len(n)), out)
	})
}

// EvictAll calls Evict for each item, in one workspace, see EvictAllWorkspace.
// Contiguous caches of two sequences must not overlap if one of them is to lose tokens.
func EvictAll(
	items []SequenceEviction, workspace Memory, stream Stream,
) ([]EvictReport, error) {
	n := make([]native.SequenceEviction, len(items))
	protected := make([]Memory, len(items))
	var b batch
	defer b.leave()
	for i := range items {
		item := &items[i]
		sequence, err := b.enter(item.Sequence)
		if err != nil {
			return nil, at(err, "items", i, 0)
		}
		s := item.Sequence
		if protected[i], err = s.arrange(sequence, item.Views, item.Options); err != nil {
			return nil, at(err, "items", i, 0)
		}
		if err := workspace.on(s.device, "workspace"); err != nil {
			return nil, err
		}
		n[i] = native.SequenceEviction{
			StructSize: uint32(unsafe.Sizeof(n[i])),
			Sequence:   sequence,
			Views:      inHeap(unsafe.Pointer(&s.views[0])),
			ViewsLen:   uint64(len(item.Views)),
			Options:    inHeap(unsafe.Pointer(&s.args.options)),
		}
	}
	err := native.Kvevict_sequences_evict(first(n), uint64(len(n)), uintptr(workspace.address),
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

// batch is the sequences that a call has entered.
type batch struct{ sequences []*Sequence }

func (b *batch) enter(s *Sequence) (uintptr, error) {
	if s == nil {
		return 0, invalid("Sequence is nil")
	}
	sequence, err := s.enterAlone()
	if err == nil {
		b.sequences = append(b.sequences, s)
	}
	return sequence, err
}

func (b *batch) leave() {
	for _, s := range b.sequences {
		s.release()
		s.leave()
	}
}
