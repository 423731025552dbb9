namespace KvEvict;

/// <summary>One layer's part of <see cref="KvPlan.Score(ReadOnlySpan{KvScoreJob}, KvRegion, nint)"/>.</summary>
/// <param name="Layer">Below the number of layers, with a full cache.</param>
/// <param name="View">The layer's cache.</param>
/// <param name="TokenCount">Slots held.</param>
public readonly partial record struct KvScoreJob(int Layer, KvView View, int TokenCount)
{
    /// <summary>
    /// Absent, or slots held by each head: 32-bit numbers, [KV heads], each at most <see cref="TokenCount"/>.
    /// </summary>
    public KvRegion TokenCounts { get; init; }

    /// <summary>
    /// What is read beside the keys. Queries and their log-sum-exps have as many rows as the observation window: row w
    /// is of token <see cref="TokenCount"/> - window + w.
    /// </summary>
    public KvSignalInputs Inputs { get; init; }

    /// <summary>
    /// Receives floats [KV heads, <see cref="TokenCount"/>]; higher keeps. Tokens of a kept window get +infinity.
    /// May be longer.
    /// </summary>
    public KvRegion Scores { get; init; }

    internal void KeepAlive()
    {
        GC.KeepAlive(View);
        GC.KeepAlive(TokenCounts.Owner);
        Inputs.KeepAlive();
        GC.KeepAlive(Scores.Owner);
    }
}

// The native structs of one job. They point to each other, so they must not move.
internal unsafe struct NativeScoreJob
{
    private kvevict_view _view;
    private kvevict_signal_inputs _inputs;
    private NativeInputs _planes;

    // Writes a job. Its rows must lie in their memory.
    internal static void Write(NativeScoreJob* self, kvevict_score_job* native, in KvScoreJob job,
                               KvLayerGeometry layer, int window, ContextHandle context, int index)
    {
        if (job.View is null) throw new ArgumentNullException(nameof(job.View));
        int heads = Math.Max(layer.KvHeads, job.View.KvHeads); // the library refuses it if they differ
        uint* counts = (uint*)job.TokenCounts.Each(context, nameof(job.TokenCounts), heads);
        job.View.Write(&self->_view, job.TokenCount, context, counts);
        NativeInputs.Write(&self->_planes, &self->_inputs, job.Inputs, layer, window, job.TokenCount, context, index);
        job.Fill(native);
        native->token_counts = counts;
        native->view = &self->_view;
        native->inputs = &self->_inputs;
        long length = (long)layer.KvHeads * job.TokenCount;
        native->scores = (float*)job.Scores.Each(context, nameof(job.Scores), length);
        native->scores_len = (nuint)length;
    }
}

