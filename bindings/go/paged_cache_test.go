package kvevict

import (
	"errors"
	"math/rand"
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
	lastRow int
}

func newPool(t *testing.T, options PagedCacheOptions) *pool {
	t.Helper()
	plan := newPlan(t, newContext(t, nil), pagedLayers, pagedTokens, "knorm:budget=12,sink=1,scope=head")
	options.BlockSize = 4
	cache, err := plan.NewPagedCache(options)
	must(t, err)
	t.Cleanup(func() { _ = cache.Close() })
	return &pool{plan, cache, newMemory(t)(plan.Workspace(OperationEvict, 0)), 0}
}

func (p *pool) usage(t *testing.T) PagedCacheUsage {
	t.Helper()
	usage, err := p.cache.Usage()
	must(t, err)
	return usage
}

// actor is one request, and the number of the row in each slot of a layer and head.
type actor struct {
	pool     *pool
	cached   *PagedSequence
	sequence *Sequence
	rows     [pagedLayers][kvHeads][]int
}

func (p *pool) actor(t *testing.T) *actor {
	t.Helper()
	cached, err := p.cache.NewSequence()
	must(t, err)
	t.Cleanup(func() { _ = cached.Close() })
	return &actor{pool: p, cached: cached, sequence: newSequence(t, p.plan)}
}

func (a *actor) fork(t *testing.T) *actor {
	t.Helper()
	fork := &actor{pool: a.pool}
	var err error
	fork.cached, err = a.cached.Fork(0)
	must(t, err)
	fork.sequence, err = a.sequence.Fork(nil, 0)
	must(t, err)
	for l := range a.rows {
		for h, rows := range a.rows[l] {
			fork.rows[l][h] = append([]int(nil), rows...)
		}
	}
	return fork
}

func (a *actor) close() {
	_ = a.cached.Close()
	_ = a.sequence.Close()
}

// append tells whether there were blocks.
func (a *actor) append(t *testing.T, n int) bool {
	t.Helper()
	if err := a.cached.Append(n, 0); err != nil {
		fails(t, err, StatusOutOfMemory, "are free")
		return false
	}
	must(t, a.sequence.Append(n, 0))
	for l := range a.rows {
		for i := 0; i < n; i++ {
			a.pool.lastRow++
			for h := range a.rows[l] {
				a.rows[l][h] = append(a.rows[l][h], a.pool.lastRow)
			}
		}
		a.use(t, l, len(a.rows[l][0])-n, n, true)
	}
	return true
}

// use writes rows into the cache, or reads and compares them.
func (a *actor) use(t *testing.T, layer, first, n int, writes bool) {
	t.Helper()
	if n == 0 {
		return // an empty slice is no memory
	}
	wanted, negative := make([]float32, n*row), make([]float32, n*row)
	for i := range wanted {
		h := i / headDim % kvHeads
		number := a.rows[layer][h][first+i/row]
		wanted[i] = float32((number*37+h*11+layer*5+i%headDim*3)%101-50) + float32(number)/1024
		negative[i] = -wanted[i]
	}
	if writes {
		must(t, a.cached.Write([]PagedRows{
			{layer, first, n, rows(wanted, kvHeads), rows(negative, kvHeads)}}, 0))
		return
	}
	k, v := make([]float32, n*row), make([]float32, n*row)
	must(t, a.cached.Read([]PagedRows{
		{layer, first, n, rows(k, kvHeads), Plane{}},
		{layer, first, n, Plane{}, rows(v, kvHeads)}}, 0))
	same(t, wanted, k)
	same(t, negative, v)
}

func (a *actor) trim(t *testing.T, length int) {
	t.Helper()
	if a.sequence.TrimTo(length, 0) != nil {
		return // before the last eviction
	}
	must(t, a.cached.Fit(a.sequence))
	for l := range a.rows {
		stored, err := a.sequence.StoredLength(l, 0)
		must(t, err)
		for h := range a.rows[l] {
			a.rows[l][h] = a.rows[l][h][:stored]
		}
	}
}

func (a *actor) positions(t *testing.T) (positions [pagedLayers][kvHeads][]int32) {
	t.Helper()
	for l := range positions {
		for h := range positions[l] {
			var err error
			positions[l][h], err = a.sequence.KeepPositions(l, h)
			must(t, err)
		}
	}
	return positions
}

// follow moves rows along with their positions.
func (a *actor) follow(t *testing.T, before [pagedLayers][kvHeads][]int32) {
	t.Helper()
	after := a.positions(t)
	for l := range after {
		for h := range after[l] {
			var kept []int
			from := 0
			for _, position := range after[l][h] {
				for before[l][h][from] != position {
					from++
				}
				kept = append(kept, a.rows[l][h][from])
			}
			a.rows[l][h] = kept
		}
	}
}

