using System.Runtime.CompilerServices;
using System.Runtime.ExceptionServices;
using System.Runtime.InteropServices;

namespace KvEvict;

/// <summary>
/// The managed ends of a context's callbacks. Native code holds it by a GCHandle that lives until the last
/// handle made from the context is gone. No exception may leave a callback: the runner's and the log sink's
/// are kept and thrown by the call that caused them.
/// </summary>
internal sealed unsafe class ContextHooks
{
    private readonly KvContextOptions _options;
    private readonly KvParallelRunner? _parallel;
    private readonly List<GCHandle> _handles = [];
    private ExceptionDispatchInfo? _failure;

    private ContextHooks(KvContextOptions options)
    {
        _options = options;
        _parallel = options.Parallel;
        if (options.ThreadCount > 1) _parallel ??= KvParallelTask.OnThreadPool(options.ThreadCount);
    }

    /// <summary>Enters the callbacks that the options ask for; null if there are none.</summary>
    internal static ContextHooks? Install(KvContextOptions options, kvevict_context_options* native)
    {
        var hooks = new ContextHooks(options);
        if (hooks._parallel is not null)
        {
            native->parallel = &RunParallel;
            native->parallel_user_data = hooks.Handle(hooks);
        }
        if (options.Log is not null)
        {
            native->log = &Log;
            native->log_user_data = hooks.Handle(hooks);
        }
        if (options.Memory is not null)
        {
            native->alloc = &Allocate;
            native->free = &Free;
            native->alloc_user_data = hooks.Handle(options.Memory);
        }
        if (options.DeviceMemory is not null)
        {
            native->device_alloc = &Allocate;
            native->device_free = &Free;
            native->device_alloc_user_data = hooks.Handle(options.DeviceMemory);
        }
        return hooks._handles.Count > 0 ? hooks : null;
    }

    internal void Release()
    {
        foreach (GCHandle handle in _handles) handle.Free();
        _handles.Clear();
    }

    internal void ThrowIfFailed() => Interlocked.Exchange(ref _failure, null)?.Throw();

    private void* Handle(object target)
    {
        GCHandle handle = GCHandle.Alloc(target);
        _handles.Add(handle);
        return (void*)GCHandle.ToIntPtr(handle);
    }

    private static T Target<T>(void* userData) => (T)GCHandle.FromIntPtr((nint)userData).Target!;

    private void Keep(Exception e) => _failure ??= ExceptionDispatchInfo.Capture(e);

    [UnmanagedCallersOnly(CallConvs = [typeof(CallConvCdecl)])]
    private static void RunParallel(uint itemCount, delegate* unmanaged[Cdecl]<void*, uint, uint, void> run,
                                    void* task, void* userData)
    {
        var hooks = Target<ContextHooks>(userData);
        try
        {
            var work = new KvParallelTask(run, task, (int)itemCount);
            try
            {
                hooks._parallel!((int)itemCount, work);
            }
            catch (Exception e)
            {
                hooks.Keep(e);
            }
            int rest = work.RunTheRest();
            if (rest > 0 && hooks._failure is null)
            {
                throw new InvalidOperationException($"the parallel runner left out {rest} of {itemCount} items");
            }
        }
        catch (Exception e)
        {
            hooks.Keep(e);
        }
    }

    [UnmanagedCallersOnly(CallConvs = [typeof(CallConvCdecl)])]
    private static void Log(KvLogLevel level, byte* message, void* userData)
    {
        var hooks = Target<ContextHooks>(userData);
        try
        {
            hooks._options.Log!(level, KvEvictLibrary.Text(message));
        }
        catch (Exception e)
        {
            hooks.Keep(e);
        }
    }

    [UnmanagedCallersOnly(CallConvs = [typeof(CallConvCdecl)])]
    private static void* Allocate(nuint bytes, nuint alignment, void* userData)
    {
        try
        {
            return (void*)Target<KvMemoryHooks>(userData).Allocate(bytes, alignment);
        }
        catch (Exception)
        {
            return null; // which the library reports as KvStatus.OutOfMemory
        }
    }

    [UnmanagedCallersOnly(CallConvs = [typeof(CallConvCdecl)])]
    private static void Free(void* memory, nuint bytes, nuint alignment, void* userData) =>
        Target<KvMemoryHooks>(userData).Free((nint)memory, bytes, alignment);
}
