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
// What is observed lies there, so it comes before the first Observe; policies that observe nothing need
// none.
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

// Observe shows nRows query rows of one chunk, for one layer or many in ascending order, and remembers
// the rows of the window. Showing earlier positions again replaces them and forgets what came after
// (rollback). Log-sum-exps may come with the rows or after them. It may show attention weights instead,
// which are added up; their rows follow those observed before. Or it shows Scores of the chunk's nRows
// tokens, for the policy custom, which then live with their slots. firstPosition is the position of
// row 0, or PositionNext. On CUDA neighbouring layers that lie alike take one launch.
func (s *Sequence) Observe(
	observations []Observation, nRows, firstPosition int, stream Stream,
) error {
	sequence, err := s.enterAlone()
	if err != nil {
		return err
	}
	defer s.leave()
	rows, position := count(&err, "nRows", nRows), count(&err, "firstPosition", firstPosition)
	if err == nil {
		err = s.show(sequence, observations, rows, position)
	}
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
	sequence uintptr, observations []Observation, rows, position uint32,
) (err error) {
	n := len(observations)
	s.signals.grow(n)
	if len(s.observed) < n {
		s.observed = make([]native.Observation, n)
	}
	for i := range observations {
		o := &observations[i]
		to := o.scalars(&err)
		if err == nil {
			shown, held := o.Inputs, rows // scores are of the chunk's rows, attention of all slots
			shown.QueryRows = 0
			if shown.AttentionSums != nil && o.Layer < len(s.layers) {
				held, err = s.heldWith(sequence, o.Layer, position, rows)
			}
			if err == nil {
				to.Inputs, err = s.signals.put(
					i, &shown, s.device, layerAt(s.layers, to.Layer), int(rows), held)
			}
		}
		if err != nil {
			return at(err, "observations", i, n)
		}
		s.observed[i] = to
	}
	return nil
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
