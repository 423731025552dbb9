namespace KvEvict;

/// <summary>
/// What one request carries between steps: the position of every slot, stored and logical length, and, while it
/// observes, the last queries of every layer. One thread at a time. Keeps its plan alive.
/// </summary>
public sealed unsafe class KvSequence : IDisposable
{
    private const uint NextPosition = NativeConstants.KVEVICT_POSITION_NEXT;
    // Above this many layers what a call takes of each goes not on the stack, but into an array that stays.
    private const int MaxStackLayers = 128;

    private readonly SequenceHandle _handle;
    private readonly KvPlan _plan;
    private kvevict_view[] _manyViews = [];
    private kvevict_plane[] _manyPlanes = [];
    private object? _lent;

    /// <summary>Creates an empty sequence.</summary>
    /// <param name="plan">What to do with its cache.</param>
    /// <exception cref="KvEvictException">There is no memory left.</exception>
    public KvSequence(KvPlan plan)
    {
        ArgumentNullException.ThrowIfNull(plan);
        _plan = plan;
        PlanHandle planHandle = plan.Handle;
        _handle = new SequenceHandle(planHandle);
        try
        {
            Native.kvevict_sequence_create(planHandle, _handle);
        }
        catch
        {
            _handle.Dispose();
            throw;
        }
    }

    /// <summary>Tokens seen so far: the position (for RoPE) of the next one.</summary>
    public int LogicalLength
    {
        get
        {
            uint length;
            Native.kvevict_sequence_logical_length(Handle, &length);
            return (int)length;
        }
    }

    internal SequenceHandle Handle => Check.Open(_handle, this);

    /// <summary>Sets the stream of the next calls; 0 at first.</summary>
    /// <param name="stream">A CUstream, ordered after the old one by the caller.</param>
    public void SetStream(nint stream) => Native.kvevict_sequence_set_stream(Handle, stream);

    /// <summary>
    /// Takes memory for query rows from the context, which keeps what is given back. For policies that score by
    /// queries: before the first <see cref="Observe(int, KvPlane, int, int)"/>; for others it does nothing.
    /// </summary>
    /// <exception cref="KvEvictException">The sequence observes already, or there is no memory left.</exception>
    public void BeginObserving() => Native.kvevict_sequence_begin_observing(Handle, null, 0);

    /// <summary>As the other overload, with memory of the caller's until <see cref="EndObserving"/>.</summary>
    /// <param name="memory"><see cref="KvPlan.QueryMemoryBytes"/> bytes, aligned as a workspace.</param>
    /// <exception cref="InvalidOperationException">Host memory, and the context works on CUDA.</exception>
    /// <exception cref="KvEvictException">It is too small, or the sequence observes already.</exception>
    public void BeginObserving(KvRegion memory)
    {
        nint address = memory.Resolve(_plan.Context, nameof(memory));
        Native.kvevict_sequence_begin_observing(Handle, (void*)address, (nuint)memory.Bytes);
        _lent = memory.Owner;
    }

    /// <summary>
    /// Forgets the query rows and gives their memory back, once the eviction that uses them is done: on CUDA its
    /// work must have run. A sequence that only decodes does without.
    /// </summary>
    public void EndObserving()
    {
        Native.kvevict_sequence_end_observing(Handle);
        _lent = null;
    }

    /// <summary>Forgets everything, as if newly created, but keeps query memory; allocates nothing.</summary>
    public void Reset() => Native.kvevict_sequence_reset(Handle);

    /// <summary>Shows a layer's query rows of one chunk; the last of them are remembered.</summary>
    /// <remarks>
    /// Any split of a prompt into chunks leaves the same rows behind. Showing earlier positions again replaces
    /// them and forgets what came after (rollback).
    /// </remarks>
    /// <param name="layer">Below the number of layers.</param>
    /// <param name="queries">[query heads, rows, key dim] after RoPE; copied.</param>
    /// <param name="rowCount">Rows; 0 does nothing.</param>
    /// <param name="firstPosition">Position of row 0.</param>
    /// <exception cref="ArgumentException">Rows lie outside their memory.</exception>
    /// <exception cref="InvalidOperationException">Host memory, and the context works on CUDA.</exception>
    /// <exception cref="KvEvictException">The plane does not match the geometry.</exception>
    public void Observe(int layer, KvPlane queries, int rowCount, int firstPosition) =>
        Observe(layer, queries, rowCount, Check.Count(firstPosition, nameof(firstPosition)));

