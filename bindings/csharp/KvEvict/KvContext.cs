using System.Runtime.InteropServices;

namespace KvEvict;

/// <summary>
/// Device, allocator, thread pool and log sink; one per process. Safe to share between threads. Plans and
/// sequences made from it stay usable after it is disposed.
/// </summary>
/// <example>
/// Score, select and compact the cache of a model whose last 32 queries were observed:
/// <code>
/// using var context = new KvContext();
/// var model = new KvGeometry { Layers = 1, QueryHeads = 8, KvHeads = 2, KeyHeadDim = 64, ValueHeadDim = 64,
///                            MaxTokens = 4096 };
/// using var plan = new KvPlan(context, model, KvPolicy.Parse("snapkv:budget=512,window=32"));
/// using var sequence = new KvSequence(plan);
/// using var workspace = plan.CreateWorkspace(KvOperation.Evict);
///
/// using var k = new KvPinnedMemory&lt;float&gt;(4096 * 2 * 64);          // the engine's own cache
/// using var v = new KvPinnedMemory&lt;float&gt;(4096 * 2 * 64);
/// var q = new float[4096 * 8 * 64];
/// var view = new KvView(2, KvPlane.TokenMajor(k, 2, 64), KvPlane.TokenMajor(v, 2, 64));
///
/// sequence.BeginObserving();
/// sequence.Observe(layer: 0, q, firstPosition: 0);
/// sequence.Append(4096);
/// sequence.Evict([view], workspace);
/// sequence.EndObserving();
/// Console.WriteLine($"next: slot {sequence.StoredLength(0)}, position {sequence.LogicalLength}");
/// </code>
/// </example>
public sealed unsafe class KvContext : IDisposable
{
    private readonly ContextHandle _handle;

    /// <summary>Creates a context.</summary>
    /// <param name="options">null for the CPU and the calling thread.</param>
    /// <exception cref="KvEvictException">The options do not go together, or the device is not there.</exception>
    public KvContext(KvContextOptions? options = null)
    {
        options ??= new KvContextOptions();
        kvevict_context_options native;
        Native.kvevict_context_options_init(&native, (nuint)sizeof(kvevict_context_options));
        native.device = options.Device;
        native.n_threads = Check.Count(options.ThreadCount, nameof(options.ThreadCount));
        native.log_level = options.LogLevel;
        native.cuda_context = (void*)options.CudaContext;
        native.select_on_host = options.SelectOnHost ? 1u : 0;
        native.debug = options.Debug ? 1u : 0;
        _handle = new ContextHandle(options.Device, ContextHooks.Install(options, &native));
        try
        {
            // The library copies the texts.
            native.simd_target = (byte*)Marshal.StringToCoTaskMemUTF8(options.SimdTarget);
            native.libcuda_path = (byte*)Marshal.StringToCoTaskMemUTF8(options.LibcudaPath);
            native.libnvrtc_path = (byte*)Marshal.StringToCoTaskMemUTF8(options.LibnvrtcPath);
            native.kernel_cache_dir = (byte*)Marshal.StringToCoTaskMemUTF8(options.KernelCacheDirectory);
            Native.kvevict_context_create(&native, _handle);
        }
        catch
        {
            _handle.Dispose();
            throw;
        }
        finally
        {
            Marshal.FreeCoTaskMem((nint)native.simd_target);
            Marshal.FreeCoTaskMem((nint)native.libcuda_path);
            Marshal.FreeCoTaskMem((nint)native.libnvrtc_path);
            Marshal.FreeCoTaskMem((nint)native.kernel_cache_dir);
        }
        Device = options.Device;
    }

    /// <summary>Where the caches lie.</summary>
    public KvDevice Device { get; }

    internal ContextHandle Handle => Check.Open(_handle, this);

    /// <summary>
    /// Compiles and loads the kernels that a plan's calls may launch, now instead of at first use; may take
    /// seconds. On the CPU there is nothing to do.
    /// </summary>
    /// <param name="plan">Made from this context; null: only the kernels that serve every plan.</param>
    /// <exception cref="KvEvictException">A kernel does not compile: the message has the log.</exception>
    public void Prepare(KvPlan? plan = null) => Native.kvevict_context_prepare(Handle, plan?.Handle);

