namespace KvEvict;

/// <summary>What a plan can do with a layer, and why not.</summary>
/// <param name="CanMove">Rows can be compacted.</param>
/// <param name="CanScore">Keys can be scored.</param>
/// <param name="CanRotate">RoPE can be applied to keys again.</param>
/// <param name="MoveReason">Why rows cannot be moved.</param>
/// <param name="ScoreReason">Why keys cannot be scored.</param>
/// <param name="RotateReason">Why keys cannot be rotated.</param>
/// <param name="NeedsScore">The policy has to score keys to evict.</param>
public readonly record struct KvCapabilities(
    bool CanMove, bool CanScore, bool CanRotate, KvReason MoveReason, KvReason ScoreReason, KvReason RotateReason,
    bool NeedsScore);

/// <summary>
/// Geometry, policy and context, checked once; immutable and safe to share between threads. Keeps its context
/// alive.
/// </summary>
public sealed unsafe class KvPlan : IDisposable
{
    private readonly PlanHandle _handle;
    private readonly ContextHandle _context;

    /// <summary>Checks a geometry and a policy against each other.</summary>
    /// <param name="context">Where the work is done.</param>
    /// <param name="geometry">The model.</param>
    /// <param name="policy">What survives.</param>
    /// <param name="headBudgets">
    /// Tokens that each KV head keeps, everything included: [layers, KV heads], in place of the policy's budget and
    /// layer split, for <see cref="KvScope.KvHead"/>. Above a head's length it keeps all. Empty: the policy's.
    /// </param>
    /// <exception cref="KvEvictException">They do not go together.</exception>
    public KvPlan(KvContext context, KvGeometry geometry, KvPolicy policy, ReadOnlySpan<int> headBudgets = default)
    {
        ArgumentNullException.ThrowIfNull(context);
        ArgumentNullException.ThrowIfNull(geometry);
        ArgumentNullException.ThrowIfNull(policy);
        kvevict_geometry nativeGeometry = geometry.ToNative();
        kvevict_policy nativePolicy = policy.ToNative();
        foreach (int budget in headBudgets) Check.Count(budget, nameof(headBudgets));
        kvevict_plan_options options;
        Native.kvevict_plan_options_init(&options, (nuint)sizeof(kvevict_plan_options));
        _context = context.Handle;
        _handle = new PlanHandle(_context);
        try
        {
            fixed (int* budgets = headBudgets)
            {
                options.head_budgets = (uint*)budgets;
                options.head_budgets_len = (nuint)headBudgets.Length;
                Native.kvevict_plan_create(_context, &nativeGeometry, &nativePolicy, &options, _handle);
            }
        }
        catch
        {
            _handle.Dispose();
            throw;
        }
        Geometry = geometry;
        Policy = policy;
        HeadsDiffer = !headBudgets.IsEmpty;
    }

    /// <summary>The model.</summary>
    public KvGeometry Geometry { get; }

    /// <summary>What survives.</summary>
    public KvPolicy Policy { get; }

    internal PlanHandle Handle => Check.Open(_handle, this);

    internal ContextHandle Context => _context;

    /// <summary>Whether the heads of a layer may hold different numbers of tokens.</summary>
    internal bool HeadsDiffer { get; }

    /// <summary>
    /// Scratch in which an operation is fastest, for any contents: 64-byte aligned, on CUDA 256. It runs in any size
    /// from <see cref="LeastWorkspaceBytes"/> on, with the same results.
    /// </summary>
    /// <param name="operation">The operation.</param>
    /// <param name="tokenCount">The most slots that a layer will hold then; 0: the geometry's tokens.</param>
    /// <returns>Bytes; 0 means that none need be given.</returns>
    /// <exception cref="KvEvictException">There is no such operation, or no layer holds so much.</exception>
    public long WorkspaceBytes(KvOperation operation, int tokenCount = 0)
    {
        nuint bytes;
        Native.kvevict_plan_workspace_bytes(Handle, operation, Check.Count(tokenCount, nameof(tokenCount)), &bytes);
        return checked((long)bytes);
    }

