using Xunit;

namespace KvEvict.Tests;

/// <summary>
/// What is found before the library is called, and the forms with spans, which C# alone has. The library's own
/// checks are in the transcript.
/// </summary>
public sealed class ArgumentTests : IDisposable
{
    private const int Heads = 2, QueryHeads = 4, Dim = 8, Row = Heads * Dim, Tokens = 10;
    private readonly KvContext _context = new();
    private readonly KvPinnedMemory<float> _keys = Filled(Tokens * Row, 1), _values = Filled(Tokens * Row, 2);
    private readonly KvPinnedMemory<int> _one = new(1);
    private readonly KvView _view;

    public ArgumentTests() => _view = ViewOf(_keys, _values);

    public void Dispose()
    {
        _context.Dispose();
        foreach (IDisposable memory in new IDisposable[] { _keys, _values, _one }) memory.Dispose();
    }

    private static KvPinnedMemory<float> Filled(int length, int seed)
    {
        var memory = new KvPinnedMemory<float>(length);
        for (int i = 0; i < length; ++i) memory.Span[i] = MathF.Sin(i * 1.7f + seed);
        return memory;
    }

    private static KvView ViewOf(KvPinnedMemory<float> keys, KvPinnedMemory<float> values) =>
        new(Heads, KvPlane.TokenMajor(keys, Heads, Dim), KvPlane.TokenMajor(values, Heads, Dim));

    private static void Says(string part, Action call) =>
        Assert.Contains(part, Assert.Throws<ArgumentException>(call).Message);

    [Fact]
    public void Moves_are_checked()
    {
        using var slots = new KvPinnedMemory<int>(new[] { 1, 5 });
        using var small = Filled(3 * Row, 3);
        var good = new KvMove(_view, Tokens, new KvKeepLists(slots, 2));
        KvView shorter = ViewOf(small, small);
        foreach (Action<KvMove> call in new Action<KvMove>[]
                 {
                     move => _context.Compact([move]), move => _context.Reorder([move], default),
                 })
        {
            Assert.Throws<ArgumentNullException>(() => call(good with { View = null! }));
            Assert.Throws<ArgumentOutOfRangeException>(() => call(good with { TokenCount = -1 }));
            Assert.Throws<ArgumentOutOfRangeException>(() => call(good with { FirstSlot = -1 }));
            Assert.Throws<ArgumentOutOfRangeException>(() => call(good with { Keep = new KvKeepLists(slots, -1) }));
            Assert.Throws<ArgumentException>(() => call(good with { TokenCount = Tokens + 1 }));
            Says("TokenCounts has 1 elements, 2 are needed", () => call(good with { TokenCounts = _one }));
            Says("Counts has 1 elements, 2 are needed",
                 () => call(good with { Keep = new KvKeepLists(slots, 1, 2) { Counts = _one } }));
        }
        Assert.Throws<ArgumentException>(() => _context.Compact([good with { FirstSlot = 2, Destination = shorter }]));
        Assert.Throws<ArgumentOutOfRangeException>(() => _context.ReorderWorkspaceSize(
            [good with { Keep = new KvKeepLists(default, -1) }]));
        _context.Compact([]);
        _context.Dispose();
        Assert.Throws<ObjectDisposedException>(() => _context.Compact([good]));
    }

