namespace KvEvict;

/// <summary>
/// A range of memory that does not move: device memory, native memory, or a pinned array. It keeps its owner
/// alive and checks that it is not disposed; nothing is copied.
/// </summary>
/// <remarks>
/// <see cref="KvPinnedMemory{T}"/> and <see cref="KvWorkspace"/> convert to it by themselves, for the CPU; a context
/// on CUDA refuses such regions. There a call only queues its work: keep the owner until the stream has passed
/// it. Name host memory that is registered with the driver by its address.
/// </remarks>
public readonly record struct KvRegion
{
    private bool IsOfHost { get; init; }

    /// <summary>Names a range of memory.</summary>
    /// <param name="address">A host pointer, or a CUdeviceptr.</param>
    /// <param name="bytes">Its size; using rows outside is an error.</param>
    /// <param name="owner">What has to stay alive as long as the range is used.</param>
    public KvRegion(nint address, long bytes, object? owner = null)
    {
        ArgumentOutOfRangeException.ThrowIfNegative(bytes);
        Address = address;
        Bytes = bytes;
        Owner = owner;
    }

    /// <summary>Its address; 0 for no memory.</summary>
    public nint Address { get; private init; }

    /// <summary>Its size.</summary>
    public long Bytes { get; private init; }

    /// <summary>The type of its elements, which is known for pinned memory of float or <see cref="Half"/>.</summary>
    public KvDType ElementType { get; private init; }

    internal object? Owner { get; }

    // The bytes of an element of pinned memory; 0 if unknown.
    private int ElementBytes { get; init; }

    /// <summary>A part, which keeps the same owner alive.</summary>
    /// <param name="offset">Bytes from this begin to the part's.</param>
    /// <param name="bytes">The part's size.</param>
    /// <returns>The part.</returns>
    /// <exception cref="ArgumentOutOfRangeException">It would reach beyond this range.</exception>
    public KvRegion Slice(long offset, long bytes)
    {
        ArgumentOutOfRangeException.ThrowIfNegative(offset);
        ArgumentOutOfRangeException.ThrowIfGreaterThan(offset, Bytes);
        ArgumentOutOfRangeException.ThrowIfNegative(bytes);
        ArgumentOutOfRangeException.ThrowIfGreaterThan(bytes, Bytes - offset);
        return this with { Address = checked(Address + (nint)offset), Bytes = bytes };
    }

    /// <summary>Everything from a byte on, which keeps the same owner alive.</summary>
    /// <param name="offset">Bytes from this begin to the part's.</param>
    /// <returns>The part.</returns>
    /// <exception cref="ArgumentOutOfRangeException">It would begin beyond this range.</exception>
    public KvRegion Slice(long offset) => Slice(offset, Bytes - offset);

    // Names memory that this library made or pinned.
    internal static KvRegion OfHost(
        nint address, long bytes, IRegionOwner owner, KvDType elementType = KvDType.Opaque, int elementBytes = 0) =>
        new(address, bytes, owner) { IsOfHost = true, ElementType = elementType, ElementBytes = elementBytes };

    // Its element type, for messages.
    internal string ElementName =>
        ElementType == KvDType.Opaque ? $"{ElementBytes}-byte elements" : ElementType.ToString();

    // Whether rows of a dtype can lie here. Memory of float or Half holds that type. Memory of other
    // elements holds types as wide: 16 bits may be F16 or BF16. Bytes hold anything, and opaque rows lie anywhere.
    internal bool Holds(KvDType dtype)
    {
        if (dtype == KvDType.Opaque || ElementBytes <= 1) return true;
        if (ElementType != KvDType.Opaque) return dtype == ElementType;
        int bytes = KvEvictLibrary.InfoOf(dtype).ElementBytes;
        return bytes == 0 || bytes == ElementBytes;
    }

    // The address, from an owner that is not disposed, for a call that works with a context (null: the CPU).
    internal nint Resolve(ContextHandle? context, string name)
    {
        if (IsOfHost) context?.RefuseHostMemory(name);
        if (Owner is IRegionOwner owner) ObjectDisposedException.ThrowIf(owner.IsDisposed, owner);
        return Address;
    }

    // The address of so many 32-bit numbers; 0 if absent.
    internal nint Each(ContextHandle? context, string name, long count)
    {
        if (Address != 0 && Elements<uint>() < (nuint)Math.Max(count, 0))
            throw new ArgumentException($"{name} has {Elements<uint>()} elements, {count} are needed", name);
        return Resolve(context, name);
    }

    internal unsafe nuint Elements<T>() where T : unmanaged => (nuint)(Bytes / sizeof(T));
}

// Memory whose address is valid as long as its owner.
internal interface IRegionOwner
{
    bool IsDisposed { get; }
}
