package dev.kvevict;

import java.lang.ref.Reference;
import java.nio.FloatBuffer;
import java.nio.IntBuffer;
import java.util.List;
import java.util.Objects;

/** One layer of one sequence in {@link Context#attend}. Immutable. */
public final class Attention {
  private final View view;
  private final int nTokens;
  private final int nQHeads;
  private final int nQueries;
  private final Plane queries;
  private final Plane out;
  private Numbers tokenCounts; // null: all heads hold nTokens
  private int vHeadDim;
  private int window;
  private boolean nonCausal;
  private float softmaxScale;
  private float logitSoftcap;
  private Numbers sinkLogits; // or null
  private Plane rowLse; // or null
  private Plane attentionSums; // or null
  private int nSumHeads;

  private Attention(
      View view, int nTokens, int nQHeads, int nQueries, Plane queries, Plane out) {
    this.view = Objects.requireNonNull(view, "view");
    this.nTokens = Memory.count(nTokens, "nTokens");
    this.nQHeads = Memory.count(nQHeads, "nQHeads");
    this.nQueries = Memory.count(nQueries, "nQueries");
    this.queries = Objects.requireNonNull(queries, "queries");
    this.out = Objects.requireNonNull(out, "out");
  }

  private Attention copy() {
    Attention copy = new Attention(view, nTokens, nQHeads, nQueries, queries, out);
    copy.tokenCounts = tokenCounts;
    copy.vHeadDim = vHeadDim;
    copy.window = window;
    copy.nonCausal = nonCausal;
    copy.softmaxScale = softmaxScale;
    copy.logitSoftcap = logitSoftcap;
    copy.sinkLogits = sinkLogits;
    copy.rowLse = rowLse;
    copy.attentionSums = attentionSums;
    copy.nSumHeads = nSumHeads;
    return copy;
  }

  /**
   * Causal attention.
   *
   * @param view the cache, the queries' own tokens among its slots
   * @param nTokens slots held, the most of any head
   * @param nQHeads a multiple of the view's KV heads
   * @param nQueries of each head; query i belongs to slot nTokens - nQueries + i
   * @param queries [nQHeads, nQueries, kHeadDim] after RoPE
   * @param out [nQHeads, nQueries, vHeadDim] f32, f16 or bf16, in which no two rows overlap: written
   * @return the job
   */
  public static Attention of(
      View view, int nTokens, int nQHeads, int nQueries, Plane queries, Plane out) {
    return new Attention(view, nTokens, nQHeads, nQueries, queries, out);
  }

  /**
   * Where heads hold different numbers of slots, on the CPU.
   *
   * @param each slots of a KV head, at most nTokens; direct, in native order
   * @return this job with the counts
   */
  public Attention withTokenCounts(IntBuffer each) {
    Attention copy = copy();
    copy.tokenCounts = Numbers.of(each, "each");
    return copy;
  }

  /**
   * Where heads hold different numbers of slots, at an address.
   *
   * @param each address of u32 [nKvHeads], at most nTokens, on the context's device
   * @return this job with the counts
   */
  public Attention withTokenCounts(long each) {
    Attention copy = copy();
    copy.tokenCounts = Numbers.at(each, Integer.MAX_VALUE, "each");
    return copy;
  }

  /**
   * For views without values (MLA), which are the first elements of the keys' rows.
   *
   * @param n how many; 0: all of them
   * @return this job with so many
   */
  public Attention withVHeadDim(int n) {
    Attention copy = copy();
    copy.vHeadDim = Memory.count(n, "n");
    return copy;
  }

  /**
   * A sliding window.
   *
   * @param n a query sees no slot that lies so many or more before its own; 0: none
   * @return this job with the window
   */
  public Attention withWindow(int n) {
    Attention copy = copy();
    copy.window = Memory.count(n, "n");
    return copy;
  }

  /**
   * Queries see slots behind their own too.
   *
   * @return this job, not causal
   */
  public Attention nonCausal() {
    Attention copy = copy();
    copy.nonCausal = true;
    return copy;
  }

  /**
   * What multiplies products of queries and keys.
   *
   * @param scale 0 means 1 / sqrt(kHeadDim)
   * @return this job with the scale
   */
  public Attention withSoftmaxScale(float scale) {
    Attention copy = copy();
    copy.softmaxScale = scale;
    return copy;
  }

  /**
   * Scaled logits x become cap * tanh(x / cap).
   *
   * @param cap 0: they stay
   * @return this job with the cap
   */
  public Attention withLogitSoftcap(float cap) {
    Attention copy = copy();
    copy.logitSoftcap = cap;
    return copy;
  }

