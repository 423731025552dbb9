namespace KvEvict;

// Evictions: what they are told, and what they did.
public sealed unsafe partial class KvSequence
{
    /// <summary>What the last eviction did; all 0 before it and after a reset.</summary>
    public KvEvictReport Report
    {
        get
        {
            kvevict_evict_report r = new() { struct_size = (uint)sizeof(kvevict_evict_report) };
            Native.kvevict_sequence_report(Handle, &r, null, 0);
            return new KvEvictReport(r.evicted != 0, (long)r.bytes_before, (long)r.bytes_after, (long)r.tokens_before,
                                     (long)r.tokens_after, (long)r.blocks_freed, r.reason,
                                     (int)r.n_weak_fits);
        }
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
        int inputCount = options.Inputs.Length, rangeCount = options.Ranges.Length;
        int count = Math.Max(views.Length, inputCount); // the library refuses it if they differ
        Span<kvevict_view> native = count <= MaxStackLayers ? stackalloc kvevict_view[count]
                                                            : First(ref _manyViews, count);
        Span<kvevict_signal_inputs> inputs = count <= MaxStackLayers ? stackalloc kvevict_signal_inputs[inputCount]
                                                                     : First(ref _manyInputs, inputCount);
        Span<NativeInputs> planes = count <= MaxStackLayers ? stackalloc NativeInputs[inputCount]
                                                            : First(ref _manyPlanes, inputCount);
        Span<kvevict_token_range> ranges = rangeCount <= KvTokenRange.Most ? stackalloc kvevict_token_range[rangeCount]
                                                                           : new kvevict_token_range[rangeCount];
        fixed (kvevict_view* nativeViews = native)
        fixed (kvevict_signal_inputs* nativeInputs = inputs)
        fixed (NativeInputs* nativePlanes = planes)
        fixed (kvevict_token_range* nativeRanges = ranges)
        fixed (kvevict_view* destinations = First(ref _destinations, options.Destinations.Length))
        fixed (int* mustStay = options.ProtectedPositions.Span)
        {
            kvevict_evict_options nativeOptions;
            Write(views, options, new NativeEviction
            {
                Options = &nativeOptions,
                Views = nativeViews,
                Inputs = nativeInputs,
                Planes = nativePlanes,
                Ranges = nativeRanges,
                ProtectedPositions = mustStay,
                Destinations = destinations,
            });
            Native.kvevict_sequence_evict(handle, nativeViews, (nuint)views.Length, &nativeOptions,
                                          (void*)workspace.Resolve(_plan.Context, nameof(workspace)),
                                          (nuint)workspace.Bytes, stream);
        }
        foreach (KvView view in views) GC.KeepAlive(view);
        options.KeepAlive();
        GC.KeepAlive(workspace.Owner);
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

    // Writes an eviction's arguments.
    internal void Write(ReadOnlySpan<KvView> views, in KvEvictOptions options, in NativeEviction to)
    {
        Write(views, options.Inputs.Span, to.Views, to.Inputs, to.Planes);
        options.Write(to, _plan.Context);
        ReadOnlySpan<KvView> destinations = options.Destinations.Span;
        if (destinations.IsEmpty) return;
        to.Options->destinations = to.Destinations;
        to.Options->destinations_len = (nuint)destinations.Length;
        int[] kept = FindKept(to.Views, views.Length);
        for (int layer = 0; layer < destinations.Length; ++layer)
        {
            to.Destinations[layer] = kvevict_view.Init;
            if (layer >= views.Length || !_plan.Geometry.Of(layer).HasFullCache) continue;
            KvView view = destinations[layer] ?? throw new ArgumentNullException($"Destinations[{layer}]");
            view.Write(to.Destinations + layer, kept[layer], _plan.Context);
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
}
