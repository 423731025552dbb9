package dev.kvevict;

import java.nio.FloatBuffer;
import java.nio.IntBuffer;
import java.util.Objects;

/** One layer's part of {@link Plan#score}. Immutable; what the policy does not need may be absent. */
public final class ScoreJob extends ScoreJobFields<ScoreJob> {
  /** Bytes of what lies behind the jobs for each of them: inputs and their planes. */
  static final int PARTS = Abi.SignalInputs.SIZEOF + SignalInputs.PLANES;

  private final Numbers scores;
  private Numbers tokenCounts; // null: all heads hold tokenCount
  private View view;
  private SignalInputs inputs = SignalInputs.NONE;

  private ScoreJob(int layer, int tokenCount, Numbers scores) {
    this.layer = layer;
    this.tokenCount = Memory.count(tokenCount, "tokenCount");
    this.scores = scores;
  }

  /**
   * A layer's part, on the CPU.
   *
   * @param layer one with a full cache
   * @param tokenCount slots held
   * @param scores out: [kvHeads, tokenCount], higher keeps; direct, in native order
   * @return the job
   */
  public static ScoreJob of(int layer, int tokenCount, FloatBuffer scores) {
    return new ScoreJob(layer, tokenCount, Numbers.of(scores, "scores"));
  }

  /**
   * A layer's part, with scores at an address.
   *
   * @param layer one with a full cache
   * @param tokenCount slots held
   * @param scores address of f32 [kvHeads, tokenCount] on the context's device, written; higher keeps
   * @param length elements there
   * @return the job
   */
  public static ScoreJob of(int layer, int tokenCount, long scores, long length) {
    return new ScoreJob(layer, tokenCount, Numbers.at(scores, length, "length"));
  }

  /**
   * Sets the slots held by each head if they differ, on the CPU.
   *
   * @param each slots of a KV head, at most tokenCount; direct, in native order
   * @return this job with the counts
   */
  public ScoreJob withTokenCounts(IntBuffer each) {
    ScoreJob next = next();
    next.tokenCounts = Numbers.of(each, "each");
    return next;
  }

  /**
   * Sets the slots held by each head if they differ, at an address.
   *
   * @param each address of u32 [kvHeads], at most tokenCount, on the context's device
   * @return this job with the counts
   */
  public ScoreJob withTokenCounts(long each) {
    ScoreJob next = next();
    next.tokenCounts = Numbers.at(each, Integer.MAX_VALUE, "each");
    return next;
  }

  /**
   * The layer's cache.
   *
   * @param cache the cache; null if no key is read
   * @return this job with the view
   */
  public ScoreJob withView(View cache) {
    ScoreJob next = next();
    next.view = cache;
    return next;
  }

  /**
   * Sets what is read beside keys.
   *
   * @param read the inputs; row i of n queries and log-sum-exps is of token tokenCount - n + i
   * @return this job with the inputs
   */
  public ScoreJob withInputs(SignalInputs read) {
    ScoreJob next = next();
    next.inputs = Objects.requireNonNull(read, "read");
    return next;
  }

  /**
   * Writes the job and its parts at offsets where nothing else ever lies.
   *
   * @return the cache, which must stay reachable; null without a view
   */
  View.Content write(Geometry geometry, int rowCount, Device device, Struct out, int at,
      int parts) {
    LayerGeometry shape = geometry.evicted(layer);
    inputs.requireRows(inputs.queryRows(rowCount, tokenCount), shape, layer);
    inputs.requireSlots(tokenCount, shape, layer);
    View.Content cache = view == null ? null : view.content(device, tokenCount, tokenCounts);
    inputs.write(out, parts, parts + Abi.SignalInputs.SIZEOF, device);
    fill(out, at)
        .putLong(at + Abi.ScoreJob.TOKEN_COUNTS,
            Numbers.each(tokenCounts, device, shape.kvHeads(), "tokenCounts"))
        .putLong(at + Abi.ScoreJob.VIEW, cache == null ? 0 : cache.struct.address)
        .putLong(at + Abi.ScoreJob.INPUTS, out.address + parts)
        .putLong(at + Abi.ScoreJob.SCORES, scores.output(device, "scores"))
        .putLong(at + Abi.ScoreJob.SCORES_LEN, scores.length);
    return cache;
  }
}