    /// <summary>As the other overload, from the sequence's logical length on.</summary>
    /// <param name="layer">Below the number of layers.</param>
    /// <param name="queries">[query heads, rows, key dim] after RoPE; copied.</param>
    /// <param name="rowCount">Rows; 0 does nothing.</param>
    public void Observe(int layer, KvPlane queries, int rowCount) => Observe(layer, queries, rowCount, NextPosition);

    /// <summary>
    /// As the other overloads, of rows that lie packed in any memory of the host's. For contexts on the CPU.
    /// </summary>
    /// <param name="layer">Below the number of layers.</param>
    /// <param name="queries">
    /// [rows, query heads, key dim] after RoPE; ushort for the bits of <see cref="KvDType.BF16"/>. Copied.
    /// </param>
    /// <param name="firstPosition">Position of row 0; null: the sequence's logical length.</param>
    /// <exception cref="ArgumentException">These are no whole rows.</exception>
    /// <exception cref="InvalidOperationException">The context works on CUDA.</exception>
    /// <exception cref="KvEvictException">The geometry's queries are of another type.</exception>
    public void Observe(int layer, ReadOnlySpan<float> queries, int? firstPosition = null) =>
        Observe(layer, queries, KvDType.F32, firstPosition);

    /// <inheritdoc cref="Observe(int, ReadOnlySpan{float}, int?)"/>
    public void Observe(int layer, ReadOnlySpan<Half> queries, int? firstPosition = null) =>
        Observe(layer, queries, KvDType.F16, firstPosition);

    /// <inheritdoc cref="Observe(int, ReadOnlySpan{float}, int?)"/>
    public void Observe(int layer, ReadOnlySpan<ushort> queries, int? firstPosition = null) =>
        Observe(layer, queries, KvDType.BF16, firstPosition);

    /// <summary>
    /// Shows the query rows of one chunk in every layer: <see cref="Observe(int, KvPlane, int, int)"/> for all layers
    /// or, if one is refused, for none.
    /// </summary>
    /// <remarks>On CUDA one launch, where the strides of all layers are the same.</remarks>
    /// <param name="queries">One per layer, [query heads, rows, key dim] after RoPE; copied.</param>
    /// <param name="rowCount">Rows of each layer; 0 does nothing.</param>
    /// <param name="firstPosition">Position of row 0.</param>
    /// <exception cref="ArgumentException">Rows lie outside their memory.</exception>
    /// <exception cref="InvalidOperationException">Host memory, and the context works on CUDA.</exception>
    /// <exception cref="KvEvictException">A plane does not match the geometry, or their number is wrong.</exception>
    public void ObserveLayers(ReadOnlySpan<KvPlane> queries, int rowCount, int firstPosition) =>
        ObserveLayers(queries, rowCount, Check.Count(firstPosition, nameof(firstPosition)));

    /// <summary>As the other overload, from the sequence's logical length on.</summary>
    /// <param name="queries">One per layer, [query heads, rows, key dim] after RoPE; copied.</param>
    /// <param name="rowCount">Rows of each layer; 0 does nothing.</param>
    public void ObserveLayers(ReadOnlySpan<KvPlane> queries, int rowCount) =>
        ObserveLayers(queries, rowCount, NextPosition);

    /// <summary>
    /// Shows the log-sum-exps of query rows that were observed before; they save CUDA a pass over the keys.
    /// </summary>
    /// <param name="layer">Below the number of layers.</param>
    /// <param name="rowLse">Floats [query heads, rows], one element per row; copied.</param>
    /// <param name="rowCount">Rows; 0 does nothing.</param>
    /// <param name="firstPosition">Position of row 0.</param>
    /// <exception cref="ArgumentException">Rows lie outside their memory.</exception>
    /// <exception cref="InvalidOperationException">Host memory, and the context works on CUDA.</exception>
    public void ObserveLse(int layer, KvPlane rowLse, int rowCount, int firstPosition) =>
        ObserveLse(layer, rowLse, rowCount, Check.Count(firstPosition, nameof(firstPosition)));

    /// <summary>As the other overload, from the sequence's logical length on.</summary>
    /// <param name="layer">Below the number of layers.</param>
    /// <param name="rowLse">Floats [query heads, rows], one element per row; copied.</param>
    /// <param name="rowCount">Rows; 0 does nothing.</param>
    public void ObserveLse(int layer, KvPlane rowLse, int rowCount) =>
        ObserveLse(layer, rowLse, rowCount, NextPosition);

