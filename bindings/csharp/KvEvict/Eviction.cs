namespace KvEvict;

/// <summary>What an eviction may be told beside the policy.</summary>
public ref struct KvEvictOptions
{
    /// <summary>Strictly ascending positions that must stay; those already evicted are ignored.</summary>
    public ReadOnlySpan<int> ProtectedPositions { get; set; }

    /// <summary>
    /// <see cref="KvPolicyKind.Custom"/>: floats, the scores of every layer's slots, [layers, KV heads, stored
    /// length] with the strides below.
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
/// <param name="TokensBefore">Slots in use before.</param>
/// <param name="TokensAfter">Slots in use now.</param>
/// <param name="BlocksFreed">
/// Paged: blocks that hold nothing any more, the entries of each block table from
/// ceil(stored length / block size) on.
/// </param>
public readonly record struct KvEvictReport(
    bool Evicted, long BytesBefore, long BytesAfter, long TokensBefore, long TokensAfter, long BlocksFreed);

/// <summary>Where a sequence keeps its state, on the context's device.</summary>
/// <param name="Lengths">
/// Address of u32 [layers, 2]: stored and logical length, brought up to date by the stream's work.
/// </param>
/// <param name="Positions">
/// Address of i32 [ListCount, ListedCount]: positions of a layer's first slots; those after count up by one.
/// Moves with every eviction.
/// </param>
/// <param name="ListedCount">Slots with a listed position.</param>
/// <param name="ListCount">1, or the KV heads with <see cref="KvScope.KvHead"/>.</param>
public readonly record struct KvSequenceMemory(nint Lengths, nint Positions, int ListedCount, int ListCount);
