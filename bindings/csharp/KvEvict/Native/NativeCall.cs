using System.Runtime.ExceptionServices;

namespace KvEvict;

// A call of the library and its callbacks' exceptions. None may pass through native code: the first
// is kept and leaves the call in which it happened. The library calls back on the thread of the call.
internal struct NativeCall
{
    [ThreadStatic] private static ExceptionDispatchInfo? t_failure;
    private readonly ExceptionDispatchInfo? _outer;

    // Begins a call, maybe within another one: a callback may use the library.
    public NativeCall()
    {
        _outer = t_failure;
        t_failure = null;
    }

    // Whether a callback of this thread's call has thrown.
    internal static bool HasFailed => t_failure is not null;

    // Keeps what a callback threw.
    internal static void Fail(Exception e) => t_failure ??= ExceptionDispatchInfo.Capture(e);

    // Throws what went wrong.
    internal readonly void End(KvStatus status)
    {
        ExceptionDispatchInfo? failure = t_failure;
        t_failure = _outer;
        if (status != KvStatus.Ok) KvEvictException.Throw(status, failure?.SourceException);
        failure?.Throw();
    }
}
