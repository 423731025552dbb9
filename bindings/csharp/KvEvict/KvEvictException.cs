using System.Diagnostics.CodeAnalysis;
using System.Text.RegularExpressions;

namespace KvEvict;

/// <summary>
/// A call failed because something is missing: memory, a device, free blocks, support for a combination.
/// No output has been written and no cache byte has moved.
/// </summary>
/// <remarks>
/// Every wrong argument is an <see cref="ArgumentException"/>, whose message names the parameter, its value
/// and the bound. Use after <c>Dispose</c> is an <see cref="ObjectDisposedException"/>.
/// </remarks>
/// <param name="status">
/// What kind of failure it is; neither <see cref="KvEvict.KvStatus.Ok"/> nor
/// <see cref="KvEvict.KvStatus.InvalidArgument"/>.
/// </param>
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
        string message = Regex.Replace(KvEvictLibrary.Text(Native.kvevict_last_error_message()), "kvevict_[a-z0-9_]+",
                                       function => NativeNames.Of(function.Value));
        if (status == KvStatus.InvalidArgument) throw new ArgumentException(message, inner);
        throw new KvEvictException(status, message, inner);
    }
}
