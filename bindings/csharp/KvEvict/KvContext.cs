using System.Runtime.InteropServices;

namespace KvEvict;

/// <summary>
/// Device, allocator, thread pool and log sink; one per process. Safe to share between threads. Plans and
/// sequences made from it stay usable after it is disposed.
/// </summary>
/// <example>
/// Score, select and compact the cache of a model whose last 32 queries were observed:
/// <code>
/// using var context = new KvContext();
/// var layer = new KvLayerGeometry { QueryHeads = 8, KvHeads = 2, KeyHeadDim = 64, ValueHeadDim = 64 };
/// var model = new KvGeometry(layerCount: 1, layer, maxTokens: 4096);
/// using var plan = new KvPlan(context, model, KvPolicy.Parse("snapkv:budget=512,window=32"));
/// using var sequence = new KvSequence(plan);
/// using var workspace = plan.CreateWorkspace(KvOperation.Evict);
///
/// using var k = new KvPinnedMemory&lt;float&gt;(4096 * 2 * 64);          // the engine's own cache
/// using var v = new KvPinnedMemory&lt;float&gt;(4096 * 2 * 64);
/// var q = new float[4096 * 8 * 64];
/// var view = new KvView(2, KvPlane.TokenMajor(k, 2, 64), KvPlane.TokenMajor(v, 2, 64));
///
/// sequence.BeginObserving();
/// sequence.Observe(layer: 0, q, firstPosition: 0);
/// sequence.Append(4096);
/// sequence.Evict([view], workspace);
/// sequence.EndObserving();
/// Console.WriteLine($"next: slot {sequence.StoredLength(0)}, position {sequence.LogicalLength}");
/// </code>
/// </example>
public sealed unsafe partial class KvContext : IDisposable
{
    private readonly ContextHandle _handle;

    /// <summary>Creates a context.</summary>
    /// <param name="options">null for the CPU and the calling thread.</param>
    /// <exception cref="ArgumentException">The options do not go together.</exception>
    /// <exception cref="KvEvictException">The device is not there.</exception>
    public KvContext(KvContextOptions? options = null)
    {
        options ??= new KvContextOptions();
        kvevict_context_options native;
        options.Fill(&native);
        native.cuda_context = (void*)options.CudaContext;
        _handle = new ContextHandle(options.Device, ContextHooks.Install(options, &native));
        try
        {
            // The library copies the texts.
            native.simd_target = (byte*)Marshal.StringToCoTaskMemUTF8(options.SimdTarget);
            native.libcuda_path = (byte*)Marshal.StringToCoTaskMemUTF8(options.LibcudaPath);
            native.libnvrtc_path = (byte*)Marshal.StringToCoTaskMemUTF8(options.LibnvrtcPath);
            native.kernel_cache_dir = (byte*)Marshal.StringToCoTaskMemUTF8(options.KernelCacheDirectory);
            Native.kvevict_context_create(&native, _handle);
        }
        catch
        {
            _handle.Dispose();
            throw;
        }
        finally
        {
            Marshal.FreeCoTaskMem((nint)native.simd_target);
            Marshal.FreeCoTaskMem((nint)native.libcuda_path);
            Marshal.FreeCoTaskMem((nint)native.libnvrtc_path);
            Marshal.FreeCoTaskMem((nint)native.kernel_cache_dir);
        }
        Device = options.Device;
    }

    /// <summary>Where the caches lie.</summary>
    public KvDevice Device { get; }

    internal ContextHandle Handle => Check.Open(_handle, this);

    /// <summary>
    /// Compiles and loads the kernels that a plan's calls may launch, now instead of at first use; may take
    /// seconds. On the CPU there is nothing to do.
    /// </summary>
    /// <param name="plan">Made from this context; null: only the kernels that serve every plan.</param>
    /// <exception cref="KvEvictException">A kernel does not compile: the message has the log.</exception>
    public void Prepare(KvPlan? plan = null) => Native.kvevict_context_prepare(Handle, plan?.Handle);

