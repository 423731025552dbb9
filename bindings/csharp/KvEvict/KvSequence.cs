namespace KvEvict;

/// <summary>
/// What one request carries between steps: the position of every slot, stored and logical length, and, while it
/// observes, the last queries of every layer. One thread at a time. Keeps its plan alive.
/// </summary>
public sealed unsafe class KvSequence : IDisposable
{
    internal const uint NextPosition = NativeConstants.KVEVICT_POSITION_NEXT;
    // If there are more layers, a call's arguments go into an array that stays, not on the stack.
    private const int MaxStackLayers = 64;

    private readonly SequenceHandle _handle;
    private readonly KvPlan _plan;
    private kvevict_view[] _manyViews = [];
    private kvevict_view[] _destinations = [];
    private kvevict_signal_inputs[] _manyInputs = [];
    private NativeInputs[] _manyPlanes = [];
    private kvevict_observation[] _manyObservations = [];
    private kvevict_list_report[] _lists = [];
    private readonly uint[] _heldByHead = [];
    private object? _lent;

    /// <summary>Creates an empty sequence.</summary>
    /// <param name="plan">What to do with its cache.</param>
    /// <exception cref="KvEvictException">There is no memory left.</exception>
    public KvSequence(KvPlan plan) : this(plan, made => Native.kvevict_sequence_create(plan.Handle, made))
    {
    }

