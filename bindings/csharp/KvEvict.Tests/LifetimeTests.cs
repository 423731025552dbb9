using System.Runtime.CompilerServices;
using System.Runtime.InteropServices;
using Xunit;

namespace KvEvict.Tests;

/// <summary>Objects are disposed in any order, twice, never, or while something else still needs them.</summary>
public class LifetimeTests
{
    /// <summary>Counts what the library holds; the count is 0 when nothing leaked.</summary>
    private sealed unsafe class CountingMemory : KvMemoryHooks
    {
        private long _blocks;

        public long Blocks => Interlocked.Read(ref _blocks);

        public long Allocations;

        public override nint Allocate(nuint bytes, nuint alignment)
        {
            Interlocked.Increment(ref _blocks);
            Interlocked.Increment(ref Allocations);
            return (nint)NativeMemory.AlignedAlloc(bytes, alignment);
        }

        public override void Free(nint address, nuint bytes, nuint alignment)
        {
            Interlocked.Decrement(ref _blocks);
            new Span<byte>((void*)address, checked((int)bytes)).Fill(0xEE); // use after free shows
            NativeMemory.AlignedFree((void*)address);
        }
    }

    [Fact]
    public void Disposing_twice_is_harmless()
    {
        var model = new SmallModel("streaming-llm:budget=8,sink=2");
        model.Dispose();
        model.Dispose();
    }

    [Fact]
    public void Use_after_dispose_says_so()
    {
        var model = new SmallModel("snapkv:budget=24,window=4");
        model.Prefill(40);
        KvPlane queries = model.QueryPlane;
        model.Dispose();
        Action[] uses =
        [
            () => model.Context.Prepare(), () => new KvPlan(model.Context, SmallModel.Geometry, model.Plan.Policy),
            () => model.Plan.LayerBudgets(5), () => new KvSequence(model.Plan),
            () => model.Plan.CreateWorkspace(KvOperation.Evict), () => model.Sequence.Append(1),
            () => _ = model.Sequence.LogicalLength, () => model.Sequence.Reset(),
            () => model.Sequence.Observe(0, queries, 1), () => _ = model.Queries.Span, () => _ = model.Queries.Address,
            () => _ = (KvRegion)model.Queries,
            () => _ = (KvRegion)model.Workspace, () => model.Views[0].Validate(1),
        ];
        foreach (Action use in uses) Assert.Throws<ObjectDisposedException>(use);
    }

    [Fact]
    public void A_disposed_object_is_gone_even_while_another_needs_it()
    {
        using var model = new SmallModel("streaming-llm:budget=8,sink=2");
        model.Plan.Dispose();
        model.Context.Dispose();
        Assert.Throws<ObjectDisposedException>(() => model.Context.Prepare());
        Assert.Throws<ObjectDisposedException>(() => new KvSequence(model.Plan));
        model.Prefill(20); // the sequence keeps what it was made from
        Assert.Equal(16, model.Evict().TokensAfter);
    }

    [Fact]
    public void Memory_disposed_under_a_view_is_noticed()
    {
        using var model = new SmallModel("streaming-llm:budget=8,sink=2");
        model.Prefill(20);
        model.Keys[1].Dispose();
        Assert.Throws<ObjectDisposedException>(() => model.Evict());
        Assert.Equal(20, model.Sequence.StoredLength(0));
    }

    [Theory]
    [InlineData(0, 1, 2)]
    [InlineData(0, 2, 1)]
    [InlineData(1, 0, 2)]
    [InlineData(1, 2, 0)]
    [InlineData(2, 0, 1)]
    [InlineData(2, 1, 0)]
    public void Any_order_of_disposal_frees_everything(int first, int second, int third)
    {
        var memory = new CountingMemory();
        var context = new KvContext(new KvContextOptions { Memory = memory });
        var plan = new KvPlan(context, SmallModel.Geometry, KvPolicy.Parse("snapkv:budget=24,window=4"));
        var sequence = new KvSequence(plan);
        IDisposable[] objects = [context, plan, sequence];
        Assert.True(memory.Blocks > 0);
        foreach (int i in new[] { first, second, third }) objects[i].Dispose();
        Assert.Equal(0, memory.Blocks);
    }

    [Fact]
    public void Failed_creation_leaks_nothing()
    {
        var memory = new CountingMemory();
        using (var context = new KvContext(new KvContextOptions { Memory = memory }))
        {
            long before = memory.Blocks;
            Assert.Throws<ArgumentException>(
                () => new KvPlan(context, new KvGeometry(2, SmallModel.Layer with { QueryHeads = 3 }, 64),
                                 new KvPolicy("none")));
            Assert.Equal(before, memory.Blocks);
        }
        Assert.Equal(0, memory.Blocks);
    }

    [Fact]
    public void Objects_that_nobody_disposed_are_collected_in_any_order()
    {
        int seed = int.Parse(Environment.GetEnvironmentVariable("KVEVICT_TEST_SEED") ?? $"{Environment.TickCount}");
        Console.WriteLine($"KVEVICT_TEST_SEED={seed}");
        var memory = new CountingMemory();
        Parallel.For(0, 4, worker =>
        {
            var random = new Random(seed + worker);
            for (int round = 0; round < 25; ++round)
            {
                CreateAndForget(memory, random);
                if (random.Next(4) == 0) GC.Collect(random.Next(3), GCCollectionMode.Forced, blocking: true);
            }
        });
        // Finalizers of children run first or last; parents go when the last child has.
        for (int i = 0; i < 20 && memory.Blocks > 0; ++i)
        {
            GC.Collect();
            GC.WaitForPendingFinalizers();
        }
        Assert.True(memory.Allocations > 0);
        Assert.Equal(0, memory.Blocks);
    }

    [MethodImpl(MethodImplOptions.NoInlining)]
    private static void CreateAndForget(CountingMemory memory, Random random)
    {
        var context = new KvContext(new KvContextOptions { Memory = memory });
        var plan = new KvPlan(context, SmallModel.Geometry, KvPolicy.Parse("snapkv:budget=24,window=4"));
        KvSequence[] sequences = [new KvSequence(plan), new KvSequence(plan)];
        IDisposable[] all = [context, plan, .. sequences];
        foreach (IDisposable one in all)
        {
            if (random.Next(3) == 0) one.Dispose();
        }
        foreach (KvSequence sequence in sequences)
        {
            try
            {
                sequence.Append(3);
            }
            catch (ObjectDisposedException)
            {
            }
        }
    }

    [Fact]
    public void An_existing_array_is_used_in_place()
    {
        float[] array = [0, 1, 2, 3, 4, 5];
        using var context = new KvContext();
        using (var memory = new KvPinnedMemory<float>(array.AsMemory(1)))
        {
            context.Compact(new KvView(1, KvPlane.TokenMajor(memory, KvDType.F32, 1, 1)), 5, [2, 4]);
            Assert.True(memory.Span.Overlaps(array));
        }
        Assert.Equal([0, 3, 5, 3, 4, 5], array);
    }
}
