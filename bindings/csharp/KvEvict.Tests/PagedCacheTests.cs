using System.Runtime.CompilerServices;
using System.Runtime.InteropServices;
using Xunit;

namespace KvEvict.Tests;

/// <summary>Sequences in a pool hold what each would hold in memory of its own.</summary>
public class PagedCacheTests
{
    private const int Layers = SmallModel.Layers, KvHeads = SmallModel.KvHeads, Dim = SmallModel.Dim;
    private const int Row = KvHeads * Dim;

    /// <summary>A plan, a cache and scratch.</summary>
    private sealed class Pool : IDisposable
    {
        public Pool(int blocks, string policy = "knorm:budget=12,sink=1,scope=head", KvRegion memory = default,
                    KvBlockLayout layout = KvBlockLayout.HeadMajor)
        {
            Plan = new KvPlan(Context, SmallModel.Geometry, KvPolicy.Parse(policy));
            Cache = new KvPagedCache(Plan, new KvPagedCacheOptions(blocks)
            {
                BlockSize = 4, Layout = layout, Memory = memory,
            });
            Workspace = Plan.CreateWorkspace(KvOperation.Evict);
        }

        public KvContext Context { get; } = new();
        public KvPlan Plan { get; }
        public KvPagedCache Cache { get; }
        public KvWorkspace Workspace { get; }

        public void Dispose()
        {
            Cache.Dispose();
            Plan.Dispose();
            Context.Dispose();
            Workspace.Dispose();
        }
    }

    /// <summary>One request, and the number of the row in each slot.</summary>
    private sealed class Actor(KvPagedSequence cached, KvSequence sequence) : IDisposable
    {
        public KvPagedSequence Cached { get; } = cached;
        public KvSequence Sequence { get; } = sequence;
        public List<int>[,] Rows { get; } = new List<int>[Layers, KvHeads];

        public static Actor Begin(Pool pool)
        {
            var actor = new Actor(new KvPagedSequence(pool.Cache), new KvSequence(pool.Plan));
            actor.ForEach((l, h) => actor.Rows[l, h] = []);
            return actor;
        }

        public Actor Fork()
        {
            var fork = new Actor(Cached.Fork(), Sequence.Fork());
            ForEach((l, h) => fork.Rows[l, h] = [.. Rows[l, h]]);
            return fork;
        }

        public void ForEach(Action<int, int> visit)
        {
            for (int l = 0; l < Layers; ++l)
            {
                for (int h = 0; h < KvHeads; ++h) visit(l, h);
            }
        }

        public bool Append(int count, ref int lastRow)
        {
            try
            {
                Cached.Append(count);
            }
            catch (KvEvictException e)
            {
                Assert.Equal(KvStatus.OutOfMemory, e.Status);
                Assert.Contains("are free", e.Message);
                return false;
            }
            Sequence.Append(count);
            for (int l = 0; l < Layers; ++l)
            {
                for (int i = 0; i < count; ++i)
                {
                    ++lastRow;
                    for (int h = 0; h < KvHeads; ++h) Rows[l, h].Add(lastRow);
                }
                Use(l, Rows[l, 0].Count - count, count, writes: true);
            }
            return true;
        }

        /// <summary>Writes rows into the cache, or reads and compares them.</summary>
        public void Use(int layer, int first, int count, bool writes)
        {
            using var k = new KvPinnedMemory<float>(count * Row);
            using var v = new KvPinnedMemory<float>(count * Row);
            float[] wanted = new float[count * Row];
            for (int i = 0; i < wanted.Length; ++i)
                wanted[i] = Content(layer, Rows[layer, i / Dim % KvHeads][first + i / Row], i / Dim % KvHeads, i % Dim);
            KvPagedRows[] rows =
            [
                new(layer, first, count, KvPlane.TokenMajor(k, KvHeads, Dim), KvPlane.TokenMajor(v, KvHeads, Dim)),
            ];
            if (writes)
            {
                wanted.CopyTo(k.Span);
                for (int i = 0; i < wanted.Length; ++i) v.Span[i] = -wanted[i];
                Cached.Write(rows);
                return;
            }
            Cached.Read(rows);
            Assert.Equal(wanted, k.Span.ToArray());
            Assert.Equal(wanted.Select(x => -x), v.Span.ToArray());
        }

        public void Trim(int length)
        {
            try
            {
                Sequence.TrimTo(length);
            }
            catch (ArgumentException)
            {
                return; // before the last eviction
            }
            Cached.Fit(Sequence);
            ForEach((l, h) => Rows[l, h].RemoveRange(Sequence.StoredLength(l), Rows[l, h].Count - Sequence.StoredLength(l)));
        }

