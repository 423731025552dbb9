using System.Runtime.CompilerServices;

namespace KvEvict;

// Checks arguments in .NET's own terms.
internal static class Check
{
    // A count, index or position. The library takes it unsigned.
    internal static uint Count(int value, string name)
    {
        if (value < 0) ThrowNegative(value, name);
        return (uint)value;
    }

    // A stride. The library takes it unsigned.
    internal static ulong Count(long value, string name)
    {
        ArgumentOutOfRangeException.ThrowIfNegative(value, name);
        return (ulong)value;
    }

    // A number of the library that .NET shows as int.
    internal static int ToInt(ulong value) =>
        value <= int.MaxValue ? (int)value : throw new OverflowException($"{value} does not fit in an int");

    // Bytes from one thing to the next; their product must fit in 64 bits.
    internal static long Stride(long a, long b, long c = 1, [CallerMemberName] string layout = "")
    {
        Int128 product = (Int128)a * b * c;
        if (product > long.MaxValue)
            throw new ArgumentOutOfRangeException(null, $"{layout}: a stride of {a} * {b} * {c} bytes exceeds 64 bits");
        return (long)product;
    }

    // The handle of an object that is not disposed. (A SafeHandle alone would not tell while something
    // made from it is still open.)
    internal static T Open<T>(T handle, object owner) where T : NativeHandle
    {
        ObjectDisposedException.ThrowIf(handle.IsDisposed, owner);
        return handle;
    }

    private static void ThrowNegative(int value, string name) =>
        throw new ArgumentOutOfRangeException(name, value, "must not be negative");
}