    /// <summary>Notes that the engine stored more rows in every layer, each at the layer's next slot.</summary>
    /// <param name="tokenCount">Tokens.</param>
    /// <exception cref="KvEvictException">A layer would hold more than the geometry's tokens.</exception>
    public void Append(int tokenCount) =>
        Native.kvevict_sequence_append(Handle, Check.Count(tokenCount, nameof(tokenCount)));

    /// <summary>
    /// Notes that a CUDA graph ran once more which observed (from the logical length on, in every layer) and
    /// appended so many tokens.
    /// </summary>
    /// <param name="tokenCount">Tokens.</param>
    /// <exception cref="KvEvictException">As for <see cref="Append"/>.</exception>
    public void Replayed(int tokenCount) =>
        Native.kvevict_sequence_replayed(Handle, Check.Count(tokenCount, nameof(tokenCount)));

    /// <summary>
    /// Takes back the last tokens, for example rejected speculation. Exact down to the logical length at the last
    /// eviction; no cache byte changes.
    /// </summary>
    /// <param name="tokenCount">The logical length to return to.</param>
    /// <exception cref="KvEvictException">It is above the present length, or an eviction lies between.</exception>
    public void Trim(int tokenCount) =>
        Native.kvevict_sequence_trim(Handle, Check.Count(tokenCount, nameof(tokenCount)));

    /// <summary>
    /// Scores, selects and compacts the cache of a whole model in place. A layer within its budget is left
    /// alone. Afterwards the next token goes to slot <see cref="StoredLength"/> of a layer and KV head with position
    /// <see cref="LogicalLength"/>.
    /// </summary>
    /// <param name="views">One per layer.</param>
    /// <param name="workspace">Scratch for <see cref="KvOperation.Evict"/>.</param>
    /// <param name="options">What it is told beside the policy.</param>
    /// <param name="listTokensBefore">
    /// Empty, or receives the slots in use by each list before: [layers, lists] with the lists of
    /// <see cref="MemoryOf"/>.
    /// </param>
    /// <param name="listTokensAfter">As long; receives the slots in use now.</param>
    /// <returns>What it did.</returns>
    /// <exception cref="ArgumentException">Rows lie outside their memory, or a view is null.</exception>
    /// <exception cref="InvalidOperationException">Host memory, and the context works on CUDA.</exception>
    /// <exception cref="KvEvictException">
    /// A view that cannot be, too few observed queries, a budget smaller than what must stay; nothing was moved.
    /// </exception>
    public KvEvictReport Evict(ReadOnlySpan<KvView> views, KvRegion workspace, KvEvictOptions options = default,
                               Span<int> listTokensBefore = default, Span<int> listTokensAfter = default)
    {
        if (listTokensBefore.Length != listTokensAfter.Length)
        {
            throw new ArgumentException($"listTokensBefore has {listTokensBefore.Length} elements, listTokensAfter "
                                        + $"{listTokensAfter.Length}");
        }
        SequenceHandle handle = Handle;
        Span<kvevict_view> native = views.Length <= MaxStackLayers
            ? stackalloc kvevict_view[views.Length]
            : First(ref _manyViews, views.Length);
        kvevict_evict_report report = new() { struct_size = (uint)sizeof(kvevict_evict_report) };
        fixed (kvevict_view* nativeViews = native)
        fixed (int* mustStay = options.ProtectedPositions)
        fixed (int* before = listTokensBefore, after = listTokensAfter)
        {
            report.list_tokens_before = (uint*)before;
            report.list_tokens_after = (uint*)after;
            report.list_tokens_len = (nuint)listTokensBefore.Length;
            for (int layer = 0; layer < views.Length; ++layer)
            {
                if (views[layer] is null) throw new ArgumentNullException($"views[{layer}]");
                // Views beyond the last layer are the library's to refuse.
                int stored = layer < _plan.Geometry.Layers ? MostStored(layer) : 0;
                views[layer].Write(nativeViews + layer, stored, _plan.Context);
            }
            kvevict_evict_options nativeOptions;
            Native.kvevict_evict_options_init(&nativeOptions, (nuint)sizeof(kvevict_evict_options));
            nativeOptions.protected_positions = mustStay;
            nativeOptions.protected_positions_len = (nuint)options.ProtectedPositions.Length;
            nativeOptions.scores = (float*)options.Scores.Resolve(_plan.Context, nameof(options.Scores));
            nativeOptions.scores_len = options.Scores.Elements<float>();
            nativeOptions.scores_layer_stride = options.ScoresLayerStride;
            nativeOptions.scores_head_stride = options.ScoresHeadStride;
            Native.kvevict_sequence_evict(handle, nativeViews, (nuint)views.Length, &nativeOptions,
                                          (void*)workspace.Resolve(_plan.Context, nameof(workspace)),
                                          (nuint)workspace.Bytes, &report);
        }
        foreach (KvView view in views) GC.KeepAlive(view);
        GC.KeepAlive(options.Scores.Owner);
        GC.KeepAlive(workspace.Owner);
        return new KvEvictReport(report.evicted != 0, (long)report.bytes_before, (long)report.bytes_after,
                                 (long)report.tokens_before, (long)report.tokens_after, (long)report.blocks_freed);
    }

