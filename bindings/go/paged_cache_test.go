package kvevict

import (
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"
)

const (
	pagedLayers = 2
	pagedTokens = 64
)

// pool is a plan, a cache and scratch.
type pool struct {
	plan    *Plan
	cache   *PagedCache
	scratch Memory
}

func newPool(t *testing.T, options PagedCacheOptions) *pool {
	t.Helper()
	plan := newPlan(t, newContext(t, nil), pagedLayers, pagedTokens, "knorm:budget=12,sink=1,scope=head")
	options.BlockSize = 4
	cache, err := plan.NewPagedCache(options)
	must(t, err)
	t.Cleanup(func() { _ = cache.Close() })
	return &pool{plan, cache, newMemory(t)(plan.Workspace(OperationEvict, 0))}
}

func (p *pool) usage(t *testing.T) PagedCacheUsage {
	t.Helper()
	usage, err := p.cache.Usage()
	must(t, err)
	return usage
}

// sequence is a request's rows and positions.
func (p *pool) sequence(t *testing.T) (*PagedSequence, *Sequence) {
	t.Helper()
	cached, err := p.cache.NewSequence()
	must(t, err)
	t.Cleanup(func() { _ = cached.Close() })
	return cached, newSequence(t, p.plan)
}

func TestPagedCachesCloseInAnyOrder(t *testing.T) {
	p := newPool(t, PagedCacheOptions{Blocks: 20})
	cached, sequence := p.sequence(t)
	view, err := cached.View(0)
	must(t, err)
	must(t, p.cache.Close())
	must(t, p.cache.Close())
	_, usageErr := p.cache.Usage()
	_, sequenceErr := p.cache.NewSequence()
	must(t, p.plan.Close())
	must(t, cached.Append(20, 0)) // it keeps what it was made from
	fork, err := cached.Fork(0)
	must(t, err)
	must(t, cached.Close())
	must(t, cached.Close())
	n, err := fork.Length(1)
	must(t, err)
	same(t, 20, n)
	must(t, fork.Close())
	_, forkErr := cached.Fork(0)
	_, lengthErr := cached.Length(0)
	_, viewErr := cached.View(0)
	_, evictErr := cached.Evict(sequence, nil, p.scratch, 0)
	_, bytesErr := p.plan.PagedCacheBytes(PagedCacheOptions{Blocks: 1})
	_, cacheErr := p.plan.NewPagedCache(PagedCacheOptions{Blocks: 1})
	for i, err := range []error{
		usageErr, sequenceErr, forkErr, lengthErr, viewErr, evictErr, bytesErr, cacheErr, view.Validate(0),
		cached.Append(1, 0), cached.Truncate(0), cached.Own(0, 0), cached.Fit(sequence),
		cached.Write(nil, 0), cached.Read(nil, 0),
	} {
		if !errors.Is(err, ErrClosed) {
			t.Errorf("%d: %v", i, err)
		}
	}
}

func TestPagedSequencesAreLeftToTheCollector(t *testing.T) {
	p := newPool(t, PagedCacheOptions{Blocks: 64})
	for i := 0; i < 8; i++ {
		s, err := p.cache.NewSequence()
		must(t, err)
		must(t, s.Append(10, 0))
		fork, err := s.Fork(0)
		must(t, err)
		_, err = fork.View(1)
		must(t, err)
	}
	for i := 0; p.usage(t).Sequences > 0 && i < 600_000; i++ {
		runtime.GC()
		time.Sleep(time.Millisecond)
	}
	same(t, [2]uint64{0, 128}, [2]uint64{uint64(p.usage(t).Sequences), p.usage(t).Free})
}

func TestPagedViewsKeepTheirBlocks(t *testing.T) {
	p := newPool(t, PagedCacheOptions{Blocks: 64})
	view := func() *View {
		s, err := p.cache.NewSequence()
		must(t, err)
		must(t, s.Append(10, 0))
		view, err := s.View(0)
		must(t, err)
		return view
	}()
	for i := 0; i < 20; i++ {
		runtime.GC()
		time.Sleep(time.Millisecond)
	}
	must(t, view.Validate(10))
	same(t, 1, p.usage(t).Sequences)
	if err := view.Validate(13); err == nil || !strings.Contains(err.Error(), "block_table_len 3") {
		t.Error(err)
	}
}
