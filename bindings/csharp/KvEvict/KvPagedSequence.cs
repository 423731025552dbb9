namespace KvEvict;

/// <summary>Rows of one layer, outside the cache.</summary>
/// <param name="Layer">One with a full cache.</param>
/// <param name="FirstSlot">The slot of row 0.</param>
/// <param name="TokenCount">Rows of each KV head; 0 is valid.</param>
/// <param name="Keys">Rows of the geometry's type in any layout; if absent, keys are left alone.</param>
/// <param name="Values">Rows of the geometry's type in any layout; if absent, values are left alone.</param>
public readonly partial record struct KvPagedRows(
    int Layer, int FirstSlot, int TokenCount, KvPlane Keys, KvPlane Values = default);

/// <summary>
/// The arguments of a paged sequence's eviction. There is no undo: a fork made before keeps what goes.
/// </summary>
/// <param name="Cached">The rows.</param>
/// <param name="Sequence">The tokens that the rows belong to.</param>
/// <param name="Options">What it is told beside the policy, without undo and destinations.</param>
public readonly record struct KvPagedEviction(
    KvPagedSequence Cached, KvSequence Sequence, KvEvictOptions Options = default);

/// <summary>
/// The blocks of one request. A call that needs more blocks than are free fails and has changed nothing. One thread at
/// a time; on CUDA the sequences of one cache use one stream, or are ordered by the caller. Keeps its cache alive.
/// </summary>
public sealed unsafe class KvPagedSequence : IDisposable, IRegionOwner
{
    private readonly PagedSequenceHandle _handle;
    private readonly KvPagedCache _cache;

    /// <summary>Adds a sequence, which holds no tokens.</summary>
    /// <param name="cache">The cache that its blocks come from.</param>
    /// <exception cref="KvEvictException">There is no memory left for its tables.</exception>
    public KvPagedSequence(KvPagedCache cache)
        : this(cache, cache?.Handle!, made => Native.kvevict_paged_sequence_create(cache!.Handle, made))
    {
    }

    private KvPagedSequence(KvPagedCache cache, PagedCacheHandle parent, Action<PagedSequenceHandle> create)
    {
        ArgumentNullException.ThrowIfNull(cache);
        _cache = cache;
        _handle = new PagedSequenceHandle(parent);
        try
        {
            create(_handle);
        }
        catch
        {
            _handle.Dispose();
            throw;
        }
    }

    /// <summary>Whether it was disposed.</summary>
    public bool IsDisposed => _handle.IsDisposed;

    internal PagedSequenceHandle Handle => Check.Open(_handle, this);

    private ContextHandle Context => _cache.Plan.Context;

    /// <summary>
    /// Adds a sequence that holds what this one does, in the same blocks: to share a prefix, to part beams, or to keep
    /// what an eviction of one of the two drops.
    /// </summary>
    /// <param name="stream">CUstream on which the work is queued.</param>
    /// <returns>The new sequence.</returns>
    /// <exception cref="KvEvictException">There is no memory left for its tables.</exception>
    public KvPagedSequence Fork(nint stream = 0)
    {
        PagedSequenceHandle handle = Handle;
        return new KvPagedSequence(_cache, _handle.Cache,
                                   made => Native.kvevict_paged_sequence_fork(handle, made, stream));
    }

    /// <summary>Makes room for tokens after the last one in every layer. Their rows have any content.</summary>
    /// <param name="tokenCount">Tokens; 0 does nothing.</param>
    /// <param name="stream">CUstream on which the work is queued.</param>
    /// <exception cref="ArgumentException">A layer would hold more than the geometry's tokens.</exception>
    /// <exception cref="KvEvictException">Too few blocks are free.</exception>
    public void Append(int tokenCount, nint stream = 0) =>
        Native.kvevict_paged_sequence_append(Handle, Check.Count(tokenCount, nameof(tokenCount)), stream);

    /// <summary>Drops the last tokens of layers that hold more than so many.</summary>
    /// <param name="newLength">What each layer holds at most from now on.</param>
    public void Truncate(int newLength) =>
        Native.kvevict_paged_sequence_truncate(Handle, Check.Count(newLength, nameof(newLength)));