    /// <summary>The least scratch in which an operation runs, slower where it scores on the CPU.</summary>
    /// <param name="operation">The operation.</param>
    /// <param name="tokenCount">The most slots that a layer will hold then; 0: the geometry's tokens.</param>
    /// <returns>Bytes; 0 means that none need be given.</returns>
    /// <exception cref="KvEvictException">There is no such operation, or no layer holds so much.</exception>
    public long LeastWorkspaceBytes(KvOperation operation, int tokenCount = 0)
    {
        nuint bytes;
        Native.kvevict_plan_least_workspace_bytes(Handle, operation, Check.Count(tokenCount, nameof(tokenCount)),
                                                  &bytes);
        return checked((long)bytes);
    }

    /// <summary>Allocates the scratch that an operation needs on the CPU.</summary>
    /// <param name="operation">The operation.</param>
    /// <returns>A workspace to dispose.</returns>
    /// <exception cref="InvalidOperationException">The context works on CUDA.</exception>
    /// <exception cref="KvEvictException">There is no such operation.</exception>
    public KvWorkspace CreateWorkspace(KvOperation operation)
    {
        _context.RefuseHostMemory("workspace");
        return new KvWorkspace(WorkspaceBytes(operation));
    }

    /// <summary>
    /// Memory in which a sequence keeps query rows while it observes; 0 for policies that do not score by queries.
    /// </summary>
    /// <exception cref="KvEvictException">More than can be addressed.</exception>
    public long QueryMemoryBytes
    {
        get
        {
            nuint bytes;
            Native.kvevict_plan_query_memory_bytes(Handle, &bytes);
            return checked((long)bytes);
        }
    }

