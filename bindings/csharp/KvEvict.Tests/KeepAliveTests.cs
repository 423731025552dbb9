using System.Runtime.CompilerServices;
using System.Runtime.InteropServices;
using Xunit;

namespace KvEvict.Tests;

/// <summary>
/// Memory that only a call's arguments refer to stays until the call is over. The parallel runner is
/// called in the middle of the native call, and collects there.
/// </summary>
public sealed unsafe class KeepAliveTests : IDisposable
{
    /// <summary>Memory that is counted when it goes.</summary>
    private sealed class Counted(int bytes, StrongBox<int> gone)
    {
        private readonly void* _memory = NativeMemory.AllocZeroed((nuint)bytes);

        ~Counted()
        {
            Interlocked.Increment(ref gone.Value);
            NativeMemory.Free(_memory);
        }

        public KvRegion Region => new((nint)_memory, bytes, this);
    }

    private const int Tokens = 60;
    private readonly StrongBox<int> _gone = new();
    private readonly KvContext _context;
    private readonly KvPlan _plan;
    private int _goneDuringCalls;
    private int _runs;

    public KeepAliveTests()
    {
        _context = new KvContext(new KvContextOptions { ThreadCount = 2, Parallel = CollectAndRun });
        var geometry = new KvGeometry(SmallModel.Layers, SmallModel.Geometry.Layers[0], SmallModel.MaxTokens)
        {
            RopeInverseFrequencies = new float[] { 1 },
        };
        _plan = new KvPlan(_context, geometry, KvPolicy.Parse("snapkv:budget=24,window=4"));
    }

    public void Dispose()
    {
        _plan.Dispose();
        _context.Dispose();
    }

    [Fact]
    public void While_compacting() => Check(2 + 4, () => Compact());

    [Fact]
    public void While_reordering() => Check(2 + 4, () => Reorder());

    [Fact]
    public void While_rotating() => Check(2 + 2, () => Rotate());

    [Fact]
    public void While_scoring() => Check(2 + 12, () => Score());

    [Fact]
    public void While_selecting() => Check(5, () => Select());

    [Fact]
    public void While_evicting() => Check((2 + 9) * SmallModel.Layers + 1, () => Evict());

    private void Check(int owners, Action call)
    {
        call();
        Assert.True(_runs > 0, "the runner was not called");
        Assert.Equal(0, _goneDuringCalls);
        Collect();
        Assert.Equal(owners, _gone.Value); // nothing holds on to them afterwards
    }

    private void CollectAndRun(int itemCount, KvParallelTask task)
    {
        Collect();
        _goneDuringCalls = Math.Max(_goneDuringCalls, _gone.Value);
        ++_runs;
        for (int i = 0; i < itemCount; ++i) task.Run(i, 0);
    }

    private static void Collect()
    {
        GC.Collect();
        GC.WaitForPendingFinalizers();
    }

    [MethodImpl(MethodImplOptions.NoInlining)]
    private KvRegion Memory(int bytes) => new Counted(bytes, _gone).Region;

    [MethodImpl(MethodImplOptions.NoInlining)]
    private KvPlane Rows(int heads) => KvPlane.TokenMajor(
        Memory(Tokens * heads * SmallModel.Dim * sizeof(float)), KvDType.F32, heads, SmallModel.Dim);

    [MethodImpl(MethodImplOptions.NoInlining)]
    private KvView View() => new(SmallModel.KvHeads, Rows(SmallModel.KvHeads), Rows(SmallModel.KvHeads));

    [MethodImpl(MethodImplOptions.NoInlining)]
    private KvRegion Scratch(KvOperation operation) => Scratch(_plan.WorkspaceSize(operation).Best);

    [MethodImpl(MethodImplOptions.NoInlining)]
    private KvRegion Scratch(long bytes)
    {
        // 64 bytes of slack: the workspace has to be aligned.
        KvRegion all = Memory((int)bytes + 64);
        nint aligned = (all.Address + 63) & ~63;
        return new KvRegion(aligned, all.Bytes - (aligned - all.Address), Owner(all));
    }

    private static object Owner(KvRegion region) => region.Owner!;

    [MethodImpl(MethodImplOptions.NoInlining)]
    private KvRegion Numbers(int value)
    {
        KvRegion numbers = Memory(SmallModel.KvHeads * sizeof(int));
        new Span<int>((void*)numbers.Address, SmallModel.KvHeads).Fill(value);
        return numbers;
    }

    [MethodImpl(MethodImplOptions.NoInlining)]
    private KvKeepLists KeepLists()
    {
        KvRegion list = Memory(SmallModel.KvHeads * 24 * sizeof(int));
        var slots = new Span<int>((void*)list.Address, SmallModel.KvHeads * 24);
        for (int i = 0; i < slots.Length; ++i) slots[i] = i % 24 + 30;
        return new KvKeepLists(list, 24, SmallModel.KvHeads) { Counts = Numbers(24) };
    }