/// <summary>
/// Which slots of a layer to keep: one list that all KV heads share, or one for each. Nothing is copied.
/// </summary>
/// <param name="Slots">32-bit slots, [<paramref name="ListCount"/>, <see cref="ListStride"/>].</param>
/// <param name="Count">Slots in every list; with <see cref="Counts"/>, the most of any.</param>
/// <param name="ListCount">1, or the view's KV heads.</param>
public readonly partial record struct KvKeepLists(KvRegion Slots, int Count, int ListCount = 1)
{
    /// <summary>Absent, or how many slots each list has: 32-bit numbers, each at most <see cref="Count"/>.</summary>
    public KvRegion Counts { get; init; }

    internal unsafe void Write(kvevict_keep_lists* native, ContextHandle context)
    {
        Fill(native);
        native->slots = (int*)Slots.Resolve(context, nameof(Slots));
        native->slots_len = Slots.Elements<int>();
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
/// stay. <see cref="KvPlan.Selection"/> gives what a plan's policy wants.
/// </summary>
public ref partial struct KvSelectOptions
{
    /// <summary>
    /// Absent, or slots held by each list's heads: 32-bit numbers, each at most <see cref="TokenCount"/>.
    /// </summary>
    public KvRegion TokenCounts { get; set; }

    /// <summary>
    /// Floats [<see cref="RowCount"/>, <see cref="TokenCount"/>]. Absent: nothing is ranked, and every list keeps
    /// what must stay and then the first tokens, or the last ones by <see cref="Tie"/>.
    /// </summary>
    public KvRegion Scores { get; set; }

    /// <summary>Strictly ascending slots that must stay, in host memory.</summary>
    public ReadOnlySpan<int> ProtectedSlots { get; set; }

    /// <summary>Slots that go later or sooner than others.</summary>
    public ReadOnlySpan<KvTokenRange> Ranges { get; set; }

    // Writes everything but the scores, protected slots and ranges, which a caller pins.
    internal readonly unsafe void Write(kvevict_select_options* native, int listCount, ContextHandle context)
    {
        Fill(native);
        native->token_counts = (uint*)TokenCounts.Each(context, nameof(TokenCounts), listCount);
    }
}

/// <summary>Scores of one layer, by which its budget is found.</summary>
/// <param name="Scores">[rows, tokens], as <c>KvPlan.Score</c> writes them.</param>
/// <param name="RowCount">Keep lists, mostly KV heads.</param>
public readonly partial record struct KvLayerScores(ReadOnlyMemory<float> Scores, int RowCount);

/// <summary>What <see cref="KvContext.BudgetForMass"/> looks for.</summary>
public readonly partial record struct KvMassOptions
{
    /// <summary>Keeps a share of the mass, in (0, 1].</summary>
    public KvMassOptions(double mass) => Mass = mass;

    /// <summary>The share of the mass to keep.</summary>
    public double Mass { get; }
}

/// <summary>One layer's part of a call that moves rows.</summary>
/// <param name="View">The layer's cache.</param>
/// <param name="TokenCount">Slots held before, the most of any head.</param>
/// <param name="Keep">Slots, each below <paramref name="TokenCount"/>.</param>
public readonly partial record struct KvMove(KvView View, int TokenCount, KvKeepLists Keep)
{
    /// <summary>
    /// Absent, or slots held by each head: 32-bit numbers, [KV heads], each at most <see cref="TokenCount"/>. Blocks
    /// beyond a head's own count need not be in its table.
    /// </summary>
    public KvRegion TokenCounts { get; init; }

    /// <summary>
    /// Another cache to which a context copies survivors when it compacts; the view then stays as it is. It has the
    /// same KV heads and head sizes in any layout. If K or V have another type there, rows are requantised. Null:
    /// they move in place.
    /// </summary>
    public KvView? Destination { get; init; }

    /// <summary>Copies all held slots to another cache.</summary>
    /// <param name="view">The layer's cache.</param>
    /// <param name="tokenCount">Slots held, the most of any head.</param>
    /// <param name="destination">Where they are copied to.</param>
    /// <returns>The move.</returns>
    public static KvMove All(KvView view, int tokenCount, KvView destination) =>
        new(view, tokenCount, default) { Destination = destination, KeepsAll = true };

    private bool KeepsAll { get; init; }

    internal int MostKept => HasNoLists ? TokenCount : Keep.Count;

    internal bool HasNoLists => KeepsAll && Destination is not null;

    internal void KeepAlive()
    {
        GC.KeepAlive(View);
        GC.KeepAlive(Destination);
        Keep.KeepAlive();
        GC.KeepAlive(TokenCounts.Owner);
    }
}

// The native structs of one move. They point to each other, so they must not move.
internal unsafe struct NativeMove
{
    private kvevict_view _view;
    private kvevict_view _destination;
    private kvevict_keep_lists _keep;

    // Writes a move. The rows of so many tokens must lie in the view's memory.
    internal static void Write(NativeMove* self, kvevict_move* native, in KvMove move, int tokenCount,
                               ContextHandle context)
    {
        if (move.View is null) throw new ArgumentNullException(nameof(move.View));
        uint* counts = (uint*)move.TokenCounts.Each(context, nameof(move.TokenCounts), move.View.KvHeads);
        move.View.Write(&self->_view, tokenCount, context, counts);
        if (!move.HasNoLists) move.Keep.Write(&self->_keep, context);
        move.Fill(native);
        native->token_counts = counts;
        native->view = &self->_view;
        native->keep = move.HasNoLists ? null : &self->_keep;
        if (move.Destination is null) return;
        move.Destination.Write(&self->_destination, checked(move.FirstSlot + move.MostKept), context, null);
        native->destination = &self->_destination;
    }
}

/// <summary>One layer's part of <see cref="KvPlan.Rotate(ReadOnlySpan{KvRotation}, nint)"/>.</summary>
/// <param name="Layer">Below the number of layers, with a full cache.</param>
/// <param name="View">The layer's cache. Only its keys are read and written.</param>
/// <param name="TokenCount">Slots held, the most of any head.</param>
/// <param name="Offsets">
/// 32-bit numbers, [<paramref name="ListCount"/>, <paramref name="TokenCount"/>]: the positions by which each slot's
/// key moves, new position - old one. May be longer.
/// </param>
/// <param name="ListCount">1, which all heads share, or the view's KV heads.</param>
public readonly partial record struct KvRotation(int Layer, KvView View, int TokenCount, KvRegion Offsets, int ListCount = 1)
{
    /// <summary>
    /// Absent, or slots held by each head: 32-bit numbers, [KV heads], each at most <see cref="TokenCount"/>.
    /// </summary>
    public KvRegion TokenCounts { get; init; }

    internal void KeepAlive()
    {
        GC.KeepAlive(View);
        GC.KeepAlive(Offsets.Owner);
        GC.KeepAlive(TokenCounts.Owner);
    }
}

// The native structs of one rotation. They point to each other, so they must not move.
internal unsafe struct NativeRotation
{
    private kvevict_view _view;

    // Writes a rotation. Its rows must lie in their memory.
    internal static void Write(NativeRotation* self, kvevict_rotation* native, in KvRotation rotation,
                               ContextHandle context)
    {
        if (rotation.View is null) throw new ArgumentNullException(nameof(rotation.View));
        uint* counts = (uint*)rotation.TokenCounts.Each(context, nameof(rotation.TokenCounts), rotation.View.KvHeads);
        rotation.View.Write(&self->_view, rotation.TokenCount, context, counts);
        rotation.Fill(native);
        native->token_counts = counts;
        native->view = &self->_view;
        long length = (long)rotation.ListCount * rotation.TokenCount;
        native->offsets = (int*)rotation.Offsets.Each(context, nameof(rotation.Offsets), length);
        native->offsets_len = (nuint)length;
    }
}
