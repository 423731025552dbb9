package dev.kvevict;

import java.lang.ref.Reference;
import java.nio.ByteBuffer;
import java.nio.IntBuffer;
import java.util.Objects;
import java.util.concurrent.Executor;
import java.util.function.BiConsumer;

/** A device, and how to work on it: allocator, parallel runner and log sink. Thread-safe. */
public final class Context extends Handle {
  final Hooks hooks;

  private Context(long pointer, Hooks hooks) {
    super(pointer, Native::kvevict_context_destroy, hooks);
    this.hooks = hooks;
  }

  /**
   * A context on the CPU in which the calling thread does the work.
   *
   * @return the context
   */
  public static Context create() {
    return builder().build();
  }

  /**
   * A context to set up.
   *
   * @return the builder
   */
  public static Builder builder() {
    return new Builder();
  }

  /**
   * Checks a geometry and a policy against each other and lays out the workspace.
   *
   * @param geometry of the model
   * @param policy what survives
   * @return the plan, which keeps what it needs of this context alive
   */
  public Plan newPlan(Geometry geometry, Policy policy) {
    long context = enter();
    try (geometry.struct; policy.struct) {
      long pointer =
          Native.kvevict_plan_create(context, geometry.struct.address, policy.struct.address);
      return new Plan(pointer, geometry, policy, hooks);
    } finally {
      leave();
    }
  }

  /**
   * Compiles and loads the kernels that serve every plan, now instead of at first use. On the CPU
   * there is nothing to do.
   */
  public void prepare() {
    long context = enter();
    try {
      Native.kvevict_context_prepare(context, 0);
    } finally {
      leave();
    }
  }

  /**
   * Compiles and loads the kernels that a plan's calls may launch, now instead of at first use.
   *
   * @param plan made from this context
   */
  public void prepare(Plan plan) {
    long context = enter();
    try {
      long pointer = plan.enter();
      try {
        Native.kvevict_context_prepare(context, pointer);
      } finally {
        plan.leave();
      }
    } finally {
      leave();
    }
  }

  /**
   * Moves one layer's surviving rows to slots [0, kept), in place, on the CPU. For lists in another
   * order there is {@link #reorder(View, int, IntBuffer, int, ByteBuffer) reorder}.
   *
   * @param view the layer's cache
   * @param nTokens slots held before
   * @param keep [nKeepLists, kept] slots, strictly ascending per list; direct, in native order
   * @param nKeepLists 1 (all heads alike) or the KV heads
   */
  public void compact(View view, int nTokens, IntBuffer keep, int nKeepLists) {
    Objects.requireNonNull(keep, "keep");
    compact(view, nTokens, Memory.input(hooks.device, keep, "keep"), keep.remaining(), nKeepLists,
        0);
    Reference.reachabilityFence(keep);
  }

  /**
   * Moves one layer's surviving rows to slots [0, kept), in place, on the CPU.
   *
   * @param view the layer's cache
   * @param nTokens slots held before
   * @param keep [nKeepLists, kept] slots, strictly ascending per list
   * @param nKeepLists 1 (all heads alike) or the KV heads
   * @throws IllegalStateException if the context has a parallel runner, which cannot work while an
   *     array is pinned
   */
  public void compact(View view, int nTokens, int[] keep, int nKeepLists) {
    hooks.forbidArrays("keep");
    Objects.requireNonNull(keep, "keep");
    long context = enter();
    try (View.Content cache = view.content(hooks.device, nTokens)) {
      cache.requireWritable();
      Native.kvevict_compact_a(context, cache.struct.address, nTokens, keep, nKeepLists, 0, 0, 0);
    } finally {
      leave();
    }
  }

  /**
   * Moves one layer's surviving rows to slots [0, kept), in place.
   *
   * @param view the layer's cache
   * @param nTokens slots held before
   * @param keep address of i32 [nKeepLists, kept] slots, strictly ascending per list
   * @param keepLength elements of keep
   * @param nKeepLists 1 (all heads alike) or the KV heads
   * @param stream a CUstream; ignored on the CPU
   */
  public void compact(
      View view, int nTokens, long keep, long keepLength, int nKeepLists, long stream) {
    compact(view, nTokens, keep, keepLength, nKeepLists, 0, 0, stream);
  }

