namespace KvEvict;

/// <summary>What a plan can do with a layer, and why not.</summary>
/// <param name="CanMove">Rows can be compacted.</param>
/// <param name="CanScore">Keys can be scored.</param>
/// <param name="CanRotate">RoPE can be applied to keys again.</param>
/// <param name="MoveReason">Why rows cannot be moved.</param>
/// <param name="ScoreReason">Why keys cannot be scored.</param>
/// <param name="RotateReason">Why keys cannot be rotated.</param>
/// <param name="NeedsScore">The policy has to score keys to evict.</param>
/// <param name="TableBlock">
/// An eviction <see cref="KvEvictOptions.ByTable"/> takes views whose block size divides this; 0 if MoveReason says
/// why not.
/// </param>
/// <param name="NeedsHeadTables">The views must have a block table for each KV head, since lists differ.</param>
/// <param name="NeedsLayerTables">The views must not use another layer's table, since that keeps other tokens.</param>
public readonly record struct KvCapabilities(
    bool CanMove, bool CanScore, bool CanRotate, KvReason MoveReason, KvReason ScoreReason, KvReason RotateReason,
    bool NeedsScore, int TableBlock, bool NeedsHeadTables, bool NeedsLayerTables);

/// <summary>What a layer is for a plan.</summary>
/// <param name="Cache">What it keeps; only full caches are evicted.</param>
/// <param name="QueryHeads">Query heads.</param>
/// <param name="KvHeads">KV heads; 0 without a full cache.</param>
/// <param name="ListCount">
/// Its keep lists: one per KV head if these may keep different tokens, otherwise one; 0 without a full cache.
/// </param>
/// <param name="FirstList">The index of its first list among all layers' lists.</param>
public readonly record struct KvLayerInfo(
    KvLayerCache Cache, int QueryHeads, int KvHeads, int ListCount, int FirstList);

/// <summary>What a plan may be told beside geometry and policy.</summary>
public sealed partial record KvPlanOptions
{
    /// <summary>
    /// Tokens that each KV head keeps, everything included: the heads of all layers with a full cache, layer by layer,
    /// in place of the policy's budget and layer split, for <see cref="KvScope.KvHead"/>. A budget above a head's
    /// length keeps everything. Empty: the policy's.
    /// </summary>
    public ReadOnlyMemory<int> HeadBudgets { get; init; }

    /// <summary>
    /// A <see cref="KvPolicy.Budget"/> for each layer with a full cache, in place of the policy's and its layer
    /// split. It excludes <see cref="HeadBudgets"/>. Empty: the policy's.
    /// </summary>
    public ReadOnlyMemory<double> LayerBudgets { get; init; }
}

/// <summary>
/// Geometry, policy and context, checked once; immutable and safe to share between threads. Keeps its context
/// alive.
/// </summary>
public sealed unsafe class KvPlan : IDisposable
{
    private readonly PlanHandle _handle;
    private readonly ContextHandle _context;

    /// <summary>Checks a geometry and a policy against each other.</summary>
    /// <param name="context">The context that does the work.</param>
    /// <param name="geometry">The model.</param>
    /// <param name="policy">What survives.</param>
    /// <param name="options">More that the plan is told; null: nothing.</param>
    /// <exception cref="ArgumentException">They do not go together.</exception>
    public KvPlan(KvContext context, KvGeometry geometry, KvPolicy policy, KvPlanOptions? options = null)
    {
        ArgumentNullException.ThrowIfNull(context);
        ArgumentNullException.ThrowIfNull(geometry);
        ArgumentNullException.ThrowIfNull(policy);
        options ??= new KvPlanOptions();
        kvevict_geometry nativeGeometry = geometry.ToNative();
        using PolicyHandle nativePolicy = policy.Open();
        kvevict_plan_options native;
        options.Fill(&native);
        ReadOnlySpan<int> headBudgets = options.HeadBudgets.Span;
        foreach (int budget in headBudgets) Check.Count(budget, nameof(options.HeadBudgets));
        _context = context.Handle;
        _handle = new PlanHandle(_context);
        try
        {
            fixed (kvevict_layer_geometry* layers = geometry.LayersToNative())
            fixed (float* frequencies = geometry.RopeInverseFrequencies.Span)
            fixed (float* sinks = geometry.SinkLogits.Span)
            fixed (int* budgets = headBudgets)
            fixed (double* ofLayers = options.LayerBudgets.Span)
            {
                nativeGeometry.rope_inv_freq = frequencies;
                nativeGeometry.sink_logits = sinks;
                nativeGeometry.layers = layers;
                nativeGeometry.layers_len = (nuint)geometry.Layers.Count;
                native.head_budgets = (uint*)budgets;
                native.head_budgets_len = (nuint)headBudgets.Length;
                native.layer_budgets = ofLayers;
                native.layer_budgets_len = (nuint)options.LayerBudgets.Length;
                Native.kvevict_plan_create(_context, &nativeGeometry, nativePolicy, &native, _handle);
            }
        }
        catch
        {
            _handle.Dispose();
            throw;
        }
        Geometry = geometry;
        Policy = policy;
        QueryRows = policy.Resolve(1).QueryRows;
        HeadsDiffer = !headBudgets.IsEmpty;
        KvLayerInfo last = Layer(geometry.LayerCount - 1);
        ListCount = last.FirstList + last.ListCount;
    }