    /// <summary>
    /// Moves one layer's surviving rows to slots [0, n), in place; K, V and companions alike. This overload is
    /// for the CPU.
    /// </summary>
    /// <param name="view">The layer's cache.</param>
    /// <param name="tokenCount">Slots held before.</param>
    /// <param name="keep">
    /// [<paramref name="listCount"/>, n] slots, strictly ascending per list, each below
    /// <paramref name="tokenCount"/>. For lists in another order there is
    /// <see cref="Reorder(KvView, int, ReadOnlySpan{int}, KvRegion, int)"/>.
    /// </param>
    /// <param name="listCount">1 (all heads alike) or the view's KV heads.</param>
    /// <exception cref="ArgumentException">Rows lie outside the view's memory.</exception>
    /// <exception cref="InvalidOperationException">The context works on CUDA.</exception>
    /// <exception cref="KvEvictException">A slot is out of range or order, or the view cannot be.</exception>
    public void Compact(KvView view, int tokenCount, ReadOnlySpan<int> keep, int listCount = 1)
    {
        Handle.RefuseHostMemory(nameof(keep));
        fixed (int* slots = keep) Compact(view, tokenCount, slots, (nuint)keep.Length, listCount, default, 0);
    }

    /// <summary>As the other overload, with the keep lists in any memory, such as the device's.</summary>
    /// <param name="view">The layer's cache.</param>
    /// <param name="tokenCount">Slots held before.</param>
    /// <param name="keep">[<paramref name="listCount"/>, n] 32-bit slots.</param>
    /// <param name="listCount">1 (all heads alike) or the view's KV heads.</param>
    /// <param name="stream">CUstream on which the work is queued.</param>
    /// <param name="workspace">
    /// Absent, or scratch of <see cref="CompactWorkspaceBytes"/>, with which CUDA may be faster.
    /// </param>
    /// <exception cref="InvalidOperationException">Host memory, and the context works on CUDA.</exception>
    /// <exception cref="KvEvictException">A slot is out of range or order, or the view cannot be.</exception>
    public void Compact(KvView view, int tokenCount, KvRegion keep, int listCount = 1, nint stream = 0,
                        KvRegion workspace = default)
    {
        Compact(view, tokenCount, (int*)keep.Resolve(Handle, nameof(keep)), keep.Elements<int>(), listCount,
                workspace, stream);
        GC.KeepAlive(keep.Owner);
    }

    /// <summary>Scratch that compacting a layer can make use of; on CUDA 256-byte aligned.</summary>
    /// <param name="view">The layer's cache.</param>
    /// <param name="keepCount">The most slots per list; scratch for more serves fewer.</param>
    /// <returns>Bytes; 0 on the CPU, and on CUDA where rows are wide enough to move without.</returns>
    /// <exception cref="ArgumentException">Rows lie outside the view's memory.</exception>
    /// <exception cref="KvEvictException">The view cannot be.</exception>
    public long CompactWorkspaceBytes(KvView view, int keepCount)
    {
        ArgumentNullException.ThrowIfNull(view);
        uint count = Check.Count(keepCount, nameof(keepCount));
        kvevict_view native;
        ContextHandle handle = Handle;
        view.Write(&native, keepCount, handle);
        nuint bytes;
        Native.kvevict_compact_workspace_bytes(handle, &native, count, &bytes);
        GC.KeepAlive(view);
        return checked((long)bytes);
    }

    /// <summary>
    /// Moves row slots[i] of one layer to slot i for every i, in place, as if all rows were read before the first
    /// is written; K, V and companions alike. Straightens a ring that has wrapped, and serves keep lists that do
    /// not ascend. Other rows are not touched. This overload is for the CPU.
    /// </summary>
    /// <param name="view">The layer's cache.</param>
    /// <param name="tokenCount">Slots held before.</param>
    /// <param name="slots">
    /// [<paramref name="listCount"/>, n] slots in any order, also repeated, each below
    /// <paramref name="tokenCount"/>; n is at most that.
    /// </param>
    /// <param name="workspace">Scratch, from <see cref="CreateReorderWorkspace"/>.</param>
    /// <param name="listCount">1 (all heads alike) or the view's KV heads.</param>
    /// <exception cref="ArgumentException">Rows lie outside the view's memory.</exception>
    /// <exception cref="InvalidOperationException">The context works on CUDA.</exception>
    /// <exception cref="KvEvictException">
    /// A slot is out of range, the workspace is too small, or the view cannot be.
    /// </exception>
    public void Reorder(KvView view, int tokenCount, ReadOnlySpan<int> slots, KvRegion workspace, int listCount = 1)
    {
        Handle.RefuseHostMemory(nameof(slots));
        fixed (int* first = slots) Reorder(view, tokenCount, first, (nuint)slots.Length, workspace, listCount, 0);
    }