        public int[,][] Positions()
        {
            var positions = new int[Layers, KvHeads][];
            ForEach((l, h) => positions[l, h] = Sequence.KeepPositions(l, h));
            return positions;
        }

        public void Follow(int[,][] before) => ForEach((l, h) =>
        {
            List<int> rows = Rows[l, h];
            Rows[l, h] = [.. Sequence.KeepPositions(l, h).Select(p => rows[Array.IndexOf(before[l, h], p)])];
        });

        public void Check()
        {
            for (int l = 0; l < Layers; ++l)
            {
                Assert.Equal(Rows[l, 0].Count, Cached.Length(l));
                Cached.View(l).Validate(Cached.Length(l));
                Use(l, 0, Cached.Length(l), writes: false);
            }
        }

        public void Dispose()
        {
            Cached.Dispose();
            Sequence.Dispose();
        }

        private static float Content(int layer, int row, int head, int e) =>
            (row * 37 + head * 11 + layer * 5 + e * 3) % 101 - 50 + row / 1024f;
    }

    [Theory]
    [InlineData(1, KvBlockLayout.HeadMajor)]
    [InlineData(2, KvBlockLayout.TokenMajor)]
    public void Sequences_hold_what_each_would_hold_alone(int seed, KvBlockLayout layout)
    {
        var random = new Random(seed);
        using var pool = new Pool(26, layout: layout);
        List<Actor> actors = [Actor.Begin(pool)];
        int lastRow = 0, refused = 0, evictions = 0;
        for (int step = 0; step < 150; ++step)
        {
            Actor actor = actors[random.Next(actors.Count)];
            switch (random.Next(8))
            {
                case 0 when actors.Count < 6:
                    actors.Add(random.Next(3) == 0 ? Actor.Begin(pool) : actor.Fork());
                    break;
                case 1 when actors.Count > 3:
                    actor.Dispose();
                    actors.Remove(actor);
                    break;
                case 2:
                    actor.Trim(random.Next(actor.Sequence.LogicalLength + 1));
                    break;
                case 3:
                    Actor[] chosen = [.. actors.Where(_ => random.Next(2) == 0)];
                    int[][,][] before = [.. chosen.Select(a => a.Positions())];
                    try
                    {
                        KvBatch.EvictPaged([.. chosen.Select(a => new KvPagedEviction(a.Cached, a.Sequence))], pool.Workspace);
                    }
                    catch (KvEvictException e) when (e.Status == KvStatus.OutOfMemory)
                    {
                        ++refused;
                    }
                    foreach ((Actor a, int[,][] positions) in chosen.Zip(before)) a.Follow(positions);
                    evictions += chosen.Count(a => a.Sequence.Report.Evicted);
                    break;
                default:
                    int room = SmallModel.MaxTokens - actor.Cached.Length(0);
                    if (!actor.Append(random.Next(Math.Min(room, 12) + 1), ref lastRow)) ++refused;
                    break;
            }
            foreach (Actor a in actors) a.Check();
            KvPagedCacheUsage usage = pool.Cache.Usage;
            Assert.Equal(actors.Count, usage.Sequences);
            Assert.Equal(actors.Sum(a => Enumerable.Range(0, Layers).Sum(l => (long)a.Cached.Length(l))), usage.Slots);
        }
        Assert.True(refused > 0 && evictions > 0, $"{refused} refused, {evictions} evictions");
        foreach (Actor a in actors) a.Dispose();
        Assert.Equal(pool.Cache.Usage.Blocks, pool.Cache.Usage.Free);
        Assert.Equal(0, pool.Cache.Usage.BytesInUse);
        Assert.Equal(KvPagedCache.BytesFor(pool.Plan, new KvPagedCacheOptions(26) { BlockSize = 4 }),
                     pool.Cache.Usage.Bytes);
    }

    /// <summary>Forks share blocks, and a writer copies them.</summary>
    [Fact]
    public void Forks_share_until_one_writes()
    {
        using var pool = new Pool(40);
        using Actor actor = Actor.Begin(pool);
        int row = 0;
        Assert.True(actor.Append(30, ref row)); // 8 blocks a layer
        using Actor fork = actor.Fork();
        Assert.Equal(16, pool.Cache.Usage.Shared);
        Assert.Equal(64, pool.Cache.Usage.Free);
        fork.Use(0, 5, 1, writes: true);
        Assert.Equal(15, pool.Cache.Usage.Shared);
        fork.Cached.Own(28);
        Assert.Equal(13, pool.Cache.Usage.Shared);
        var report = fork.Cached.Evict(fork.Sequence, pool.Workspace, new KvEvictOptions { ProtectedPositions = new[] { 7 } });
        Assert.Equal((true, 60L, 24L), (report.Evicted, report.TokensBefore, report.TokensAfter));
        Assert.Contains(7, fork.Sequence.KeepPositions(0, 1));
        Assert.Equal(12, fork.Cached.Length(1));
        actor.Check();
        fork.Cached.Own();
        Assert.Equal(0, pool.Cache.Usage.Shared);
        fork.Cached.Truncate(5);
        Assert.Equal(80 - 16 - 4, pool.Cache.Usage.Free);
    }

