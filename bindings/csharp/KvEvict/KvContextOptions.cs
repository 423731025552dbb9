namespace KvEvict;

/// <summary>How to make a <see cref="KvContext"/>. The defaults are the CPU and the calling thread.</summary>
public sealed partial record KvContextOptions
{
    /// <summary>Workers that <see cref="Parallel"/> may use at the same time, 1 to 1024; 0: 1.</summary>
    public int ThreadCount { get; init; }

    /// <summary>
    /// Your thread pool; null: with a <see cref="ThreadCount"/> above 1, tasks of the .NET thread pool.
    /// </summary>
    public KvParallelRunner? Parallel { get; init; }

    /// <summary>Receives log lines, on the thread of a constructor; null: silence.</summary>
    public Action<KvLogLevel, string>? Log { get; init; }

    /// <summary>Host memory of contexts, plans and sequences; null: the C runtime's.</summary>
    public KvMemoryHooks? Memory { get; init; }

    /// <summary>
    /// The SIMD target of the CPU's kernels, one of <see cref="KvEvictLibrary.SimdTargets"/>; null: the best one.
    /// </summary>
    public string? SimdTarget { get; init; }

    /// <summary>
    /// CUcontext to work in; 0: the one current on the creating thread. It must outlive the handles:
    /// dispose of them first.
    /// </summary>
    public nint CudaContext { get; init; }

    /// <summary>Path of the CUDA driver's library; null: libcuda.so.1 or nvcuda.dll.</summary>
    public string? LibcudaPath { get; init; }

    /// <summary>Path of the run-time compiler's library; null: by the driver's version.</summary>
    public string? LibnvrtcPath { get; init; }

    /// <summary>
    /// Directory in which compiled kernels are kept, created if need be; null: none. It must belong to the
    /// user and be writable by nobody else: what lies in it runs on the GPU.
    /// </summary>
    public string? KernelCacheDirectory { get; init; }

    /// <summary>
    /// Device memory of sequences, called with the CUcontext current; null: cuMemAlloc.
    /// </summary>
    public KvMemoryHooks? DeviceMemory { get; init; }
}

/// <summary>
/// Runs <c>task.Run(item, worker)</c> once for every item from 0 to <paramref name="itemCount"/> - 1, in any
/// order and on any threads, and returns when all are done. A worker number is below the context's
/// <see cref="KvContextOptions.ThreadCount"/>, and no two items run with the same one at the same time.
/// </summary>
/// <remarks>
/// It may throw: the calling thread then does what it left out, so that the cache stays whole, and the
/// exception comes out of the call that used the runner.
/// </remarks>
/// <param name="itemCount">Number of items.</param>
/// <param name="task">What to run.</param>
public delegate void KvParallelRunner(int itemCount, KvParallelTask task);

/// <summary>
/// Memory for the library. May be called from any thread that creates, disposes or finalizes an object made
/// from the context. Host memory that it hands out is reported to the garbage collector.
/// </summary>
/// <remarks>
/// If nobody disposed the objects, <see cref="Free"/> runs on the finalizer's thread, maybe after a finalizer
/// of this, which must not free memory that is still in use.
/// </remarks>
public abstract class KvMemoryHooks
{
    /// <summary>Allocates memory; an exception counts as none left.</summary>
    /// <param name="bytes">Size, above 0.</param>
    /// <param name="alignment">A power of two up to 256.</param>
    /// <returns>Its address, 0 if there is none left.</returns>
    public abstract nint Allocate(nuint bytes, nuint alignment);

    /// <summary>Frees memory; must not throw.</summary>
    /// <param name="address">What <see cref="Allocate"/> returned.</param>
    /// <param name="bytes">Its size.</param>
    /// <param name="alignment">Its alignment.</param>
    public abstract void Free(nint address, nuint bytes, nuint alignment);
}