  /**
   * A term of each head's softmax that has no value, on the CPU.
   *
   * @param logits [nQHeads]; direct, in native order
   * @return this job with the sinks
   */
  public Attention withSinkLogits(FloatBuffer logits) {
    Attention copy = copy();
    copy.sinkLogits = Numbers.of(logits, "logits");
    return copy;
  }

  /**
   * A term of each head's softmax that has no value, at an address.
   *
   * @param logits address of f32 [nQHeads] on the context's device
   * @return this job with the sinks
   */
  public Attention withSinkLogits(long logits) {
    Attention copy = copy();
    copy.sinkLogits = Numbers.at(logits, nQHeads, "logits");
    return copy;
  }

  /**
   * Where the log-sum-exp of each query's logits goes, as {@link SignalInputs#withRowLse} takes it.
   *
   * @param lse [nQHeads, nQueries] f32, headDim 1: written; or null
   * @return this job with the plane
   */
  public Attention withRowLse(Plane lse) {
    Attention copy = copy();
    copy.rowLse = lse;
    return copy;
  }

  /**
   * Where the attention weight that each slot got of all queries goes, as {@link
   * SignalInputs#withAttentionSums} of a step or chunk takes it.
   *
   * @param each [nHeads, nTokens] f32, headDim 1: written; or null
   * @param nHeads nQHeads, or nKvHeads, whose query heads are added up; 0: nQHeads
   * @return this job with the sums
   */
  public Attention withAttentionSums(Plane each, int nHeads) {
    Attention copy = copy();
    copy.attentionSums = each;
    copy.nSumHeads = Memory.count(nHeads, "nHeads");
    return copy;
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
      View.Content cache = job.view.content(device, job.nTokens, job.tokenCounts);
      int nSums = job.nSumHeads == 0 ? job.nQHeads : job.nSumHeads;
      struct.putInt(at + Abi.AttentionJob.STRUCT_SIZE, Abi.AttentionJob.SIZEOF)
          .putInt(at + Abi.AttentionJob.N_TOKENS, job.nTokens)
          .putLong(at + Abi.AttentionJob.TOKEN_COUNTS,
              Numbers.each(job.tokenCounts, device, cache.nKvHeads, "tokenCounts"))
          .putLong(at + Abi.AttentionJob.VIEW, cache.struct.address)
          .putInt(at + Abi.AttentionJob.N_Q_HEADS, job.nQHeads)
          .putInt(at + Abi.AttentionJob.N_QUERIES, job.nQueries)
          .putInt(at + Abi.AttentionJob.V_HEAD_DIM, job.vHeadDim)
          .putInt(at + Abi.AttentionJob.WINDOW, job.window)
          .putFlag(at + Abi.AttentionJob.NON_CAUSAL, job.nonCausal)
          .putFloat(at + Abi.AttentionJob.SOFTMAX_SCALE, job.softmaxScale)
          .putFloat(at + Abi.AttentionJob.LOGIT_SOFTCAP, job.logitSoftcap)
          .putInt(at + Abi.AttentionJob.N_SUM_HEADS, job.nSumHeads)
          .putLong(at + Abi.AttentionJob.SINK_LOGITS,
              job.sinkLogits == null ? 0 : job.sinkLogits.input(device, "sinkLogits"))
          .putLong(at + Abi.AttentionJob.SINK_LOGITS_LEN,
              job.sinkLogits == null ? 0 : job.sinkLogits.length);
      put(at + Abi.AttentionJob.QUERIES, planes, job.queries, job.nQueries, job.nQHeads, "queries");
      put(at + Abi.AttentionJob.OUT, planes + Abi.Plane.SIZEOF,
          writable(job.out, "out"), job.nQueries, job.nQHeads, "out");
      put(at + Abi.AttentionJob.ROW_LSE, planes + 2 * Abi.Plane.SIZEOF,
          writable(job.rowLse, "rowLse"), job.nQueries, job.nQHeads, "rowLse");
      put(at + Abi.AttentionJob.ATTENTION_SUMS, planes + 3 * Abi.Plane.SIZEOF,
          writable(job.attentionSums, "attentionSums"), job.nTokens, nSums, "attentionSums");
      return cache;
    }

    private static Plane writable(Plane plane, String name) {
      if (plane != null && plane.isReadOnly()) {
        throw new IllegalArgumentException(name + " is in a read-only buffer");
      }
      return plane;
    }

    private void put(int pointer, int at, Plane plane, int nRows, int nHeads, String name) {
      if (plane == null) {
        return;
      }
      plane.require(nRows, nHeads, name);
      Plane.write(plane, struct, at);
      struct.putLong(pointer, struct.address + at);
    }

    @Override
    public void close() {
      Reference.reachabilityFence(this);
    }
  }
}