    [MethodImpl(MethodImplOptions.NoInlining)]
    private void Compact() =>
        _context.Compact(Moves(), workspace: Memory(64));

    [MethodImpl(MethodImplOptions.NoInlining)]
    private void Reorder() => _context.Reorder(Moves(), Scratch(4096));

    // Only the span refers to these arrays: data on the stack of a caller would stay anyway.
    [MethodImpl(MethodImplOptions.NoInlining)]
    private KvMove[] Moves() => [new(View(), Tokens, KeepLists()) { TokenCounts = Numbers(Tokens) }];

    [MethodImpl(MethodImplOptions.NoInlining)]
    private void Rotate() => _plan.Rotate(Rotations());

    [MethodImpl(MethodImplOptions.NoInlining)]
    private KvRotation[] Rotations() =>
        [new(0, View(), Tokens, Memory(Tokens * sizeof(int))) { TokenCounts = Numbers(Tokens) }];

    [MethodImpl(MethodImplOptions.NoInlining)]
    private void Score() => _plan.Score(Jobs(), Scratch(KvOperation.Score));

    [MethodImpl(MethodImplOptions.NoInlining)]
    private KvScoreJob[] Jobs() =>
    [
        new(0, View(), Tokens)
        {
            TokenCounts = Numbers(Tokens), Inputs = Inputs(),
            Scores = Memory(SmallModel.KvHeads * Tokens * sizeof(float)),
        },
    ];

    [MethodImpl(MethodImplOptions.NoInlining)]
    private KvSignalInputs Inputs() => new()
    {
        Queries = Rows(SmallModel.QueryHeads), RowLse = Floats(SmallModel.QueryHeads, 4),
        Scores = Floats(SmallModel.KvHeads, Tokens), AttentionSums = Floats(SmallModel.QueryHeads, Tokens),
        QueryMean = Floats(SmallModel.QueryHeads, SmallModel.Dim),
        QueryCovariance = Floats(SmallModel.QueryHeads, SmallModel.Dim * SmallModel.Dim),
        KeyFilter = Floats(SmallModel.KvHeads, SmallModel.Dim), TokenWeights = Floats(SmallModel.KvHeads, Tokens),
        QueryCenters = Floats(SmallModel.QueryHeads, 3 * SmallModel.Dim),
    };

    [MethodImpl(MethodImplOptions.NoInlining)]
    private KvPlane Floats(int rows, int count) =>
        KvPlane.HeadMajor(Memory(rows * count * sizeof(float)), KvDType.F32, count, 1);

    [MethodImpl(MethodImplOptions.NoInlining)]
    private void Select() => _context.Select(
        new KvSelectOptions
        {
            TokenCount = Tokens, TokenCounts = Numbers(Tokens),
            Scores = Memory(SmallModel.KvHeads * Tokens * sizeof(float)),
        },
        KeepLists(), Scratch(_context.SelectWorkspaceSize(Tokens, SmallModel.KvHeads).Best));

    [MethodImpl(MethodImplOptions.NoInlining)]
    private void Evict()
    {
        using var sequence = new KvSequence(_plan);
        sequence.Append(Tokens);
        EvictWith(sequence);
    }

    [MethodImpl(MethodImplOptions.NoInlining)]
    private void EvictWith(KvSequence sequence) => sequence.Evict(
        Views(), Scratch(KvOperation.Evict), new KvEvictOptions { Inputs = BothInputs() });

    [MethodImpl(MethodImplOptions.NoInlining)]
    private KvSignalInputs[] BothInputs() => [Inputs(), Inputs()];

    [MethodImpl(MethodImplOptions.NoInlining)]
    private KvView[] Views() => Enumerable.Range(0, SmallModel.Layers).Select(_ => View()).ToArray();

    [Fact]
    public void Callbacks_are_let_go_with_the_last_object()
    {
        (KvSequence sequence, WeakReference sink) = WithSink();
        Collect();
        Assert.True(sink.IsAlive);
        sequence.Dispose();
        Collect();
        Assert.False(sink.IsAlive);
    }

    [MethodImpl(MethodImplOptions.NoInlining)]
    private static (KvSequence, WeakReference) WithSink()
    {
        var lines = new List<string>();
        using var context = new KvContext(new KvContextOptions { Log = (_, line) => lines.Add(line) });
        using var plan = new KvPlan(context, SmallModel.Geometry, new KvPolicy("none"));
        return (new KvSequence(plan), new WeakReference(lines));
    }
}
