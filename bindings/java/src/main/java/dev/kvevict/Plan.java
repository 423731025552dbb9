package dev.kvevict;

import java.lang.ref.Reference;
import java.nio.ByteBuffer;
import java.util.List;
import java.util.stream.IntStream;

/** A geometry with a policy and a context, checked once. Immutable and thread-safe. */
public final class Plan extends Handle {
  /**
   * The memory of a thread's last call for its jobs: scoring as many again allocates none. A call
   * takes it away while it runs, since its executor may score, too.
   */
  private static final ThreadLocal<Struct> JOBS = new ThreadLocal<>();

  private final Geometry geometry;
  private final Policy policy;
  private final boolean headsDiffer;
  private final Hooks hooks;
  private final int queryRows; // by which a layer is scored; below 0: as many as there are slots
  private final int listCount; // of all layers

  Plan(long pointer, Geometry geometry, Policy policy, boolean headsDiffer, Hooks hooks) {
    super(pointer, Native::kvevict_plan_destroy, hooks);
    this.geometry = geometry;
    this.policy = policy;
    this.headsDiffer = headsDiffer;
    this.hooks = hooks;
    queryRows = policy.resolve(1).queryRows();
    listCount = IntStream.range(0, geometry.layerCount()).map(layer -> layer(layer).listCount()).sum();
  }

  /**
   * The geometry the plan was made from.
   *
   * @return it
   */
  public Geometry geometry() {
    return geometry;
  }

  /**
   * The policy the plan was made from.
   *
   * @return it
   */
  public Policy policy() {
    return policy;
  }

  /**
   * An empty sequence, for one request.
   *
   * @return the sequence, which keeps what it needs of this plan alive
   */
  public Sequence newSequence() {
    long plan = enter();
    try {
      return newSequence(Native.kvevict_sequence_create(plan));
    } finally {
      leave();
    }
  }

  /**
   * A calibration that has seen no query of this plan's model.
   *
   * @param hasCovariances whether it also adds up what a covariance needs: for each query head
   *     keyHeadDim * (keyHeadDim + 1) / 2 numbers of 8 bytes
   * @return the calibration, which keeps what it needs of this plan alive
   */
  public Calibration newCalibration(boolean hasCovariances) {
    long plan = enter();
    try {
      return new Calibration(
          Native.kvevict_calibration_create(plan, hasCovariances ? 1 : 0), geometry, hooks);
    } finally {
      leave();
    }
  }

  /** Around a pointer. */
  Sequence newSequence(long pointer) {
    return new Sequence(pointer, geometry, queryRows, headsDiffer, listCount, hooks);
  }

  /**
   * The bytes of all layers' blocks of a paged cache.
   *
   * @param options the number of blocks
   * @return bytes
   */
  public long pagedCacheBytes(PagedCacheOptions options) {
    long plan = enter();
    try (Struct in = options.write(hooks.device)) {
      return Native.kvevict_paged_cache_bytes(plan, in.address);
    } finally {
      leave();
    }
  }

  /**
   * A paged cache of which all blocks are free. Of this plan it has context, geometry and maxTokens,
   * the most that a sequence may hold; the policy plays no part.
   *
   * @param options the number of blocks, and their memory
   * @return the cache, which keeps what it needs of this plan alive
   */
  public PagedCache newPagedCache(PagedCacheOptions options) {
    long plan = enter();
    try (Struct in = options.write(hooks.device)) {
      return new PagedCache(Native.kvevict_paged_cache_create(plan, in.address),
          new PagedCache.Shared(geometry, hooks, options));
    } finally {
      leave();
    }
  }

  /**
   * Scratch for an operation at the geometry's maxTokens.
   *
   * @param operation the operation
   * @return its sizes
   */
  public Workspace workspace(Operation operation) {
    return workspace(operation, 0);
  }

  /**
   * Scratch for an operation. In the least, scoring on the CPU is slower.
   *
   * @param operation the operation
   * @param tokenCount the most slots that a layer will hold then; 0: maxTokens
   * @return its sizes
   */
  public Workspace workspace(Operation operation, int tokenCount) {
    long plan = enter();
    try {
      return Records.Workspace.of(hooks.device,
          out -> Native.kvevict_plan_workspace(plan, operation.value(), tokenCount, out));
    } finally {
      leave();
    }
  }

  /**
   * Says what a layer is for the plan.
   *
   * @param layer the layer
   * @return its heads and keep lists
   */
  public LayerInfo layer(int layer) {
    long plan = enter();
    try (Struct out = Struct.sized(Abi.LayerInfo.SIZEOF)) {
      Native.kvevict_plan_layer(plan, layer, out.address);
      return Records.LayerInfo.read(out);
    } finally {
      leave();
    }
  }