    /// <summary>
    /// Drops the last rows of each layer that a sequence no longer stores, after its trim or reset, or an
    /// eviction by views.
    /// </summary>
    /// <param name="stored">A sequence of a plan with the cache's geometry.</param>
    /// <exception cref="ArgumentException">It stores more than there are rows.</exception>
    public void Fit(KvSequence stored)
    {
        ArgumentNullException.ThrowIfNull(stored);
        Native.kvevict_paged_sequence_fit(Handle, stored.Handle);
    }

    /// <summary>How many rows a layer holds.</summary>
    /// <param name="layer">One with a full cache.</param>
    /// <returns>Slots.</returns>
    /// <exception cref="ArgumentException">There is no such layer.</exception>
    public int Length(int layer)
    {
        uint slots;
        Native.kvevict_paged_sequence_length(Handle, Check.Count(layer, nameof(layer)), &slots);
        return (int)slots;
    }

    /// <summary>
    /// A layer's rows, valid until a call changes the sequence or it is disposed. Writing to blocks that other
    /// sequences share changes their rows too: see <see cref="Own"/>.
    /// </summary>
    /// <param name="layer">One with a full cache.</param>
    /// <returns>The view, which keeps this alive.</returns>
    /// <exception cref="ArgumentException">There is no such layer.</exception>
    public KvView View(int layer)
    {
        kvevict_view native = kvevict_view.Init;
        Native.kvevict_paged_sequence_view(Handle, Check.Count(layer, nameof(layer)), &native);
        var companions = new KvPlane[native.n_companions];
        for (int i = 0; i < companions.Length; ++i) companions[i] = PlaneOf(native.companions + i);
        return new KvView((int)native.n_kv_heads, PlaneOf(&native.k), PlaneOf(&native.v))
        {
            Companions = companions,
            BlockSize = (int)native.block_size,
            BlockTable = new KvRegion((nint)native.block_table, (long)native.block_table_len * sizeof(int), this),
            FirstRecent = (int)native.first_recent,
        };
    }

    /// <summary>
    /// Copies the blocks of all layers that others share and that hold slots from one on, so that they may be written
    /// through views.
    /// </summary>
    /// <param name="firstSlot">0: all.</param>
    /// <param name="stream">CUstream on which the work is queued.</param>
    /// <exception cref="KvEvictException">Too few blocks are free.</exception>
    public void Own(int firstSlot = 0, nint stream = 0) =>
        Native.kvevict_paged_sequence_own(Handle, Check.Count(firstSlot, nameof(firstSlot)), stream);

    /// <summary>
    /// Copies rows into slots that layers hold; blocks that others share are copied first. All is checked before the
    /// first row is written.
    /// </summary>
    /// <param name="rows">A layer may come up more than once.</param>
    /// <param name="stream">CUstream on which the work is queued.</param>
    /// <exception cref="ArgumentException">Rows lie outside their memory. There are no such slots.</exception>
    /// <exception cref="InvalidOperationException">Host memory, and the context works on CUDA.</exception>
    /// <exception cref="KvEvictException">Too few blocks are free.</exception>
    public void Write(ReadOnlySpan<KvPagedRows> rows, nint stream = 0)
    {
        fixed (kvevict_paged_rows* native = ToNative(rows))
            Native.kvevict_paged_sequence_write(Handle, native, (nuint)rows.Length, stream);
        KeepAlive(rows);
    }

    /// <summary>Copies rows out of the slots of layers into the planes.</summary>
    /// <param name="rows">A layer may come up more than once.</param>
    /// <param name="stream">CUstream on which the work is queued.</param>
    /// <exception cref="ArgumentException">Rows lie outside their memory. There are no such slots.</exception>
    /// <exception cref="InvalidOperationException">Host memory, and the context works on CUDA.</exception>
    public void Read(ReadOnlySpan<KvPagedRows> rows, nint stream = 0)
    {
        fixed (kvevict_paged_rows* native = ToNative(rows))
            Native.kvevict_paged_sequence_read(Handle, native, (nuint)rows.Length, stream);
        KeepAlive(rows);
    }

