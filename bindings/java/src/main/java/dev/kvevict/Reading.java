package dev.kvevict;

import java.lang.ref.Reference;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicLong;

/** A call of {@link Sequence#prefill}. Native code knows it by a number, and only while it runs. */
final class Reading {
  /** Writes the evictions' arguments for the call; returns what must stay reachable. */
  interface Arguments {
    Object write(EvictOptions options, int ahead);
  }

  private static final AtomicLong LAST_ID = new AtomicLong();
  private static final Map<Long, Reading> ALL = new ConcurrentHashMap<>();

  private final Prefill prompt;
  private final Handle[] lent; // to the model
  private final Arguments arguments;
  private int done;
  private Object held;

  Reading(Prefill prompt, Arguments arguments, Handle... lent) {
    this.prompt = prompt;
    this.arguments = arguments;
    this.lent = lent;
  }

  PrefillReport run(long sequence, Struct options, long stream) {
    held = arguments.write(prompt.options.withoutInputs(), 0);
    Long id = LAST_ID.incrementAndGet();
    ALL.put(id, this);
    try (Struct report = Struct.sized(Abi.PrefillReport.SIZEOF)) {
      prompt.fill(options, 0)
          .putLong(Abi.PrefillOptions.FORWARD, NativeSupport.forwardHook())
          .putLong(Abi.PrefillOptions.USER_DATA, id);
      Native.kvevict_sequence_prefill(sequence, options.address, report.address, stream);
      return Records.PrefillReport.read(report);
    } finally {
      ALL.remove(id);
      Reference.reachabilityFence(options);
      Reference.reachabilityFence(prompt);
      Reference.reachabilityFence(held);
    }
  }

  /** Called from native code. What this throws the call throws. */
  static void forward(int firstToken, int tokenCount, long id) {
    ALL.get(id).chunk(firstToken, tokenCount);
  }

  private void chunk(int firstToken, int tokenCount) {
    for (Handle handle : lent) {
      handle.lend();
    }
    try {
      prompt.forward.accept(new Prefill.Chunk(firstToken, tokenCount));
    } finally {
      for (Handle handle : lent) {
        handle.takeBack();
      }
    }
    for (Handle handle : lent) {
      handle.requireAlone();
    }
    done += tokenCount;
    boolean evicts = prompt.evictEachChunk || done == prompt.tokenCount;
    // The chunk's rows are there, but not appended yet.
    held = arguments.write(evicts ? prompt.options : prompt.options.withoutInputs(), tokenCount);
  }
}