  /**
   * Moves one layer's surviving rows to slots [0, kept), in place, with scratch by which CUDA may
   * be faster.
   *
   * @param view the layer's cache
   * @param nTokens slots held before
   * @param keep address of i32 [nKeepLists, kept] slots, strictly ascending per list
   * @param keepLength elements of keep
   * @param nKeepLists 1 (all heads alike) or the KV heads
   * @param workspace address of scratch, see {@link #compactWorkspaceBytes}; 0 for none
   * @param workspaceBytes its bytes
   * @param stream a CUstream; ignored on the CPU
   */
  public void compact(View view, int nTokens, long keep, long keepLength, int nKeepLists,
      long workspace, long workspaceBytes, long stream) {
    long context = enter();
    try (View.Content cache = view.content(hooks.device, nTokens)) {
      cache.requireWritable();
      Native.kvevict_compact(context, cache.struct.address, nTokens, keep, keepLength, nKeepLists,
          workspace, workspaceBytes, stream);
    } finally {
      leave();
    }
  }

  /**
   * Scratch that compacting a layer can make use of; 256-byte aligned on CUDA.
   *
   * @param view the layer's cache
   * @param nKeep the most slots per list; scratch for more serves fewer
   * @return bytes; 0 on the CPU, and on CUDA where rows are wide enough to move without
   */
  public long compactWorkspaceBytes(View view, int nKeep) {
    Memory.count(nKeep, "nKeep");
    long context = enter();
    try (View.Content cache = view.content(hooks.device, nKeep)) {
      return Native.kvevict_compact_workspace_bytes(context, cache.struct.address, nKeep);
    } finally {
      leave();
    }
  }

  /**
   * Moves row slots[i] of one layer to slot i for every i, in place, as if all rows were read
   * before the first is written, on the CPU. Straightens a ring that has wrapped, and serves keep
   * lists that do not ascend. Other rows are not touched.
   *
   * @param view the layer's cache
   * @param nTokens slots held before
   * @param slots [nSlotLists, n] slots in any order, also repeated, n at most nTokens; direct, in
   *     native order
   * @param nSlotLists 1 (all heads alike) or the KV heads
   * @param workspace from {@link #allocateReorderWorkspace}
   */
  public void reorder(
      View view, int nTokens, IntBuffer slots, int nSlotLists, ByteBuffer workspace) {
    Objects.requireNonNull(slots, "slots");
    reorder(view, nTokens, Memory.input(hooks.device, slots, "slots"), slots.remaining(),
        nSlotLists, Memory.workspace(hooks.device, workspace), Memory.workspaceBytes(workspace), 0);
    Reference.reachabilityFence(slots);
    Reference.reachabilityFence(workspace);
  }

  /**
   * Moves row slots[i] of one layer to slot i for every i, in place, as if all rows were read
   * before the first is written, on the CPU.
   *
   * @param view the layer's cache
   * @param nTokens slots held before
   * @param slots [nSlotLists, n] slots in any order, also repeated, n at most nTokens
   * @param nSlotLists 1 (all heads alike) or the KV heads
   * @param workspace from {@link #allocateReorderWorkspace}
   * @throws IllegalStateException if the context has a parallel runner, which cannot work while an
   *     array is pinned
   */
  public void reorder(View view, int nTokens, int[] slots, int nSlotLists, ByteBuffer workspace) {
    hooks.forbidArrays("slots");
    Objects.requireNonNull(slots, "slots");
    long context = enter();
    try (View.Content cache = view.content(hooks.device, nTokens)) {
      cache.requireWritable();
      Native.kvevict_reorder_a(context, cache.struct.address, nTokens, slots, nSlotLists,
          Memory.workspace(hooks.device, workspace), Memory.workspaceBytes(workspace), 0);
    } finally {
      leave();
      Reference.reachabilityFence(workspace);
    }
  }

  /**
   * Moves row slots[i] of one layer to slot i for every i, in place, as if all rows were read
   * before the first is written.
   *
   * @param view the layer's cache
   * @param nTokens slots held before
   * @param slots address of i32 [nSlotLists, n] slots in any order, also repeated, n at most
   *     nTokens
   * @param slotsLength elements of slots
   * @param nSlotLists 1 (all heads alike) or the KV heads
   * @param workspace address of scratch, see {@link #reorderWorkspaceBytes}
   * @param workspaceBytes its bytes
   * @param stream a CUstream; ignored on the CPU
   */
  public void reorder(View view, int nTokens, long slots, long slotsLength, int nSlotLists,
      long workspace, long workspaceBytes, long stream) {
    long context = enter();
    try (View.Content cache = view.content(hooks.device, nTokens)) {
      cache.requireWritable();
      Native.kvevict_reorder(context, cache.struct.address, nTokens, slots, slotsLength, nSlotLists,
          workspace, workspaceBytes, stream);
    } finally {
      leave();
    }
  }

