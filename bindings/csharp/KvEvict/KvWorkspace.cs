using System.Runtime.InteropServices;

namespace KvEvict;

/// <summary>
/// Scratch memory for calls on the CPU, aligned as they want it; from
/// <see cref="KvPlan.CreateWorkspace(KvOperation)"/>, <see cref="KvContext.CreateSelectWorkspace"/> or
/// <see cref="KvContext.CreateReorderWorkspace"/>. One serves all sequences whose calls do not run at the same time.
/// For a context on CUDA hand over a <see cref="KvRegion"/> of device memory instead.
/// </summary>
public sealed unsafe class KvWorkspace : IDisposable, IRegionOwner
{
    private const nuint Alignment = 64;
    private readonly long _bytes;
    private void* _memory;

    /// <summary>Allocates.</summary>
    /// <param name="bytes">Size, such as <see cref="KvPlan.WorkspaceBytes"/>.</param>
    public KvWorkspace(long bytes)
    {
        ArgumentOutOfRangeException.ThrowIfNegative(bytes);
        _bytes = bytes;
        _memory = NativeMemory.AlignedAlloc((nuint)bytes, Alignment);
        if (bytes > 0) GC.AddMemoryPressure(bytes);
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
