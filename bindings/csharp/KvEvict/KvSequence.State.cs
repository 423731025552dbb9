namespace KvEvict;

// Positions and lengths: how a sequence begins, is saved, and tells them.
public sealed unsafe partial class KvSequence
{
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

    /// <summary>Forgets everything, as if newly created, but keeps query memory; allocates nothing.</summary>
    /// <param name="stream">CUstream on which the work is queued.</param>
    public void Reset(nint stream = 0) => Native.kvevict_sequence_reset(Handle, stream);

    /// <summary>
    /// Begins an empty sequence from caches that are filled already: every list holds the tokens before
    /// <paramref name="tokenCount"/>.
    /// </summary>
    /// <param name="tokenCount">The logical length.</param>
    /// <param name="stream">CUstream on which the work is queued.</param>
    /// <exception cref="ArgumentException">The sequence is not empty, or has no room for so many.</exception>
    public void Start(int tokenCount, nint stream = 0) =>
        Native.kvevict_sequence_start(Handle, null, 0, Check.Count(tokenCount, nameof(tokenCount)), stream);

    /// <summary>
    /// Begins an empty sequence from caches that are filled already: a restored session, a beam, a prefix that
    /// requests share. On CUDA this waits.
    /// </summary>
    /// <param name="layers">
    /// The positions that each layer's slots hold, ascending: one list, or one for each of its keep lists, see
    /// <see cref="KvPlan.Layer"/>. Null for layers without a full cache.
    /// </param>
    /// <param name="tokenCount">The logical length, above every position.</param>
    /// <param name="stream">CUstream on which the work is queued.</param>
    /// <exception cref="ArgumentException">The sequence is not empty, or the lists are invalid.</exception>
    public void Start(ReadOnlySpan<int[][]?> layers, int tokenCount, nint stream = 0)
    {
        SequenceHandle handle = Handle;
        uint tokens = Check.Count(tokenCount, nameof(tokenCount));
        var native = new kvevict_position_lists[layers.Length];
        var positions = new List<int>();
        var counts = new List<uint>();
        foreach (int[][]? lists in layers)
        {
            int most = MostOf(lists);
            foreach (int[] list in lists ?? [])
            {
                counts.Add((uint)list.Length);
                positions.AddRange(list);
                positions.AddRange(new int[most - list.Length]);
            }
        }
        fixed (kvevict_position_lists* structs = native)
        fixed (int* allPositions = positions.ToArray())
        fixed (uint* allCounts = counts.ToArray())
        {
            int* nextPositions = allPositions;
            uint* nextCounts = allCounts;
            for (int layer = 0; layer < layers.Length; ++layer)
            {
                kvevict_position_lists* at = structs + layer;
                *at = kvevict_position_lists.Init;
                if (layers[layer] is not { } lists) continue;
                at->n_lists = (uint)lists.Length;
                at->count = (uint)MostOf(lists);
                at->positions = nextPositions;
                at->positions_len = (nuint)(lists.Length * (long)at->count);
                at->counts = nextCounts;
                nextPositions += at->positions_len;
                nextCounts += lists.Length;
            }
            Native.kvevict_sequence_start(handle, structs, (nuint)layers.Length, tokens, stream);
        }
    }

    /// <summary>
    /// Makes a sequence that goes on from here: with positions, lengths and, if this one observes, queries. The
    /// caller copies or shares the cache.
    /// </summary>
    /// <param name="stream">CUstream on which the work is queued, after this one's.</param>
    /// <returns>The new sequence with the same plan, and query memory from the context.</returns>
    /// <exception cref="KvEvictException">There is no memory left.</exception>
    public KvSequence Fork(nint stream = 0) => Fork(default(KvRegion), stream);

    /// <summary>Does the same with memory of the caller's for the queries.</summary>
    /// <param name="memory">See <see cref="BeginObserving(KvRegion)"/>; not used if this one does not observe.</param>
    /// <param name="stream">CUstream on which the work is queued, after this one's.</param>
    /// <returns>The new sequence.</returns>
    /// <exception cref="InvalidOperationException">Host memory, and the context works on CUDA.</exception>
    /// <exception cref="ArgumentException">The memory is too small.</exception>
    /// <exception cref="KvEvictException">There is no memory left.</exception>
    public KvSequence Fork(KvRegion memory, nint stream = 0) => Fork(_plan, memory, stream);

