package dev.kvevict;

import java.lang.ref.Reference;
import java.nio.ByteBuffer;
import java.util.List;
import java.util.Objects;
import java.util.concurrent.Executor;
import java.util.function.BiConsumer;
import java.util.stream.IntStream;

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
   * @param geometry the model's geometry
   * @param policy what survives
   * @return the plan, which keeps what it needs of this context alive
   */
  public Plan newPlan(Geometry geometry, Policy policy) {
    return newPlan(geometry, policy, PlanOptions.NONE);
  }

  /**
   * Does the same with options.
   *
   * @param geometry the model's geometry
   * @param policy what survives
   * @param options more that the plan is told
   * @return the plan, which keeps what it needs of this context alive
   */
  public Plan newPlan(Geometry geometry, Policy policy, PlanOptions options) {
    long context = enter();
    try (Struct model = geometry.write(); Struct told = options.write()) {
      long pointer = policy.call(survives -> Native.kvevict_plan_create(
          context, model.address, survives, told.address));
      return new Plan(pointer, geometry, policy, options.headsDiffer(), hooks);
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
   * Chooses slots on the CPU: what must stay, and then the highest scores, descending, NaN last.
   * The lists say how many; a list whose count is all that it holds keeps every slot.
   *
   * @param options what to choose from, and what must stay
   * @param keep lists whose slots are written, ascending
   * @param workspace see {@link #selectWorkspace}
   */
  public void select(SelectOptions options, KeepLists keep, ByteBuffer workspace) {
    select(options, keep, Memory.workspace(hooks.device, workspace),
        Memory.workspaceBytes(workspace), 0);
    Reference.reachabilityFence(workspace);
  }

  /**
   * Chooses slots: what must stay, and then the highest scores, descending, NaN last. The lists say
   * how many; a list whose count is all that it holds keeps every slot.
   *
   * @param options what to choose from, and what must stay
   * @param keep lists whose slots are written, ascending
   * @param workspace address of scratch, see {@link #selectWorkspace}
   * @param workspaceBytes its bytes
   * @param stream a CUstream; ignored on the CPU
   */
  public void select(SelectOptions options, KeepLists keep, long workspace, long workspaceBytes,
      long stream) {
    long context = enter();
    int lists = Abi.SelectOptions.SIZEOF;
    try (Struct arguments = new Struct(lists + Abi.KeepLists.SIZEOF)) {
      keep.write(hooks.device, true, arguments, lists);
      options.write(hooks.device, keep.listCount, arguments);
      Native.kvevict_select(context, arguments.address, arguments.address + lists, workspace,
          workspaceBytes, stream);
    } finally {
      leave();
      Reference.reachabilityFence(options);
      Reference.reachabilityFence(keep);
    }
  }

  /**
   * Scratch that selecting needs.
   *
   * @param tokenCount the most slots held
   * @param listCount keep lists
   * @return its sizes
   */
  public Workspace selectWorkspace(int tokenCount, int listCount) {
    Memory.count(tokenCount, "tokenCount");
    Memory.count(listCount, "listCount");
    long context = enter();
    try {
      return Records.Workspace.of(hooks.device,
          out -> Native.kvevict_select_workspace(context, tokenCount, listCount, out));
    } finally {
      leave();
    }
  }

  /**
   * Finds the smallest budgets that keep a share of the mass: how many tokens a policy has to keep of
   * prompts like this one. For calibration, not for every step: it sorts all rows.
   *
   * @param layers their scores
   * @param wanted the mass to keep, and the tokens that must stay
   * @return tokens of each row, of each layer, or of all, as the scope says
   */
  public int[] budgetForMass(List<LayerScores> layers, MassOptions wanted) {
    int size = Abi.LayerScores.SIZEOF;
    int rowCount = layers.stream().mapToInt(scores -> scores.rowCount).sum();
    int n = switch (wanted.scope) {
      case KV_HEAD -> rowCount;
      case LAYER -> layers.size();
      case MODEL -> Math.min(1, layers.size());
    };
    long context = enter();
    try (Struct in = new Struct(layers.size() * size);
        Struct options = wanted.fill(new Struct(Abi.MassOptions.SIZEOF), 0);
        Struct out = new Struct(4 * n)) {
      for (int i = 0; i < layers.size(); ++i) {
        layers.get(i).write(in, i * size);
      }
      Native.kvevict_budget_for_mass(context, layers.isEmpty() ? 0 : in.address, layers.size(),
          options.address, n == 0 ? 0 : out.address, n);
      return IntStream.range(0, n).map(i -> out.intAt(4 * i)).toArray();
    } finally {
      leave();
      Reference.reachabilityFence(layers);
    }
  }

  /**
   * Moves the surviving rows of layers to their first slots, in place, without scratch.
   *
   * @param moves at most 128, one per layer, with strictly ascending lists; for lists in another
   *     order there is {@link #reorder(List, ByteBuffer) reorder}
   */
  public void compact(List<Move> moves) {
    compact(moves, 0, 0, 0);
  }

  /**
   * Moves the surviving rows of layers to their first slots, in place. On CUDA one launch for all
   * planes that lie alike.
   *
   * @param moves at most 128, one per layer, with strictly ascending lists
   * @param workspace address of scratch by which CUDA may be faster, see {@link
   *     #compactWorkspace}; 0 for none
   * @param workspaceBytes its bytes
   * @param stream a CUstream; ignored on the CPU
   */
  public void compact(List<Move> moves, long workspace, long workspaceBytes, long stream) {
    long context = enter();
    try (Move.All all = new Move.All(hooks.device, moves, false)) {
      Native.kvevict_compact(
          context, all.struct.address, all.n, workspace, workspaceBytes, stream);
    } finally {
      leave();
    }
  }

  /**
   * Scratch that compacting can use: the least is 0, and so is the best on the CPU, and on
   * CUDA if rows are wide enough to move without.
   *
   * @param moves the call's moves; only views and the lists' counts are read
   * @return its sizes
   */
  public Workspace compactWorkspace(List<Move> moves) {
    long context = enter();
    try (Move.All all = new Move.All(hooks.device, moves, true)) {
      return Records.Workspace.of(hooks.device,
          out -> Native.kvevict_compact_workspace(context, all.struct.address, all.n, out));
    } finally {
      leave();
    }
  }

  /**
   * Moves row slots[i] of every head of layers to slot i, in place, as if all rows were read before
   * the first is written, on the CPU. Straightens a ring that has wrapped, and serves keep lists
   * that do not ascend. Other rows are not touched.
   *
   * @param moves at most 128, one per layer, with slots in any order, also repeated
   * @param workspace see {@link #reorderWorkspace}
   */
  public void reorder(List<Move> moves, ByteBuffer workspace) {
    reorder(moves, Memory.workspace(hooks.device, workspace), Memory.workspaceBytes(workspace), 0);
    Reference.reachabilityFence(workspace);
  }

  /**
   * Moves row slots[i] of every head of layers to slot i, in place, as if all rows were read before
   * the first is written.
   *
   * @param moves at most 128, one per layer, with slots in any order, also repeated
   * @param workspace address of scratch, see {@link #reorderWorkspace}
   * @param workspaceBytes its bytes
   * @param stream a CUstream; ignored on the CPU
   */
  public void reorder(List<Move> moves, long workspace, long workspaceBytes, long stream) {
    long context = enter();
    try (Move.All all = new Move.All(hooks.device, moves, false)) {
      Native.kvevict_reorder(
          context, all.struct.address, all.n, workspace, workspaceBytes, stream);
    } finally {
      leave();
    }
  }

  /**
   * Scratch that reordering needs.
   *
   * @param moves the call's moves; only views and the lists' counts are read
   * @return its sizes
   */
  public Workspace reorderWorkspace(List<Move> moves) {
    long context = enter();
    try (Move.All all = new Move.All(hooks.device, moves, true)) {
      return Records.Workspace.of(hooks.device,
          out -> Native.kvevict_reorder_workspace(context, all.struct.address, all.n, out));
    } finally {
      leave();
    }
  }

  /**
   * Attention of queries over caches in place, on the CPU: the softmax of the logits of the slots
   * that a query sees, and the mean of their values by it. It serves engines without a kernel of their
   * own, for decoding and prefill.
   *
   * @param jobs at most 128, each for a layer of a sequence, of any shapes; they may share caches, but
   *     outputs must not overlap anything that a job reads or writes
   * @param workspace see {@link #attendWorkspace}
   */
  public void attend(List<Attention> jobs, ByteBuffer workspace) {
    attend(jobs, Memory.workspace(hooks.device, workspace), Memory.workspaceBytes(workspace), 0);
    Reference.reachabilityFence(workspace);
  }

  /**
   * Attention of queries over caches in place.
   *
   * @param jobs at most 128, each for a layer of a sequence, of any shapes
   * @param workspace address of scratch, see {@link #attendWorkspace}
   * @param workspaceBytes its bytes
   * @param stream a CUstream; ignored on the CPU
   */
  public void attend(List<Attention> jobs, long workspace, long workspaceBytes, long stream) {
    long context = enter();
    try (Attention.All all = new Attention.All(hooks.device, jobs)) {
      Native.kvevict_attend(
          context, all.struct.address, all.n, workspace, workspaceBytes, stream);
    } finally {
      leave();
    }
  }

  /**
   * Scratch that attention needs. With few queries the best holds results of parts of the cache.
   *
   * @param jobs the call's jobs
   * @return its sizes
   */
  public Workspace attendWorkspace(List<Attention> jobs) {
    long context = enter();
    try (Attention.All all = new Attention.All(hooks.device, jobs)) {
      return Records.Workspace.of(hooks.device,
          out -> Native.kvevict_attend_workspace(context, all.struct.address, all.n, out));
    } finally {
      leave();
    }
  }

  /** Sets up a {@link Context}. Addresses of native functions have the header's types. */
  public static final class Builder extends ContextOptionsFields<Builder> {
    private BiConsumer<LogLevel, String> logger;
    private Executor executor;
    private final long[] hostHooks = new long[3];
    private final long[] deviceHooks = new long[3];
    private String simdTarget;
    private long cudaContext;
    private String libcudaPath;
    private String libnvrtcPath;
    private String kernelCacheDir;

    private Builder() {}

    @Override
    Builder next() {
      return this;
    }

    /**
     * Shares the work of a call between the calling thread and others. The call throws what the
     * executor throws when the work is done, except for a {@link
     * java.util.concurrent.RejectedExecutionException}, which says that it is busy.
     *
     * @param helpers runs the others' part; whatever it does not run, the calling thread does
     * @param threads the number at once, the calling one included
     * @return this
     */
    public Builder parallel(Executor helpers, int threads) {
      executor = Objects.requireNonNull(helpers, "helpers");
      threadCount = Memory.count(threads, "threads");
      return this;
    }

    /**
     * Receives log lines, on the thread of a call that creates something.
     *
     * @param level lines above it are not sent
     * @param sink receives a line; its exceptions are dropped
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
     * @param alloc address of a C function {@code void *(size_t bytes, size_t alignment, void *userData)}
     * @param free address of a C function {@code void (void *memory, size_t bytes, size_t alignment, void
     *     *userData)}
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
     * @param alloc address of a C function as in {@link #allocator}; it returns a CUdeviceptr
     * @param free address of a C function {@code void (void *memory, size_t bytes, size_t alignment, void
     *     *userData)}
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
     * Sets the SIMD target of the CPU's kernels.
     *
     * @param name one of {@link KvEvict#simdTargets()}; null: the best one
     * @return this
     */
    public Builder simdTarget(String name) {
      simdTarget = name;
      return this;
    }

    /**
     * Sets the CUcontext to work in. It must outlive the handles: close them first.
     *
     * @param context its pointer; 0: the one current on the creating thread
     * @return this
     */
    public Builder cudaContext(long context) {
      cudaContext = context;
      return this;
    }

    /**
     * Sets the path of the CUDA driver library.
     *
     * @param path the path of libcuda; null: the system's
     * @return this
     */
    public Builder libcudaPath(String path) {
      libcudaPath = path;
      return this;
    }

    /**
     * Sets the path of the run-time compiler.
     *
     * @param path the path of libnvrtc; null: chosen by the driver's version
     * @return this
     */
    public Builder libnvrtcPath(String path) {
      libnvrtcPath = path;
      return this;
    }

    /**
     * Sets the folder that keeps compiled kernels.
     *
     * @param path a directory that belongs to the user and nobody else may write; null: none
     * @return this
     */
    public Builder kernelCacheDir(String path) {
      kernelCacheDir = path;
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
      Hooks hooks = new Hooks(device, logger, executor, threadCount);
      try (Struct simd = Struct.text(simdTarget);
          Struct cuda = Struct.text(libcudaPath);
          Struct nvrtc = Struct.text(libnvrtcPath);
          Struct cache = Struct.text(kernelCacheDir);
          Struct options = write(hooks, simd, cuda, nvrtc, cache)) {
        return new Context(Native.kvevict_context_create(options.address), hooks);
      }
    }

    Struct write(Hooks hooks, Struct simd, Struct cuda, Struct nvrtc, Struct cache) {
      return fill(new Struct(Abi.ContextOptions.SIZEOF), 0)
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
          .putLong(Abi.ContextOptions.DEVICE_ALLOC_USER_DATA, deviceHooks[2]);
    }
  }
}