func (a *actor) check(t *testing.T) {
	t.Helper()
	for l := range a.rows {
		n, err := a.cached.Length(l)
		must(t, err)
		same(t, len(a.rows[l][0]), n)
		view, err := a.cached.View(l)
		must(t, err)
		must(t, view.Validate(n))
		a.use(t, l, 0, n, false)
	}
}

// Sequences in a pool hold what each would hold in memory of its own.
func TestPagedSequencesHoldWhatEachWouldHoldAlone(t *testing.T) {
	for _, layout := range []BlockLayout{BlockLayoutHeadMajor, BlockLayoutTokenMajor} {
		r := rand.New(rand.NewSource(int64(layout) + 1))
		p := newPool(t, PagedCacheOptions{Blocks: 26, Layout: layout})
		actors := []*actor{p.actor(t)}
		refused, evictions := 0, 0
		for step := 0; step < 150; step++ {
			i := r.Intn(len(actors))
			a := actors[i]
			switch what := r.Intn(8); {
			case what == 0 && len(actors) < 6:
				if r.Intn(3) == 0 {
					actors = append(actors, p.actor(t))
				} else {
					actors = append(actors, a.fork(t))
				}
			case what == 1 && len(actors) > 3:
				a.close()
				actors = append(actors[:i], actors[i+1:]...)
			case what == 2:
				a.trim(t, r.Intn(a.sequence.LogicalLength()+1))
			case what == 3:
				var chosen []*actor
				var items []PagedEviction
				var before [][pagedLayers][kvHeads][]int32
				for _, a := range actors {
					if r.Intn(2) == 0 {
						chosen, before = append(chosen, a), append(before, a.positions(t))
						items = append(items, PagedEviction{a.cached, a.sequence, nil})
					}
				}
				reports, err := EvictAllPaged(items, p.scratch, 0)
				if err != nil {
					fails(t, err, StatusOutOfMemory, "are free")
					refused++
				}
				for _, report := range reports {
					evictions += int(flag(report.Evicted))
				}
				for i, a := range chosen {
					a.follow(t, before[i])
				}
			default:
				room := pagedTokens - len(a.rows[0][0])
				if room > 12 {
					room = 12
				}
				if !a.append(t, r.Intn(room+1)) {
					refused++
				}
			}
			slots := 0
			for _, a := range actors {
				a.check(t)
				slots += pagedLayers * len(a.rows[0][0])
			}
			usage := p.usage(t)
			same(t, len(actors), usage.Sequences)
			same(t, uint64(slots), usage.Slots)
			if t.Failed() {
				t.Fatalf("step %d", step)
			}
		}
		if refused == 0 || evictions == 0 {
			t.Errorf("%d refused, %d evictions", refused, evictions)
		}
		for _, a := range actors {
			a.close()
		}
		usage := p.usage(t)
		bytes, err := p.plan.PagedCacheBytes(PagedCacheOptions{Blocks: 26, BlockSize: 4})
		must(t, err)
		same(t, PagedCacheUsage{Blocks: usage.Blocks, Free: usage.Blocks, Bytes: bytes, F32Bytes: bytes}, usage)
	}
}

func TestPagedForksShareUntilOneWrites(t *testing.T) {
	p := newPool(t, PagedCacheOptions{Blocks: 40})
	a := p.actor(t)
	a.append(t, 30) // 8 blocks a layer
	fork := a.fork(t)
	same(t, [2]uint64{16, 64}, [2]uint64{p.usage(t).Shared, p.usage(t).Free})
	fork.use(t, 0, 5, 1, true)
	same(t, uint64(15), p.usage(t).Shared)
	must(t, fork.cached.Own(28, 0))
	same(t, uint64(13), p.usage(t).Shared)
	report, err := fork.cached.Evict(fork.sequence, &EvictOptions{Protected: []int32{7}}, p.scratch, 0)
	must(t, err)
	same(t, [2]uint64{60, 24}, [2]uint64{report.TokensBefore, report.TokensAfter})
	slot, err := fork.sequence.SlotOfPosition(0, 1, 7)
	must(t, err)
	if slot < 0 {
		t.Error("7 is gone")
	}
	a.check(t)
	must(t, fork.cached.Own(0, 0))
	same(t, uint64(0), p.usage(t).Shared)
	must(t, fork.cached.Truncate(5))
	same(t, uint64(80-16-4), p.usage(t).Free)
	fork.close()
}

