using System.Runtime.CompilerServices;
using System.Runtime.InteropServices;

namespace KvEvict;

// The managed ends of a context's callbacks. The context's handle keeps it alive; native code holds it by a
// weak GCHandle, so that hooks which refer to the context's owner do not keep both for ever. The GCHandle
// tracks resurrection: finalizers of handles still call back.
internal sealed unsafe class ContextHooks
{
    private readonly KvContextOptions _options;
    private GCHandle _self;

    private ContextHooks(KvContextOptions options)
    {
        _options = options;
        _self = GCHandle.Alloc(this, GCHandleType.WeakTrackResurrection);
    }

    // Enters the callbacks.
    internal static ContextHooks Install(KvContextOptions options, kvevict_context_options* native)
    {
        var hooks = new ContextHooks(options);
        void* self = (void*)GCHandle.ToIntPtr(hooks._self);
        native->alloc = &Allocate;
        native->free = &Free;
        native->alloc_user_data = self;
        if (options.DeviceMemory is not null)
        {
            native->device_alloc = &AllocateOnDevice;
            native->device_free = &FreeOnDevice;
            native->device_alloc_user_data = self;
        }
        if (options.Parallel is not null || options.ThreadCount > 1)
        {
            native->parallel = &RunParallel;
            native->parallel_user_data = self;
        }
        if (options.Log is not null)
        {
            native->log = &Log;
            native->log_user_data = self;
        }
        return hooks;
    }

    internal void Release() => _self.Free();

    private static KvContextOptions Options(void* userData) =>
        ((ContextHooks)GCHandle.FromIntPtr((nint)userData).Target!)._options;

    [UnmanagedCallersOnly(CallConvs = [typeof(CallConvCdecl)])]
    private static void RunParallel(uint itemCount, delegate* unmanaged[Cdecl]<void*, uint, uint, void> run,
                                    void* task, void* userData)
    {
        try
        {
            KvContextOptions options = Options(userData);
            ParallelWork.Do(run, task, (int)itemCount, Math.Max(options.ThreadCount, 1),
                            options.Parallel);
        }
        catch (Exception e)
        {
            NativeCall.Fail(e);
        }
    }

    [UnmanagedCallersOnly(CallConvs = [typeof(CallConvCdecl)])]
    private static void Log(KvLogLevel level, byte* message, void* userData)
    {
        try
        {
            Options(userData).Log!(level, KvEvictLibrary.Text(message));
        }
        catch (Exception e)
        {
            NativeCall.Fail(e);
        }
    }

    // The collector is told what the library holds, since it sees only the small objects that own it.
    [UnmanagedCallersOnly(CallConvs = [typeof(CallConvCdecl)])]
    private static void* Allocate(nuint bytes, nuint alignment, void* userData)
    {
        try
        {
            void* memory = Options(userData).Memory is { } hooks
                ? (void*)hooks.Allocate(bytes, alignment)
                : NativeMemory.AlignedAlloc(bytes, alignment);
            if (memory is not null) GC.AddMemoryPressure((long)bytes);
            return memory;
        }
        catch (Exception)
        {
            return null; // the library reports it as KvStatus.OutOfMemory
        }
    }

    [UnmanagedCallersOnly(CallConvs = [typeof(CallConvCdecl)])]
    private static void Free(void* memory, nuint bytes, nuint alignment, void* userData)
    {
        if (Options(userData).Memory is { } hooks) hooks.Free((nint)memory, bytes, alignment);
        else NativeMemory.AlignedFree(memory);
        GC.RemoveMemoryPressure((long)bytes);
    }

    [UnmanagedCallersOnly(CallConvs = [typeof(CallConvCdecl)])]
    private static void* AllocateOnDevice(nuint bytes, nuint alignment, void* userData)
    {
        try
        {
            return (void*)Options(userData).DeviceMemory!.Allocate(bytes, alignment);
        }
        catch (Exception)
        {
            return null;
        }
    }

    [UnmanagedCallersOnly(CallConvs = [typeof(CallConvCdecl)])]
    private static void FreeOnDevice(void* memory, nuint bytes, nuint alignment, void* userData) =>
        Options(userData).DeviceMemory!.Free((nint)memory, bytes, alignment);
}