    /// <summary>Tells where the state of a layer lies, for the engine's own kernels.</summary>
    /// <param name="layer">Below the number of layers.</param>
    /// <returns>Addresses on the context's device.</returns>
    /// <exception cref="KvEvictException">There is no such layer.</exception>
    public KvSequenceMemory MemoryOf(int layer)
    {
        kvevict_sequence_memory m = new() { struct_size = (uint)sizeof(kvevict_sequence_memory) };
        Native.kvevict_sequence_memory_of(Handle, Check.Count(layer, nameof(layer)), &m);
        return new KvSequenceMemory((nint)m.lengths, (nint)m.positions, (nint)m.listed_counts,
                                    Check.ToInt(m.n_listed), Check.ToInt(m.n_lists));
    }

    /// <summary>Slots in use by a layer and KV head: where its next row goes.</summary>
    /// <param name="layer">Below the number of layers.</param>
    /// <param name="kvHead">A KV head; all alike unless the plan has budgets for each.</param>
    /// <returns>Slots.</returns>
    /// <exception cref="KvEvictException">There is no such layer or head.</exception>
    public int StoredLength(int layer, int kvHead = 0)
    {
        uint length;
        Native.kvevict_sequence_stored_length(Handle, Check.Count(layer, nameof(layer)),
                                              Check.Count(kvHead, nameof(kvHead)), &length);
        return (int)length;
    }

    /// <summary>The position of the token in a slot. On CUDA this waits for the last eviction.</summary>
    /// <param name="layer">Below the number of layers.</param>
    /// <param name="kvHead">A KV head; all alike unless the scope is <see cref="KvScope.KvHead"/>.</param>
    /// <param name="slot">Below the layer's stored length.</param>
    /// <returns>The position.</returns>
    /// <exception cref="KvEvictException">There is no such layer, head or slot.</exception>
    public int PositionOfSlot(int layer, int kvHead, int slot)
    {
        int position;
        Native.kvevict_sequence_position_of_slot(Handle, Check.Count(layer, nameof(layer)),
                                                 Check.Count(kvHead, nameof(kvHead)),
                                                 Check.Count(slot, nameof(slot)), &position);
        return position;
    }

    /// <summary>The slot of the token with a position. On CUDA this waits for the last eviction.</summary>
    /// <param name="layer">Below the number of layers.</param>
    /// <param name="kvHead">A KV head.</param>
    /// <param name="position">Below the logical length.</param>
    /// <returns>The slot; -1 if the token was evicted.</returns>
    /// <exception cref="KvEvictException">There is no such layer, head or position.</exception>
    public int SlotOfPosition(int layer, int kvHead, int position)
    {
        int slot;
        Native.kvevict_sequence_slot_of_position(Handle, Check.Count(layer, nameof(layer)),
                                                 Check.Count(kvHead, nameof(kvHead)),
                                                 Check.Count(position, nameof(position)), &slot);
        return slot;
    }

    /// <summary>The positions of all slots, ascending. On CUDA this waits for the last eviction.</summary>
    /// <param name="layer">Below the number of layers.</param>
    /// <param name="kvHead">A KV head.</param>
    /// <returns>As many as <see cref="StoredLength"/> says.</returns>
    /// <exception cref="KvEvictException">There is no such layer or head.</exception>
    public int[] KeepPositions(int layer, int kvHead)
    {
        int[] positions = new int[StoredLength(layer, kvHead)];
        KeepPositions(layer, kvHead, positions);
        return positions;
    }

