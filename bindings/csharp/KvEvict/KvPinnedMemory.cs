using System.Buffers;

namespace KvEvict;

/// <summary>
/// Managed memory that the garbage collector does not move, so that native code may use it without a copy:
/// a new array, or memory that exists already. For contexts on the CPU.
/// </summary>
/// <typeparam name="T">Element type, such as float or <see cref="Half"/>.</typeparam>
public sealed unsafe class KvPinnedMemory<T> : IDisposable, IRegionOwner where T : unmanaged
{
    private readonly Memory<T> _memory;
    private MemoryHandle _pin;
    private readonly nint _address;

    /// <summary>Allocates a zeroed array that the collector does not move.</summary>
    /// <param name="length">Elements.</param>
    /// <exception cref="ArgumentOutOfRangeException"><paramref name="length"/> is negative.</exception>
    public KvPinnedMemory(int length) : this(new Memory<T>(Allocate(length)))
    {
    }

    /// <summary>Pins memory that exists already, until this is disposed.</summary>
    /// <param name="memory">An array, a part of one, or any other memory that can be pinned.</param>
    public KvPinnedMemory(Memory<T> memory)
    {
        _memory = memory;
        _pin = memory.Pin();
        _address = (nint)_pin.Pointer;
    }

    /// <summary>Gives the memory free to move again if it was not disposed.</summary>
    ~KvPinnedMemory() => _pin.Dispose();

    /// <summary>Whether it was disposed.</summary>
    public bool IsDisposed { get; private set; }

    /// <summary>Elements.</summary>
    public int Length => _memory.Length;

    /// <summary>The memory.</summary>
    public Memory<T> Memory => Open()._memory;

    /// <summary>The memory.</summary>
    public Span<T> Span => Open()._memory.Span;

    /// <summary>Its address until this is disposed.</summary>
    public nint Address => Open()._address;

    /// <summary>The memory as a region that keeps this alive.</summary>
    /// <param name="memory">Pinned memory.</param>
    public static implicit operator KvRegion(KvPinnedMemory<T> memory)
    {
        ArgumentNullException.ThrowIfNull(memory);
        return memory.ToRegion();
    }

    /// <summary>The memory as a region that keeps this alive and knows its element type.</summary>
    /// <returns>All of it.</returns>
    public KvRegion ToRegion() => KvRegion.OfHost(Address, (long)Length * sizeof(T), this, ElementType, sizeof(T));

    /// <summary>
    /// Gives the memory free to move again; calls with a <see cref="KvRegion"/> of it fail from now on. Must not
    /// run while such a call does.
    /// </summary>
    public void Dispose()
    {
        if (IsDisposed) return;
        IsDisposed = true;
        _pin.Dispose();
        GC.SuppressFinalize(this);
    }

    private static T[] Allocate(int length)
    {
        ArgumentOutOfRangeException.ThrowIfNegative(length);
        return GC.AllocateArray<T>(length, pinned: true);
    }

    private static KvDType ElementType =>
        typeof(T) == typeof(float) ? KvDType.F32 : typeof(T) == typeof(Half) ? KvDType.F16 : KvDType.Opaque;

    private KvPinnedMemory<T> Open()
    {
        ObjectDisposedException.ThrowIf(IsDisposed, this);
        return this;
    }
}
