namespace KvEvict;

/// <summary>
/// Runs the model over tokens of a prompt. In each layer it writes their rows after those that are stored, attends to
/// all of them, causal within the chunk, and shows what the policy needs by
/// <see cref="KvSequence.Observe(int, KvPlane, int, int?, nint)"/>. It may use the sequence and its blocks, but appends
/// nothing. An exception ends the prefill, which throws it too.
/// </summary>
/// <param name="firstToken">The position of the first one.</param>
/// <param name="tokenCount">At most the prompt's chunk.</param>
public delegate void KvPrefillForward(int firstToken, int tokenCount);

/// <summary>A prompt that is read in chunks.</summary>
/// <param name="tokenCount">Tokens of the prompt.</param>
/// <param name="chunk">Tokens at a time, at least 1.</param>
/// <param name="forward">The model.</param>
public sealed partial class KvPrefill(int tokenCount, int chunk, KvPrefillForward forward)
{
    /// <summary>Tokens of the prompt.</summary>
    public int TokenCount { get; } = tokenCount;

    /// <summary>Tokens at a time.</summary>
    public int Chunk { get; } = chunk;

    /// <summary>The model.</summary>
    public KvPrefillForward Forward { get; } = forward ?? throw new ArgumentNullException(nameof(forward));

    /// <summary>
    /// What each eviction is told beside the policy, without destinations. The inputs are read again before each.
    /// </summary>
    public KvEvictOptions Evict { get; init; }
}

/// <summary>What reading a prompt took.</summary>
/// <param name="Chunks">Chunks that the model has run over.</param>
/// <param name="Evictions">Evictions that lost tokens.</param>
/// <param name="PeakTokens">The most that any layer held, a chunk included.</param>
/// <param name="PeakBytes">The most that rows of all layers took at a time.</param>
/// <param name="EndBytes">What they take at the end.</param>
public readonly record struct KvPrefillReport(
    int Chunks, int Evictions, int PeakTokens, long PeakBytes, long EndBytes);