  /**
   * Scratch that reordering a layer needs: 64-byte aligned, 256 on CUDA.
   *
   * @param view the layer's cache
   * @param nSlots the most slots per list; scratch for more serves fewer
   * @param nSlotLists 1 (all heads alike) or the KV heads
   * @return bytes; 0 for no slots
   */
  public long reorderWorkspaceBytes(View view, int nSlots, int nSlotLists) {
    Memory.count(nSlots, "nSlots");
    long context = enter();
    try (View.Content cache = view.content(hooks.device, nSlots)) {
      return Native.kvevict_reorder_workspace_bytes(
          context, cache.struct.address, nSlots, nSlotLists);
    } finally {
      leave();
    }
  }

  /**
   * Scratch for reordering a layer on the CPU. Calls that run at the same time must not share it.
   *
   * @param view the layer's cache
   * @param nSlots the most slots per list; scratch for more serves fewer
   * @param nSlotLists 1 (all heads alike) or the KV heads
   * @return a direct buffer of the right size and alignment
   * @throws ArithmeticException if it would exceed a buffer's 2 GiB: then pass an address
   * @throws IllegalStateException if the context is on CUDA: then pass device memory's address
   */
  public ByteBuffer allocateReorderWorkspace(View view, int nSlots, int nSlotLists) {
    return Memory.allocateWorkspace(
        hooks.device, reorderWorkspaceBytes(view, nSlots, nSlotLists));
  }

  /** Sets up a {@link Context}. Addresses of native functions have the header's types. */
  public static final class Builder {
    private Device device = Device.CPU;
    private int nThreads;
    private LogLevel logLevel = LogLevel.WARNING;
    private BiConsumer<LogLevel, String> logger;
    private Executor executor;
    private final long[] hostHooks = new long[3];
    private final long[] deviceHooks = new long[3];
    private String simdTarget;
    private long cudaContext;
    private String libcudaPath;
    private String libnvrtcPath;
    private String kernelCacheDir;
    private boolean selectOnHost;
    private boolean debug;

    private Builder() {}

    /**
     * Where the caches lie and the work is done.
     *
     * @param where the device; {@link Device#CPU} unless set
     * @return this
     */
    public Builder device(Device where) {
      device = Objects.requireNonNull(where, "where");
      return this;
    }

    /**
     * Shares the work of a call between the calling thread and others. What the executor throws,
     * the call throws when its work is done, but for a {@link
     * java.util.concurrent.RejectedExecutionException}, which says that it is busy.
     *
     * @param helpers runs the others' part; whatever it does not run, the calling thread does
     * @param threads how many at once, the calling one included
     * @return this
     */
    public Builder parallel(Executor helpers, int threads) {
      executor = Objects.requireNonNull(helpers, "helpers");
      nThreads = Memory.count(threads, "threads");
      return this;
    }

    /**
     * Receives log lines, on the thread of a call that creates something.
     *
     * @param level lines above it are not sent
     * @param sink what to do with a line; what it throws is dropped
     * @return this
     */
    public Builder logger(LogLevel level, BiConsumer<LogLevel, String> sink) {
      logLevel = Objects.requireNonNull(level, "level");
      logger = Objects.requireNonNull(sink, "sink");
      return this;
    }

    /**
     * Allocates the library's own memory by native functions.
     *
     * @param alloc address of a kvevict_alloc_fn
     * @param free address of a kvevict_free_fn
     * @param userData passed to both
     * @return this
     */
    public Builder allocator(long alloc, long free, long userData) {
      hostHooks[0] = alloc;
      hostHooks[1] = free;
      hostHooks[2] = userData;
      return this;
    }

    /**
     * Allocates the device memory of sequences by native functions.
     *
     * @param alloc address of a kvevict_alloc_fn that returns a CUdeviceptr
     * @param free address of a kvevict_free_fn
     * @param userData passed to both
     * @return this
     */
    public Builder deviceAllocator(long alloc, long free, long userData) {
      deviceHooks[0] = alloc;
      deviceHooks[1] = free;
      deviceHooks[2] = userData;
      return this;
    }

