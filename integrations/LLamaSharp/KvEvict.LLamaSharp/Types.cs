namespace KvEvict.LLamaSharp;

/// <summary>Why a call failed.</summary>
public enum KvEvictLLamaStatus
{
    /// <summary>It did not.</summary>
    Ok = 0,
    /// <summary>A wrong argument, thrown as an <see cref="ArgumentException"/>.</summary>
    InvalidArgument = 1,
    /// <summary>Not possible with this model, context or sequence; the message has the reason.</summary>
    Unsupported = 2,
    /// <summary>The system refused: a file cannot be read or written.</summary>
    Unavailable = 3,
    /// <summary>No memory.</summary>
    OutOfMemory = 4,
    /// <summary>llama.cpp failed. If the message begins with "sequence lost: ", the sequence is empty now.</summary>
    Internal = 5,
}

/// <summary>A call failed for another reason than a wrong argument.</summary>
public sealed class KvEvictLLamaException : Exception
{
    internal KvEvictLLamaException(KvEvictLLamaStatus status, string message) : base(message) => Status = status;

    /// <summary>The kind of failure.</summary>
    public KvEvictLLamaStatus Status { get; }
}

/// <summary>What applies to a context that is evicted.</summary>
public sealed record KvEvictContextOptions
{
    /// <summary>
    /// Evicts sequences after every decode whose logits are asked for, by the policy's budget and margin. False:
    /// only calls of Evict do.
    /// </summary>
    public bool AutoEvict { get; init; }

    /// <summary>
    /// The context size that LLamaSharp is told, in tokens seen, if it is more than the cells of the cache. Its
    /// executors stop or shift at this size. 0: the number of cells.
    /// </summary>
    public int LogicalContextSize { get; init; }

    /// <summary>How many last queries are kept for scores, as <c>query_rows</c> of kvevict-llama.h. 0: the policy's window.</summary>
    public int QueryRows { get; init; }

    /// <summary>
    /// The bytes of a file that <c>kvevict-llama-cli calibrate</c> made of the model. triattention needs them, and
    /// expected-attention takes their statistics in place of those of the sequence's own queries. Empty: none. The
    /// first eviction compares them with the model.
    /// </summary>
    public ReadOnlyMemory<byte> Calibration { get; init; }
}

/// <summary>What an eviction did.</summary>
/// <param name="Evicted">Whether tokens went. A sequence within budget and margin is left alone.</param>
/// <param name="InPlace">Whether it worked on the cache's own memory, else in a copy of the sequence's state.</param>
/// <param name="CellsBefore">The sequence's cells.</param>
/// <param name="CellsAfter">The cells that stay.</param>
/// <param name="BytesBefore">K and V of these cells.</param>
/// <param name="BytesAfter">K and V of the cells that stay.</param>
/// <param name="Duration">Of the whole call.</param>
public readonly record struct KvEvictLLamaReport(
    bool Evicted, bool InPlace, int CellsBefore, int CellsAfter, long BytesBefore, long BytesAfter, TimeSpan Duration);
