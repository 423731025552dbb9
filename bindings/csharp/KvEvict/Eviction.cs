namespace KvEvict;

/// <summary>What an eviction may be told beside the policy.</summary>
public ref struct KvEvictOptions
{
    /// <summary>Strictly ascending positions that must stay; those already evicted are ignored.</summary>
    public ReadOnlySpan<int> ProtectedPositions { get; set; }

    /// <summary>
    /// <see cref="KvPolicyKind.Custom"/>: floats, the scores of every layer's slots, [layers, KV heads, stored
    /// length, the most of any head] with the strides below.
    /// </summary>
    public KvRegion Scores { get; set; }

    /// <summary>Elements from one layer's scores to the next's.</summary>
    public ulong ScoresLayerStride { get; set; }

    /// <summary>Elements from one KV head's scores to the next's.</summary>
    public ulong ScoresHeadStride { get; set; }
}

/// <summary>What an eviction did, summed over the layers; bytes count K, V and companions.</summary>
/// <param name="Evicted">Whether any layer lost a token.</param>
/// <param name="BytesBefore">In use before.</param>
/// <param name="BytesAfter">In use now.</param>
/// <param name="TokensBefore">Slots in use before; of a layer whose heads differ, the most of any head.</param>
/// <param name="TokensAfter">Slots in use now.</param>
/// <param name="BlocksFreed">
/// Paged: blocks that hold nothing any more, the entries of each block table, also of a head's own, from
/// ceil(stored length / block size) on.
/// </param>
public readonly record struct KvEvictReport(
    bool Evicted, long BytesBefore, long BytesAfter, long TokensBefore, long TokensAfter, long BlocksFreed);

/// <summary>
/// Where a sequence keeps its state, on the context's device. A layer has one list of slots, or one for each KV
/// head with <see cref="KvScope.KvHead"/>.
/// </summary>
/// <param name="Lengths">
/// Address of u32 [layers, ListCount, 2]: stored and logical length, brought up to date by the stream's work.
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
/// <param name="ListCount">1, or the KV heads.</param>
public readonly record struct KvSequenceMemory(
    nint Lengths, nint Positions, nint ListedCounts, int ListedCount, int ListCount);