    /// <summary>The model.</summary>
    public KvGeometry Geometry { get; }

    /// <summary>What survives.</summary>
    public KvPolicy Policy { get; }

    /// <summary>The keep lists of all layers.</summary>
    public int ListCount { get; }

    internal PlanHandle Handle => Check.Open(_handle, this);

    internal ContextHandle Context => _context;

    // The query rows that score a layer; below 0: as many as there are slots.
    internal int QueryRows { get; }

    // Whether the heads of a layer may hold different numbers of tokens.
    internal bool HeadsDiffer { get; }

    /// <summary>Tells what a layer is for the plan.</summary>
    /// <param name="layer">Below the number of layers.</param>
    /// <returns>What it keeps, and its heads and lists.</returns>
    /// <exception cref="ArgumentException">There is no such layer.</exception>
    public KvLayerInfo Layer(int layer)
    {
        kvevict_layer_info i = new() { struct_size = (uint)sizeof(kvevict_layer_info) };
        Native.kvevict_plan_layer(Handle, Check.Count(layer, nameof(layer)), &i);
        return new KvLayerInfo(i.cache, Check.ToInt(i.n_q_heads), Check.ToInt(i.n_kv_heads), Check.ToInt(i.n_lists),
                               Check.ToInt(i.first_list));
    }

    /// <summary>The workspace of an operation; in the least, scoring on the CPU is slower.</summary>
    /// <param name="operation">
    /// The operation; <see cref="KvOperation.Observe"/> is the memory in which a sequence keeps query rows.
    /// </param>
    /// <param name="tokenCount">The most slots that a layer will hold; 0: the geometry's tokens.</param>
    /// <returns>Its size.</returns>
    /// <exception cref="ArgumentException">There is no such operation, or no layer holds so many tokens.</exception>
    public KvWorkspaceSize WorkspaceSize(KvOperation operation, int tokenCount = 0)
    {
        kvevict_workspace size = new() { struct_size = (uint)sizeof(kvevict_workspace) };
        Native.kvevict_plan_workspace(Handle, operation, Check.Count(tokenCount, nameof(tokenCount)), &size);
        return new KvWorkspaceSize(size);
    }

    /// <summary>Allocates the workspace in which an operation is fastest on the CPU.</summary>
    /// <param name="operation">The operation.</param>
    /// <param name="tokenCount">The most slots that a layer will hold; 0: the geometry's tokens.</param>
    /// <returns>A workspace to dispose.</returns>
    /// <exception cref="InvalidOperationException">The context works on CUDA.</exception>
    /// <exception cref="ArgumentException">There is no such operation, or no layer holds so many tokens.</exception>
    public KvWorkspace CreateWorkspace(KvOperation operation, int tokenCount = 0)
    {
        _context.RefuseHostMemory("workspace");
        return new KvWorkspace(WorkspaceSize(operation, tokenCount));
    }

    /// <summary>Tokens each layer keeps.</summary>
    /// <param name="tokenCount">Tokens seen so far, at least 1.</param>
    /// <returns>Tokens per layer; 0 without a full cache.</returns>
    /// <exception cref="ArgumentException"><paramref name="tokenCount"/> is 0.</exception>
    public int[] LayerBudgets(int tokenCount)
    {
        int[] budgets = new int[Geometry.LayerCount];
        fixed (int* tokens = budgets)
        {
            Native.kvevict_plan_layer_budgets(Handle, Check.Count(tokenCount, nameof(tokenCount)), (uint*)tokens,
                                              (nuint)budgets.Length);
        }
        return budgets;
    }

    /// <summary>Says what the plan can do with a layer.</summary>
    /// <param name="layer">Below the number of layers.</param>
    /// <returns>What it can do, and why not.</returns>
    /// <exception cref="ArgumentException">There is no such layer.</exception>
    public KvCapabilities Capabilities(int layer)
    {
        kvevict_capabilities c = new() { struct_size = (uint)sizeof(kvevict_capabilities) };
        Native.kvevict_plan_capabilities(Handle, Check.Count(layer, nameof(layer)), &c);
        return new KvCapabilities(c.can_move != 0, c.can_score != 0, c.can_rotate != 0, c.move_reason, c.score_reason,
                                  c.rotate_reason, c.needs_score != 0, (int)c.table_block, c.needs_head_tables != 0,
                                  c.needs_layer_tables != 0);
    }