func TestPagedViewsAreThoseThatCallsTake(t *testing.T) {
	p := newPool(t, PagedCacheOptions{Blocks: 20})
	a := p.actor(t)
	a.append(t, 30)
	var views []*View
	for l := 0; l < pagedLayers; l++ {
		view, err := a.cached.View(l)
		must(t, err)
		views = append(views, view)
	}
	layout := views[1].Layout()
	same(t, [3]int{kvHeads, 4, headDim}, [3]int{layout.KVHeads, layout.BlockSize, layout.V.HeadDim})
	same(t, int64(row*4*4), layout.K.BlockStride)
	if layout.K.Data.Address() == 0 || layout.BlockTable.Address() == 0 {
		t.Error(layout)
	}
	before := a.positions(t)
	_, err := a.sequence.Evict(views, nil, p.scratch, 0)
	must(t, err)
	must(t, a.cached.Fit(a.sequence))
	a.follow(t, before)
	a.check(t)
	same(t, uint64(2*(20-3)), p.usage(t).Free)
}

// TestPagedLastRowsAreNotQuantized has KIVI's cache: keys in groups, and the last rows in f16.
func TestPagedLastRowsAreNotQuantized(t *testing.T) {
	layer := smallLayer
	layer.KDType, layer.VDType = DTypeU8, DTypeU8
	policy, err := ParsePolicy("knorm:budget=12,sink=1")
	must(t, err)
	plan := planOf(t, newContext(t, nil), policy,
		Geometry{Layers: pagedLayers, MaxTokens: pagedTokens, Each: []LayerGeometry{layer}})
	options := PagedCacheOptions{Blocks: 10, GroupTokens: 4, RecentTokens: 3, RecentDType: DTypeF16}
	cache, err := plan.NewPagedCache(options)
	must(t, err)
	defer cache.Close()
	empty, err := cache.Usage()
	must(t, err)
	cached, err := cache.NewSequence()
	must(t, err)
	defer cached.Close()
	usage, err := cache.Usage()
	must(t, err)
	same(t, empty.Bytes+pagedLayers*(3+4-1)*2*row*2, usage.Bytes)
	given, got := make([]float32, 20*row), make([]float32, 20*row)
	for i := range given {
		given[i] = float32(i/row) + float32(i%7)/8
	}
	k, v, out := rows(given, kvHeads), rows(append([]float32(nil), given...), kvHeads), rows(got, kvHeads)
	must(t, cached.Append(20, 0))
	must(t, cached.Write([]PagedRows{{0, 0, 20, k, v}, {1, 0, 20, k, v}}, 0))
	view, err := cached.View(1)
	must(t, err)
	must(t, view.Validate(20))
	layout := view.Layout()
	same(t, [3]int{16, 4, 6}, [3]int{layout.FirstRecent, layout.Companions[0].GroupTokens, len(layout.Companions)})
	must(t, cached.Read([]PagedRows{{1, 0, 20, out, Plane{}}}, 0))
	for i := range got {
		if by := got[i] - given[i]; by*by > 16.0/255/255 || i >= 16*row && by != 0 {
			t.Fatalf("element %d: %g is not %g", i, got[i], given[i])
		}
	}
	sequence := newSequence(t, plan)
	must(t, sequence.Append(20, 0))
	_, err = cached.Evict(sequence, nil, newMemory(t)(plan.Workspace(OperationEvict, 0)), 0)
	must(t, err)
	view, err = cached.View(0)
	must(t, err)
	same(t, 8, view.Layout().FirstRecent)
	options.GroupTokens, options.BlockSize = 3, 4
	_, err = plan.NewPagedCache(options)
	fails(t, err, StatusInvalidArgument, "group_tokens 3 does not divide block_size 4")
	_, err = plan.NewPagedCache(PagedCacheOptions{Blocks: 1, RecentTokens: -1})
	fails(t, err, StatusInvalidArgument, "RecentTokens -1")
}

