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
    /// <exception cref="KvEvictException">They do not go together.</exception>
    public KvPlan(KvContext context, KvGeometry geometry, KvPolicy policy)
    {
        ArgumentNullException.ThrowIfNull(context);
        ArgumentNullException.ThrowIfNull(geometry);
        ArgumentNullException.ThrowIfNull(policy);
        kvevict_geometry nativeGeometry = geometry.ToNative();
        kvevict_policy nativePolicy = policy.ToNative();
        _context = context.Handle;
        _handle = new PlanHandle(_context);
        try
        {
            Native.kvevict_plan_create(_context, &nativeGeometry, &nativePolicy, _handle);
        }
        catch
        {
            _handle.Dispose();
            throw;
        }
        Geometry = geometry;
        Policy = policy;
    }

    /// <summary>The model.</summary>
    public KvGeometry Geometry { get; }

    /// <summary>What survives.</summary>
    public KvPolicy Policy { get; }

    internal PlanHandle Handle => Check.Open(_handle, this);

    internal ContextHandle Context => _context;

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
    /// Scores one layer's cached tokens by the attention of the last queries. This overload is for the CPU.
    /// </summary>
    /// <param name="queries">
    /// [query heads, observation window, key dim] rows after RoPE; "token" w is the query of token
    /// tokenCount - window + w.
    /// </param>
    /// <param name="view">The layer's cache.</param>
    /// <param name="tokenCount">Tokens held, at least the window.</param>
    /// <param name="scores">
    /// Receives [KV heads, <paramref name="tokenCount"/>]; higher keeps. Tokens of a kept window get +infinity.
    /// May be longer.
    /// </param>
    /// <param name="workspace">Scratch for <see cref="KvOperation.ScoreWindow"/>.</param>
    /// <exception cref="ArgumentException">A span is too short, or rows lie outside their memory.</exception>
    /// <exception cref="InvalidOperationException">The context works on CUDA.</exception>
    /// <exception cref="KvEvictException">The view cannot be, or keys cannot be read.</exception>
    public void ScoreWindow(KvPlane queries, KvView view, int tokenCount, Span<float> scores, KvRegion workspace)
    {
        _context.RefuseHostMemory(nameof(scores));
        CheckWindow(queries, nameof(queries));
        kvevict_plane rows = queries.ToNative(_context, nameof(queries));
        ScoreWindow(&rows, view, tokenCount, scores, workspace);
        GC.KeepAlive(queries.Region.Owner);
    }

    /// <summary>As the other overload, of query rows that lie packed in any memory of the host's.</summary>
    /// <param name="queries">
    /// [observation window, query heads, key dim] after RoPE; ushort for the bits of <see cref="KvDType.BF16"/>.
    /// </param>
    /// <param name="view">The layer's cache.</param>
    /// <param name="tokenCount">Tokens held, at least the window.</param>
    /// <param name="scores">Receives [KV heads, <paramref name="tokenCount"/>].</param>
    /// <param name="workspace">Scratch for <see cref="KvOperation.ScoreWindow"/>.</param>
    /// <exception cref="ArgumentException">A span has too few rows, or rows lie outside their memory.</exception>
    /// <exception cref="InvalidOperationException">The context works on CUDA.</exception>
    /// <exception cref="KvEvictException">The view cannot be, or keys cannot be read.</exception>
    public void ScoreWindow(ReadOnlySpan<float> queries, KvView view, int tokenCount, Span<float> scores,
                            KvRegion workspace) =>
        ScoreWindow(queries, KvDType.F32, view, tokenCount, scores, workspace);

    /// <inheritdoc cref="ScoreWindow(ReadOnlySpan{float}, KvView, int, Span{float}, KvRegion)"/>
    public void ScoreWindow(ReadOnlySpan<Half> queries, KvView view, int tokenCount, Span<float> scores,
                            KvRegion workspace) =>
        ScoreWindow(queries, KvDType.F16, view, tokenCount, scores, workspace);

    /// <inheritdoc cref="ScoreWindow(ReadOnlySpan{float}, KvView, int, Span{float}, KvRegion)"/>
    public void ScoreWindow(ReadOnlySpan<ushort> queries, KvView view, int tokenCount, Span<float> scores,
                            KvRegion workspace) =>
        ScoreWindow(queries, KvDType.BF16, view, tokenCount, scores, workspace);

    /// <summary>As the other overload, with the scores in any memory, such as the device's.</summary>
    /// <param name="queries">As there.</param>
    /// <param name="view">The layer's cache.</param>
    /// <param name="tokenCount">Tokens held, at least the window.</param>
    /// <param name="scores">Receives [KV heads, <paramref name="tokenCount"/>] floats.</param>
    /// <param name="workspace">Scratch for <see cref="KvOperation.ScoreWindow"/>.</param>
    /// <param name="stream">CUstream on which the work is queued.</param>
    /// <param name="rowLse">
    /// Absent, or floats [query heads, window] with one element per row: the log-sum-exp of each query row, as
    /// flash attention leaves it behind. Saves CUDA one of two passes over the keys.
    /// </param>
    /// <exception cref="ArgumentException">A region is too short, or rows lie outside their memory.</exception>
    /// <exception cref="InvalidOperationException">Host memory, and the context works on CUDA.</exception>
    /// <exception cref="KvEvictException">The view cannot be, or keys cannot be read.</exception>
    public void ScoreWindow(KvPlane queries, KvView view, int tokenCount, KvRegion scores, KvRegion workspace,
                            nint stream = 0, KvPlane rowLse = default)
    {
        long length = ScoresLength(tokenCount);
        long available = (long)scores.Elements<float>();
        if (available < length) throw TooShort(nameof(scores), available, length);
        CheckWindow(queries, nameof(queries));
        CheckWindow(rowLse, nameof(rowLse));
        kvevict_plane rows = queries.ToNative(_context, nameof(queries));
        kvevict_plane lse = rowLse.ToNative(_context, nameof(rowLse));
        ScoreWindow(&rows, lse.data == 0 ? null : &lse, view, tokenCount,
                    (float*)scores.Resolve(_context, nameof(scores)), length, workspace, stream);
        GC.KeepAlive(queries.Region.Owner);
        GC.KeepAlive(rowLse.Region.Owner);
        GC.KeepAlive(scores.Owner);
    }

    /// <summary>
    /// Chooses the slots of a layer that survive under the policy's budget. This overload is for the CPU.
    /// </summary>
    /// <param name="layer">Decides the budget; 0 for <see cref="KvScope.Model"/>.</param>
    /// <param name="scores">
    /// [KV heads, <paramref name="tokenCount"/>], for <see cref="KvScope.Model"/> [layers, KV heads,
    /// <paramref name="tokenCount"/>]; empty if the policy chooses nothing by score.
    /// </param>
    /// <param name="tokenCount">Slots held.</param>
    /// <param name="keep">
    /// Receives [KV heads, n] slots, ascending per head; for the other scopes [1, n]. May be longer.
    /// </param>
    /// <param name="workspace">Scratch for <see cref="KvOperation.Select"/>.</param>
    /// <param name="protectedSlots">Strictly ascending slots that must stay.</param>
    /// <returns>n, the tokens kept per list.</returns>
    /// <exception cref="InvalidOperationException">The context works on CUDA.</exception>
    /// <exception cref="KvEvictException">The budget is less than what must stay, or keep is too short.</exception>
    public int Select(int layer, ReadOnlySpan<float> scores, int tokenCount, Span<int> keep, KvRegion workspace,
                      ReadOnlySpan<int> protectedSlots = default)
    {
        _context.RefuseHostMemory(nameof(keep));
        fixed (float* values = scores)
        fixed (int* slots = keep)
        {
            return Select(layer, values, (nuint)scores.Length, tokenCount, slots, (nuint)keep.Length, workspace,
                          protectedSlots, 0);
        }
    }

    /// <summary>As the other overload, with scores and keep list in any memory, such as the device's.</summary>
    /// <param name="layer">Decides the budget.</param>
    /// <param name="scores">Floats, as there.</param>
    /// <param name="tokenCount">Slots held.</param>
    /// <param name="keep">Receives 32-bit slots, as there.</param>
    /// <param name="workspace">Scratch for <see cref="KvOperation.Select"/>.</param>
    /// <param name="protectedSlots">Strictly ascending slots that must stay, in host memory.</param>
    /// <param name="stream">CUstream on which the work is queued.</param>
    /// <returns>n, the tokens kept per list; known at once.</returns>
    /// <exception cref="InvalidOperationException">Host memory, and the context works on CUDA.</exception>
    /// <exception cref="KvEvictException">The budget is less than what must stay, or keep is too short.</exception>
    public int Select(int layer, KvRegion scores, int tokenCount, KvRegion keep, KvRegion workspace,
                      ReadOnlySpan<int> protectedSlots = default, nint stream = 0)
    {
        int kept = Select(layer, (float*)scores.Resolve(_context, nameof(scores)), scores.Elements<float>(), tokenCount,
                          (int*)keep.Resolve(_context, nameof(keep)), keep.Elements<int>(), workspace,
                          protectedSlots, stream);
        GC.KeepAlive(scores.Owner);
        GC.KeepAlive(keep.Owner);
        return kept;
    }

    /// <summary>Releases it with the last sequence made from it. A second call does nothing.</summary>
    public void Dispose() => _handle.Dispose();

    private void ScoreWindow<T>(ReadOnlySpan<T> queries, KvDType dtype, KvView view, int tokenCount,
                                Span<float> scores, KvRegion workspace) where T : unmanaged
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
            ScoreWindow(&rows, view, tokenCount, scores, workspace);
        }
    }

    private void ScoreWindow(kvevict_plane* queries, KvView view, int tokenCount, Span<float> scores,
                             KvRegion workspace)
    {
        long length = ScoresLength(tokenCount);
        if (scores.Length < length) throw TooShort(nameof(scores), scores.Length, length);
        fixed (float* values = scores) ScoreWindow(queries, null, view, tokenCount, values, length, workspace, 0);
    }

    private void ScoreWindow(kvevict_plane* queries, kvevict_plane* rowLse, KvView view, int tokenCount,
                             float* scores, long length, KvRegion workspace, nint stream)
    {
        ArgumentNullException.ThrowIfNull(view);
        kvevict_view nativeView;
        view.Write(&nativeView, tokenCount, _context);
        Native.kvevict_score_window(Handle, queries, rowLse, &nativeView, (uint)tokenCount, scores, (nuint)length,
                                    (void*)workspace.Resolve(_context, nameof(workspace)),
                                    (nuint)workspace.Bytes, stream);
        GC.KeepAlive(workspace.Owner);
        GC.KeepAlive(view);
    }

    private int Select(int layer, float* scores, nuint scoresLength, int tokenCount, int* keep, nuint keepCapacity,
                       KvRegion workspace, ReadOnlySpan<int> protectedSlots, nint stream)
    {
        uint kept;
        fixed (int* mustStay = protectedSlots)
        {
            Native.kvevict_select(Handle, Check.Count(layer, nameof(layer)), scores, scoresLength,
                                  Check.Count(tokenCount, nameof(tokenCount)), mustStay,
                                  (nuint)protectedSlots.Length, keep, keepCapacity,
                                  (void*)workspace.Resolve(_context, nameof(workspace)),
                                  (nuint)workspace.Bytes, &kept, stream);
        }
        GC.KeepAlive(workspace.Owner);
        return Check.ToInt(kept);
    }

    private void CheckWindow(KvPlane rows, string name) =>
        rows.CheckRows(name, Policy.ObservationWindow, Geometry.QueryHeads);

    private long ScoresLength(int tokenCount) => (long)Check.Count(tokenCount, nameof(tokenCount)) * Geometry.KvHeads;

    private static ArgumentException TooShort(string name, long length, long needed) =>
        new($"{name} has {length} elements, {needed} are needed", name);
}