    [Fact]
    public void Moves_and_rotations_take_spans()
    {
        using var others = Filled(Tokens * Row, 1);
        using var otherValues = Filled(Tokens * Row, 2);
        KvView other = ViewOf(others, otherValues);
        using var slots = new KvPinnedMemory<int>(new[] { 1, 5, 9, 0, 2, 8 });
        using var scratch = new KvWorkspace(4096);
        _context.Compact([new KvMove(other, Tokens, new KvKeepLists(slots, 3, 2))]);
        _context.Compact(_view, Tokens, slots.Span, 2);
        Assert.Equal(others.Span, _keys.Span);
        _context.Reorder([new KvMove(other, Tokens, new KvKeepLists(slots, 3, 2))], scratch);
        using KvWorkspace reordering = _context.CreateReorderWorkspace([new KvMove(_view, Tokens, new KvKeepLists(slots, 3, 2))]);
        _context.Reorder(_view, Tokens, slots.Span, reordering, 2);
        Assert.Equal(others.Span, _keys.Span);
        Says("5 ", () => _context.Compact(_view, Tokens, [0, 1, 2, 3, 4], 2));
        var layer = new KvLayerGeometry { QueryHeads = QueryHeads, KvHeads = Heads, KeyHeadDim = Dim, ValueHeadDim = Dim };
        using var plan = new KvPlan(_context, new KvGeometry(1, layer, Tokens)
        {
            RopeInverseFrequencies = new[] { 1, 0.1f, 0.01f, 0.001f },
        }, new KvPolicy("none"));
        using var offsets = new KvPinnedMemory<int>(new[] { 0, -1, 7, -300, 2, 2, 0, 1, 5, -2 });
        plan.Rotate([new KvRotation(0, other, Tokens, offsets)]);
        plan.Rotate(new KvRotation(0, _view, Tokens, default), offsets.Span);
        Assert.Equal(others.Span, _keys.Span);
    }

    [Fact]
    public void Rotations_are_checked()
    {
        int[] offsets = new int[Tokens];
        using var plan = new KvPlan(_context, SmallModel.Geometry, new KvPolicy("none"));
        var good = new KvRotation(0, _view, Tokens, default);
        Assert.Throws<ArgumentNullException>(() => plan.Rotate(good with { View = null! }, offsets));
        Assert.Throws<ArgumentOutOfRangeException>(() => plan.Rotate(good with { Layer = -1 }, offsets));
        Assert.Throws<ArgumentOutOfRangeException>(() => plan.Rotate(good with { TokenCount = -1 }, offsets));
        Assert.Throws<ArgumentOutOfRangeException>(() => plan.Rotate(good with { ListCount = -1 }, offsets));
        Assert.Throws<ArgumentException>(() => plan.Rotate(good with { TokenCount = Tokens + 1 }, new int[Tokens + 1]));
        Says("Offsets has 10 elements, 20 are needed", () => plan.Rotate(good with { ListCount = 2 }, offsets));
        Says("TokenCounts has 1 elements, 2 are needed", () => plan.Rotate(good with { TokenCounts = _one }, offsets));
        plan.Dispose();
        Assert.Throws<ObjectDisposedException>(() => plan.Rotate(good, offsets));
    }

    [Fact]
    public void Attention_is_checked()
    {
        using var queries = Filled(QueryHeads * Dim, 3);
        using var output = Filled(QueryHeads * Dim, 4);
        using var few = new KvPinnedMemory<float>(3);
        var good = new KvAttention(_view, Tokens, QueryHeads, 1, KvPlane.TokenMajor(queries, QueryHeads, Dim),
                                   KvPlane.TokenMajor(output, QueryHeads, Dim));
        void Attend(KvAttention job)
        {
            using KvWorkspace workspace = _context.CreateAttendWorkspace([job]);
            _context.Attend([job], workspace);
        }
        Assert.Throws<ArgumentNullException>(() => Attend(good with { View = null! }));
        Assert.Throws<ArgumentOutOfRangeException>(() => Attend(good with { TokenCount = -1 }));
        Assert.Throws<ArgumentOutOfRangeException>(() => Attend(good with { Window = -1 }));
        Assert.Throws<ArgumentException>(() => Attend(good with { TokenCount = Tokens + 1 }));
        Assert.Throws<ArgumentException>(() => Attend(good with { QueryCount = 2 }));
        Assert.Throws<ArgumentException>(() => Attend(good with { SinkLogits = few }));
        Attend(good);
        _context.Dispose();
        Assert.Throws<ObjectDisposedException>(() => Attend(good));
    }