    /// <summary>
    /// What the policy asks of <see cref="KvContext.Select(in KvSelectOptions, KvKeepLists, KvRegion, nint)"/>: what
    /// must stay, the tie rule, the reduction of rows, the number of lists and how many slots each keeps. The caller
    /// adds scores, protected slots and memory for the lists.
    /// </summary>
    /// <param name="layer">A full one, which decides the budget. For <see cref="KvScope.Model"/> it is the first.</param>
    /// <param name="tokenCount">Slots held.</param>
    /// <param name="keep">The lists, without slots.</param>
    /// <param name="seenCount">Tokens seen so far, to which a ratio refers; 0: the slots held.</param>
    /// <returns>The options, without scores.</returns>
    /// <exception cref="ArgumentException">
    /// There is no such layer, it does not hold so many tokens, or its heads have budgets of their own.
    /// </exception>
    public KvSelectOptions Selection(int layer, int tokenCount, out KvKeepLists keep, int seenCount = 0)
    {
        kvevict_select_options options = new() { struct_size = (uint)sizeof(kvevict_select_options) };
        kvevict_keep_lists lists = new() { struct_size = (uint)sizeof(kvevict_keep_lists) };
        Native.kvevict_plan_selection(Handle, Check.Count(layer, nameof(layer)),
                                      Check.Count(tokenCount, nameof(tokenCount)),
                                      Check.Count(seenCount, nameof(seenCount)), &options, &lists);
        keep = new KvKeepLists(default, Check.ToInt(lists.count), Check.ToInt(lists.n_lists));
        return KvSelectOptions.Of(&options);
    }

    /// <summary>Scores the cached tokens of layers by the signal of the policy.</summary>
    /// <param name="jobs">At most 128, one per layer.</param>
    /// <param name="workspace">Scratch for <see cref="KvOperation.Score"/>.</param>
    /// <param name="stream">CUstream on which the work is queued.</param>
    /// <exception cref="ArgumentException">
    /// A region is too short, or rows lie outside their memory. A view is invalid, keys cannot be read, or the policy
    /// scores nothing.
    /// </exception>
    /// <exception cref="InvalidOperationException">Host memory, and the context works on CUDA.</exception>
    public void Score(ReadOnlySpan<KvScoreJob> jobs, KvRegion workspace, nint stream = 0)
    {
        // The library refuses more.
        bool few = jobs.Length <= NativeConstants.KVEVICT_MAX_JOBS;
        Span<NativeScoreJob> parts = few ? stackalloc NativeScoreJob[jobs.Length] : new NativeScoreJob[jobs.Length];
        Span<kvevict_score_job> native = few ? stackalloc kvevict_score_job[jobs.Length]
                                             : new kvevict_score_job[jobs.Length];
        fixed (NativeScoreJob* part = parts)
        fixed (kvevict_score_job* first = native)
        {
            for (int i = 0; i < jobs.Length; ++i)
            {
                NativeScoreJob.Write(part + i, first + i, jobs[i], Geometry.Of(jobs[i].Layer),
                                     QueryRows, _context, jobs.Length == 1 ? -1 : i);
            }
            Native.kvevict_score(Handle, first, (nuint)jobs.Length,
                                 (void*)workspace.Resolve(_context, nameof(workspace)), (nuint)workspace.Bytes,
                                 stream);
        }
        foreach (ref readonly KvScoreJob job in jobs) job.KeepAlive();
        GC.KeepAlive(workspace.Owner);
    }

    /// <summary>
    /// Does the same for one layer, with the scores in any host memory. For the CPU.
    /// </summary>
    /// <param name="job">The layer, without scores.</param>
    /// <param name="scores">Receives [KV heads, tokens]; may be longer.</param>
    /// <param name="workspace">Scratch for <see cref="KvOperation.Score"/>.</param>
    /// <exception cref="ArgumentException">
    /// A span is too short, or rows lie outside their memory. The view is invalid, keys cannot be read, or the policy
    /// scores nothing.
    /// </exception>
    /// <exception cref="InvalidOperationException">The context works on CUDA.</exception>
    public void Score(in KvScoreJob job, Span<float> scores, KvRegion workspace)
    {
        _context.RefuseHostMemory(nameof(scores));
        fixed (float* values = scores)
            Score([job with { Scores = new KvRegion((nint)values, (long)scores.Length * sizeof(float)) }], workspace);
    }