    /**
     * Whose code the CPU's kernels run.
     *
     * @param name one of {@link KvEvict#simdTargets()}; null: the best one
     * @return this
     */
    public Builder simdTarget(String name) {
      simdTarget = name;
      return this;
    }

    /**
     * The CUcontext to work in. It must outlive the handles: close them first.
     *
     * @param context its pointer; 0: the one current on the creating thread
     * @return this
     */
    public Builder cudaContext(long context) {
      cudaContext = context;
      return this;
    }

    /**
     * Where the CUDA driver library is.
     *
     * @param path of libcuda; null: the system's
     * @return this
     */
    public Builder libcudaPath(String path) {
      libcudaPath = path;
      return this;
    }

    /**
     * Where the run-time compiler is.
     *
     * @param path of libnvrtc; null: chosen by the driver's version
     * @return this
     */
    public Builder libnvrtcPath(String path) {
      libnvrtcPath = path;
      return this;
    }

    /**
     * Where compiled kernels are kept.
     *
     * @param path of a directory that belongs to the user and nobody else may write; null: none
     * @return this
     */
    public Builder kernelCacheDir(String path) {
      kernelCacheDir = path;
      return this;
    }

    /**
     * Selects on the host: an eviction then waits for the stream, and the host knows the positions
     * when it returns.
     *
     * @param onHost true for the host
     * @return this
     */
    public Builder selectOnHost(boolean onHost) {
      selectOnHost = onHost;
      return this;
    }

    /**
     * Waits after every kernel, so that a fault names the kernel, and checks lists of slots on
     * the device.
     *
     * @param on true to do so
     * @return this
     */
    public Builder debug(boolean on) {
      debug = on;
      return this;
    }

    /**
     * The context.
     *
     * @return it
     * @throws KvEvictException with {@link Status#UNAVAILABLE} and the reason if the device is not
     *     there
     */
    public Context build() {
      Hooks hooks = new Hooks(device, logger, executor, nThreads);
      try (Struct simd = Struct.text(simdTarget);
          Struct cuda = Struct.text(libcudaPath);
          Struct nvrtc = Struct.text(libnvrtcPath);
          Struct cache = Struct.text(kernelCacheDir);
          Struct options = write(hooks, simd, cuda, nvrtc, cache)) {
        return new Context(Native.kvevict_context_create(options.address), hooks);
      }
    }

    Struct write(Hooks hooks, Struct simd, Struct cuda, Struct nvrtc, Struct cache) {
      return Struct.sized(Abi.ContextOptions.SIZEOF)
          .putEnum(Abi.ContextOptions.DEVICE, device)
          .putInt(Abi.ContextOptions.N_THREADS, nThreads)
          .putEnum(Abi.ContextOptions.LOG_LEVEL, logLevel)
          .putLong(Abi.ContextOptions.ALLOC, hostHooks[0])
          .putLong(Abi.ContextOptions.FREE, hostHooks[1])
          .putLong(Abi.ContextOptions.ALLOC_USER_DATA, hostHooks[2])
          .putLong(Abi.ContextOptions.PARALLEL, executor == null ? 0 : NativeSupport.parallelHook())
          .putLong(Abi.ContextOptions.PARALLEL_USER_DATA, executor == null ? 0 : hooks.id)
          .putLong(Abi.ContextOptions.LOG, logger == null ? 0 : NativeSupport.logHook())
          .putLong(Abi.ContextOptions.LOG_USER_DATA, logger == null ? 0 : hooks.id)
          .putLong(Abi.ContextOptions.SIMD_TARGET, Struct.addressOrNull(simd))
          .putLong(Abi.ContextOptions.CUDA_CONTEXT, cudaContext)
          .putLong(Abi.ContextOptions.LIBCUDA_PATH, Struct.addressOrNull(cuda))
          .putLong(Abi.ContextOptions.LIBNVRTC_PATH, Struct.addressOrNull(nvrtc))
          .putLong(Abi.ContextOptions.KERNEL_CACHE_DIR, Struct.addressOrNull(cache))
          .putLong(Abi.ContextOptions.DEVICE_ALLOC, deviceHooks[0])
          .putLong(Abi.ContextOptions.DEVICE_FREE, deviceHooks[1])
          .putLong(Abi.ContextOptions.DEVICE_ALLOC_USER_DATA, deviceHooks[2])
          .putFlag(Abi.ContextOptions.SELECT_ON_HOST, selectOnHost)
          .putFlag(Abi.ContextOptions.DEBUG, debug);
    }
  }
}