    [Fact]
    public void Geometries_and_batches_are_checked()
    {
        KvPolicy policy = new("none");
        KvLayerGeometry layer = SmallModel.Layer;
        Assert.Throws<ArgumentNullException>(() => new KvGeometry([layer, null!], 64));
        Assert.Throws<ArgumentNullException>(() => new KvGeometry(2, null!, 64));
        Assert.Throws<ArgumentException>(() => new KvPlan(_context, new KvGeometry([], 64), policy));
        Assert.Throws<ArgumentOutOfRangeException>(() => new KvPlan(_context, new KvGeometry(-1, layer, 64), policy));
        Assert.Throws<ArgumentOutOfRangeException>(
            () => new KvPlan(_context, new KvGeometry(1, layer with { KvHeads = -1 }, 64), policy));
        var mixed = new KvGeometry([KvLayerGeometry.Window, layer, KvLayerGeometry.None], 64);
        Assert.Equal((3, 64, 3), (mixed.LayerCount, mixed.MaxTokens, mixed.Layers.Count));
        Assert.Equal((2, 1), (SmallModel.Geometry.LayerCount, SmallModel.Geometry.Layers.Count));
        using var plan = new KvPlan(_context, mixed, KvPolicy.Parse("streaming-llm:budget=16,sink=4"));
        Assert.Equal(1, plan.ListCount); // one for all heads
        Assert.Same(mixed, plan.Geometry);
        Assert.Equal("streaming-llm:budget=16", plan.Policy.ToString());
        Assert.Equal(KvDevice.Cpu, _context.Device);
        using var sequence = new KvSequence(plan);
        Assert.Throws<ArgumentNullException>(() => KvBatch.Append([new(sequence, 1), new(null!, 1)]));
        Assert.Throws<ArgumentOutOfRangeException>(() => KvBatch.Append([new(sequence, -1)]));
        Assert.Throws<ArgumentOutOfRangeException>(() => KvBatch.TrimTo([new(sequence, -1)]));
        Assert.Throws<ArgumentException>(() => sequence.Undo([], default));
        KvBatch.Append([new(sequence, 1)]); // the failed calls have left it
    }

    /// <summary>Views need rows for what an edit adds, and no more. The views here have 44.</summary>
    [Fact]
    public void Edits_are_checked()
    {
        var geometry = new KvGeometry(2, SmallModel.Layer, 64) { RopeInverseFrequencies = new[] { 1, 0.25f } };
        using var plan = new KvPlan(_context, geometry, new KvPolicy("none"));
        using var cache = new KvPagedCache(plan, new KvPagedCacheOptions(4));
        using var cached = new KvPagedSequence(cache);
        using var sequence = new KvSequence(plan);
        using KvPinnedMemory<float> keys = new(44 * Row), values = new(44 * Row);
        KvView view = ViewOf(keys, values);
        KvView[] views = [view, view];
        sequence.Append(40);
        Assert.Throws<ArgumentOutOfRangeException>(() => sequence.Edit(views, new KvEdit(-1, 6)));
        Assert.Throws<ArgumentOutOfRangeException>(() => sequence.Edit(views, new KvEdit(1, 6) { NewCount = -3 }));
        Says("the rows of 45 tokens", () => sequence.Edit(views, new KvEdit(9, 9) { NewCount = 5 }));
        Assert.Throws<ArgumentException>(() => sequence.Edit(views.AsSpan(0, 1), default));
        Assert.Throws<ArgumentNullException>(() => sequence.Edit([view, null!], default));
        Assert.Throws<ArgumentNullException>(() => cached.Edit(null!, default));
        sequence.Edit(views, new KvEdit(9, 9) { NewCount = 4 }); // all rows are in use
        sequence.Edit(views, new KvEdit(20, 26) { NewCount = 6 }); // and may be replaced
        sequence.Edit(views, new KvEdit(3, 5) { Kind = KvEditKind.Move, To = 9 });
        Assert.Equal(44, sequence.LogicalLength);
        sequence.Dispose();
        Assert.Throws<ObjectDisposedException>(() => sequence.Edit(views, default));
        Assert.Throws<ObjectDisposedException>(() => cached.Edit(sequence, default));
        cached.Dispose();
        Assert.Throws<ObjectDisposedException>(() => cached.Edit(sequence, default));
    }

