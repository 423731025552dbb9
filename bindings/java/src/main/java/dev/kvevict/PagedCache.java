package dev.kvevict;

/**
 * A cache for engines without one: a fixed pool of blocks, which sequences hold by tables, as in
 * PagedAttention. Thread-safe. Sequences stay usable when it is closed.
 */
public final class PagedCache extends Handle {
  private final Shared shared;

  /** A cache and its sequences need this as long as any of them lives. */
  record Shared(Geometry geometry, Hooks hooks, PagedCacheOptions lent) {}

  PagedCache(long pointer, Shared shared) {
    super(pointer, Native::kvevict_paged_cache_destroy, shared);
    this.shared = shared;
  }

  /**
   * Adds a sequence, which holds no tokens.
   *
   * @return the sequence, which keeps the blocks alive
   */
  public PagedSequence newSequence() {
    long cache = enter();
    try {
      return new PagedSequence(Native.kvevict_paged_sequence_create(cache), shared);
    } finally {
      leave();
    }
  }

  /**
   * Counts blocks.
   *
   * @return what is in use
   */
  public PagedCacheUsage usage() {
    long cache = enter();
    try (Struct out = Struct.sized(Abi.PagedCacheUsage.SIZEOF)) {
      Native.kvevict_paged_cache_get_usage(cache, out.address);
      return Records.PagedCacheUsage.read(out);
    } finally {
      leave();
    }
  }
}