    /// <summary>
    /// Chooses slots: what must stay, and then the highest scores, descending, NaN last. The lists say how
    /// many; a list whose count is all that it holds keeps every slot.
    /// </summary>
    /// <param name="options">What to choose from, and what must stay.</param>
    /// <param name="keep">Lists whose slots are written, ascending.</param>
    /// <param name="workspace">Scratch of <see cref="SelectWorkspaceSize"/>.</param>
    /// <param name="stream">CUstream on which the work is queued.</param>
    /// <exception cref="ArgumentException">
    /// A region is too short. A list would keep more than it holds or less than what must stay, or something is too
    /// short.
    /// </exception>
    /// <exception cref="InvalidOperationException">Host memory, and the context works on CUDA.</exception>
    public void Select(in KvSelectOptions options, KvKeepLists keep, KvRegion workspace, nint stream = 0)
    {
        kvevict_keep_lists lists;
        keep.Write(&lists, Handle);
        Select(options, (float*)options.Scores.Resolve(_handle, nameof(options.Scores)),
               options.Scores.Elements<float>(), &lists, workspace, stream);
        GC.KeepAlive(options.Scores.Owner);
        keep.KeepAlive();
    }

    /// <summary>Does the same with scores and slots in any host memory. For the CPU.</summary>
    /// <param name="options">Everything but the scores.</param>
    /// <param name="scores">[rows, tokens]; empty: nothing is ranked.</param>
    /// <param name="keep">Receives [<paramref name="listCount"/>, n] slots, ascending per list.</param>
    /// <param name="workspace">Scratch, from <see cref="CreateSelectWorkspace"/>.</param>
    /// <param name="listCount">Lists.</param>
    /// <exception cref="ArgumentException">
    /// <paramref name="keep"/> has no whole lists. A list would keep more than it holds or less than what must stay, or
    /// something is too short.
    /// </exception>
    /// <exception cref="InvalidOperationException">The context works on CUDA.</exception>
    public void Select(in KvSelectOptions options, ReadOnlySpan<float> scores, Span<int> keep, KvRegion workspace,
                       int listCount = 1)
    {
        Handle.RefuseHostMemory(nameof(keep));
        fixed (float* values = scores)
        fixed (int* slots = keep)
        {
            kvevict_keep_lists lists;
            Lists(slots, keep.Length, listCount, nameof(keep)).Write(&lists, _handle);
            Select(options, values, (nuint)scores.Length, &lists, workspace, 0);
        }
    }

    /// <summary>The workspace of selecting.</summary>
    /// <param name="tokenCount">The most slots held.</param>
    /// <param name="listCount">Lists.</param>
    /// <returns>Its size.</returns>
    public KvWorkspaceSize SelectWorkspaceSize(int tokenCount, int listCount = 1)
    {
        kvevict_workspace size = new() { struct_size = (uint)sizeof(kvevict_workspace) };
        Native.kvevict_select_workspace(Handle, Check.Count(tokenCount, nameof(tokenCount)),
                                        Check.Count(listCount, nameof(listCount)), &size);
        return new KvWorkspaceSize(size);
    }

    /// <summary>Allocates the scratch that selecting needs on the CPU.</summary>
    /// <param name="tokenCount">The most slots held; scratch for more serves fewer.</param>
    /// <param name="listCount">Lists.</param>
    /// <returns>A workspace to dispose.</returns>
    /// <exception cref="InvalidOperationException">The context works on CUDA.</exception>
    public KvWorkspace CreateSelectWorkspace(int tokenCount, int listCount = 1)
    {
        Handle.RefuseHostMemory("workspace");
        return new KvWorkspace(SelectWorkspaceSize(tokenCount, listCount));
    }

    /// <summary>
    /// Moves the surviving rows of layers to their first slots, in place; K, V and companions alike. On CUDA one
    /// launch for all planes that lie alike.
    /// </summary>
    /// <param name="moves">
    /// At most 128, one per layer, with strictly ascending lists. For lists in another order there is
    /// <see cref="Reorder(ReadOnlySpan{KvMove}, KvRegion, nint)"/>.
    /// </param>
    /// <param name="workspace">
    /// Absent, or scratch of <see cref="CompactWorkspaceSize"/>, which may make CUDA faster.
    /// </param>
    /// <param name="stream">CUstream on which the work is queued.</param>
    /// <exception cref="ArgumentException">
    /// Rows lie outside a view's memory, or a region is too short. A slot is out of range or order, a view is invalid,
    /// or two overlap; nothing was moved.
    /// </exception>
    /// <exception cref="InvalidOperationException">Host memory, and the context works on CUDA.</exception>
    public void Compact(ReadOnlySpan<KvMove> moves, KvRegion workspace = default, nint stream = 0) =>
        Move(ascending: true, moves, workspace, stream);

