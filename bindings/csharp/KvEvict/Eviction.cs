namespace KvEvict;

/// <summary>What an eviction may be told beside the policy.</summary>
public readonly partial record struct KvEvictOptions
{
    /// <summary>Strictly ascending positions that must stay; those already evicted are ignored.</summary>
    public ReadOnlyMemory<int> ProtectedPositions { get; init; }

    /// <summary>
    /// One per layer, if the policy's signal needs more than keys: scores, or query rows of the observation window
    /// in place of observed ones. Empty: none.
    /// </summary>
    public ReadOnlyMemory<KvSignalInputs> Inputs { get; init; }

    /// <summary>
    /// Memory aligned like a workspace that receives the rows that go, at least
    /// <see cref="KvSequence.UndoBytes"/>: see <see cref="KvSequence.Undo"/>. Default: they are gone for good.
    /// </summary>
    public KvRegion Undo { get; init; }

    /// <summary>Positions that go later or sooner than others; those not held are ignored.</summary>
    public ReadOnlyMemory<KvTokenRange> Ranges { get; init; }

    /// <summary>
    /// One per layer: other caches to which the rows that stay are copied, in the types there. The views keep
    /// theirs. They have room for as many as <see cref="KvSequence.KeptSlots"/> says. For a plan that has
    /// destinations. Empty: rows stay in the views.
    /// </summary>
    public ReadOnlyMemory<KvView> Destinations { get; init; }

    // Writes all but the destinations. The layers' inputs are written elsewhere.
    internal unsafe void Write(in NativeEviction to, ContextHandle context)
    {
        kvevict_evict_options* native = to.Options;
        Fill(native);
        KvTokenRange.Write(Ranges.Span, to.Ranges);
        native->protected_positions = to.ProtectedPositions;
        native->protected_positions_len = (nuint)ProtectedPositions.Length;
        native->inputs = to.Inputs;
        native->inputs_len = (nuint)Inputs.Length;
        native->ranges = Ranges.IsEmpty ? null : to.Ranges;
        native->ranges_len = (nuint)Ranges.Length;
        native->undo = (void*)Undo.Resolve(context, nameof(Undo));
        native->undo_bytes = (nuint)Undo.Bytes;
    }

    internal void KeepAlive()
    {
        foreach (KvView view in Destinations.Span) GC.KeepAlive(view);
        foreach (ref readonly KvSignalInputs one in Inputs.Span) one.KeepAlive();
        GC.KeepAlive(Undo.Owner);
    }
}

// Memory for the native arguments of one eviction, which point to each other, so it must not move.
internal unsafe struct NativeEviction
{
    internal kvevict_evict_options* Options;
    internal kvevict_view* Views; // as many as the longer of views and inputs
    internal kvevict_signal_inputs* Inputs;
    internal NativeInputs* Planes;
    internal kvevict_token_range* Ranges;
    internal int* ProtectedPositions; // the caller writes them
    internal kvevict_view* Destinations;
}

/// <summary>
/// Tokens that go later or sooner than others: whatever its score, a token of a higher rank stays before
/// any of a lower one. Tokens in no range have rank 0. A call takes up to 64 ranges, none of which begins before the
/// end of the one before. Ranges say which tokens a list keeps, never how many.
/// </summary>
/// <param name="First">First position, or slot.</param>
/// <param name="End">The one after the last; <see cref="int.MaxValue"/> for all to come.</param>
/// <param name="Rank">Any number.</param>
public readonly partial record struct KvTokenRange(int First, int End, int Rank)
{
    internal const int Most = 64; // the library refuses more

    internal static unsafe void Write(ReadOnlySpan<KvTokenRange> ranges, kvevict_token_range* native)
    {
        for (int i = 0; i < ranges.Length; ++i) ranges[i].Fill(native + i);
    }
}

/// <summary>What an eviction did, summed over the layers; bytes count K, V and companions.</summary>
/// <param name="Evicted">Whether any layer lost a token.</param>
/// <param name="BytesBefore">Bytes in use before.</param>
/// <param name="BytesAfter">Bytes in use afterwards.</param>
/// <param name="TokensBefore">Slots in use before; the longest head counts if heads differ.</param>
/// <param name="TokensAfter">Slots in use afterwards.</param>
/// <param name="BlocksFreed">
/// Paged: blocks that no longer hold anything, the entries of every block table from
/// ceil(stored length / block size) on.
/// </param>
/// <param name="Reason">
/// Why layers that may be over their budgets were left alone: <see cref="KvReason.OpenPrompt"/> if all were,
/// <see cref="KvReason.SmallBudget"/> if at least one was.
/// </param>
/// <param name="WeakFits">
/// KV heads whose values were fitted to fewer than twice as many queries as slots, so that the policy's <c>FitRidge</c>
/// decides.
/// </param>
public readonly record struct KvEvictReport(
    bool Evicted, long BytesBefore, long BytesAfter, long TokensBefore, long TokensAfter, long BlocksFreed,
    KvReason Reason = KvReason.None, int WeakFits = 0);

/// <summary>What an eviction did to one keep list.</summary>
/// <param name="Layer">Its layer.</param>
/// <param name="TokensBefore">Slots in use before.</param>
/// <param name="TokensAfter">Slots in use afterwards.</param>
public readonly record struct KvListReport(int Layer, int TokensBefore, int TokensAfter)
{
    /// <summary>
    /// The share of the list's mass that stayed: of the scores that chose it, if these are attention or the
    /// caller's. NaN if it is not known, as for a plan that does not report mass.
    /// </summary>
    public float MassKept { get; init; } = float.NaN;

    /// <summary>The largest mass of a token that went, as a share of the list's; NaN if it is not known.</summary>
    public float LargestMassEvicted { get; init; } = float.NaN;
}

/// <summary>
/// The place of a layer's state on the context's device.
/// </summary>
/// <param name="Lengths">
/// Address of u32 [ListCount, 2]: stored and logical length, updated by the streams' work. Those of all
/// layers lie end to end. 0 without a full cache.
/// </param>
/// <param name="Positions">
/// Address of i32 [ListCount, ListedCount]: positions of a layer's first slots; those after count up by one.
/// Moves with every eviction.
/// </param>
/// <param name="ListedCounts">
/// Address of u32 [ListCount]: how many slots each list has listed, if lists differ; 0 if all have
/// ListedCount. Moves with every eviction.
/// </param>
/// <param name="ListedCount">Slots with a listed position, the most of any list.</param>
/// <param name="ListCount">The number in <see cref="KvLayerInfo"/>.</param>
/// <param name="Sums">
/// Address of f32 [SumHeads, SumStride]: the observed attention of each slot. Fixed while the sequence
/// observes; 0 if it keeps none.
/// </param>
/// <param name="SumHeads">Rows of sums.</param>
/// <param name="SumStride">Elements from row to row.</param>
public readonly record struct KvSequenceMemory(
    nint Lengths, nint Positions, nint ListedCounts, int ListedCount, int ListCount, nint Sums, int SumHeads,
    long SumStride);