func TestPagedErrorsSayWhatIsWrong(t *testing.T) {
	p := newPool(t, PagedCacheOptions{Blocks: 4})
	a := p.actor(t)
	a.append(t, 9)
	_, err := p.plan.NewPagedCache(PagedCacheOptions{})
	fails(t, err, StatusInvalidArgument, "n_blocks 0")
	_, err = p.plan.PagedCacheBytes(PagedCacheOptions{Blocks: 1, BlockSize: 65537})
	fails(t, err, StatusInvalidArgument, "block_size 65537")
	_, err = p.plan.NewPagedCache(PagedCacheOptions{Blocks: -1})
	fails(t, err, StatusInvalidArgument, "Blocks -1")
	fails(t, a.cached.Append(99, 0), StatusInvalidArgument, "n_tokens 99")
	fails(t, a.cached.Append(25, 0), StatusOutOfMemory, "needs 12 blocks")
	fails(t, a.cached.Append(-1, 0), StatusInvalidArgument, "nTokens -1")
	_, err = a.cached.Length(2)
	fails(t, err, StatusInvalidArgument, "layer")
	_, err = a.cached.View(2)
	fails(t, err, StatusInvalidArgument, "layer")
	_, err = a.cached.Evict(a.sequence, &EvictOptions{Undo: p.scratch}, p.scratch, 0)
	fails(t, err, StatusInvalidArgument, "undo")
	must(t, a.sequence.Append(1, 0))
	fails(t, a.cached.Fit(a.sequence), StatusInvalidArgument, "10 slots")
	fails(t, a.cached.Fit(nil), StatusInvalidArgument, "nil")
	_, err = a.cached.Evict(a.sequence, nil, p.scratch, 0)
	fails(t, err, StatusInvalidArgument, "holds 9 rows")
	one := rows(make([]float32, row), kvHeads)
	fails(t, a.cached.Write([]PagedRows{{0, 0, 1, one, Plane{}}, {1, 9, 1, one, Plane{}}}, 0),
		StatusInvalidArgument, "rows[1]: first_slot 9")
	fails(t, a.cached.Write([]PagedRows{{0, 0, 2, one, Plane{}}}, 0), StatusInvalidArgument, "K holds 1 rows")
	item := PagedEviction{a.cached, a.sequence, nil}
	_, err = EvictAllPaged([]PagedEviction{item, item}, p.scratch, 0)
	fails(t, err, StatusInvalidArgument, "items[1]: ", "in use")
	_, err = EvictAllPaged([]PagedEviction{{nil, a.sequence, nil}}, p.scratch, 0)
	fails(t, err, StatusInvalidArgument, "items[0]: ", "nil")
	reports, err := EvictAllPaged(nil, Memory{}, 0)
	must(t, err)
	same(t, 0, len(reports))
	must(t, a.cached.Write(nil, 0)) // the failed calls have left it
}

func TestPagedCachesCloseInAnyOrder(t *testing.T) {
	p := newPool(t, PagedCacheOptions{Blocks: 20})
	a := p.actor(t)
	view, err := a.cached.View(0)
	must(t, err)
	must(t, p.cache.Close())
	must(t, p.cache.Close())
	_, usageErr := p.cache.Usage()
	_, sequenceErr := p.cache.NewSequence()
	must(t, p.plan.Close())
	a.append(t, 20) // it keeps what it was made from
	fork, err := a.cached.Fork(0)
	must(t, err)
	a.check(t)
	must(t, a.cached.Close())
	must(t, a.cached.Close())
	n, err := fork.Length(1)
	must(t, err)
	same(t, 20, n)
	must(t, fork.Close())
	_, forkErr := a.cached.Fork(0)
	_, lengthErr := a.cached.Length(0)
	_, viewErr := a.cached.View(0)
	_, evictErr := a.cached.Evict(a.sequence, nil, p.scratch, 0)
	_, bytesErr := p.plan.PagedCacheBytes(PagedCacheOptions{Blocks: 1})
	_, cacheErr := p.plan.NewPagedCache(PagedCacheOptions{Blocks: 1})
	for i, err := range []error{
		usageErr, sequenceErr, forkErr, lengthErr, viewErr, evictErr, bytesErr, cacheErr, view.Validate(0),
		a.cached.Append(1, 0), a.cached.Truncate(0), a.cached.Own(0, 0), a.cached.Fit(a.sequence),
		a.cached.Write(nil, 0), a.cached.Read(nil, 0),
	} {
		if !errors.Is(err, ErrClosed) {
			t.Errorf("%d: %v", i, err)
		}
	}
}

func TestPagedCacheInMemoryOfTheCallers(t *testing.T) {
	const bytes = 3 * 2 * 2 * 4 * row * 4
	memory := make([]float32, bytes/4+64)
	skip := -Slice(memory).Address() & 255 / 4
	blocks := memory[skip : skip+bytes/4]
	p := newPool(t, PagedCacheOptions{Blocks: 3, Memory: Slice(blocks)})
	a := p.actor(t)
	a.append(t, 12)
	a.check(t)
	zeros := 0
	for _, x := range blocks {
		zeros += int(flag(x == 0))
	}
	if zeros > bytes/8 {
		t.Errorf("%d numbers are 0: the blocks are elsewhere", zeros)
	}
	_, err := p.plan.NewPagedCache(PagedCacheOptions{Blocks: 3, BlockSize: 4, Memory: Slice(blocks[:64])})
	fails(t, err, StatusInvalidArgument, "memory_bytes 256")
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