    /// <summary>
    /// Does the same under another plan, with another policy. Observed queries are copied if both plans have
    /// equally wide windows. With another plan this waits on CUDA.
    /// </summary>
    /// <param name="plan">The new sequence's plan, with the same context and layers.</param>
    /// <param name="memory">
    /// See <see cref="BeginObserving(KvRegion)"/>; not used if the new one does not observe. None: the context's.
    /// </param>
    /// <param name="stream">CUstream on which the work is queued, after this one's.</param>
    /// <returns>The new sequence.</returns>
    /// <exception cref="InvalidOperationException">Host memory, and the context works on CUDA.</exception>
    /// <exception cref="ArgumentException">The plan's lists cannot hold this sequence's tokens.</exception>
    /// <exception cref="KvEvictException">There is no memory left.</exception>
    public KvSequence Fork(KvPlan plan, KvRegion memory = default, nint stream = 0)
    {
        ArgumentNullException.ThrowIfNull(plan);
        SequenceHandle handle = Handle;
        PlanHandle to = plan.Handle;
        kvevict_fork_options options = kvevict_fork_options.Init;
        options.plan = NativeHandle.Pointer(to);
        options.memory = (void*)memory.Resolve(_plan.Context, nameof(memory));
        options.memory_bytes = (nuint)memory.Bytes;
        kvevict_fork_options* at = &options;
        return new KvSequence(plan, made =>
        {
            Native.kvevict_sequence_fork(handle, at, made, stream);
            GC.KeepAlive(to);
        }) { _lent = memory.Owner };
    }

    /// <summary>
    /// Returns positions and lengths as bytes for <see cref="Load"/> in any process on any machine, without the cache,
    /// the queries or the report. On CUDA this waits for the last eviction.
    /// </summary>
    /// <returns>The bytes, with a version and a CRC-32 among them.</returns>
    public byte[] Save()
    {
        SequenceHandle handle = Handle;
        nuint length;
        Native.kvevict_sequence_save(handle, null, 0, &length);
        byte[] data = new byte[checked((int)length)];
        fixed (byte* bytes = data)
            Native.kvevict_sequence_save(handle, bytes, length, null);
        return data;
    }

    /// <summary>
    /// Restores what <see cref="Save"/> saved of a sequence whose plan has the same layers and keep lists.
    /// </summary>
    /// <param name="data">The bytes.</param>
    /// <param name="stream">CUstream on which the work is queued.</param>
    /// <exception cref="ArgumentException">The bytes are damaged or another plan's; nothing has changed.</exception>
    public void Load(ReadOnlySpan<byte> data, nint stream = 0)
    {
        byte nothing;
        fixed (byte* bytes = data)
            Native.kvevict_sequence_load(Handle, bytes == null ? &nothing : bytes, (nuint)data.Length, stream);
    }

    /// <summary>
    /// How many tokens are still where they were stored in every list of every layer: another request with the same
    /// tokens can use these. On CUDA this waits for the last eviction.
    /// </summary>
    /// <returns>Tokens; 0 after an eviction that merged.</returns>
    public int ExactPrefix()
    {
        uint length;
        Native.kvevict_sequence_exact_prefix(Handle, &length);
        return (int)length;
    }

    /// <summary>Returns the addresses of a layer's state for the engine's own kernels.</summary>
    /// <param name="layer">Below the number of layers.</param>
    /// <returns>Addresses on the context's device.</returns>
    /// <exception cref="ArgumentException">There is no such layer.</exception>
    public KvSequenceMemory MemoryOf(int layer)
    {
        kvevict_sequence_memory m = new() { struct_size = (uint)sizeof(kvevict_sequence_memory) };
        Native.kvevict_sequence_memory_of(Handle, Check.Count(layer, nameof(layer)), &m);
        return new KvSequenceMemory((nint)m.lengths, (nint)m.positions, (nint)m.listed_counts,
                                    Check.ToInt(m.n_listed), Check.ToInt(m.n_lists), (nint)m.sums,
                                    Check.ToInt(m.n_sum_heads), (long)m.sum_stride);
    }

    /// <summary>Slots in use by a layer and KV head. The next row goes to this slot.</summary>
    /// <param name="layer">One with a full cache, see <see cref="KvPlan.Layer"/>.</param>
    /// <param name="kvHead">A KV head; all alike unless the plan has budgets for each.</param>
    /// <returns>Slots.</returns>
    /// <exception cref="ArgumentException">There is no such layer or head, or the layer has no full cache.</exception>
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
    /// <exception cref="ArgumentException">There is no such layer, head or slot.</exception>
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
    /// <exception cref="ArgumentException">There is no such layer, head or position.</exception>
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
    /// <returns><see cref="StoredLength"/> positions.</returns>
    /// <exception cref="ArgumentException">There is no such layer or head.</exception>
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
    /// <exception cref="ArgumentException">
    /// <paramref name="positions"/> is too short. There is no such layer or head.
    /// </exception>
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

    private static int MostOf(int[][]? lists) => lists is null or [] ? 0 : lists.Max(list => list.Length);
}
