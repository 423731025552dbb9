using System.Runtime.InteropServices;

namespace KvEvict;

// Owns a native handle, and keeps the handle that it was made from open, so that finalizers
// may run in any order. Created empty before the native call that fills it: nothing can fail
// between the two owners. Destroying an empty one is harmless.
internal abstract unsafe class NativeHandle : SafeHandle
{
    private readonly NativeHandle? _parent;

    protected NativeHandle(NativeHandle? parent) : base(0, ownsHandle: true)
    {
        bool held = false;
        parent?.DangerousAddRef(ref held);
        _parent = parent;
    }

    // Never invalid: ReleaseHandle has to give the parent back even if creation failed.
    public override bool IsInvalid => false;

    internal static void* Pointer(NativeHandle? handle) => handle is null ? null : (void*)handle.handle;

    // Whether the owner was disposed, even if something made from it keeps this open.
    internal bool IsDisposed { get; private set; }

    internal void Own(void* native) => SetHandle((nint)native);

    protected override void Dispose(bool disposing)
    {
        IsDisposed = true;
        base.Dispose(disposing);
    }

    protected abstract void Destroy(void* native);

    protected override bool ReleaseHandle()
    {
        Destroy((void*)handle);
        _parent?.DangerousRelease();
        return true;
    }
}

// Keeps the callbacks alive, which native code may use until the last handle is gone.
internal sealed unsafe class ContextHandle(KvDevice device, ContextHooks hooks) : NativeHandle(null)
{
    // The device that holds the caches.
    internal KvDevice Device => device;

    // Refuses memory that stays in place only until the call returns if a device works on it later.
    internal void RefuseHostMemory(string name)
    {
        if (device == KvDevice.Cpu) return;
        throw new InvalidOperationException(
            $"{name} is host memory, and the context works on {device}: pass a Region of device memory");
    }

    protected override void Destroy(void* native)
    {
        NativePINVOKE.kvevict_context_destroy(native);
        hooks.Release();
    }
}

internal sealed unsafe class PolicyHandle() : NativeHandle(null)
{
    protected override void Destroy(void* native) => NativePINVOKE.kvevict_policy_destroy(native);
}

internal sealed unsafe class PlanHandle(ContextHandle context) : NativeHandle(context)
{
    protected override void Destroy(void* native) => NativePINVOKE.kvevict_plan_destroy(native);
}

internal sealed unsafe class SequenceHandle(PlanHandle plan) : NativeHandle(plan)
{
    protected override void Destroy(void* native) => NativePINVOKE.kvevict_sequence_destroy(native);
}

internal sealed unsafe class CalibrationHandle(PlanHandle plan) : NativeHandle(plan)
{
    protected override void Destroy(void* native) => NativePINVOKE.kvevict_calibration_destroy(native);
}

internal sealed unsafe class PagedCacheHandle(PlanHandle plan) : NativeHandle(plan)
{
    protected override void Destroy(void* native) => NativePINVOKE.kvevict_paged_cache_destroy(native);
}

internal sealed unsafe class PagedSequenceHandle(PagedCacheHandle cache) : NativeHandle(cache)
{
    internal PagedCacheHandle Cache => cache;

    protected override void Destroy(void* native) => NativePINVOKE.kvevict_paged_sequence_destroy(native);
}