    /// <summary>As the other overload, with the slots in any memory, such as the device's.</summary>
    /// <param name="view">The layer's cache.</param>
    /// <param name="tokenCount">Slots held before.</param>
    /// <param name="slots">[<paramref name="listCount"/>, n] 32-bit slots.</param>
    /// <param name="workspace">Scratch of <see cref="ReorderWorkspaceBytes"/>.</param>
    /// <param name="listCount">1 (all heads alike) or the view's KV heads.</param>
    /// <param name="stream">CUstream on which the work is queued.</param>
    /// <exception cref="InvalidOperationException">Host memory, and the context works on CUDA.</exception>
    /// <exception cref="KvEvictException">
    /// A slot is out of range, the workspace is too small, or the view cannot be.
    /// </exception>
    public void Reorder(KvView view, int tokenCount, KvRegion slots, KvRegion workspace, int listCount = 1,
                        nint stream = 0)
    {
        Reorder(view, tokenCount, (int*)slots.Resolve(Handle, nameof(slots)), slots.Elements<int>(), workspace,
                listCount, stream);
        GC.KeepAlive(slots.Owner);
    }

    /// <summary>Scratch that reordering a layer needs: 64-byte aligned, on CUDA 256.</summary>
    /// <param name="view">The layer's cache.</param>
    /// <param name="slotCount">The most slots per list; scratch for more serves fewer.</param>
    /// <param name="listCount">1 (all heads alike) or the view's KV heads.</param>
    /// <returns>Bytes; 0 for no slots.</returns>
    /// <exception cref="ArgumentException">Rows lie outside the view's memory.</exception>
    /// <exception cref="KvEvictException">The view, or so many lists, cannot be.</exception>
    public long ReorderWorkspaceBytes(KvView view, int slotCount, int listCount = 1)
    {
        ArgumentNullException.ThrowIfNull(view);
        uint count = Check.Count(slotCount, nameof(slotCount));
        kvevict_view native;
        ContextHandle handle = Handle;
        view.Write(&native, slotCount, handle);
        nuint bytes;
        Native.kvevict_reorder_workspace_bytes(handle, &native, count, Check.Count(listCount, nameof(listCount)),
                                               &bytes);
        GC.KeepAlive(view);
        return checked((long)bytes);
    }

    /// <summary>Allocates the scratch that reordering a layer needs on the CPU.</summary>
    /// <param name="view">The layer's cache.</param>
    /// <param name="slotCount">The most slots per list; scratch for more serves fewer.</param>
    /// <param name="listCount">1 (all heads alike) or the view's KV heads.</param>
    /// <returns>A workspace to dispose.</returns>
    /// <exception cref="ArgumentException">Rows lie outside the view's memory.</exception>
    /// <exception cref="InvalidOperationException">The context works on CUDA.</exception>
    /// <exception cref="KvEvictException">The view, or so many lists, cannot be.</exception>
    public KvWorkspace CreateReorderWorkspace(KvView view, int slotCount, int listCount = 1)
    {
        Handle.RefuseHostMemory("workspace");
        return new KvWorkspace(ReorderWorkspaceBytes(view, slotCount, listCount));
    }

    /// <summary>Releases it with the last object made from it. A second call does nothing.</summary>
    public void Dispose() => _handle.Dispose();

    private void Compact(KvView view, int tokenCount, int* keep, nuint keepLength, int listCount, KvRegion workspace,
                         nint stream)
    {
        ArgumentNullException.ThrowIfNull(view);
        kvevict_view native;
        ContextHandle handle = Handle;
        view.Write(&native, tokenCount, handle);
        Native.kvevict_compact(handle, &native, (uint)tokenCount, keep, keepLength,
                               Check.Count(listCount, nameof(listCount)),
                               (void*)workspace.Resolve(handle, nameof(workspace)), (nuint)workspace.Bytes, stream);
        GC.KeepAlive(view);
        GC.KeepAlive(workspace.Owner);
    }

    private void Reorder(KvView view, int tokenCount, int* slots, nuint slotsLength, KvRegion workspace, int listCount,
                         nint stream)
    {
        ArgumentNullException.ThrowIfNull(view);
        kvevict_view native;
        ContextHandle handle = Handle;
        view.Write(&native, tokenCount, handle);
        Native.kvevict_reorder(handle, &native, (uint)tokenCount, slots, slotsLength,
                               Check.Count(listCount, nameof(listCount)),
                               (void*)workspace.Resolve(handle, nameof(workspace)), (nuint)workspace.Bytes, stream);
        GC.KeepAlive(view);
        GC.KeepAlive(workspace.Owner);
    }
}
