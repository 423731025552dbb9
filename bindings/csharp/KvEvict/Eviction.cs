namespace KvEvict;

/// <summary>What an eviction may be told beside the policy.</summary>
public ref struct KvEvictOptions
{
    /// <summary>Strictly ascending positions that must stay; those already evicted are ignored.</summary>
    public ReadOnlySpan<int> ProtectedPositions { get; set; }

    /// <summary>
    /// One per layer, if the policy's signal needs more than keys: scores, or query rows of the observation window
    /// in place of observed ones. Empty: none.
    /// </summary>
    public ReadOnlySpan<KvSignalInputs> Inputs { get; set; }

    /// <summary>
    /// Memory aligned like a workspace that receives the rows that go, at least
    /// <see cref="KvSequence.UndoBytes"/>: see <see cref="KvSequence.Undo"/>. Default: they are gone for good.
    /// </summary>
    public KvRegion Undo { get; set; }

    /// <summary>Positions that go later or sooner than others; those not held are ignored.</summary>
    public ReadOnlySpan<KvTokenRange> Ranges { get; set; }

    /// <summary>
    /// Rows stay where they are, and the views' block tables, or their planes' address tables, are written:
    /// blocks that stay come first, then those that go, which are then free. Whole blocks have to stay or go:
    /// see <see cref="KvPlan.Capabilities"/>.
    /// </summary>
    public bool ByTable { get; set; }

    /// <summary>
    /// One per layer: other caches to which the rows that stay are copied, in the types there. The views keep
    /// theirs. They have room for as many as <see cref="KvSequence.KeptSlots"/> says. For a plan that has
    /// destinations. Empty: rows stay in the views.
    /// </summary>
    public ReadOnlySpan<KvView> Destinations { get; set; }
}

/// <summary>
/// Tokens that go later or sooner than others: whatever its score, a token of a higher rank stays before
/// any of a lower one. Tokens in no range have rank 0. A call takes up to 64 ranges, none of which begins before the
/// end of the one before. Ranges say which tokens a list keeps, never how many.
/// </summary>
/// <param name="First">First position, or slot.</param>
/// <param name="End">The one after the last; <see cref="int.MaxValue"/> for all to come.</param>
/// <param name="Rank">Any number.</param>
public readonly record struct KvTokenRange(int First, int End, int Rank)
{
    internal const int Most = 64; // the library refuses more

    // Writes as many ranges as there is room for.
    internal static unsafe void Write(ReadOnlySpan<KvTokenRange> ranges, Span<kvevict_token_range> native)
    {
        for (int i = 0; i < native.Length; ++i)
        {
            kvevict_token_range range = kvevict_token_range.Init;
            range.rank = ranges[i].Rank;
            range.first = Check.Count(ranges[i].First, nameof(First));
            range.end = Check.Count(ranges[i].End, nameof(End));
            native[i] = range;
        }
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
public readonly record struct KvEvictReport(
    bool Evicted, long BytesBefore, long BytesAfter, long TokensBefore, long TokensAfter, long BlocksFreed,
    KvReason Reason = KvReason.None);

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
