package dev.kvevict;

import java.lang.ref.Reference;
import java.nio.FloatBuffer;
import java.nio.IntBuffer;
import java.util.List;
import java.util.Objects;

/** One layer of one sequence in {@link Context#attend}. Immutable. */
public final class Attention extends AttentionFields<Attention> {
  private final View view;
  private final Plane queries;
  private final Plane out;
  private Numbers tokenCounts; // null: all heads hold tokenCount
  private Numbers sinkLogits; // or null
  private Plane rowLse; // or null
  private Plane attentionSums; // or null

  private Attention(
      View view, int tokenCount, int queryHeads, int queryCount, Plane queries, Plane out) {
    this.view = Objects.requireNonNull(view, "view");
    this.tokenCount = Memory.count(tokenCount, "tokenCount");
    this.queryHeads = Memory.count(queryHeads, "queryHeads");
    this.queryCount = Memory.count(queryCount, "queryCount");
    this.queries = Objects.requireNonNull(queries, "queries");
    this.out = Objects.requireNonNull(out, "out");
  }

  /**
   * Causal attention.
   *
   * @param view the cache, which also holds the queries' own tokens
   * @param tokenCount slots held, the most of any head
   * @param queryHeads a multiple of the view's KV heads
   * @param queryCount queries of each head; query i belongs to slot tokenCount - queryCount + i
   * @param queries [queryHeads, queryCount, keyHeadDim] after RoPE
   * @param out receives [queryHeads, queryCount, valueHeadDim] f32, f16 or bf16; rows must not overlap
   * @return the job
   */
  public static Attention of(
      View view, int tokenCount, int queryHeads, int queryCount, Plane queries, Plane out) {
    return new Attention(view, tokenCount, queryHeads, queryCount, queries, out);
  }

  /**
   * Sets the slots held by each head if they differ, on the CPU.
   *
   * @param each slots of a KV head, at most tokenCount; direct, in native order
   * @return this job with the counts
   */
  public Attention withTokenCounts(IntBuffer each) {
    Attention next = next();
    next.tokenCounts = Numbers.of(each, "each");
    return next;
  }

  /**
   * Sets the slots held by each head if they differ, at an address.
   *
   * @param each address of u32 [kvHeads], at most tokenCount, on the context's device
   * @return this job with the counts
   */
  public Attention withTokenCounts(long each) {
    Attention next = next();
    next.tokenCounts = Numbers.at(each, Integer.MAX_VALUE, "each");
    return next;
  }

  /**
   * A term of each head's softmax that has no value, on the CPU.
   *
   * @param logits [queryHeads]; direct, in native order
   * @return this job with the sinks
   */
  public Attention withSinkLogits(FloatBuffer logits) {
    Attention next = next();
    next.sinkLogits = Numbers.of(logits, "logits");
    return next;
  }

  /**
   * A term of each head's softmax that has no value, at an address.
   *
   * @param logits address of f32 [queryHeads] on the context's device
   * @return this job with the sinks
   */
  public Attention withSinkLogits(long logits) {
    Attention next = next();
    next.sinkLogits = Numbers.at(logits, queryHeads, "logits");
    return next;
  }

  /**
   * Asks for the log-sum-exp of each query's logits, as {@link SignalInputs#withRowLse} takes it.
   *
   * @param lse receives [queryHeads, queryCount] f32, headDim 1; or null
   * @return this job with the plane
   */
  public Attention withRowLse(Plane lse) {
    Attention next = next();
    next.rowLse = lse;
    return next;
  }

  /**
   * Asks for the attention weight that each slot got from all queries, as {@link
   * SignalInputs#withAttentionSums} of a step or chunk takes it.
   *
   * @param each receives [sumHeads, tokenCount] f32, headDim 1; or null
   * @return this job with the sums
   */
  public Attention withAttentionSums(Plane each) {
    Attention next = next();
    next.attentionSums = each;
    return next;
  }

  /** The native structs of a call's jobs; a try block keeps what they point to reachable. */
  static final class All implements AutoCloseable {
    private static final int PLANES = 4;

    final Struct struct;
    final int n;
    private final Attention[] jobs;
    private final View.Content[] caches;

    All(Device device, List<Attention> list) {
      jobs = list.toArray(new Attention[0]);
      n = jobs.length;
      caches = new View.Content[n];
      struct = new Struct(n * (Abi.AttentionJob.SIZEOF + PLANES * Abi.Plane.SIZEOF));
      for (int i = 0; i < n; ++i) {
        caches[i] = write(jobs[i], device, i * Abi.AttentionJob.SIZEOF,
            n * Abi.AttentionJob.SIZEOF + i * PLANES * Abi.Plane.SIZEOF);
      }
    }

    private View.Content write(Attention job, Device device, int at, int planes) {
      View.Content cache = job.view.content(device, job.tokenCount, job.tokenCounts);
      int sumCount = job.sumHeads == 0 ? job.queryHeads : job.sumHeads;
      job.fill(struct, at)
          .putLong(at + Abi.AttentionJob.TOKEN_COUNTS,
              Numbers.each(job.tokenCounts, device, cache.kvHeads, "tokenCounts"))
          .putLong(at + Abi.AttentionJob.VIEW, cache.struct.address)
          .putLong(at + Abi.AttentionJob.SINK_LOGITS,
              job.sinkLogits == null ? 0 : job.sinkLogits.input(device, "sinkLogits"))
          .putLong(at + Abi.AttentionJob.SINK_LOGITS_LEN,
              job.sinkLogits == null ? 0 : job.sinkLogits.length);
      put(at + Abi.AttentionJob.QUERIES, planes, job.queries, job.queryCount, job.queryHeads, "queries");
      put(at + Abi.AttentionJob.OUT, planes + Abi.Plane.SIZEOF,
          writable(job.out, "out"), job.queryCount, job.queryHeads, "out");
      put(at + Abi.AttentionJob.ROW_LSE, planes + 2 * Abi.Plane.SIZEOF,
          writable(job.rowLse, "rowLse"), job.queryCount, job.queryHeads, "rowLse");
      put(at + Abi.AttentionJob.ATTENTION_SUMS, planes + 3 * Abi.Plane.SIZEOF,
          writable(job.attentionSums, "attentionSums"), job.tokenCount, sumCount, "attentionSums");
      return cache;
    }

    private static Plane writable(Plane plane, String name) {
      if (plane != null && plane.isReadOnly()) {
        throw new IllegalArgumentException(name + " is in a read-only buffer");
      }
      return plane;
    }

    private void put(int pointer, int at, Plane plane, int rowCount, int headCount, String name) {
      if (plane == null) {
        return;
      }
      plane.require(rowCount, headCount, name);
      Plane.write(plane, struct, at);
      struct.putLong(pointer, struct.address + at);
    }

    @Override
    public void close() {
      Reference.reachabilityFence(this);
    }
  }
}
