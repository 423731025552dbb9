using System.Runtime.CompilerServices;
using System.Runtime.InteropServices;
using Xunit;

namespace KvEvict.Tests;

/// <summary>The garbage collector and the library. These tests run alone, since they watch the process.</summary>
[Collection(nameof(GarbageTests))]
[CollectionDefinition(nameof(GarbageTests), DisableParallelization = true)]
public sealed unsafe class GarbageTests
{
    private const int Tokens = 40;

    /// <summary>The least that a round of several allocates: the runtime itself also allocates.</summary>
    private static long Allocated(Action call)
    {
        long least = long.MaxValue;
        for (int round = 0; round < 20; ++round)
        {
            long before = GC.GetAllocatedBytesForCurrentThread();
            call();
            least = Math.Min(least, GC.GetAllocatedBytesForCurrentThread() - before);
        }
        return least;
    }

    private static void RunAll(int itemCount, KvParallelTask task)
    {
        for (int i = 0; i < itemCount; ++i) task.Run(i, i % 2);
    }

    public static TheoryData<int, int, bool> Cases => new()
    {
        { 2, 1, false }, { 40, 1, false }, { 200, 1, false }, { 2, 2, false }, { 2, 2, true }, { 40, 2, true },
    };

    [Theory]
    [MemberData(nameof(Cases))]
    public void A_request_allocates_nothing(int layers, int threads, bool ownRunner)
    {
        using var context = new KvContext(
            new KvContextOptions { ThreadCount = threads, Parallel = ownRunner ? RunAll : null });
        using var plan = new KvPlan(context, new KvGeometry(layers, SmallModel.Layer, SmallModel.MaxTokens),
                                    KvPolicy.Parse("snapkv:budget=24,window=4,sink=2"));
        using var sequence = new KvSequence(plan);
        sequence.BeginObserving();
        using KvWorkspace workspace = plan.CreateWorkspace(KvOperation.Evict);
        using var pool = new KvPinnedMemory<float>(layers * 2 * Tokens * SmallModel.KvHeads * SmallModel.Dim);
        using var queries = new KvPinnedMemory<float>(Tokens * SmallModel.QueryHeads * SmallModel.Dim);
        KvPlane rows = KvPlane.TokenMajor(pool, SmallModel.KvHeads, SmallModel.Dim);
        KvPlane queryRows = KvPlane.TokenMajor(queries, SmallModel.QueryHeads, SmallModel.Dim);
        KvPlane At(int place) => rows with { Offset = place * Tokens * rows.TokenStride };
        KvView[] views = [.. Enumerable.Range(0, layers).Select(
            l => new KvView(SmallModel.KvHeads, At(2 * l), At(2 * l + 1)))];
        KvObservation[] shown = [.. Enumerable.Range(0, layers).Select(
            l => new KvObservation(l, new KvSignalInputs { Queries = queryRows }))];
        KvPlane window = queryRows with { Offset = (Tokens - 4) * queryRows.TokenStride };
        KvSignalInputs[] inputs = [.. Enumerable.Repeat(new KvSignalInputs { Queries = window }, layers)];
        int[] mustStay = [7, 8];
        Assert.Equal(0, Allocated(() =>
        {
            sequence.Reset();
            sequence.Observe(shown, Tokens, 0);
            for (int l = 0; l < layers; ++l) sequence.Observe(l, queries.Span);
            for (int l = 0; l < layers; ++l) sequence.Observe(l, queryRows, Tokens);
            sequence.Append(Tokens);
            sequence.Evict(views, workspace, new KvEvictOptions { ProtectedPositions = mustStay, Inputs = inputs });
            Span<KvListReport> lists = stackalloc KvListReport[layers * SmallModel.KvHeads];
            sequence.ListReports(lists);
        }));
        Assert.Equal(24, sequence.StoredLength(layers - 1));
    }

    [Fact]
    public void Doors_allocate_nothing()
    {
        using var model = new SmallModel("snapkv:budget=24,window=4,sink=2",
                                         new KvContext(new KvContextOptions { ThreadCount = 2 }));
        float[] scores = new float[SmallModel.KvHeads * Tokens];
        int[] keep = new int[SmallModel.KvHeads * 24];
        int[] table = [0];
        var paged = new KvView(SmallModel.KvHeads, model.Views[0].Keys, model.Views[0].Values)
        {
            BlockSize = SmallModel.MaxTokens,
        };
        using KvWorkspace workspace = model.Context.CreateSelectWorkspace(Tokens, SmallModel.KvHeads);
        using var slots = new KvPinnedMemory<int>(keep.Length);
        using var pinnedScores = new KvPinnedMemory<float>(scores);
        KvSignalInputs window = model.QueriesFrom(0);
        Assert.Equal(0, Allocated(() =>
        {
            paged.SetBlockTable(table);
            var job = new KvScoreJob(0, paged, Tokens) { Scores = pinnedScores };
            model.Plan.Score([job with { Inputs = window }, job with { Layer = 1, Inputs = window }], model.Workspace);
            model.Plan.Score(job, model.Queries.Span, scores, model.Workspace);
            KvSelectOptions options = model.Plan.Selection(0, Tokens, out KvKeepLists lists);
            model.Context.Select(options, scores, keep, workspace, SmallModel.KvHeads);
            model.Context.Select(options with { Scores = pinnedScores }, lists = lists with { Slots = slots }, workspace);
            model.Context.Compact(paged, Tokens, keep, SmallModel.KvHeads);
            model.Context.Compact([new KvMove(paged, Tokens, lists), new KvMove(model.Views[1], Tokens, lists)]);
            model.Context.Reorder([new KvMove(paged, Tokens, lists)], model.Workspace);
        }));
    }