  /**
   * Tokens each layer keeps.
   *
   * @param tokenCount tokens seen so far, at least 1
   * @return tokens per layer; 0 without a full cache
   */
  public int[] layerBudgets(int tokenCount) {
    int[] budgets = new int[geometry.layerCount()];
    long plan = enter();
    try {
      Native.kvevict_plan_layer_budgets_a(plan, tokenCount, budgets);
    } finally {
      leave();
    }
    return budgets;
  }

  /**
   * Says what the plan can do with a layer, and why not.
   *
   * @param layer the layer
   * @return the answer
   */
  public Capabilities capabilities(int layer) {
    long plan = enter();
    try (Struct out = Struct.sized(Abi.Capabilities.SIZEOF)) {
      Native.kvevict_plan_capabilities(plan, layer, out.address);
      return Records.Capabilities.read(out);
    } finally {
      leave();
    }
  }

  /**
   * Says what the policy asks of {@link Context#select}. The caller adds scores, protected slots and
   * memory for the lists.
   *
   * @param layer decides the budget; with scope MODEL the first one with a full cache
   * @param tokenCount slots held, and the tokens seen so far
   * @return what must stay, the rules, the number of lists and how many slots each keeps
   */
  public Selection selection(int layer, int tokenCount) {
    return selection(layer, tokenCount, 0);
  }

  /**
   * The same of a cache that has lost tokens.
   *
   * @param layer decides the budget; with scope MODEL the first one with a full cache
   * @param tokenCount slots held
   * @param tokensSeen tokens seen so far, which a budget that is a ratio is one of; 0: the slots held
   * @return what must stay, the rules, the number of lists and how many slots each keeps
   */
  public Selection selection(int layer, int tokenCount, int tokensSeen) {
    long plan = enter();
    try (Struct options = Struct.sized(Abi.SelectOptions.SIZEOF);
        Struct keep = Struct.sized(Abi.KeepLists.SIZEOF)) {
      Native.kvevict_plan_selection(plan, layer, tokenCount, tokensSeen, options.address, keep.address);
      return new Records.Selection(SelectOptions.of(tokenCount).take(options, 0),
          keep.intAt(Abi.KeepLists.N_LISTS), keep.intAt(Abi.KeepLists.COUNT));
    } finally {
      leave();
    }
  }

  /**
   * Scores the cached tokens of layers by the signal of the policy, on the CPU.
   *
   * @param jobs a layer each, at most 128
   * @param workspace scratch for {@link Operation#SCORE}
   */
  public void score(List<ScoreJob> jobs, ByteBuffer workspace) {
    score(jobs, Memory.workspace(hooks.device, workspace), Memory.workspaceBytes(workspace), 0);
    Reference.reachabilityFence(workspace);
  }

  /**
   * Scores the cached tokens of layers by the signal of the policy.
   *
   * @param jobs a layer each, at most 128
   * @param workspace address of scratch for {@link Operation#SCORE}
   * @param workspaceBytes its bytes
   * @param stream a CUstream; ignored on the CPU
   */
  public void score(List<ScoreJob> jobs, long workspace, long workspaceBytes, long stream) {
    ScoreJob[] all = jobs.toArray(new ScoreJob[0]);
    View.Content[] caches = new View.Content[all.length];
    int parts = all.length * Abi.ScoreJob.SIZEOF;
    Struct struct = takeJobs(parts + all.length * ScoreJob.PARTS);
    long plan = enter();
    try {
      for (int i = 0; i < all.length; ++i) {
        caches[i] = all[i].write(geometry, queryRows, hooks.device, struct,
            i * Abi.ScoreJob.SIZEOF, parts + i * ScoreJob.PARTS);
      }
      Native.kvevict_score(
          plan, struct.address, all.length, workspace, workspaceBytes, stream);
    } finally {
      leave();
      JOBS.set(struct);
      Reference.reachabilityFence(all);
      Reference.reachabilityFence(caches);
    }
  }

  /**
   * Turns cached keys as RoPE would have at other positions, in place, on the CPU. After an eviction
   * a survivor in slot i, of position p, moves by i - p where positions count slots. The geometry
   * was made {@link Geometry#withRope}.
   *
   * @param rotations a layer each, at most 128
   */
  public void rotate(List<Rotation> rotations) {
    rotate(rotations, 0);
  }

  /**
   * Turns cached keys as RoPE would have at other positions, in place.
   *
   * @param rotations a layer each, at most 128
   * @param stream a CUstream; ignored on the CPU
   */
  public void rotate(List<Rotation> rotations, long stream) {
    long plan = enter();
    try (Rotation.All all = new Rotation.All(hooks.device, rotations)) {
      Native.kvevict_rotate(plan, all.struct.address, all.n, stream);
    } finally {
      leave();
    }
  }

  private static Struct takeJobs(int size) {
    Struct struct = JOBS.get();
    JOBS.remove();
    return struct != null && struct.size() == size ? struct : new Struct(size);
  }
}