    /// <summary>Does the same for one layer, with the slots in any host memory. For the CPU.</summary>
    /// <param name="view">The layer's cache.</param>
    /// <param name="tokenCount">Slots held before.</param>
    /// <param name="keep">
    /// [<paramref name="listCount"/>, n] slots, strictly ascending per list, each below
    /// <paramref name="tokenCount"/>.
    /// </param>
    /// <param name="listCount">1 (all heads alike) or the view's KV heads.</param>
    /// <exception cref="ArgumentException">
    /// Rows lie outside the view's memory, or the lists are not whole. A slot is out of range or order, or the view
    /// is invalid.
    /// </exception>
    /// <exception cref="InvalidOperationException">The context works on CUDA.</exception>
    public void Compact(KvView view, int tokenCount, ReadOnlySpan<int> keep, int listCount = 1)
    {
        Handle.RefuseHostMemory(nameof(keep));
        fixed (int* slots = keep)
            Compact([new KvMove(view, tokenCount, Lists(slots, keep.Length, listCount, nameof(keep)))]);
    }

    /// <summary>
    /// The workspace of compacting: the least is 0. So is the best on the CPU, and on CUDA if rows are wide enough
    /// to move without.
    /// </summary>
    /// <param name="moves">The call's moves; only views and the lists' counts are read.</param>
    /// <returns>Its size.</returns>
    /// <exception cref="ArgumentException">Rows lie outside a view's memory, or a view is invalid.</exception>
    public KvWorkspaceSize CompactWorkspaceSize(ReadOnlySpan<KvMove> moves) =>
        MoveWorkspaceSize(ascending: true, moves);

    /// <summary>
    /// Moves row slots[i] of every head of layers to slot i, in place, as if all rows were read before the first is
    /// written; K, V and companions alike. Straightens a ring that has wrapped, and serves keep lists that do not
    /// ascend. Other rows are not touched.
    /// </summary>
    /// <param name="moves">At most 128, one per layer, with slots in any order, also repeated.</param>
    /// <param name="workspace">Scratch of <see cref="ReorderWorkspaceSize"/>.</param>
    /// <param name="stream">CUstream on which the work is queued.</param>
    /// <exception cref="ArgumentException">
    /// Rows lie outside a view's memory, or a region is too short. A slot is out of range, the workspace is too small,
    /// a view is invalid, or two overlap; nothing was moved.
    /// </exception>
    /// <exception cref="InvalidOperationException">Host memory, and the context works on CUDA.</exception>
    public void Reorder(ReadOnlySpan<KvMove> moves, KvRegion workspace, nint stream = 0) =>
        Move(ascending: false, moves, workspace, stream);

    /// <summary>Does the same for one layer, with the slots in any host memory. For the CPU.</summary>
    /// <param name="view">The layer's cache.</param>
    /// <param name="tokenCount">Slots held before.</param>
    /// <param name="slots">
    /// [<paramref name="listCount"/>, n] slots in any order, also repeated, each below
    /// <paramref name="tokenCount"/>; n is at most that.
    /// </param>
    /// <param name="workspace">Scratch, from <see cref="CreateReorderWorkspace"/>.</param>
    /// <param name="listCount">1 (all heads alike) or the view's KV heads.</param>
    /// <exception cref="ArgumentException">
    /// Rows lie outside the view's memory, or the lists are not whole. A slot is out of range, the workspace is too
    /// small, or the view is invalid.
    /// </exception>
    /// <exception cref="InvalidOperationException">The context works on CUDA.</exception>
    public void Reorder(KvView view, int tokenCount, ReadOnlySpan<int> slots, KvRegion workspace, int listCount = 1)
    {
        Handle.RefuseHostMemory(nameof(slots));
        fixed (int* first = slots)
            Reorder([new KvMove(view, tokenCount, Lists(first, slots.Length, listCount, nameof(slots)))], workspace);
    }