    /// <summary>Memory that says how much of it is in use.</summary>
    private sealed class MeasuredMemory : KvMemoryHooks
    {
        private long _bytes;

        public long Bytes => Interlocked.Read(ref _bytes);

        public override nint Allocate(nuint bytes, nuint alignment)
        {
            Interlocked.Add(ref _bytes, (long)bytes);
            return (nint)NativeMemory.AlignedAlloc(bytes, alignment);
        }

        public override void Free(nint address, nuint bytes, nuint alignment)
        {
            Interlocked.Add(ref _bytes, -(long)bytes);
            NativeMemory.AlignedFree((void*)address);
        }
    }

    private static readonly KvGeometry s_large = new(64, SmallModel.Layer with { QueryHeads = 64 }, 64);

    /// <summary>
    /// The collector sees small objects. It has to be told that each holds a MiB, or it lets them pile up.
    /// </summary>
    [Theory]
    [InlineData(true)]
    [InlineData(false)]
    public void Sequences_that_nobody_disposed_do_not_pile_up(bool ownMemory)
    {
        var memory = new MeasuredMemory();
        using var context = new KvContext(new KvContextOptions { Memory = ownMemory ? memory : null });
        using var plan = new KvPlan(context, s_large, KvPolicy.Parse("snapkv:budget=24,window=8"));
        int collections = GC.CollectionCount(0);
        long most = 0;
        for (int i = 0; i < 1000; ++i)
        {
            _ = new KvSequence(plan);
            most = Math.Max(most, memory.Bytes);
        }
        Assert.True(GC.CollectionCount(0) > collections, "nothing was collected");
        if (ownMemory) Assert.InRange(most, 1L << 20, 500L << 20);
    }

    [Fact]
    public void Workspaces_that_nobody_disposed_do_not_pile_up()
    {
        int collections = GC.CollectionCount(0);
        for (int i = 0; i < 1000; ++i) _ = new KvWorkspace(1 << 20);
        Assert.True(GC.CollectionCount(0) > collections, "nothing was collected");
    }

    /// <summary>An engine whose hooks are its own methods and refer to it.</summary>
    private sealed class Engine
    {
        private sealed class Hooks(MeasuredMemory memory, Engine owner) : KvMemoryHooks
        {
            public override nint Allocate(nuint bytes, nuint alignment) =>
                owner._lines.Count > 100 ? 0 : memory.Allocate(bytes, alignment);

            public override void Free(nint address, nuint bytes, nuint alignment) =>
                memory.Free(address, bytes, alignment);
        }

        private readonly List<string> _lines = [];
        private readonly KvContext _context;
        private readonly KvPlan _plan;
        private readonly KvSequence _sequence;

        public Engine(MeasuredMemory memory)
        {
            _context = new KvContext(new KvContextOptions
            {
                ThreadCount = 2, Parallel = Run, Log = (_, line) => _lines.Add(line), LogLevel = KvLogLevel.Debug,
                Memory = new Hooks(memory, this),
            });
            _plan = new KvPlan(_context, SmallModel.Geometry, KvPolicy.Parse("snapkv:budget=24,window=4"));
            _sequence = new KvSequence(_plan);
            _sequence.BeginObserving();
            GC.Collect(); // native code finds the hooks all the same
            GC.WaitForPendingFinalizers();
            using var cache = new SmallModel("snapkv:budget=24,window=4");
            for (int l = 0; l < SmallModel.Layers; ++l) _sequence.Observe(l, cache.QueryPlane, Tokens);
            _sequence.Append(Tokens);
            using KvWorkspace workspace = _plan.CreateWorkspace(KvOperation.Evict);
            _sequence.Evict(cache.Views, workspace);
            Assert.True(Runs > 0 && _lines.Count > 0);
        }

        public int Runs { get; private set; }

        private void Run(int itemCount, KvParallelTask task)
        {
            ++Runs;
            GC.Collect();
            RunAll(itemCount, task);
        }
    }

    [Fact]
    public void Hooks_that_refer_to_their_owner_do_not_keep_it()
    {
        var memory = new MeasuredMemory();
        WeakReference[] engines = [.. Enumerable.Range(0, 4).Select(_ => Forget(memory))];
        for (int i = 0; i < 20 && memory.Bytes > 0; ++i)
        {
            GC.Collect();
            GC.WaitForPendingFinalizers();
        }
        Assert.Equal(0, memory.Bytes);
        GC.Collect(); // what the finalizers had brought back
        Assert.All(engines, engine => Assert.False(engine.IsAlive));
    }

    [MethodImpl(MethodImplOptions.NoInlining)]
    private static WeakReference Forget(MeasuredMemory memory) => new(new Engine(memory));
}