    [Fact]
    public void Views_are_those_that_calls_take()
    {
        using var pool = new Pool(20);
        using Actor actor = Actor.Begin(pool);
        int row = 0;
        actor.Append(30, ref row);
        KvView[] views = [actor.Cached.View(0), actor.Cached.View(1)];
        Assert.Equal((KvHeads, 4, 8 * 4L), (views[0].KvHeads, views[0].BlockSize, views[0].BlockTable.Bytes));
        int[,][] before = actor.Positions();
        actor.Sequence.Evict(views, pool.Workspace);
        actor.Cached.Fit(actor.Sequence);
        actor.Follow(before);
        actor.Check();
        Assert.Equal(2 * (20 - 3), pool.Cache.Usage.Free);
    }

    /// <summary>KIVI's rows are in f16 until they are no longer recent.</summary>
    [Fact]
    public void Last_rows_are_not_quantized_and_keys_are_in_groups()
    {
        using var context = new KvContext();
        KvLayerGeometry layer = SmallModel.Layer with { KeyType = KvDType.U8, ValueType = KvDType.U8 };
        using var plan = new KvPlan(context, new KvGeometry(Layers, layer, SmallModel.MaxTokens),
                                    KvPolicy.Parse("knorm:budget=12,sink=1"));
        var options = new KvPagedCacheOptions(10)
        {
            GroupTokens = 4, RecentTokens = 3, RecentDType = KvDType.F16,
        };
        using var cache = new KvPagedCache(plan, options);
        long blocks = cache.Usage.Bytes;
        using var cached = new KvPagedSequence(cache);
        using var sequence = new KvSequence(plan);
        Assert.Equal(blocks + Layers * (3 + 4 - 1) * 2 * Row * 2, cache.Usage.Bytes);
        using var rows = new KvPinnedMemory<float>(20 * Row);
        for (int i = 0; i < rows.Length; ++i) rows.Span[i] = i / Row + i % 7 / 8f;
        using var values = new KvPinnedMemory<float>(20 * Row);
        rows.Span.CopyTo(values.Span);
        KvPlane k = KvPlane.TokenMajor(rows, KvHeads, Dim), v = KvPlane.TokenMajor(values, KvHeads, Dim);
        cached.Append(20);
        sequence.Append(20);
        cached.Write([new(0, 0, 20, k, v), new(1, 0, 20, k, v)]);
        KvView view = cached.View(1);
        view.Validate(20);
        Assert.Equal((16, 4, 6), (view.FirstRecent, view.Companions[0].GroupTokens, view.Companions.Count));
        using var read = new KvPinnedMemory<float>(20 * Row);
        cached.Read([new(1, 0, 20, KvPlane.TokenMajor(read, KvHeads, Dim))]);
        for (int i = 0; i < read.Length; ++i)
            Assert.True(Math.Abs(read.Span[i] - rows.Span[i]) <= (i < 16 * Row ? 4 / 255f : 0), $"element {i}");
        using KvWorkspace workspace = plan.CreateWorkspace(KvOperation.Evict);
        cached.Evict(sequence, workspace);
        Assert.Equal((12, 8), (cached.Length(0), cached.View(0).FirstRecent));
        ArgumentException e = Assert.Throws<ArgumentException>(
            () => new KvPagedCache(plan, options with { GroupTokens = 3, BlockSize = 4 }));
        Assert.Contains("group_tokens 3 does not divide block_size 4", e.Message);
        Assert.Throws<ArgumentOutOfRangeException>(() => KvPagedCache.BytesFor(plan, options with { RecentTokens = -1 }));
    }

