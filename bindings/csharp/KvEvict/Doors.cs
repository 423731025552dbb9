namespace KvEvict;

/// <summary>What the scoring of a layer reads. What the policy has no use for may be absent.</summary>
/// <param name="View">The layer's cache.</param>
/// <param name="TokenCount">Slots held.</param>
public readonly record struct KvScoreInputs(KvView View, int TokenCount)
{
    /// <summary>Below the number of layers.</summary>
    public int Layer { get; init; }

    /// <summary>
    /// Where heads hold different numbers: 32-bit numbers, [KV heads], each at most <see cref="TokenCount"/>.
    /// </summary>
    public KvRegion TokenCounts { get; init; }

    /// <summary>
    /// Window attention: [query heads, observation window, key dim] rows after RoPE; "token" w is the query of
    /// token <see cref="TokenCount"/> - window + w.
    /// </summary>
    public KvPlane Queries { get; init; }

    /// <summary>
    /// Absent, or floats [query heads, window] with one element per row: the log-sum-exp of each query row, as
    /// flash attention leaves it behind. Saves CUDA one of two passes over the keys.
    /// </summary>
    public KvPlane RowLse { get; init; }
}

/// <summary>
/// Which slots of a layer to keep: one list that all KV heads share, or one for each. Nothing is copied.
/// </summary>
/// <param name="Slots">32-bit slots, [<paramref name="ListCount"/>, <see cref="ListStride"/>].</param>
/// <param name="Count">Slots in every list; with <see cref="Counts"/>, the most of any.</param>
/// <param name="ListCount">1, or the view's KV heads.</param>
public readonly record struct KvKeepLists(KvRegion Slots, int Count, int ListCount = 1)
{
    /// <summary>Elements from one list to the next; 0: <see cref="Count"/>.</summary>
    public long ListStride { get; init; }

    /// <summary>Absent, or how many slots each list has: 32-bit numbers, each at most <see cref="Count"/>.</summary>
    public KvRegion Counts { get; init; }

    internal unsafe void Write(kvevict_keep_lists* native, ContextHandle context)
    {
        Native.kvevict_keep_lists_init(native, (nuint)sizeof(kvevict_keep_lists));
        native->n_lists = Check.Count(ListCount, nameof(ListCount));
        native->slots = (int*)Slots.Resolve(context, nameof(Slots));
        native->slots_len = Slots.Elements<int>();
        native->list_stride = Check.Count(ListStride, nameof(ListStride));
        native->count = Check.Count(Count, nameof(Count));
        native->counts = (uint*)Counts.Each(context, nameof(Counts), ListCount);
    }

    internal void KeepAlive()
    {
        GC.KeepAlive(Slots.Owner);
        GC.KeepAlive(Counts.Owner);
    }
}

/// <summary>
/// What <see cref="KvContext.Select(in KvSelectOptions, KvKeepLists, KvRegion, nint)"/> chooses from, and what must
/// stay. As a plan's policy wants it: <see cref="KvPlan.Selection"/>.
/// </summary>
public ref struct KvSelectOptions
{
    /// <summary>Slots held, at least 1.</summary>
    public int TokenCount { get; set; }

    /// <summary>
    /// Where lists hold different numbers: 32-bit numbers, one per list, each at most <see cref="TokenCount"/>.
    /// </summary>
    public KvRegion TokenCounts { get; set; }

    /// <summary>
    /// Floats [<see cref="RowCount"/>, <see cref="TokenCount"/>]. Absent: nothing is ranked, and every list keeps
    /// what must stay and then the first tokens, or the last ones by <see cref="Tie"/>.
    /// </summary>
    public KvRegion Scores { get; set; }

    /// <summary>
    /// A multiple of the lists: row r is list r / (rows / lists)'s. 0: one for each list.
    /// </summary>
    public int RowCount { get; set; }

    /// <summary>Over the rows of a list.</summary>
    public KvReduce Reduce { get; set; }

    /// <summary>First slots that must stay.</summary>
    public int SinkCount { get; set; }

    /// <summary>Last slots that must stay.</summary>
    public int RecentCount { get; set; }

    /// <summary>Which of two equal scores survives.</summary>
    public KvTie Tie { get; set; }

    /// <summary>Strictly ascending slots that must stay, in host memory.</summary>
    public ReadOnlySpan<int> ProtectedSlots { get; set; }

    /// <summary>All but the scores and the protected slots, which a caller pins.</summary>
    internal readonly unsafe void Write(kvevict_select_options* native, int listCount, ContextHandle context)
    {
        Native.kvevict_select_options_init(native, (nuint)sizeof(kvevict_select_options));
        native->n_tokens = Check.Count(TokenCount, nameof(TokenCount));
        native->token_counts = (uint*)TokenCounts.Each(context, nameof(TokenCounts), listCount);
        native->n_rows = Check.Count(RowCount, nameof(RowCount));
        native->reduce = Reduce;
        native->n_sink = Check.Count(SinkCount, nameof(SinkCount));
        native->n_recent = Check.Count(RecentCount, nameof(RecentCount));
        native->tie = Tie;
    }
}

/// <summary>One layer's part of a call that moves rows.</summary>
/// <param name="View">The layer's cache.</param>
/// <param name="TokenCount">Slots held before, the most of any head.</param>
/// <param name="Keep">Slots, each below <paramref name="TokenCount"/>.</param>
public readonly record struct KvMove(KvView View, int TokenCount, KvKeepLists Keep);

/// <summary>The native structs of one move, which point to each other and so must not move themselves.</summary>
internal unsafe struct NativeMove
{
    private kvevict_view _view;
    private kvevict_keep_lists _keep;

    /// <summary>Writes a move; its rows must lie in the view's memory for so many tokens.</summary>
    internal static void Write(NativeMove* self, kvevict_move* native, in KvMove move, int tokenCount,
                               ContextHandle context)
    {
        if (move.View is null) throw new ArgumentNullException(nameof(move.View));
        move.View.Write(&self->_view, tokenCount, context);
        move.Keep.Write(&self->_keep, context);
        Native.kvevict_move_init(native, (nuint)sizeof(kvevict_move));
        native->n_tokens = Check.Count(move.TokenCount, nameof(move.TokenCount));
        native->view = &self->_view;
        native->keep = &self->_keep;
    }
}