    /// <summary><see cref="KvBatch.EvictPaged"/> of one.</summary>
    /// <param name="sequence">The tokens that the rows belong to.</param>
    /// <param name="workspace">Scratch for <see cref="KvOperation.Evict"/>.</param>
    /// <param name="options">What it is told beside the policy. No undo: a fork made before keeps what goes.</param>
    /// <param name="stream">CUstream on which the work is queued.</param>
    /// <returns>What it did, see <see cref="KvSequence.Report"/>.</returns>
    /// <exception cref="ArgumentException">
    /// Undo memory or destinations are set, or <see cref="KvBatch.EvictPaged"/> would refuse it. Nothing was moved.
    /// </exception>
    /// <exception cref="InvalidOperationException">Host memory, and the context works on CUDA.</exception>
    public KvEvictReport Evict(KvSequence sequence, KvRegion workspace, KvEvictOptions options = default,
                               nint stream = 0)
    {
        KvBatch.EvictPaged([new KvPagedEviction(this, sequence, options)], workspace, stream);
        return sequence.Report;
    }

    /// <summary>
    /// Edits the middle as <see cref="KvSequence.Edit"/> does. Blocks that others share are copied before their rows
    /// change; blocks for new tokens are taken, and empty ones given back.
    /// </summary>
    /// <param name="sequence">The tokens that the rows belong to.</param>
    /// <param name="edit">What changes.</param>
    /// <param name="stream">CUstream on which the work is queued, and for which this waits.</param>
    /// <exception cref="ArgumentException">
    /// The span does not fit, or the sequence stores other rows. Nothing has changed.
    /// </exception>
    /// <exception cref="KvEvictException">
    /// Keys cannot rotate, or too few blocks are free. Nothing has changed.
    /// </exception>
    public void Edit(KvSequence sequence, KvEdit edit, nint stream = 0)
    {
        ArgumentNullException.ThrowIfNull(sequence);
        kvevict_edit native;
        edit.Fill(&native);
        Native.kvevict_paged_edit(Handle, sequence.Handle, &native, stream);
    }

    /// <summary>
    /// Reads a prompt in chunks as <see cref="KvSequence.Prefill"/> does. It makes room before each one and gives back
    /// what evictions leave empty.
    /// </summary>
    /// <param name="prompt">The prompt and how to read it.</param>
    /// <param name="sequence">The tokens that the rows belong to.</param>
    /// <param name="workspace">Scratch for <see cref="KvOperation.Evict"/>.</param>
    /// <param name="stream">CUstream on which the work is queued.</param>
    /// <returns>What it took.</returns>
    /// <exception cref="InvalidOperationException">Host memory, and the context works on CUDA.</exception>
    /// <exception cref="ArgumentException">A call in it was refused, or the prompt has ended.</exception>
    /// <exception cref="KvEvictException">Too few blocks are free.</exception>
    public KvPrefillReport Prefill(KvPrefill prompt, KvSequence sequence, KvRegion workspace, nint stream = 0)
    {
        ArgumentNullException.ThrowIfNull(prompt);
        ArgumentNullException.ThrowIfNull(sequence);
        return PrefillCall.Run(sequence, prompt, [], Handle, workspace, stream);
    }

    /// <summary>Gives the blocks back that nobody else holds. A second call does nothing.</summary>
    public void Dispose() => _handle.Dispose();

    private kvevict_paged_rows[] ToNative(ReadOnlySpan<KvPagedRows> rows)
    {
        var native = new kvevict_paged_rows[rows.Length];
        for (int i = 0; i < rows.Length; ++i)
        {
            ref readonly KvPagedRows from = ref rows[i];
            fixed (kvevict_paged_rows* to = &native[i]) from.Fill(to);
            int heads = _cache.Plan.Geometry.Of(from.Layer).KvHeads;
            from.Keys.CheckRows("keys", from.TokenCount, heads, index: i);
            from.Values.CheckRows("values", from.TokenCount, heads, index: i);
            native[i].k = from.Keys.ToNative(Context, nameof(from.Keys));
            native[i].v = from.Values.ToNative(Context, nameof(from.Values));
        }
        return native;
    }

    private static void KeepAlive(ReadOnlySpan<KvPagedRows> rows)
    {
        foreach (ref readonly KvPagedRows one in rows)
        {
            GC.KeepAlive(one.Keys.Region.Owner);
            GC.KeepAlive(one.Values.Region.Owner);
        }
    }

    // A plane of the cache. The library knows where it ends.
    private KvPlane PlaneOf(kvevict_plane* native) => native->data == 0
        ? default
        : KvPlane.Of(native) with { Region = new KvRegion((nint)native->data, long.MaxValue, this) };
}