    [Fact]
    public void Errors_say_what_is_wrong()
    {
        using var pool = new Pool(4);
        using Actor actor = Actor.Begin(pool);
        int row = 0;
        actor.Append(9, ref row);
        void Fails(string part, Action call) =>
            Assert.Contains(part, Assert.Throws<ArgumentException>(call).Message);
        Fails("n_blocks 0", () => new KvPagedCache(pool.Plan, default));
        Fails("block_size 65537",
              () => new KvPagedCache(pool.Plan, new KvPagedCacheOptions(1) { BlockSize = 65537 }));
        Fails("n_tokens 99", () => actor.Cached.Append(99));
        KvEvictException full = Assert.Throws<KvEvictException>(() => actor.Cached.Append(25));
        Assert.Equal(KvStatus.OutOfMemory, full.Status);
        Assert.Contains("needs 12 blocks", full.Message);
        Fails("layer", () => actor.Cached.Length(2));
        Fails("layer", () => actor.Cached.View(2));
        actor.Sequence.Append(1);
        Fails("10 slots", () => actor.Cached.Fit(actor.Sequence));
        Fails("holds 9 rows", () => actor.Cached.Evict(actor.Sequence, pool.Workspace));
        using var memory = new KvPinnedMemory<float>(Row);
        KvPlane rows = KvPlane.TokenMajor(memory, KvHeads, Dim);
        Fails("rows[1]: first_slot 9",
              () => actor.Cached.Write([new(0, 0, 1, rows), new(1, 9, 1, rows)]));
        Assert.Throws<ArgumentException>(() => actor.Cached.Write([new(0, 0, 2, rows)]));
        Assert.Throws<ArgumentException>(() => actor.Cached.Evict(actor.Sequence, pool.Workspace,
                                                                  new KvEvictOptions { Undo = memory }));
        Assert.Throws<ArgumentOutOfRangeException>(() => actor.Cached.Append(-1));
        Assert.Throws<ArgumentNullException>(() => actor.Cached.Fit(null!));
        Assert.Throws<ArgumentNullException>(() => new KvPagedSequence(null!));
        Assert.Throws<ArgumentNullException>(() => KvBatch.EvictPaged([new(null!, actor.Sequence)], pool.Workspace));
        KvBatch.EvictPaged([], default);
        actor.Cached.Write([]);
        actor.Cached.Fork().Dispose();
    }

    [Fact]
    public void Disposed_in_any_order()
    {
        var pool = new Pool(20);
        Actor actor = Actor.Begin(pool);
        KvView view = actor.Cached.View(0);
        int row = 0;
        pool.Cache.Dispose();
        pool.Cache.Dispose();
        Assert.Throws<ObjectDisposedException>(() => pool.Cache.Usage);
        Assert.Throws<ObjectDisposedException>(() => new KvPagedSequence(pool.Cache));
        pool.Plan.Dispose();
        Assert.True(actor.Append(20, ref row)); // it keeps what it was made from
        KvPagedSequence fork = actor.Cached.Fork();
        actor.Check();
        actor.Dispose();
        actor.Cached.Dispose();
        Assert.Equal(20, fork.Length(1));
        fork.Dispose();
        Action[] uses =
        [
            () => actor.Cached.Append(1), () => actor.Cached.Truncate(0), () => actor.Cached.Length(0),
            () => actor.Cached.View(0), () => actor.Cached.Own(), () => actor.Cached.Write([]), () => actor.Cached.Read([]),
            () => actor.Cached.Fork(), () => view.Validate(0),
            () => KvBatch.EvictPaged([new KvPagedEviction(actor.Cached, actor.Sequence)], pool.Workspace),
        ];
        foreach (Action use in uses) Assert.Throws<ObjectDisposedException>(use);
        pool.Dispose();
    }

    [Fact]
    public unsafe void Memory_of_the_callers_holds_the_blocks()
    {
        using var context = new KvContext();
        using var plan = new KvPlan(context, SmallModel.Geometry, KvPolicy.Parse("none"));
        var options = new KvPagedCacheOptions(3) { BlockSize = 4 };
        using var memory = new KvWorkspace(KvPagedCache.BytesFor(plan, options), 256);
        using var pool = new Pool(3, memory: memory);
        using Actor actor = Actor.Begin(pool);
        int row = 0;
        Assert.True(actor.Append(12, ref row));
        actor.Check();
        KvRegion region = memory;
        Assert.InRange(actor.Cached.View(1).Values.Region.Address, region.Address, region.Address + (nint)region.Bytes);
        Assert.Throws<ArgumentException>(
            () => new KvPagedCache(plan, options with { Memory = region.Slice(0, region.Bytes - 1) }));
    }

    /// <summary>The collector may take everything that is not in use.</summary>
    [Fact]
    public void What_nobody_disposed_is_collected()
    {
        using var pool = new Pool(64);
        Leave(pool.Cache);
        for (int i = 0; i < 50 && pool.Cache.Usage.Sequences > 0; ++i)
        {
            GC.Collect();
            GC.WaitForPendingFinalizers();
        }
        Assert.Equal((0, 128L), (pool.Cache.Usage.Sequences, pool.Cache.Usage.Free));
    }

    [MethodImpl(MethodImplOptions.NoInlining)]
    private static void Leave(KvPagedCache cache)
    {
        for (int i = 0; i < 8; ++i)
        {
            var sequence = new KvPagedSequence(cache);
            sequence.Append(10);
            _ = sequence.Fork().View(1);
        }
    }
}