    private KvSequence(KvPlan plan, Action<SequenceHandle> create)
    {
        ArgumentNullException.ThrowIfNull(plan);
        _plan = plan;
        if (plan.HeadsDiffer) _heldByHead = new uint[plan.Geometry.Layers.Max(layer => layer.KvHeads)];
        _handle = new SequenceHandle(plan.Handle);
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

    internal ContextHandle Context => _plan.Context;

    /// <summary>What the last eviction did; all 0 before it and after a reset.</summary>
    public KvEvictReport Report
    {
        get
        {
            kvevict_evict_report r = new() { struct_size = (uint)sizeof(kvevict_evict_report) };
            Native.kvevict_sequence_report(Handle, &r, null, 0);
            return new KvEvictReport(r.evicted != 0, (long)r.bytes_before, (long)r.bytes_after, (long)r.tokens_before,
                                     (long)r.tokens_after, (long)r.blocks_freed, r.reason);
        }
    }

    /// <summary>
    /// Takes memory for query rows from the context, which keeps what is given back. Policies that score by queries
    /// need it before the first <see cref="Observe(int, KvPlane, int, int?, nint)"/>; for others it does nothing.
    /// </summary>
    /// <exception cref="ArgumentException">The sequence observes already.</exception>
    /// <exception cref="KvEvictException">There is no memory left.</exception>
    public void BeginObserving() => Native.kvevict_sequence_begin_observing(Handle, null, 0);

    /// <summary>Does the same with memory of the caller's, until <see cref="EndObserving"/>.</summary>
    /// <param name="memory">The workspace of <see cref="KvOperation.Observe"/>.</param>
    /// <exception cref="InvalidOperationException">Host memory, and the context works on CUDA.</exception>
    /// <exception cref="ArgumentException">It is too small, or the sequence observes already.</exception>
    public void BeginObserving(KvRegion memory)
    {
        nint address = memory.Resolve(_plan.Context, nameof(memory));
        Native.kvevict_sequence_begin_observing(Handle, (void*)address, (nuint)memory.Bytes);
        _lent = memory.Owner;
    }

    /// <summary>
    /// Forgets the query rows and gives their memory back. The eviction that uses them must be done: on CUDA its
    /// work must have run. A sequence that only decodes needs no query memory.
    /// </summary>
    public void EndObserving()
    {
        Native.kvevict_sequence_end_observing(Handle);
        _lent = null;
    }

    /// <summary>Forgets everything, as if newly created, but keeps query memory; allocates nothing.</summary>
    /// <param name="stream">CUstream on which the work is queued.</param>
    public void Reset(nint stream = 0) => Native.kvevict_sequence_reset(Handle, stream);

    /// <summary>
    /// Shows the query rows of one chunk, for one layer or many, and remembers the last ones; or the attention
    /// weights of the chunk, which are added up.
    /// </summary>
    /// <remarks>
    /// Any split of a prompt into chunks leaves the same rows behind. Showing earlier positions again replaces them and
    /// forgets what came after (rollback). Log-sum-exps may come with the rows or after them; they save CUDA a pass
    /// over the keys. On CUDA neighbouring layers whose planes lie alike take one launch. Attention must be of rows
    /// that follow those observed before. Its sums move with the rows of the cache.
    /// </remarks>
    /// <param name="observations">Layers must ascend. If one is refused, none is remembered.</param>
    /// <param name="rowCount">Rows of each layer; 0 does nothing.</param>
    /// <param name="firstPosition">Position of row 0; null: the sequence's logical length.</param>
    /// <param name="stream">CUstream on which the work is queued.</param>
    /// <exception cref="ArgumentException">
    /// Rows lie outside their memory. A plane does not match the geometry, or there is no such layer.
    /// </exception>
    /// <exception cref="InvalidOperationException">Host memory, and the context works on CUDA.</exception>
    public void Observe(ReadOnlySpan<KvObservation> observations, int rowCount, int? firstPosition = null,
                        nint stream = 0)
    {
        int count = observations.Length;
        uint first = firstPosition is { } position ? Check.Count(position, nameof(firstPosition)) : NextPosition;
        SequenceHandle handle = Handle;
        Span<kvevict_observation> native = count <= MaxStackLayers ? stackalloc kvevict_observation[count]
                                                                   : First(ref _manyObservations, count);
        Span<kvevict_signal_inputs> inputs = count <= MaxStackLayers ? stackalloc kvevict_signal_inputs[count]
                                                                     : First(ref _manyInputs, count);
        Span<NativeInputs> planes = count <= MaxStackLayers ? stackalloc NativeInputs[count]
                                                            : First(ref _manyPlanes, count);
        fixed (kvevict_observation* nativeObservations = native)
        fixed (kvevict_signal_inputs* nativeInputs = inputs)
        fixed (NativeInputs* nativePlanes = planes)
        {
            Write(observations, rowCount, firstPosition, nativeObservations, nativeInputs, nativePlanes);
            Native.kvevict_sequence_observe(handle, nativeObservations, (nuint)count,
                                            Check.Count(rowCount, nameof(rowCount)), first, stream);
        }
        foreach (ref readonly KvObservation observation in observations) observation.Inputs.KeepAlive();
    }

    /// <summary>Does the same with one layer's queries.</summary>
    /// <param name="layer">Below the number of layers.</param>
    /// <param name="queries">[query heads, rows, key dim] after RoPE; copied.</param>
    /// <param name="rowCount">Rows; 0 does nothing.</param>
    /// <param name="firstPosition">Position of row 0; null: the sequence's logical length.</param>
    /// <param name="stream">CUstream on which the work is queued.</param>
    /// <exception cref="ArgumentException">
    /// Rows lie outside their memory. The plane does not match the geometry, or there is no such layer.
    /// </exception>
    /// <exception cref="InvalidOperationException">Host memory, and the context works on CUDA.</exception>
    public void Observe(int layer, KvPlane queries, int rowCount, int? firstPosition = null, nint stream = 0) =>
        Observe([new KvObservation(layer, new KvSignalInputs { Queries = queries })], rowCount, firstPosition, stream);

    /// <summary>
    /// Does the same with rows that lie packed in any host memory. For contexts on the CPU.
    /// </summary>
    /// <param name="layer">Below the number of layers.</param>
    /// <param name="queries">
    /// [rows, query heads, key dim] after RoPE; ushort for the bits of <see cref="KvDType.BF16"/>. Copied.
    /// </param>
    /// <param name="firstPosition">Position of row 0; null: the sequence's logical length.</param>
    /// <exception cref="ArgumentException">
    /// The rows are not whole, or the geometry's queries are of another type.
    /// </exception>
    /// <exception cref="InvalidOperationException">The context works on CUDA.</exception>
    public void Observe(int layer, ReadOnlySpan<float> queries, int? firstPosition = null) =>
        Observe(layer, queries, KvDType.F32, firstPosition);

    /// <inheritdoc cref="Observe(int, ReadOnlySpan{float}, int?)"/>
    public void Observe(int layer, ReadOnlySpan<Half> queries, int? firstPosition = null) =>
        Observe(layer, queries, KvDType.F16, firstPosition);

    /// <inheritdoc cref="Observe(int, ReadOnlySpan{float}, int?)"/>
    public void Observe(int layer, ReadOnlySpan<ushort> queries, int? firstPosition = null) =>
        Observe(layer, queries, KvDType.BF16, firstPosition);

    /// <summary>Notes that the engine stored more rows in every layer, each at the layer's next slot.</summary>
    /// <param name="tokenCount">Tokens.</param>
    /// <param name="stream">CUstream on which the work is queued.</param>
    /// <exception cref="ArgumentException">A layer would hold more than the geometry's tokens.</exception>
    public void Append(int tokenCount, nint stream = 0) =>
        Native.kvevict_sequence_append(Handle, Check.Count(tokenCount, nameof(tokenCount)), stream);

    /// <summary>
    /// Says that what has been appended so far is the prompt; see <see cref="KvPolicy.Prompt"/> and
    /// <see cref="KvPolicy.Every"/>.
    /// </summary>
    /// <exception cref="ArgumentException">The prompt has already ended.</exception>
    public void EndPrompt() => Native.kvevict_sequence_end_prompt(Handle);

    /// <summary>
    /// Notes that a CUDA graph ran once more which observed (from the logical length on, in every layer) and
    /// appended so many tokens.
    /// </summary>
    /// <param name="tokenCount">Tokens.</param>
    /// <exception cref="ArgumentException">A layer would hold more than the geometry's tokens.</exception>
    public void Replayed(int tokenCount) =>
        Native.kvevict_sequence_replayed(Handle, Check.Count(tokenCount, nameof(tokenCount)));

    /// <summary>
    /// Takes back the last tokens, for example rejected speculation. Exact down to the logical length at the last
    /// eviction, and to lengths up to <see cref="ExactPrefix"/>; no cache byte changes. With a policy that scores by
    /// the last queries, the plan's draftTokens may be taken back before each eviction. After more, some queries have
    /// to be observed again.
    /// </summary>
    /// <param name="newLength">The logical length to return to.</param>
    /// <param name="stream">CUstream on which the work is queued.</param>
    /// <exception cref="ArgumentException">
    /// It is above the present length, or between the exact ones, the nearest of which the message names.
    /// </exception>
    public void TrimTo(int newLength, nint stream = 0) =>
        Native.kvevict_sequence_trim_to(Handle, Check.Count(newLength, nameof(newLength)), stream);

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

    /// <summary>
    /// Scores, selects and compacts the cache of a whole model in place. A layer within its budget is left
    /// alone. Afterwards the next token goes to slot <see cref="StoredLength"/> of a layer and KV head with position
    /// <see cref="LogicalLength"/>.
    /// </summary>
    /// <param name="views">One per layer. Those of layers without a full cache are not read and may be null.</param>
    /// <param name="workspace">Scratch for <see cref="KvOperation.Evict"/>.</param>
    /// <param name="options">What it is told beside the policy.</param>
    /// <param name="stream">CUstream on which the work is queued.</param>
    /// <returns>What it did, see <see cref="Report"/>.</returns>
    /// <exception cref="ArgumentException">
    /// Rows lie outside their memory, a view is null or invalid, too few queries were observed, or the budget is
    /// smaller than what must stay; nothing was moved.
    /// </exception>
    /// <exception cref="InvalidOperationException">Host memory, and the context works on CUDA.</exception>
    public KvEvictReport Evict(ReadOnlySpan<KvView> views, KvRegion workspace, KvEvictOptions options = default,
                               nint stream = 0)
    {
        SequenceHandle handle = Handle;
        int count = Math.Max(views.Length, options.Inputs.Length); // the library refuses it if they differ
        int inputCount = options.Inputs.Length;
        Span<kvevict_view> native = count <= MaxStackLayers ? stackalloc kvevict_view[count]
                                                            : First(ref _manyViews, count);
        Span<kvevict_signal_inputs> inputs = count <= MaxStackLayers ? stackalloc kvevict_signal_inputs[inputCount]
                                                                     : First(ref _manyInputs, inputCount);
        Span<NativeInputs> planes = count <= MaxStackLayers ? stackalloc NativeInputs[inputCount]
                                                            : First(ref _manyPlanes, inputCount);
        int rangeCount = options.Ranges.Length;
        Span<kvevict_token_range> ranges = rangeCount <= KvTokenRange.Most ? stackalloc kvevict_token_range[rangeCount]
                                                                           : new kvevict_token_range[rangeCount];
        KvTokenRange.Write(options.Ranges, ranges);
        fixed (kvevict_view* nativeViews = native)
        fixed (kvevict_signal_inputs* nativeInputs = inputs)
        fixed (NativeInputs* nativePlanes = planes)
        fixed (kvevict_token_range* nativeRanges = ranges)
        fixed (kvevict_view* destinations = First(ref _destinations, options.Destinations.Length))
        fixed (int* mustStay = options.ProtectedPositions)
        {
            Write(views, options.Inputs, nativeViews, nativeInputs, nativePlanes);
            kvevict_evict_options nativeOptions = kvevict_evict_options.Init;
            nativeOptions.by_table = options.ByTable ? 1u : 0u;
            nativeOptions.protected_positions = mustStay;
            nativeOptions.protected_positions_len = (nuint)options.ProtectedPositions.Length;
            nativeOptions.inputs = nativeInputs;
            nativeOptions.inputs_len = (nuint)inputCount;
            nativeOptions.ranges = nativeRanges;
            nativeOptions.ranges_len = (nuint)rangeCount;
            nativeOptions.undo = (void*)options.Undo.Resolve(_plan.Context, nameof(options.Undo));
            nativeOptions.undo_bytes = (nuint)options.Undo.Bytes;
            if (!options.Destinations.IsEmpty)
            {
                WriteDestinations(options.Destinations, nativeViews, views.Length, destinations);
                nativeOptions.destinations = destinations;
                nativeOptions.destinations_len = (nuint)options.Destinations.Length;
            }
            Native.kvevict_sequence_evict(handle, nativeViews, (nuint)views.Length, &nativeOptions,
                                          (void*)workspace.Resolve(_plan.Context, nameof(workspace)),
                                          (nuint)workspace.Bytes, stream);
        }
        foreach (KvView view in views) GC.KeepAlive(view);
        foreach (KvView view in options.Destinations) GC.KeepAlive(view);
        foreach (ref readonly KvSignalInputs one in options.Inputs) one.KeepAlive();
        GC.KeepAlive(workspace.Owner);
        GC.KeepAlive(options.Undo.Owner);
        return Report;
    }

    /// <summary>
    /// Reads a prompt in chunks. Each runs the model, <see cref="Append"/> and, if it is due, <see cref="Evict"/>; at
    /// the end comes <see cref="EndPrompt"/>. If the model throws, the chunks before stay appended, and the call may be
    /// made again for the rest.
    /// </summary>
    /// <param name="prompt">The prompt and how to read it.</param>
    /// <param name="views">
    /// The views of <see cref="Evict"/>, read again after each chunk, so that the model may change them.
    /// </param>
    /// <param name="workspace">Scratch for <see cref="KvOperation.Evict"/>.</param>
    /// <param name="stream">CUstream on which the work is queued.</param>
    /// <returns>What it took.</returns>
    /// <exception cref="ArgumentException">
    /// Rows lie outside their memory, a view is null, a call above was refused, or the prompt has ended.
    /// </exception>
    /// <exception cref="InvalidOperationException">Host memory, and the context works on CUDA.</exception>
    public KvPrefillReport Prefill(
        KvPrefill prompt, ReadOnlySpan<KvView> views, KvRegion workspace, nint stream = 0)
    {
        ArgumentNullException.ThrowIfNull(prompt);
        return PrefillCall.Run(this, prompt, views, null, workspace, stream);
    }

    /// <summary>
    /// How many slots an eviction now would leave in each layer's longest list: a destination needs room for these.
    /// If scores decide how many, it is what the layer holds; 0 without a full cache.
    /// </summary>
    /// <param name="views">The views of <see cref="Evict"/>.</param>
    /// <returns>Slots of each layer.</returns>
    /// <exception cref="ArgumentException">A view is invalid, or the budget is smaller than what must stay.</exception>
    public int[] KeptSlots(ReadOnlySpan<KvView> views)
    {
        Span<kvevict_view> native = First(ref _manyViews, views.Length);
        fixed (kvevict_view* nativeViews = native)
        {
            Write(views, nativeViews, 0);
            int[] kept = FindKept(nativeViews, views.Length);
            foreach (KvView view in views) GC.KeepAlive(view);
            return kept;
        }
    }

    private int[] FindKept(kvevict_view* views, int count)
    {
        int[] kept = new int[count];
        fixed (int* slots = kept)
            Native.kvevict_sequence_kept_slots(Handle, views, (nuint)count, (uint*)slots, (nuint)count);
        return kept;
    }

    // Writes the destinations of views written before, and checks that they have room.
    internal void WriteDestinations(ReadOnlySpan<KvView> destinations, kvevict_view* views, int viewCount,
                                    kvevict_view* native)
    {
        int[] kept = FindKept(views, viewCount);
        for (int layer = 0; layer < destinations.Length; ++layer)
        {
            native[layer] = kvevict_view.Init;
            if (layer >= viewCount || !_plan.Geometry.Of(layer).HasFullCache) continue;
            KvView view = destinations[layer] ?? throw new ArgumentNullException($"Destinations[{layer}]");
            view.Write(native + layer, kept[layer], _plan.Context);
        }
    }

    /// <summary>The undo memory that an eviction would need now.</summary>
    /// <param name="views">The views of <see cref="Evict"/>.</param>
    /// <returns>Bytes; 0 if it would leave every layer alone.</returns>
    /// <exception cref="ArgumentException">A view is invalid, or the policy merges or rotates.</exception>
    public long UndoBytes(ReadOnlySpan<KvView> views)
    {
        SequenceHandle handle = Handle;
        Span<kvevict_view> native = First(ref _manyViews, views.Length);
        nuint bytes;
        fixed (kvevict_view* nativeViews = native)
        {
            Write(views, nativeViews, 0);
            Native.kvevict_sequence_undo_bytes(handle, nativeViews, (nuint)views.Length, &bytes);
        }
        foreach (KvView view in views) GC.KeepAlive(view);
        return checked((long)bytes);
    }

    /// <summary>
    /// Takes back the last eviction, whose rows <see cref="KvEvictOptions.Undo"/> received. They are again where they
    /// were, and positions and lengths are as before it. Tokens appended since stay after them; trim first what is
    /// not wanted. It works once, until the next eviction that evicts, a reset, a load, or a trim to before.
    /// </summary>
    /// <param name="views">
    /// The eviction's views, each with rows for as many slots as a layer may hold, or for <see cref="LogicalLength"/>
    /// if that is less.
    /// </param>
    /// <param name="undo">What the eviction left, or a copy.</param>
    /// <param name="stream">CUstream on which the work is queued.</param>
    /// <exception cref="ArgumentException">
    /// Rows lie outside their memory, or a view is null. There is nothing to undo, or a view has changed since.
    /// </exception>
    /// <exception cref="InvalidOperationException">Host memory, and the context works on CUDA.</exception>
    public void Undo(ReadOnlySpan<KvView> views, KvRegion undo, nint stream = 0)
    {
        SequenceHandle handle = Handle;
        Span<kvevict_view> native = First(ref _manyViews, views.Length);
        fixed (kvevict_view* nativeViews = native)
        {
            Write(views, nativeViews, Math.Min(_plan.Geometry.MaxTokens, LogicalLength));
            Native.kvevict_sequence_undo(handle, nativeViews, (nuint)views.Length,
                                         (void*)undo.Resolve(_plan.Context, nameof(undo)), (nuint)undo.Bytes, stream);
        }
        foreach (KvView view in views) GC.KeepAlive(view);
        GC.KeepAlive(undo.Owner);
    }

    // Writes what layers show, equally many rows of each.
    internal void Write(ReadOnlySpan<KvObservation> observations, int rowCount, int? firstPosition,
                        kvevict_observation* nativeObservations, kvevict_signal_inputs* nativeInputs,
                        NativeInputs* nativePlanes)
    {
        for (int i = 0; i < observations.Length; ++i)
        {
            ref readonly KvObservation observation = ref observations[i];
            int slotCount = observation.Inputs.AttentionSums.Region.Address == 0
                                ? 0
                                : HeldWith(observation.Layer, firstPosition, rowCount);
            NativeInputs.Write(nativePlanes + i, nativeInputs + i, observation.Inputs with { QueryRows = 0 },
                               _plan.Geometry.Of(observation.Layer), rowCount, slotCount, _plan.Context,
                               observations.Length == 1 ? -1 : i);
            kvevict_observation* at = nativeObservations + i;
            *at = kvevict_observation.Init;
            at->layer = Check.Count(observation.Layer, nameof(observation.Layer));
            at->inputs = nativeInputs + i;
        }
    }

    // Writes an eviction's arguments once so many more rows are stored: as many native views as the longer of both
    // has.
    internal void Write(ReadOnlySpan<KvView> views, ReadOnlySpan<KvSignalInputs> inputs, kvevict_view* nativeViews,
                        kvevict_signal_inputs* nativeInputs, NativeInputs* nativePlanes, int ahead = 0)
    {
        fixed (uint* heldByHead = _heldByHead)
        {
            for (int layer = 0; layer < Math.Max(views.Length, inputs.Length); ++layer)
            {
                KvLayerGeometry geometry = _plan.Geometry.Of(layer);
                // The library refuses what is beyond the last layer.
                int held = layer < _plan.Geometry.LayerCount ? Held(layer, geometry, ahead) : 0;
                nativeViews[layer] = kvevict_view.Init;
                if (layer < views.Length && geometry.HasFullCache)
                {
                    KvView view = views[layer] ?? throw new ArgumentNullException($"views[{layer}]");
                    uint* heads = view.KvHeads == geometry.KvHeads ? heldByHead : null;
                    view.Write(nativeViews + layer, held, _plan.Context, heads);
                }
                if (layer < inputs.Length)
                {
                    NativeInputs.Write(nativePlanes + layer, nativeInputs + layer, inputs[layer], geometry,
                                       _plan.QueryRows, held, _plan.Context, layer);
                }
            }
        }
    }

    /// <summary>Writes what the last eviction did to each keep list, without allocating.</summary>
    /// <param name="lists">
    /// At least <see cref="KvPlan.ListCount"/> elements: the lists of all layers end to end, see
    /// <see cref="KvPlan.Layer"/>.
    /// </param>
    /// <returns>Elements written.</returns>
    /// <exception cref="ArgumentException"><paramref name="lists"/> is too short.</exception>
    public int ListReports(Span<KvListReport> lists)
    {
        int count = _plan.ListCount;
        if (lists.Length < count)
            throw new ArgumentException($"lists has {lists.Length} elements, {count} are needed", nameof(lists));
        Span<kvevict_list_report> native = First(ref _lists, count);
        native.Fill(new kvevict_list_report { struct_size = (uint)sizeof(kvevict_list_report) });
        fixed (kvevict_list_report* first = native)
            Native.kvevict_sequence_report(Handle, null, first, (nuint)count);
        for (int i = 0; i < count; ++i)
        {
            ref readonly kvevict_list_report list = ref native[i];
            lists[i] = new KvListReport((int)list.layer, (int)list.tokens_before, (int)list.tokens_after)
            {
                MassKept = list.mass_kept,
                LargestMassEvicted = list.largest_mass_evicted,
            };
        }
        return count;
    }

    /// <summary>What the last eviction did to each keep list.</summary>
    /// <returns>The lists of all layers end to end.</returns>
    public KvListReport[] ListReports()
    {
        var lists = new KvListReport[_plan.ListCount];
        ListReports(lists);
        return lists;
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

    /// <summary>Releases it; on CUDA its work must have run. A second call does nothing.</summary>
    public void Dispose() => _handle.Dispose();

    // Slots in use by a layer, the most of any head, and of each head if they differ.
    // Views of at least so many slots. The library refuses too many or too few views.
    private void Write(ReadOnlySpan<KvView> views, kvevict_view* native, int slots)
    {
        for (int layer = 0; layer < views.Length; ++layer)
        {
            native[layer] = kvevict_view.Init;
            if (layer >= _plan.Geometry.LayerCount || !_plan.Geometry.Of(layer).HasFullCache) continue;
            KvView view = views[layer] ?? throw new ArgumentNullException($"views[{layer}]");
            view.Write(native + layer, slots, _plan.Context, null);
        }
    }

    private int Held(int layer, KvLayerGeometry geometry, int ahead = 0)
    {
        if (!geometry.HasFullCache) return 0;
        if (!_plan.HeadsDiffer) return StoredLength(layer) + ahead;
        Span<uint> heads = _heldByHead.AsSpan(0, geometry.KvHeads);
        uint most = 0;
        for (int head = 0; head < heads.Length; ++head)
            most = Math.Max(most, heads[head] = (uint)(StoredLength(layer, head) + ahead));
        return (int)most;
    }

    private void Observe<T>(int layer, ReadOnlySpan<T> queries, KvDType dtype, int? firstPosition) where T : unmanaged
    {
        _plan.Context.RefuseHostMemory(nameof(queries));
        if (queries.IsEmpty) return;
        fixed (T* rows = queries)
        {
            KvPlane plane = _plan.Geometry.Of(layer).QueryRows(rows, queries.Length, dtype, out int rowCount);
            Observe(layer, plane, rowCount, firstPosition);
        }
    }

    // Slots of a layer once rows from a position on are stored, or 0 if the library refuses them.
    private int HeldWith(int layer, int? firstPosition, int rowCount)
    {
        if ((uint)layer >= (uint)_plan.Geometry.LayerCount) return 0;
        long ahead = firstPosition is { } position ? (long)position - LogicalLength : 0;
        return (int)Math.Clamp(Held(layer, _plan.Geometry.Of(layer)) + ahead + rowCount, 0, int.MaxValue);
    }

    private static int MostOf(int[][]? lists) => lists is null or [] ? 0 : lists.Max(list => list.Length);

    private static Span<T> First<T>(ref T[] array, int count)
    {
        if (array.Length < count) array = new T[count];
        return array.AsSpan(0, count);
    }
}