    /// <summary>Writes the positions of all slots, ascending, without allocating.</summary>
    /// <param name="layer">Below the number of layers.</param>
    /// <param name="kvHead">A KV head.</param>
    /// <param name="positions">At least <see cref="StoredLength"/> elements.</param>
    /// <returns>Elements written.</returns>
    /// <exception cref="ArgumentException"><paramref name="positions"/> is too short.</exception>
    /// <exception cref="KvEvictException">There is no such layer or head.</exception>
    public int KeepPositions(int layer, int kvHead, Span<int> positions)
    {
        int stored = StoredLength(layer, kvHead);
        if (positions.Length < stored)
        {
            throw new ArgumentException($"positions has {positions.Length} elements, {stored} are needed",
                                        nameof(positions));
        }
        nuint written;
        fixed (int* values = positions)
        {
            Native.kvevict_sequence_keep_positions(Handle, (uint)layer, Check.Count(kvHead, nameof(kvHead)), values,
                                                   (nuint)positions.Length, &written);
        }
        return (int)written;
    }

    /// <summary>Releases it; on CUDA its work must have run. A second call does nothing.</summary>
    public void Dispose() => _handle.Dispose();

    // Slots in use by any head of a layer.
    private int MostStored(int layer)
    {
        int most = StoredLength(layer);
        for (int head = 1; _plan.HeadsDiffer && head < _plan.Geometry.KvHeads; ++head)
            most = Math.Max(most, StoredLength(layer, head));
        return most;
    }

    private void Observe(int layer, KvPlane queries, int rowCount, uint firstPosition)
    {
        queries.CheckRows(nameof(queries), rowCount, _plan.Geometry.QueryHeads);
        kvevict_plane native = queries.ToNative(_plan.Context, nameof(queries));
        Native.kvevict_sequence_observe(Handle, Check.Count(layer, nameof(layer)), &native,
                                        Check.Count(rowCount, nameof(rowCount)), firstPosition);
        GC.KeepAlive(queries.Region.Owner);
    }

    private void Observe<T>(int layer, ReadOnlySpan<T> queries, KvDType dtype, int? firstPosition) where T : unmanaged
    {
        _plan.Context.RefuseHostMemory(nameof(queries));
        uint first = firstPosition is { } position ? Check.Count(position, nameof(firstPosition)) : NextPosition;
        fixed (T* rows = queries)
        {
            kvevict_plane native = _plan.Geometry.QueryRows(rows, queries.Length, dtype, out int rowCount);
            Native.kvevict_sequence_observe(Handle, Check.Count(layer, nameof(layer)), &native, (uint)rowCount, first);
        }
    }

    private void ObserveLayers(ReadOnlySpan<KvPlane> queries, int rowCount, uint firstPosition)
    {
        Span<kvevict_plane> native = queries.Length <= MaxStackLayers
            ? stackalloc kvevict_plane[queries.Length]
            : First(ref _manyPlanes, queries.Length);
        for (int layer = 0; layer < queries.Length; ++layer)
        {
            queries[layer].CheckRows(nameof(queries), rowCount, _plan.Geometry.QueryHeads, index: layer);
            native[layer] = queries[layer].ToNative(_plan.Context, nameof(queries));
        }
        fixed (kvevict_plane* planes = native)
        {
            Native.kvevict_sequence_observe_layers(Handle, planes, (nuint)queries.Length,
                                                   Check.Count(rowCount, nameof(rowCount)), firstPosition);
        }
        foreach (ref readonly KvPlane plane in queries) GC.KeepAlive(plane.Region.Owner);
    }

    private void ObserveLse(int layer, KvPlane rowLse, int rowCount, uint firstPosition)
    {
        rowLse.CheckRows(nameof(rowLse), rowCount, _plan.Geometry.QueryHeads);
        kvevict_plane native = rowLse.ToNative(_plan.Context, nameof(rowLse));
        Native.kvevict_sequence_observe_lse(Handle, Check.Count(layer, nameof(layer)), &native,
                                            Check.Count(rowCount, nameof(rowCount)), firstPosition);
        GC.KeepAlive(rowLse.Region.Owner);
    }

    private static Span<T> First<T>(ref T[] array, int count)
    {
        if (array.Length < count) array = new T[count];
        return array.AsSpan(0, count);
    }
}