    /// <summary>The workspace of reordering.</summary>
    /// <param name="moves">The call's moves; only views and the lists' counts are read.</param>
    /// <returns>Its size; 0 if nothing is listed.</returns>
    /// <exception cref="ArgumentException">
    /// Rows lie outside a view's memory, or a view or the number of lists is invalid.
    /// </exception>
    public KvWorkspaceSize ReorderWorkspaceSize(ReadOnlySpan<KvMove> moves) =>
        MoveWorkspaceSize(ascending: false, moves);

    /// <summary>Allocates the scratch that reordering needs on the CPU.</summary>
    /// <param name="moves">The call's moves; only views and the lists' counts are read.</param>
    /// <returns>A workspace to dispose.</returns>
    /// <exception cref="ArgumentException">
    /// Rows lie outside a view's memory, or a view or the number of lists is invalid.
    /// </exception>
    /// <exception cref="InvalidOperationException">The context works on CUDA.</exception>
    public KvWorkspace CreateReorderWorkspace(ReadOnlySpan<KvMove> moves)
    {
        Handle.RefuseHostMemory("workspace");
        return new KvWorkspace(ReorderWorkspaceSize(moves));
    }

    /// <summary>
    /// Finds the smallest budgets that keep a share of the mass: how many tokens a policy has to keep of prompts like
    /// this one. For calibration, not for every step: it sorts all rows.
    /// </summary>
    /// <param name="layers">Their scores.</param>
    /// <param name="options">How much to keep, and of what.</param>
    /// <returns>Tokens of each row, of each layer, or of all, as the scope says.</returns>
    /// <exception cref="ArgumentException">
    /// Scores are not whole rows, a score is below 0, or a number is out of range.
    /// </exception>
    public int[] BudgetForMass(ReadOnlySpan<KvLayerScores> layers, KvMassOptions options)
    {
        var native = new kvevict_layer_scores[layers.Length];
        var pins = new System.Buffers.MemoryHandle[layers.Length];
        int rowCount = 0;
        try
        {
            for (int i = 0; i < layers.Length; ++i)
            {
                KvLayerScores layer = layers[i];
                kvevict_layer_scores scores;
                layer.Fill(&scores);
                uint rows = scores.n_rows;
                if (rows == 0 ? layer.Scores.Length > 0 : layer.Scores.Length % rows != 0)
                {
                    throw new ArgumentException($"layers[{i}] has {layer.Scores.Length} scores, not {rows} rows of the "
                                                + "same length", nameof(layers));
                }
                rowCount += layer.RowCount;
                pins[i] = layer.Scores.Pin();
                scores.scores = (float*)pins[i].Pointer;
                scores.scores_len = (nuint)layer.Scores.Length;
                scores.n_tokens = rows == 0 ? 0 : (uint)(layer.Scores.Length / rows);
                native[i] = scores;
            }
            kvevict_mass_options nativeOptions;
            options.Fill(&nativeOptions);
            var budgets = new int[options.Scope switch
            {
                KvScope.KvHead => rowCount,
                KvScope.Layer => layers.Length,
                _ => Math.Min(1, layers.Length),
            }];
            fixed (kvevict_layer_scores* first = native)
            fixed (int* found = budgets)
            {
                Native.kvevict_budget_for_mass(Handle, first, (nuint)native.Length, &nativeOptions, (uint*)found,
                                               (nuint)budgets.Length);
            }
            return budgets;
        }
        finally
        {
            foreach (ref System.Buffers.MemoryHandle pin in pins.AsSpan()) pin.Dispose();
        }
    }

    /// <summary>Releases it with the last object made from it. A second call does nothing.</summary>
    public void Dispose() => _handle.Dispose();