    /// <summary>Does the same with query rows that lie packed in any host memory.</summary>
    /// <param name="job">The layer, without scores and queries.</param>
    /// <param name="queries">
    /// [observation window, query heads, key dim] after RoPE; ushort for the bits of <see cref="KvDType.BF16"/>.
    /// </param>
    /// <param name="scores">Receives [KV heads, tokens]; may be longer.</param>
    /// <param name="workspace">Scratch for <see cref="KvOperation.Score"/>.</param>
    /// <exception cref="ArgumentException">
    /// A span has too few rows, or rows lie outside their memory. The view is invalid, keys cannot be read, or the
    /// policy scores nothing.
    /// </exception>
    /// <exception cref="InvalidOperationException">The context works on CUDA.</exception>
    public void Score(in KvScoreJob job, ReadOnlySpan<float> queries, Span<float> scores, KvRegion workspace) =>
        Score(job, queries, KvDType.F32, scores, workspace);

    /// <inheritdoc cref="Score(in KvScoreJob, ReadOnlySpan{float}, Span{float}, KvRegion)"/>
    public void Score(in KvScoreJob job, ReadOnlySpan<Half> queries, Span<float> scores, KvRegion workspace) =>
        Score(job, queries, KvDType.F16, scores, workspace);

    /// <inheritdoc cref="Score(in KvScoreJob, ReadOnlySpan{float}, Span{float}, KvRegion)"/>
    public void Score(in KvScoreJob job, ReadOnlySpan<ushort> queries, Span<float> scores, KvRegion workspace) =>
        Score(job, queries, KvDType.BF16, scores, workspace);

    /// <summary>
    /// Rotates cached keys in place to what RoPE makes at other positions. After an eviction a survivor in slot i, of
    /// position p, moves by i - p if positions count slots. The plan's geometry must have
    /// <see cref="KvGeometry.RopeInverseFrequencies"/>.
    /// </summary>
    /// <param name="rotations">At most 128, one per layer, whose caches do not overlap.</param>
    /// <param name="stream">CUstream on which the work is queued.</param>
    /// <exception cref="ArgumentException">
    /// A region is too short, rows lie outside their memory, or a view is invalid.
    /// </exception>
    /// <exception cref="KvEvictException">
    /// Keys cannot be rotated: <see cref="Capabilities"/> says why.
    /// </exception>
    /// <exception cref="InvalidOperationException">Host memory, and the context works on CUDA.</exception>
    public void Rotate(ReadOnlySpan<KvRotation> rotations, nint stream = 0)
    {
        // The library refuses more.
        bool few = rotations.Length <= NativeConstants.KVEVICT_MAX_JOBS;
        Span<NativeRotation> parts = few ? stackalloc NativeRotation[rotations.Length]
                                         : new NativeRotation[rotations.Length];
        Span<kvevict_rotation> native = few ? stackalloc kvevict_rotation[rotations.Length]
                                            : new kvevict_rotation[rotations.Length];
        fixed (NativeRotation* part = parts)
        fixed (kvevict_rotation* first = native)
        {
            for (int i = 0; i < rotations.Length; ++i)
                NativeRotation.Write(part + i, first + i, rotations[i], _context);
            Native.kvevict_rotate(Handle, first, (nuint)rotations.Length, stream);
        }
        foreach (ref readonly KvRotation rotation in rotations) rotation.KeepAlive();
    }

    /// <summary>
    /// Does the same for one layer, with the offsets in any host memory. For the CPU.
    /// </summary>
    /// <param name="rotation">The layer, without offsets.</param>
    /// <param name="offsets">[lists, tokens]: new position - old one for each slot.</param>
    /// <exception cref="ArgumentException">
    /// A span is too short, rows lie outside their memory, or a view is invalid.
    /// </exception>
    /// <exception cref="KvEvictException">Keys cannot be rotated.</exception>
    /// <exception cref="InvalidOperationException">The context works on CUDA.</exception>
    public void Rotate(in KvRotation rotation, ReadOnlySpan<int> offsets)
    {
        _context.RefuseHostMemory(nameof(offsets));
        fixed (int* first = offsets)
            Rotate([rotation with { Offsets = new KvRegion((nint)first, (long)offsets.Length * sizeof(int)) }]);
    }

    /// <summary>Releases it with the last sequence made from it. A second call does nothing.</summary>
    public void Dispose() => _handle.Dispose();

    private void Score<T>(in KvScoreJob job, ReadOnlySpan<T> queries, KvDType dtype, Span<float> scores,
                          KvRegion workspace) where T : unmanaged
    {
        _context.RefuseHostMemory(nameof(queries));
        fixed (T* rows = queries)
        {
            KvPlane plane = Geometry.Of(job.Layer).QueryRows(rows, queries.Length, dtype, out _);
            Score(job with { Inputs = job.Inputs with { Queries = plane } }, scores, workspace);
        }
    }
}
