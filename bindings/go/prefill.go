package kvevict

import (
	"runtime"
	"runtime/cgo"
	"unsafe"

	"kvevict.dev/kvevict/bindings/go/internal/native"
)

// PrefillReport is what reading a prompt took.
type PrefillReport struct {
	Chunks     int    // chunks that Forward has run over
	Evictions  int    // evictions that lost tokens
	PeakTokens int    // the most that any layer held, a chunk included
	PeakBytes  uint64 // the most that rows of all layers took at a time
	EndBytes   uint64 // what they take at the end
}

// Prefill reads a prompt in chunks. Each runs Forward, Append and, if it is due, Evict; at the end
// comes EndPrompt. An error of Forward is returned as it is, and a panic goes on from here. The
// chunks before stay appended, as the report says, and Prefill may be called again for the rest.
func (s *Sequence) Prefill(prompt *Prefill, stream Stream) (PrefillReport, error) {
	sequence, err := s.enterAlone()
	if err != nil {
		return PrefillReport{}, err
	}
	defer s.leave()
	if s.isLent() {
		return PrefillReport{}, invalid("the sequence reads a prompt already")
	}
	defer s.release()
	r := &reading{sequence: s, pointer: sequence, prompt: prompt, args: &prefillArguments{}}
	var cached uintptr
	if prompt.Cached != nil {
		if cached, err = prompt.Cached.enterAlone(); err != nil {
			return PrefillReport{}, err
		}
		defer prompt.Cached.leave()
	}
	if err := r.begin(); err != nil {
		return PrefillReport{}, err
	}
	r.args.options.Cached = cached
	number := cgo.NewHandle(native.Forward(r.chunk))
	defer number.Delete()
	r.args.options.UserData = uintptr(number)
	err = native.Kvevict_sequence_prefill(sequence, &r.args.options, &r.args.report, uintptr(stream))
	err = s.changed(sequence, err)
	runtime.KeepAlive(prompt)
	runtime.KeepAlive(r.protected.owner)
	if r.panicked {
		panic(r.panic)
	}
	if r.err != nil {
		err = r.err
	}
	return PrefillReport{
		int(r.args.report.NChunks), int(r.args.report.NEvictions), int(r.args.report.PeakTokens),
		r.args.report.PeakBytes, r.args.report.EndBytes,
	}, err
}

// prefillArguments are on the heap, where C finds them after each callback, and hold no pointers of Go.
type prefillArguments struct {
	options native.PrefillOptions
	report  native.PrefillReport
}

// reading is a call of Prefill.
type reading struct {
	sequence  *Sequence
	pointer   uintptr
	prompt    *Prefill
	done      uint32 // tokens
	args      *prefillArguments
	protected Memory

	err      error // error of a chunk
	panicked bool
	panic    any
}

func (r *reading) begin() (err error) {
	s, o := r.sequence, &r.args.options
	r.args.report.StructSize = uint32(unsafe.Sizeof(r.args.report))
	*o = r.prompt.scalars(&err)
	if err == nil && r.prompt.Forward == nil {
		err = invalid("Forward is nil")
	}
	if err == nil {
		err = r.prompt.Workspace.on(s.device, "Workspace")
	}
	if err == nil {
		err = r.arrange(false)
	}
	o.Forward = native.ForwardHook()
	if r.prompt.Views != nil {
		o.Views = inHeap(unsafe.Pointer(&s.views[0]))
		o.ViewsLen = uint64(len(r.prompt.Views))
	}
	o.Evict = inHeap(unsafe.Pointer(&s.args.options))
	o.Workspace, o.WorkspaceBytes = uintptr(r.prompt.Workspace.address), r.prompt.Workspace.bytes
	return err
}

// arrange puts evictions' arguments among the others. Calls of Forward have put theirs there.
func (r *reading) arrange(evicts bool) (err error) {
	if r.prompt.Evict != nil && len(r.prompt.Evict.Destinations) > 0 {
		return invalid("Evict.Destinations: a prompt is evicted where it is")
	}
	if r.protected, err = r.sequence.tell(r.prompt.Evict); err != nil {
		return err
	}
	var inputs []SignalInputs
	if evicts && r.prompt.Evict != nil {
		inputs = r.prompt.Evict.Inputs
	}
	if r.prompt.Cached != nil && r.prompt.Views == nil {
		return r.sequence.give(r.pointer, inputs)
	}
	return r.sequence.placeAll(r.pointer, r.prompt.Views, inputs)
}

// chunk is called by C. No panic goes through C's frames.
func (r *reading) chunk(first, n uint32) (status int32) {
	r.panicked = true
	defer func() {
		if r.panicked {
			r.panic, status = recover(), int32(StatusInternal)
		}
	}()
	r.err = r.read(first, n)
	r.panicked = false
	if r.err != nil {
		return int32(StatusInternal)
	}
	return int32(StatusOK)
}

func (r *reading) read(first, n uint32) error {
	r.sequence.logical.Store(first)
	if err := r.forward(int(first), int(n)); err != nil {
		return err
	}
	r.done += n
	// The chunk's rows are there, but not appended yet.
	r.sequence.ahead = n
	defer func() { r.sequence.ahead = 0 }()
	return r.arrange(r.prompt.EvictEachChunk || r.done == r.args.options.NTokens)
}

func (r *reading) forward(first, n int) (err error) {
	handles := []*handle{&r.sequence.handle}
	if r.prompt.Cached != nil {
		handles = append(handles, &r.prompt.Cached.handle)
	}
	for _, h := range handles {
		h.lend()
	}
	defer func() {
		for _, h := range handles {
			if back := h.takeBack(); err == nil {
				err = back
			}
		}
	}()
	return r.prompt.Forward(first, n)
}
