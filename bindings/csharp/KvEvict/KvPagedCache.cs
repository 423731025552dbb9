namespace KvEvict;

/// <summary>How to make a paged cache.</summary>
/// <param name="BlockCount">Blocks for each layer; layers that are alike share theirs.</param>
public readonly partial record struct KvPagedCacheOptions(int BlockCount)
{
    /// <summary>
    /// Memory for the blocks, <see cref="KvPagedCache.BytesFor"/> or more, aligned to 256; none: the context allocates.
    /// </summary>
    public KvRegion Memory { get; init; }

    internal unsafe kvevict_paged_cache_options ToNative(ContextHandle context)
    {
        kvevict_paged_cache_options native;
        Fill(&native);
        native.memory = (void*)Memory.Resolve(context, nameof(Memory));
        native.memory_bytes = (nuint)Memory.Bytes;
        return native;
    }
}

/// <summary>What is in use of a paged cache, at one moment.</summary>
/// <param name="Sequences">The number of sequences.</param>
/// <param name="Blocks">The blocks of all layers.</param>
/// <param name="Free">Blocks that nobody holds.</param>
/// <param name="Shared">Blocks that several sequences hold.</param>
/// <param name="Slots">Rows of all layers that sequences hold; a shared row counts for each of them.</param>
/// <param name="Bytes">Bytes of all blocks, and of the sequences' memory for recent rows.</param>
/// <param name="BytesInUse">Bytes without the free blocks.</param>
/// <param name="F32Bytes">What <paramref name="Bytes"/> would be if all rows were f32.</param>
public readonly record struct KvPagedCacheUsage(
    int Sequences, long Blocks, long Free, long Shared, long Slots, long Bytes, long BytesInUse, long F32Bytes);

/// <summary>
/// A cache for engines without one: a fixed pool of blocks that sequences hold by tables, as in PagedAttention.
/// Threads may share it. It keeps its plan alive and has the plan's context, geometry and tokens, not the policy.
/// </summary>
public sealed unsafe class KvPagedCache : IDisposable
{
    private readonly PagedCacheHandle _handle;
    private readonly object? _lent;

    /// <summary>Creates a cache whose blocks are all free.</summary>
    /// <param name="plan">Its geometry's tokens are the most that a sequence may hold.</param>
    /// <param name="options">How many blocks, and where.</param>
    /// <exception cref="InvalidOperationException">Host memory, and the context works on CUDA.</exception>
    /// <exception cref="ArgumentException">The options are invalid, or rows are opaque.</exception>
    /// <exception cref="KvEvictException">There is no memory left.</exception>
    public KvPagedCache(KvPlan plan, KvPagedCacheOptions options)
    {
        ArgumentNullException.ThrowIfNull(plan);
        kvevict_paged_cache_options native = options.ToNative(plan.Context);
        Plan = plan;
        _lent = options.Memory.Owner;
        _handle = new PagedCacheHandle(plan.Handle);
        try
        {
            Native.kvevict_paged_cache_create(plan.Handle, &native, _handle);
        }
        catch
        {
            _handle.Dispose();
            throw;
        }
    }

    /// <summary>The plan that it was made from.</summary>
    public KvPlan Plan { get; }

    internal PagedCacheHandle Handle => Check.Open(_handle, this);

    /// <summary>The bytes of all layers' blocks.</summary>
    /// <param name="plan">The plan whose geometry counts.</param>
    /// <param name="options">How many blocks.</param>
    /// <returns>Bytes.</returns>
    /// <exception cref="ArgumentException">The options are invalid, or rows are opaque.</exception>
    public static long BytesFor(KvPlan plan, KvPagedCacheOptions options)
    {
        ArgumentNullException.ThrowIfNull(plan);
        kvevict_paged_cache_options native = options.ToNative(plan.Context);
        nuint bytes;
        Native.kvevict_paged_cache_bytes(plan.Handle, &native, &bytes);
        return checked((long)bytes);
    }

    /// <summary>Counts blocks.</summary>
    public KvPagedCacheUsage Usage
    {
        get
        {
            kvevict_paged_cache_usage u = new() { struct_size = (uint)sizeof(kvevict_paged_cache_usage) };
            Native.kvevict_paged_cache_get_usage(Handle, &u);
            return new KvPagedCacheUsage((int)u.n_sequences, (long)u.n_blocks, (long)u.n_free, (long)u.n_shared,
                                         (long)u.n_slots, (long)u.bytes, (long)u.bytes_in_use, (long)u.f32_bytes);
        }
    }

    /// <summary>
    /// Lets go of it; its sequences stay usable and release it with the last of them. A second call does nothing.
    /// </summary>
    public void Dispose()
    {
        _handle.Dispose();
        GC.KeepAlive(_lent);
    }
}
