namespace KvEvict;

/// <summary>What an eviction may be told beside the policy.</summary>
public ref struct KvEvictOptions
{
    /// <summary>Strictly ascending positions that must stay; those already evicted are ignored.</summary>
    public ReadOnlySpan<int> ProtectedPositions { get; set; }

    /// <summary>
    /// One per layer, where the policy's signal needs more than keys: scores, or query rows of the observation window
    /// in place of observed ones. Empty: none.
    /// </summary>
    public ReadOnlySpan<KvSignalInputs> Inputs { get; set; }

    /// <summary>
    /// Memory, aligned as a workspace, that receives the rows that go, at least
    /// <see cref="KvSequence.UndoBytes"/>: see <see cref="KvSequence.Undo"/>. Default: they are gone for good.
    /// </summary>
    public KvRegion Undo { get; set; }

    /// <summary>Positions that go later or sooner than others; those not held are ignored.</summary>
    public ReadOnlySpan<KvTokenRange> Ranges { get; set; }

    /// <summary>
    /// Rows stay where they are, and the views' block tables, or the address tables of their planes, are written to:
    /// blocks that stay come first, behind them those that go, which are free then. Whole blocks have to stay or go:
    /// see <see cref="KvPlan.Capabilities"/>.
    /// </summary>
    public bool ByTable { get; set; }

    /// <summary>
    /// One per layer: other caches, to which the rows that stay are copied, as rows of their type; the views keep
    /// theirs. They have room for as many as <see cref="KvSequence.KeptSlots"/> says. For a plan that has
    /// destinations. Empty: rows stay in the views.
    /// </summary>
    public ReadOnlySpan<KvView> Destinations { get; set; }
}

/// <summary>
/// Tokens that go later than others, but may go, or sooner: whatever its score, a token of a higher rank stays before
/// any of a lower one; those in no range have rank 0. A call takes up to 64 ranges, none of which begins before the
/// end of the one before. They say which tokens a list keeps, never how many.
/// </summary>
/// <param name="First">First position, or slot.</param>
/// <param name="End">Behind the last one; <see cref="int.MaxValue"/> for all to come.</param>
/// <param name="Rank">Any.</param>
public readonly record struct KvTokenRange(int First, int End, int Rank)
{
    internal const int Most = 64; // more are the library's to refuse

    // Writes ranges, as many as there is room for.
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
/// <param name="BytesBefore">In use before.</param>
/// <param name="BytesAfter">In use then.</param>
/// <param name="TokensBefore">Slots in use before; of a layer whose heads differ, the most of any head.</param>
/// <param name="TokensAfter">Slots in use then.</param>
/// <param name="BlocksFreed">
/// Paged: blocks that hold nothing any more, the entries of each block table, also of a head's own, from
/// ceil(stored length / block size) on.
/// </param>
/// <param name="Reason">
/// Why layers were left alone that may be over their budgets: <see cref="KvReason.OpenPrompt"/>, then all were;
/// <see cref="KvReason.SmallBudget"/>, then one was at least.
/// </param>
public readonly record struct KvEvictReport(
    bool Evicted, long BytesBefore, long BytesAfter, long TokensBefore, long TokensAfter, long BlocksFreed,
    KvReason Reason = KvReason.None);

/// <summary>What an eviction did to one keep list.</summary>
/// <param name="Layer">Its layer.</param>
/// <param name="TokensBefore">Slots in use before.</param>
/// <param name="TokensAfter">Slots in use then.</param>
public readonly record struct KvListReport(int Layer, int TokensBefore, int TokensAfter)
{
    /// <summary>
    /// What share of the list's mass stayed: of the scores that it was chosen by, where these are attention or the
    /// caller's. NaN where nothing is known, as for a plan that does not report mass.
    /// </summary>
    public float MassKept { get; init; } = float.NaN;

    /// <summary>The largest mass of a single token that went, as a share of the list's; NaN likewise.</summary>
    public float LargestMassEvicted { get; init; } = float.NaN;
}

/// <summary>
/// Where a sequence keeps the state of a layer, on the context's device.
/// </summary>
/// <param name="Lengths">
/// Address of u32 [ListCount, 2]: stored and logical length, brought up to date by the streams' work; those of all
/// layers lie end to end. 0 without a full cache.
/// </param>
/// <param name="Positions">
/// Address of i32 [ListCount, ListedCount]: positions of a layer's first slots; those after count up by one.
/// Moves with every eviction.
/// </param>
/// <param name="ListedCounts">
/// Address of u32 [ListCount]: how many slots of a list are listed, where lists differ; 0 where all list
/// ListedCount. Moves with every eviction.
/// </param>
/// <param name="ListedCount">Slots with a listed position, the most of any list.</param>
/// <param name="ListCount">As <see cref="KvLayerInfo"/> has it.</param>
/// <param name="Sums">
/// Address of f32 [SumHeads, SumStride]: the attention observed that each slot has got. Fixed while the sequence
/// observes; 0 where it keeps none.
/// </param>
/// <param name="SumHeads">Rows of sums.</param>
/// <param name="SumStride">Elements from row to row.</param>
public readonly record struct KvSequenceMemory(
    nint Lengths, nint Positions, nint ListedCounts, int ListedCount, int ListCount, nint Sums, int SumHeads,
    long SumStride);
