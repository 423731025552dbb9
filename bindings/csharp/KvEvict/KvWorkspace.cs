using System.Runtime.InteropServices;

namespace KvEvict;

/// <summary>
/// The memory that a call works in, whatever its inputs hold. The call runs in any size from the least on, with the
/// same results, and gains nothing from more than the best. Memory for more tokens also serves fewer.
/// </summary>
/// <param name="Alignment">The alignment of the address in bytes: 64, on CUDA 256.</param>
/// <param name="Least">The least bytes; 0: the call needs none.</param>
/// <param name="Best">The best bytes.</param>
public readonly record struct KvWorkspaceSize(int Alignment, long Least, long Best)
{
    internal KvWorkspaceSize(in kvevict_workspace native)
        : this(Check.ToInt(native.alignment), checked((long)native.least_bytes), checked((long)native.best_bytes))
    {
    }
}

/// <summary>
/// Scratch memory for calls on the CPU, aligned as they need it, from
/// <see cref="KvPlan.CreateWorkspace"/>, <see cref="KvContext.CreateSelectWorkspace"/> or
/// <see cref="KvContext.CreateReorderWorkspace"/>. One serves all sequences whose calls do not run at the same time.
/// For a context on CUDA hand over a <see cref="KvRegion"/> of device memory instead.
/// </summary>
public sealed unsafe class KvWorkspace : IDisposable, IRegionOwner
{
    private readonly long _bytes;
    private void* _memory;

    /// <summary>Allocates.</summary>
    /// <param name="bytes">Size, such as <see cref="KvWorkspaceSize.Least"/>.</param>
    /// <param name="alignment">The alignment of the address that calls on the CPU need.</param>
    public KvWorkspace(long bytes, int alignment = 64)
    {
        ArgumentOutOfRangeException.ThrowIfNegative(bytes);
        ArgumentOutOfRangeException.ThrowIfNegativeOrZero(alignment);
        _bytes = bytes;
        _memory = NativeMemory.AlignedAlloc((nuint)bytes, (nuint)alignment);
        if (bytes > 0) GC.AddMemoryPressure(bytes);
    }

    internal KvWorkspace(KvWorkspaceSize size) : this(size.Best, size.Alignment)
    {
    }

    /// <summary>Frees the memory if it was not disposed.</summary>
    ~KvWorkspace() => Free();

    /// <summary>Whether it was disposed.</summary>
    public bool IsDisposed => _memory is null;

    /// <summary>The memory as a region that keeps this alive.</summary>
    /// <param name="workspace">A workspace.</param>
    public static implicit operator KvRegion(KvWorkspace workspace)
    {
        ArgumentNullException.ThrowIfNull(workspace);
        return workspace.ToRegion();
    }

    /// <summary>The memory as a region that keeps this alive.</summary>
    /// <returns>All of it.</returns>
    public KvRegion ToRegion()
    {
        ObjectDisposedException.ThrowIf(IsDisposed, this);
        return KvRegion.OfHost((nint)_memory, _bytes, this);
    }

    /// <summary>Frees the memory. Must not run while a call uses it.</summary>
    public void Dispose()
    {
        Free();
        GC.SuppressFinalize(this);
    }

    private void Free()
    {
        if (_memory is null) return;
        NativeMemory.AlignedFree(_memory);
        _memory = null;
        if (_bytes > 0) GC.RemoveMemoryPressure(_bytes);
    }
}
