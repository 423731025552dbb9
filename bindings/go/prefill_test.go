package kvevict

import (
	"errors"
	"runtime"
	"testing"
)

// reader is a model of two layers, whose caches are views or blocks, and its instructions.
type reader struct {
	sequence *Sequence
	cached   *PagedSequence
	views    []*View
	keys     [][]float32 // rows of each layer, for views
	scratch  Memory
	chunks   [][2]int
	at       func(first, n int) error // runs in a chunk and may fail
}

const readerPolicy = "snapkv:budget=12,window=4,sink=1,recent=4"

func newReader(t *testing.T, paged bool) *reader {
	t.Helper()
	plan := newPlan(t, newContext(t, nil), pagedLayers, pagedTokens, readerPolicy)
	r := &reader{
		sequence: newSequence(t, plan),
		scratch:  newMemory(t)(plan.Workspace(OperationEvict, 0)),
	}
	if paged {
		cache, err := plan.NewPagedCache(PagedCacheOptions{Blocks: 10, BlockSize: 4})
		must(t, err)
		t.Cleanup(func() { _ = cache.Close() })
		r.cached, err = cache.NewSequence()
		must(t, err)
		t.Cleanup(func() { _ = r.cached.Close() })
		return r
	}
	for l := 0; l < pagedLayers; l++ {
		r.keys = append(r.keys, make([]float32, pagedTokens*row))
		r.views = append(r.views, newView(t, r.keys[l], make([]float32, pagedTokens*row)))
	}
	return r
}

// forward writes rows of the tokens' own, and shows queries.
func (r *reader) forward(first, n int) error {
	r.chunks = append(r.chunks, [2]int{first, n})
	if r.at != nil {
		if err := r.at(first, n); err != nil {
			return err
		}
	}
	for l := 0; l < pagedLayers; l++ {
		k := random((first+n)*row, int64(l))[first*row:]
		if r.cached != nil {
			held, err := r.cached.Length(l)
			if err != nil {
				return err
			}
			v := rows(make([]float32, n*row), kvHeads)
			err = r.cached.Write([]PagedRows{{l, held - n, n, rows(k, kvHeads), v}}, 0)
			if err != nil {
				return err
			}
		} else {
			held, err := r.sequence.StoredLength(l, 0)
			if err != nil {
				return err
			}
			copy(r.keys[l][held*row:], k)
		}
		queries := rows(random((first+n)*qHeads*headDim, 9)[first*qHeads*headDim:], qHeads)
		if err := r.sequence.Observe(shown(l, &queries), n, first, 0); err != nil {
			return err
		}
	}
	return nil
}

func (r *reader) prompt(tokens, chunk int, evictEachChunk bool) *Prefill {
	return &Prefill{
		Tokens: tokens, Chunk: chunk, EvictEachChunk: evictEachChunk, Forward: r.forward,
		Views: r.views, Cached: r.cached, Workspace: r.scratch,
	}
}

func (r *reader) positions(t *testing.T) (all [][]int32) {
	t.Helper()
	for l := 0; l < pagedLayers; l++ {
		positions, err := r.sequence.KeepPositions(l, 0)
		must(t, err)
		all = append(all, positions)
	}
	return all
}

func TestPrefillReturnsTheErrorOfForward(t *testing.T) {
	for _, paged := range []bool{false, true} {
		r := newReader(t, paged)
		wrong := errors.New("the model is gone")
		r.at = func(first, n int) error {
			if first == 16 {
				return wrong
			}
			return nil
		}
		report, err := r.sequence.Prefill(r.prompt(30, 8, false), 0)
		if err != wrong {
			t.Errorf("expected the error itself, got %v", err)
		}
		same(t, 2, report.Chunks)
		same(t, 16, report.PeakTokens)
		r.at = nil // the rest may be read then
		report, err = r.sequence.Prefill(r.prompt(14, 8, false), 0)
		must(t, err)
		same(t, 2, report.Chunks)
		same(t, [][2]int{{0, 8}, {8, 8}, {16, 8}, {16, 8}, {24, 6}}, r.chunks)
	}
}

func TestPrefillPassesPanicsOn(t *testing.T) {
	for _, paged := range []bool{false, true} {
		r := newReader(t, paged)
		r.at = func(first, n int) error {
			runtime.GC() // what C holds stays
			if first == 8 {
				panic("no such token")
			}
			return nil
		}
		func() {
			defer func() { same(t, any("no such token"), recover()) }()
			_, _ = r.sequence.Prefill(r.prompt(30, 8, true), 0)
			t.Error("nothing was thrown")
		}()
		same(t, 8, r.sequence.LogicalLength())
		r.at = nil // and everything can be used
		_, err := r.sequence.Prefill(r.prompt(22, 8, true), 0)
		must(t, err)
	}
}

// Forward uses the sequence, but may not begin again; others are kept out as ever.
func TestPrefillLendsTheSequenceToForward(t *testing.T) {
	r := newReader(t, false)
	r.at = func(int, int) error {
		_, err := r.sequence.Prefill(r.prompt(1, 1, false), 0)
		fails(t, err, StatusInvalidArgument, "reads a prompt already")
		return nil
	}
	_, err := r.sequence.Prefill(r.prompt(8, 8, false), 0)
	must(t, err)

	r = newReader(t, true)
	r.at = func(int, int) error { return r.sequence.Close() }
	_, err = r.sequence.Prefill(r.prompt(8, 8, false), 0)
	if !errors.Is(err, ErrClosed) {
		t.Errorf("expected %v, got %v", ErrClosed, err)
	}
}

// Views that forward changes are read again, and have room for its writes.
func TestPrefillReadsViewsAgain(t *testing.T) {
	r := newReader(t, false)
	short := make([]float32, 12*row)
	r.at = func(first, n int) error {
		if first == 8 {
			r.views[1] = newView(t, short, short)
		}
		return nil
	}
	_, err := r.sequence.Prefill(r.prompt(30, 8, true), 0)
	fails(t, err, StatusInvalidArgument, "layers[1]")
	same(t, 8, r.sequence.LogicalLength())
}

func TestPrefillErrorsSayWhatIsWrong(t *testing.T) {
	r := newReader(t, false)
	for _, c := range []struct {
		change func(*Prefill)
		part   string
	}{
		{func(p *Prefill) { p.Tokens = -1 }, "Tokens -1"},
		{func(p *Prefill) { p.Chunk = 0 }, "chunk 0 < 1"},
		{func(p *Prefill) { p.Forward = nil }, "Forward is nil"},
		{func(p *Prefill) { p.Views = nil }, "0 views for 2 layers"},
		{func(p *Prefill) { p.Tokens = pagedTokens + 1 }, "65"},
		{func(p *Prefill) { p.Workspace = Memory{} }, "workspace"},
	} {
		prompt := r.prompt(20, 20, false)
		c.change(prompt)
		_, err := r.sequence.Prefill(prompt, 0)
		fails(t, err, StatusInvalidArgument, c.part)
		must(t, r.sequence.Reset(0))
	}
	must(t, r.sequence.Close())
	_, err := r.sequence.Prefill(r.prompt(1, 1, false), 0)
	if !errors.Is(err, ErrClosed) {
		t.Errorf("expected %v, got %v", ErrClosed, err)
	}
}