    /// <summary>Tokens each layer keeps.</summary>
    /// <param name="tokenCount">Tokens seen so far, at least 1.</param>
    /// <returns>Tokens per layer.</returns>
    /// <exception cref="KvEvictException"><paramref name="tokenCount"/> is 0.</exception>
    public int[] LayerBudgets(int tokenCount)
    {
        int[] budgets = new int[Geometry.Layers];
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
    /// <exception cref="KvEvictException">There is no such layer.</exception>
    public KvCapabilities Capabilities(int layer)
    {
        kvevict_capabilities c = new() { struct_size = (uint)sizeof(kvevict_capabilities) };
        Native.kvevict_plan_capabilities(Handle, Check.Count(layer, nameof(layer)), &c);
        return new KvCapabilities(c.can_move != 0, c.can_score != 0, c.can_rotate != 0, c.move_reason, c.score_reason,
                                  c.rotate_reason, c.needs_score != 0);
    }

    /// <summary>
    /// What the policy asks of <see cref="KvContext.Select(in KvSelectOptions, KvKeepLists, KvRegion, nint)"/>: what
    /// must stay, the tie rule, the reduction of rows, the number of lists and how many slots each keeps. The caller
    /// adds scores, protected slots and where the lists lie.
    /// </summary>
    /// <param name="layer">Decides the budget; 0 for <see cref="KvScope.Model"/>.</param>
    /// <param name="tokenCount">Slots held; for a budget that is a ratio also the tokens seen so far.</param>
    /// <param name="keep">The lists, without slots.</param>
    /// <returns>The options, without scores.</returns>
    /// <exception cref="KvEvictException">
    /// There is no such layer, or so many tokens; its heads have budgets of their own.
    /// </exception>
    public KvSelectOptions Selection(int layer, int tokenCount, out KvKeepLists keep)
    {
        kvevict_select_options options = new() { struct_size = (uint)sizeof(kvevict_select_options) };
        kvevict_keep_lists lists = new() { struct_size = (uint)sizeof(kvevict_keep_lists) };
        Native.kvevict_plan_selection(Handle, Check.Count(layer, nameof(layer)),
                                      Check.Count(tokenCount, nameof(tokenCount)), &options, &lists);
        keep = new KvKeepLists(default, Check.ToInt(lists.count), Check.ToInt(lists.n_lists));
        return new KvSelectOptions
        {
            TokenCount = tokenCount,
            RowCount = Check.ToInt(options.n_rows),
            Reduce = options.reduce,
            SinkCount = Check.ToInt(options.n_sink),
            RecentCount = Check.ToInt(options.n_recent),
            Tie = options.tie,
        };
    }

    /// <summary>Scores one layer's cached tokens by the signal of the policy. This overload is for the CPU.</summary>
    /// <param name="inputs">What is read.</param>
    /// <param name="scores">
    /// Receives [KV heads, tokens]; higher keeps. Tokens of a kept window get +infinity. May be longer.
    /// </param>
    /// <param name="workspace">Scratch for <see cref="KvOperation.Score"/>.</param>
    /// <exception cref="ArgumentException">A span is too short, or rows lie outside their memory.</exception>
    /// <exception cref="InvalidOperationException">The context works on CUDA.</exception>
    /// <exception cref="KvEvictException">
    /// The view cannot be, keys cannot be read, or the policy scores nothing.
    /// </exception>
    public void Score(in KvScoreInputs inputs, Span<float> scores, KvRegion workspace)
    {
        _context.RefuseHostMemory(nameof(scores));
        CheckWindow(inputs.Queries, nameof(inputs.Queries));
        kvevict_plane rows = inputs.Queries.ToNative(_context, nameof(inputs.Queries));
        Score(inputs, &rows, scores, workspace);
        GC.KeepAlive(inputs.Queries.Region.Owner);
    }

    /// <summary>As the other overload, of query rows that lie packed in any memory of the host's.</summary>
    /// <param name="inputs">What is read beside the queries.</param>
    /// <param name="queries">
    /// [observation window, query heads, key dim] after RoPE; ushort for the bits of <see cref="KvDType.BF16"/>.
    /// </param>
    /// <param name="scores">Receives [KV heads, tokens].</param>
    /// <param name="workspace">Scratch for <see cref="KvOperation.Score"/>.</param>
    /// <exception cref="ArgumentException">A span has too few rows, or rows lie outside their memory.</exception>
    /// <exception cref="InvalidOperationException">The context works on CUDA.</exception>
    /// <exception cref="KvEvictException">
    /// The view cannot be, keys cannot be read, or the policy scores nothing.
    /// </exception>
    public void Score(in KvScoreInputs inputs, ReadOnlySpan<float> queries, Span<float> scores, KvRegion workspace) =>
        Score(inputs, queries, KvDType.F32, scores, workspace);

    /// <inheritdoc cref="Score(in KvScoreInputs, ReadOnlySpan{float}, Span{float}, KvRegion)"/>
    public void Score(in KvScoreInputs inputs, ReadOnlySpan<Half> queries, Span<float> scores, KvRegion workspace) =>
        Score(inputs, queries, KvDType.F16, scores, workspace);

    /// <inheritdoc cref="Score(in KvScoreInputs, ReadOnlySpan{float}, Span{float}, KvRegion)"/>
    public void Score(in KvScoreInputs inputs, ReadOnlySpan<ushort> queries, Span<float> scores, KvRegion workspace) =>
        Score(inputs, queries, KvDType.BF16, scores, workspace);

    /// <summary>As the other overload, with the scores in any memory, such as the device's.</summary>
    /// <param name="inputs">What is read.</param>
    /// <param name="scores">Receives [KV heads, tokens] floats.</param>
    /// <param name="workspace">Scratch for <see cref="KvOperation.Score"/>.</param>
    /// <param name="stream">CUstream on which the work is queued.</param>
    /// <exception cref="ArgumentException">A region is too short, or rows lie outside their memory.</exception>
    /// <exception cref="InvalidOperationException">Host memory, and the context works on CUDA.</exception>
    /// <exception cref="KvEvictException">
    /// The view cannot be, keys cannot be read, or the policy scores nothing.
    /// </exception>
    public void Score(in KvScoreInputs inputs, KvRegion scores, KvRegion workspace, nint stream = 0)
    {
        long length = ScoresLength(inputs.TokenCount);
        long available = (long)scores.Elements<float>();
        if (available < length) throw TooShort(nameof(scores), available, length);
        CheckWindow(inputs.Queries, nameof(inputs.Queries));
        kvevict_plane rows = inputs.Queries.ToNative(_context, nameof(inputs.Queries));
        Score(inputs, &rows, (float*)scores.Resolve(_context, nameof(scores)), length, workspace, stream);
        GC.KeepAlive(inputs.Queries.Region.Owner);
        GC.KeepAlive(scores.Owner);
    }

    /// <summary>Releases it with the last sequence made from it. A second call does nothing.</summary>
    public void Dispose() => _handle.Dispose();

    private void Score<T>(in KvScoreInputs inputs, ReadOnlySpan<T> queries, KvDType dtype, Span<float> scores,
                          KvRegion workspace) where T : unmanaged
    {
        _context.RefuseHostMemory(nameof(queries));
        fixed (T* first = queries)
        {
            kvevict_plane rows = Geometry.QueryRows(first, queries.Length, dtype, out int rowCount);
            if (rowCount < Policy.ObservationWindow)
            {
                throw new ArgumentException(
                    $"queries has {rowCount} rows, the window {Policy.ObservationWindow}", nameof(queries));
            }
            Score(inputs, &rows, scores, workspace);
        }
    }

    private void Score(in KvScoreInputs inputs, kvevict_plane* queries, Span<float> scores, KvRegion workspace)
    {
        long length = ScoresLength(inputs.TokenCount);
        if (scores.Length < length) throw TooShort(nameof(scores), scores.Length, length);
        fixed (float* values = scores) Score(inputs, queries, values, length, workspace, 0);
    }

    private void Score(in KvScoreInputs inputs, kvevict_plane* queries, float* scores, long length,
                       KvRegion workspace, nint stream)
    {
        if (inputs.View is null) throw new ArgumentNullException(nameof(inputs.View));
        CheckWindow(inputs.RowLse, nameof(inputs.RowLse));
        kvevict_plane lse = inputs.RowLse.ToNative(_context, nameof(inputs.RowLse));
        kvevict_view view;
        inputs.View.Write(&view, inputs.TokenCount, _context);
        kvevict_score_inputs native;
        Native.kvevict_score_inputs_init(&native, (nuint)sizeof(kvevict_score_inputs));
        native.layer = Check.Count(inputs.Layer, nameof(inputs.Layer));
        native.n_tokens = (uint)inputs.TokenCount;
        native.token_counts = (uint*)inputs.TokenCounts.Each(_context, nameof(inputs.TokenCounts), Geometry.KvHeads);
        native.view = &view;
        native.queries = queries->data == 0 ? null : queries;
        native.row_lse = lse.data == 0 ? null : &lse;
        Native.kvevict_score(Handle, &native, scores, (nuint)length,
                             (void*)workspace.Resolve(_context, nameof(workspace)), (nuint)workspace.Bytes, stream);
        GC.KeepAlive(inputs.View);
        GC.KeepAlive(inputs.TokenCounts.Owner);
        GC.KeepAlive(inputs.RowLse.Region.Owner);
        GC.KeepAlive(workspace.Owner);
    }

    private void CheckWindow(KvPlane rows, string name) =>
        rows.CheckRows(name, Policy.ObservationWindow, Geometry.QueryHeads);

    private long ScoresLength(int tokenCount) => (long)Check.Count(tokenCount, nameof(tokenCount)) * Geometry.KvHeads;

    private static ArgumentException TooShort(string name, long length, long needed) =>
        new($"{name} has {length} elements, {needed} are needed", name);
}
