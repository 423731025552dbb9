using System.Runtime.CompilerServices;

namespace KvEvict;

/// <summary>Checks of what callers hand in, in .NET's own terms.</summary>
internal static class Check
{
    /// <summary>A count, index or position, which the library takes unsigned.</summary>
    internal static uint Count(int value, string name)
    {
        if (value < 0) ThrowNegative(value, name);
        return (uint)value;
    }

    /// <summary>A stride, which the library takes unsigned.</summary>
    internal static ulong Count(long value, string name)
    {
        ArgumentOutOfRangeException.ThrowIfNegative(value, name);
        return (ulong)value;
    }

    /// <summary>A number of the library that .NET shows as int.</summary>
    internal static int ToInt(ulong value) =>
        value <= int.MaxValue ? (int)value : throw new OverflowException($"{value} does not fit in an int");

    /// <summary>Bytes from one thing to the next; their product must fit in 64 bits.</summary>
    internal static long Stride(long a, long b, long c = 1, [CallerMemberName] string layout = "")
    {
        Int128 product = (Int128)a * b * c;
        if (product > long.MaxValue)
            throw new ArgumentOutOfRangeException(null, $"{layout}: a stride of {a} * {b} * {c} bytes exceeds 64 bits");
        return (long)product;
    }

    /// <summary>
    /// The handle of an object that is not disposed. (A SafeHandle alone would not tell while something
    /// made from it is still open.)
    /// </summary>
    internal static T Open<T>(T handle, object owner) where T : NativeHandle
    {
        ObjectDisposedException.ThrowIf(handle.IsDisposed, owner);
        return handle;
    }

    private static void ThrowNegative(int value, string name) =>
        throw new ArgumentOutOfRangeException(name, value, "must not be negative");
}
