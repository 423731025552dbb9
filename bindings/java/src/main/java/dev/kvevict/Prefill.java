package dev.kvevict;

import java.util.Objects;
import java.util.function.Consumer;

/** A prompt to read in chunks. Immutable; start from {@link #of}. */
public final class Prefill extends PrefillFields<Prefill> {
  /** Tokens that the model runs over. */
  public static final class Chunk {
    private final int firstToken;
    private final int tokenCount;

    Chunk(int firstToken, int tokenCount) {
      this.firstToken = firstToken;
      this.tokenCount = tokenCount;
    }

    /** {@return the position of the first one} */
    public int firstToken() {
      return firstToken;
    }

    /** {@return the number of tokens, at most a chunk} */
    public int tokenCount() {
      return tokenCount;
    }
  }

  final Consumer<Chunk> forward;
  EvictOptions options = EvictOptions.NONE;

  private Prefill(int tokenCount, int chunk, Consumer<Chunk> forward) {
    this.tokenCount = Memory.count(tokenCount, "tokenCount");
    this.chunk = Memory.count(chunk, "chunk");
    this.forward = Objects.requireNonNull(forward, "forward");
  }

  /**
   * A prompt that is evicted once, when all has been read.
   *
   * <p>Of each chunk the model writes rows in each layer, behind those that are stored, attends to
   * all of them, causal within the chunk, and shows what the policy needs by {@link
   * Sequence#observe}. It may use the sequence and its blocks, but appends nothing. What it throws
   * ends the prefill, which throws the same.
   *
   * @param tokenCount tokens of the prompt
   * @param chunk tokens at a time, at least 1
   * @param forward the model
   * @return the prompt
   */
  public static Prefill of(int tokenCount, int chunk, Consumer<Chunk> forward) {
    return new Prefill(tokenCount, chunk, forward);
  }

  /**
   * Sets what each eviction is told beside the policy.
   *
   * @param evictOptions inputs are read behind each chunk
   * @return this prompt with the options
   */
  public Prefill withOptions(EvictOptions evictOptions) {
    Prefill next = next();
    next.options = Objects.requireNonNull(evictOptions, "evictOptions");
    return next;
  }
}
