using System.Diagnostics.CodeAnalysis;

namespace KvEvict;

/// <summary>
/// A call of the native library failed. The message names the parameter, its value and the bound;
/// no output has been written and no cache byte has moved.
/// </summary>
/// <remarks>
/// Mistakes that can be seen without the library (null, a negative count, a span that is too short,
/// rows outside their memory) are <see cref="ArgumentException"/>s instead, and use after
/// <c>Dispose</c> is an <see cref="ObjectDisposedException"/>.
/// </remarks>
/// <param name="status">What kind of failure it is; not <see cref="KvEvict.KvStatus.Ok"/>.</param>
/// <param name="message">The sentence that explains it.</param>
/// <param name="inner">What a callback threw during the call.</param>
public sealed class KvEvictException(KvStatus status, string message, Exception? inner = null)
    : Exception(message, inner)
{
    /// <summary>What kind of failure it is.</summary>
    public KvStatus Status { get; } = status;

    // The text is thread-local in the library: this runs on the thread of the failed call.
    [DoesNotReturn]
    internal static unsafe void Throw(KvStatus status, Exception? inner = null)
    {
        string message = KvEvictLibrary.Text(Native.kvevict_last_error_message());
        throw new KvEvictException(status, message, inner);
    }
}
