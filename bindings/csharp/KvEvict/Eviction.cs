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
public readonly record struct KvEvictReport(
    bool Evicted, long BytesBefore, long BytesAfter, long TokensBefore, long TokensAfter, long BlocksFreed);

/// <summary>What an eviction did to one keep list.</summary>
/// <param name="Layer">Its layer.</param>
/// <param name="TokensBefore">Slots in use before.</param>
/// <param name="TokensAfter">Slots in use then.</param>
public readonly record struct KvListReport(int Layer, int TokensBefore, int TokensAfter);

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
