namespace KvEvict;

/// <summary>What a call came to. One value per reaction a caller could have.</summary>
public enum KvStatus
{
    /// <summary>It worked.</summary>
    Ok = 0,
    /// <summary>A parameter is wrong; correct the call.</summary>
    InvalidArgument = 1,
    /// <summary>Well-formed, but this layout, element type or combination is not handled.</summary>
    Unsupported = 2,
    /// <summary>The device or a library it needs is not on this machine.</summary>
    Unavailable = 3,
    /// <summary>The allocator had no memory.</summary>
    OutOfMemory = 4,
    /// <summary>A bug in kvevict; please report the message.</summary>
    Internal = 5,
    /// <summary>
    /// The driver reported an error; the message has the call and its name. What the call had queued
    /// may have run in part. "context lost" in the message means that nothing more will run in this
    /// CUcontext.
    /// </summary>
    Device = 6,
}

/// <summary>Where the cache lies and the work is done.</summary>
public enum KvDevice
{
    /// <summary>Host memory and the calling threads.</summary>
    Cpu = 0,
    /// <summary>Device memory and a CUDA stream.</summary>
    Cuda = 1,
}

/// <summary>Element types.</summary>
public enum KvDType
{
    /// <summary>Rows whose content is the engine's secret: they can be moved, not scored.</summary>
    Opaque = 0,
    /// <summary>IEEE single precision.</summary>
    F32 = 1,
    /// <summary>IEEE half precision.</summary>
    F16 = 2,
    /// <summary>The upper half of single precision.</summary>
    BF16 = 3,
}

/// <summary>How important a log line is.</summary>
public enum KvLogLevel
{
    /// <summary>Something is not as the caller may expect.</summary>
    Warning = 0,
    /// <summary>What was found and chosen.</summary>
    Info = 1,
    /// <summary>Details for whoever looks for an error.</summary>
    Debug = 2,
}

/// <summary>The named policies.</summary>
public enum KvPolicyKind
{
    /// <summary>Touches nothing.</summary>
    None = 0,
    /// <summary>First and last tokens: arXiv:2309.17453.</summary>
    StreamingLlm = 1,
    /// <summary>Attention of the last queries, pooled: arXiv:2404.14469.</summary>
    SnapKV = 2,
    /// <summary>SnapKV with more tokens for lower layers: arXiv:2406.02069.</summary>
    PyramidKV = 3,
    /// <summary>A seeded baseline: every token and KV head draws its own number.</summary>
    Random = 4,
    /// <summary>The caller's scores, in <see cref="KvEvictOptions"/>.</summary>
    Custom = 5,
}

/// <summary>Pooling of scores along the tokens, stride 1.</summary>
public enum KvPool
{
    /// <summary>Scores stay as they are.</summary>
    None = 0,
    /// <summary>The average over the kernel.</summary>
    Avg = 1,
    /// <summary>The maximum over the kernel.</summary>
    Max = 2,
}

/// <summary>What average pooling divides by where the kernel hangs over an edge.</summary>
public enum KvPoolEdge
{
    /// <summary>The full width: outside counts as zeros. What published code does.</summary>
    Pad = 0,
    /// <summary>The number of terms inside.</summary>
    Shrink = 1,
}

/// <summary>How several numbers become one; NaN in, NaN out.</summary>
public enum KvReduce
{
    /// <summary>Their mean.</summary>
    Mean = 0,
    /// <summary>Their maximum.</summary>
    Max = 1,
    /// <summary>Their sum.</summary>
    Sum = 2,
}

/// <summary>Which comes first: reducing the query heads of a KV head, or pooling.</summary>
public enum KvShapingOrder
{
    /// <summary>Reduce, then pool.</summary>
    ReduceThenPool = 0,
    /// <summary>Pool, then reduce.</summary>
    PoolThenReduce = 1,
}

/// <summary>What shares one keep list.</summary>
public enum KvScope
{
    /// <summary>Every KV head of every layer has its own.</summary>
    KvHead = 0,
    /// <summary>The heads of a layer.</summary>
    Layer = 1,
    /// <summary>All layers and heads.</summary>
    Model = 2,
}

/// <summary>Which of two equal scores survives.</summary>
public enum KvTie
{
    /// <summary>The lower position.</summary>
    LowerPosition = 0,
    /// <summary>The higher position.</summary>
    HigherPosition = 1,
}

/// <summary>How the budget is spread over the layers.</summary>
public enum KvLayerSplit
{
    /// <summary>The same for every layer.</summary>
    Uniform = 0,
    /// <summary>Weights alpha^layer, largest-remainder rounding, the sum is exact.</summary>
    Geometric = 1,
    /// <summary>
    /// Integer steps down from 2c - c/beta to c/beta past tokens, as KVCache-Factory computes them; the
    /// floor in the step makes the sum run over.
    /// </summary>
    ArithmeticKvf = 2,
    /// <summary>
    /// The same in floating point with the window on top, falling back to uniform where the schedule does
    /// not fit, as kvpress computes it.
    /// </summary>
    ArithmeticKvpress = 3,
}

/// <summary>The executing calls that take a workspace.</summary>
public enum KvOperation
{
    /// <summary><see cref="KvSequence.Evict(ReadOnlySpan{KvView}, KvRegion, KvEvictOptions)"/>.</summary>
    Evict = 0,
    /// <summary>Scoring one layer: <c>KvPlan.ScoreWindow</c>.</summary>
    ScoreWindow = 1,
    /// <summary>Selecting from scores: <c>KvPlan.Select</c>.</summary>
    Select = 2,
}

/// <summary>Why a plan cannot do something; <see cref="KvEvictLibrary.ReasonText"/> has a sentence.</summary>
public enum KvReason
{
    /// <summary>It can.</summary>
    None = 0,
    /// <summary>Keys are opaque: nothing can be read from them.</summary>
    OpaqueKeys = 1,
    /// <summary>Queries are opaque.</summary>
    OpaqueQueries = 2,
    /// <summary>This release does not re-rotate keys.</summary>
    NoRotation = 3,
}