    [Fact]
    public void Paged_caches_are_checked()
    {
        using var model = new SmallModel("knorm:budget=12,sink=1");
        var options = new KvPagedCacheOptions(8) { BlockSize = 4 };
        Assert.Throws<ArgumentOutOfRangeException>(() => KvPagedCache.BytesFor(model.Plan, options with { RecentTokens = -1 }));
        using var cache = new KvPagedCache(model.Plan, options);
        Assert.Same(model.Plan, cache.Plan);
        using var cached = new KvPagedSequence(cache);
        cached.Append(9);
        model.Sequence.Append(9);
        using var memory = new KvPinnedMemory<float>(Row);
        KvPlane rows = KvPlane.TokenMajor(memory, Heads, Dim);
        KvEvictReport Evict(KvEvictOptions o = default) => cached.Evict(model.Sequence, model.Workspace, o);
        Assert.Throws<ArgumentException>(() => cached.Write([new(0, 0, 2, rows)]));
        Assert.Throws<ArgumentException>(() => Evict(new KvEvictOptions { Undo = memory }));
        Assert.Throws<ArgumentException>(() => Evict(new KvEvictOptions { Destinations = model.Views }));
        Assert.Throws<ArgumentOutOfRangeException>(() => cached.Append(-1));
        Assert.Throws<ArgumentNullException>(() => cached.Fit(null!));
        Assert.Throws<ArgumentNullException>(() => new KvPagedSequence(null!));
        Assert.Throws<ArgumentNullException>(() => KvBatch.EvictPaged([new(null!, model.Sequence)], model.Workspace));
        Assert.False(Evict().Evicted); // the failed calls have left it
        Assert.False(cached.IsDisposed);
    }

    /// <summary>A paged sequence's view tells where its rows lie.</summary>
    [Fact]
    public void A_view_of_a_paged_sequence_has_its_layout()
    {
        KvLayerGeometry layer = SmallModel.Layer with { KeyType = KvDType.U8, ValueType = KvDType.U8 };
        using var plan = new KvPlan(_context, new KvGeometry(1, layer, 64), new KvPolicy("none"));
        using var cache = new KvPagedCache(plan, new KvPagedCacheOptions(10) { GroupTokens = 4, RecentTokens = 3 });
        using var cached = new KvPagedSequence(cache);
        cached.Append(20);
        KvView view = cached.View(0);
        Assert.Equal((Heads, 4, 4 * 4L, 0), (view.KvHeads, view.BlockSize, view.BlockTable.Bytes, view.SharedBlockCount));
        Assert.Equal((16, 4, 6), (view.FirstRecent, view.Companions[0].GroupTokens, view.Companions.Count));
        Assert.Equal((Row * 4L, Dim), (view.Keys.BlockStride, view.Values.HeadDim));
        Assert.NotEqual(0, view.Keys.Region.Address);
    }

    /// <summary>An eviction by table leaves the order of blocks in the view's own table.</summary>
    [Fact]
    public void A_view_may_own_its_table()
    {
        KvLayerGeometry layer = SmallModel.Layer;
        using var plan = new KvPlan(_context, new KvGeometry(1, layer, 64),
                                    KvPolicy.Parse("streaming-llm:budget=10,sink=4,select_block=4"));
        using var sequence = new KvSequence(plan);
        using KvWorkspace workspace = plan.CreateWorkspace(KvOperation.Evict);
        using var keys = Filled(16 * Row, 5);
        using var values = Filled(16 * Row, 6);
        var view = new KvView(Heads, KvPlane.PagedTokenMajor(keys, 4, Heads, Dim), KvPlane.PagedTokenMajor(values, 4, Heads, Dim))
        {
            BlockSize = 4,
        };
        view.SetBlockTable([3, 1, 0, 2]);
        sequence.Append(14);
        sequence.Evict([view], workspace, new KvEvictOptions { ByTable = true });
        Assert.Equal([3, 0, 2, 1], view.OwnBlockTable.ToArray());
    }

    [Fact]
    public void Memory_knows_its_end()
    {
        var memory = new KvWorkspace(100, 256);
        Assert.Equal((100, 0), (memory.ToRegion().Bytes, memory.ToRegion().Address % 256));
        Assert.Throws<ArgumentOutOfRangeException>(() => new KvWorkspace(-1));
        Assert.Throws<ArgumentOutOfRangeException>(() => new KvWorkspace(1, 0));
        var pinned = new KvPinnedMemory<int>(3);
        Assert.False(memory.IsDisposed || pinned.IsDisposed);
        memory.Dispose();
        pinned.Dispose();
        Assert.True(memory.IsDisposed && pinned.IsDisposed);
        Says("cuda_context", () => new KvContext(new KvContextOptions { CudaContext = 64 }));
    }
}
