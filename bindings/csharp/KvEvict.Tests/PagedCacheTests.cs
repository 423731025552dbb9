using System.Runtime.CompilerServices;
using Xunit;

namespace KvEvict.Tests;

/// <summary>Paged caches end in any order, and are left to the collector.</summary>
public class PagedCacheTests
{
    /// <summary>A plan, a cache and scratch.</summary>
    private sealed class Pool : IDisposable
    {
        public Pool(int blocks)
        {
            Plan = new KvPlan(Context, SmallModel.Geometry, KvPolicy.Parse("knorm:budget=12,sink=1,scope=head"));
            Cache = new KvPagedCache(Plan, new KvPagedCacheOptions(blocks) { BlockSize = 4 });
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

    [Fact]
    public void Disposed_in_any_order()
    {
        var pool = new Pool(20);
        var cached = new KvPagedSequence(pool.Cache);
        using var sequence = new KvSequence(pool.Plan);
        KvView view = cached.View(0);
        pool.Cache.Dispose();
        pool.Cache.Dispose();
        Assert.Throws<ObjectDisposedException>(() => pool.Cache.Usage);
        Assert.Throws<ObjectDisposedException>(() => new KvPagedSequence(pool.Cache));
        pool.Plan.Dispose();
        cached.Append(20); // it keeps what it was made from
        KvPagedSequence fork = cached.Fork();
        cached.Dispose();
        cached.Dispose();
        Assert.Equal(20, fork.Length(1));
        fork.Dispose();
        Action[] uses =
        [
            () => cached.Append(1), () => cached.Truncate(0), () => cached.Length(0),
            () => cached.View(0), () => cached.Own(), () => cached.Write([]), () => cached.Read([]),
            () => cached.Fork(), () => view.Validate(0),
            () => KvBatch.EvictPaged([new KvPagedEviction(cached, sequence)], pool.Workspace),
        ];
        foreach (Action use in uses) Assert.Throws<ObjectDisposedException>(use);
        pool.Dispose();
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