    private void Select(in KvSelectOptions options, float* scores, nuint scoresLength, kvevict_keep_lists* keep,
                        KvRegion workspace, nint stream)
    {
        kvevict_select_options native;
        options.Write(&native, (int)keep->n_lists, _handle);
        native.scores = scores;
        native.scores_len = scoresLength;
        int rangeCount = options.Ranges.Length;
        Span<kvevict_token_range> ranges = rangeCount <= KvTokenRange.Most ? stackalloc kvevict_token_range[rangeCount]
                                                                           : new kvevict_token_range[rangeCount];
        fixed (int* mustStay = options.ProtectedSlots)
        fixed (kvevict_token_range* nativeRanges = ranges)
        {
            KvTokenRange.Write(options.Ranges, nativeRanges);
            native.protected_slots = mustStay;
            native.protected_slots_len = (nuint)options.ProtectedSlots.Length;
            native.ranges = nativeRanges;
            native.ranges_len = (nuint)rangeCount;
            Native.kvevict_select(_handle, &native, keep, (void*)workspace.Resolve(_handle, nameof(workspace)),
                                  (nuint)workspace.Bytes, stream);
        }
        GC.KeepAlive(options.TokenCounts.Owner);
        GC.KeepAlive(workspace.Owner);
    }

    // Packed lists at an address that stays valid while a call runs.
    private static KvKeepLists Lists(int* slots, int length, int listCount, string name)
    {
        if (Check.Count(listCount, nameof(listCount)) == 0 || length % listCount != 0)
            throw new ArgumentException($"{name} has {length} elements, not {listCount} lists of the same length", name);
        return new KvKeepLists(new KvRegion((nint)slots, (long)length * sizeof(int)), length / listCount, listCount);
    }

    private void Move(bool ascending, ReadOnlySpan<KvMove> moves, KvRegion workspace, nint stream)
    {
        ContextHandle handle = Handle;
        void* scratch = (void*)workspace.Resolve(handle, nameof(workspace));
        Span<NativeMove> parts = Few(moves) ? stackalloc NativeMove[moves.Length] : new NativeMove[moves.Length];
        Span<kvevict_move> native = Few(moves) ? stackalloc kvevict_move[moves.Length] : new kvevict_move[moves.Length];
        fixed (NativeMove* part = parts)
        fixed (kvevict_move* first = native)
        {
            for (int i = 0; i < moves.Length; ++i)
                NativeMove.Write(part + i, first + i, moves[i], moves[i].TokenCount, handle);
            nuint bytes = (nuint)workspace.Bytes;
            if (ascending) Native.kvevict_compact(handle, first, (nuint)moves.Length, scratch, bytes, stream);
            else Native.kvevict_reorder(handle, first, (nuint)moves.Length, scratch, bytes, stream);
        }
        foreach (ref readonly KvMove move in moves) move.KeepAlive();
        GC.KeepAlive(workspace.Owner);
    }

    private KvWorkspaceSize MoveWorkspaceSize(bool ascending, ReadOnlySpan<KvMove> moves)
    {
        ContextHandle handle = Handle;
        Span<NativeMove> parts = Few(moves) ? stackalloc NativeMove[moves.Length] : new NativeMove[moves.Length];
        Span<kvevict_move> native = Few(moves) ? stackalloc kvevict_move[moves.Length] : new kvevict_move[moves.Length];
        kvevict_workspace size = new() { struct_size = (uint)sizeof(kvevict_workspace) };
        fixed (NativeMove* part = parts)
        fixed (kvevict_move* first = native)
        {
            for (int i = 0; i < moves.Length; ++i)
                NativeMove.Write(part + i, first + i, moves[i], LeastTokens(moves[i]), handle);
            if (ascending) Native.kvevict_compact_workspace(handle, first, (nuint)moves.Length, &size);
            else Native.kvevict_reorder_workspace(handle, first, (nuint)moves.Length, &size);
        }
        foreach (ref readonly KvMove move in moves) move.KeepAlive();
        return new KvWorkspaceSize(size);
    }

    // The cache of a move must have so many slots.
    private static int LeastTokens(in KvMove move) =>
        move.Destination is null ? checked(move.FirstSlot + move.Keep.Count) : move.Keep.Count;

    // The library refuses more.
    private static bool Few(ReadOnlySpan<KvMove> moves) => moves.Length <= NativeConstants.KVEVICT_MAX_JOBS;
}
