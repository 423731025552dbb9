package dev.kvevict;

import java.nio.ByteBuffer;
import java.util.function.LongConsumer;

/**
 * Results of calls. The records are hidden behind interfaces, which can grow: nobody
 * else constructs, matches or implements them.
 */
final class Records {
  private Records() {}

  record Capabilities(boolean canMove, boolean canScore, boolean canRotate, Reason moveReason,
      Reason scoreReason, Reason rotateReason, boolean needsScore, int tableBlock,
      boolean needsHeadTables, boolean needsLayerTables)
      implements dev.kvevict.Capabilities {
    static Capabilities read(Struct in) {
      return new Capabilities(
          in.flagAt(Abi.Capabilities.CAN_MOVE),
          in.flagAt(Abi.Capabilities.CAN_SCORE),
          in.flagAt(Abi.Capabilities.CAN_ROTATE),
          in.enumAt(Abi.Capabilities.MOVE_REASON, Reason.class),
          in.enumAt(Abi.Capabilities.SCORE_REASON, Reason.class),
          in.enumAt(Abi.Capabilities.ROTATE_REASON, Reason.class),
          in.flagAt(Abi.Capabilities.NEEDS_SCORE),
          in.intAt(Abi.Capabilities.TABLE_BLOCK),
          in.flagAt(Abi.Capabilities.NEEDS_HEAD_TABLES),
          in.flagAt(Abi.Capabilities.NEEDS_LAYER_TABLES));
    }
  }

  record DTypeInfo(DType dtype, String name, int elementBytes, boolean canMove, boolean canScore,
      boolean canRotate, int blockElements, int blockBytes, int takesScale, boolean takesMinimum)
      implements dev.kvevict.DTypeInfo {
    static DTypeInfo read(Struct in) {
      return new DTypeInfo(
          in.enumAt(Abi.DTypeInfo.DTYPE, DType.class),
          in.textAt(Abi.DTypeInfo.NAME),
          in.intAt(Abi.DTypeInfo.ELEMENT_BYTES),
          in.flagAt(Abi.DTypeInfo.CAN_MOVE),
          in.flagAt(Abi.DTypeInfo.CAN_SCORE),
          in.flagAt(Abi.DTypeInfo.CAN_ROTATE),
          in.intAt(Abi.DTypeInfo.BLOCK_ELEMENTS),
          in.intAt(Abi.DTypeInfo.BLOCK_BYTES),
          in.intAt(Abi.DTypeInfo.TAKES_SCALE),
          in.flagAt(Abi.DTypeInfo.TAKES_MINIMUM));
    }
  }

  record EvictReport(boolean evicted, long bytesBefore, long bytesAfter, long tokensBefore,
      long tokensAfter, long blocksFreed, Reason reason, int weakFits)
      implements dev.kvevict.EvictReport {
    static EvictReport read(Struct in, int offset) {
      return new EvictReport(
          in.flagAt(offset + Abi.EvictReport.EVICTED),
          in.longAt(offset + Abi.EvictReport.BYTES_BEFORE),
          in.longAt(offset + Abi.EvictReport.BYTES_AFTER),
          in.longAt(offset + Abi.EvictReport.TOKENS_BEFORE),
          in.longAt(offset + Abi.EvictReport.TOKENS_AFTER),
          in.longAt(offset + Abi.EvictReport.BLOCKS_FREED),
          in.enumAt(offset + Abi.EvictReport.REASON, Reason.class),
          in.intAt(offset + Abi.EvictReport.N_WEAK_FITS));
    }
  }

  record GpuInfo(int computeCapability, int driverVersion, int nvrtcVersion, String name,
      String nvrtc, String target, String problem)
      implements dev.kvevict.GpuInfo {
    static GpuInfo read(Struct in) {
      return new GpuInfo(
          in.intAt(Abi.GpuInfo.COMPUTE_CAPABILITY),
          in.intAt(Abi.GpuInfo.DRIVER_VERSION),
          in.intAt(Abi.GpuInfo.NVRTC_VERSION),
          in.textAt(Abi.GpuInfo.NAME),
          in.textAt(Abi.GpuInfo.NVRTC),
          in.textAt(Abi.GpuInfo.TARGET),
          in.textAt(Abi.GpuInfo.PROBLEM));
    }
  }

  record LayerInfo(LayerCache cache, int queryHeads, int kvHeads, int listCount, int firstList)
      implements dev.kvevict.LayerInfo {
    static LayerInfo read(Struct in) {
      return new LayerInfo(
          in.enumAt(Abi.LayerInfo.CACHE, LayerCache.class),
          in.intAt(Abi.LayerInfo.N_Q_HEADS),
          in.intAt(Abi.LayerInfo.N_KV_HEADS),
          in.intAt(Abi.LayerInfo.N_LISTS),
          in.intAt(Abi.LayerInfo.FIRST_LIST));
    }
  }

  record ListReport(int layer, int tokensBefore, int tokensAfter, float massKept,
      float largestMassEvicted)
      implements dev.kvevict.ListReport {
    ListReport(int layer, int tokensBefore, int tokensAfter) {
      this(layer, tokensBefore, tokensAfter, Float.NaN, Float.NaN);
    }

    static ListReport read(Struct in, int offset) {
      return new ListReport(
          in.intAt(offset + Abi.ListReport.LAYER),
          in.intAt(offset + Abi.ListReport.TOKENS_BEFORE),
          in.intAt(offset + Abi.ListReport.TOKENS_AFTER),
          in.floatAt(offset + Abi.ListReport.MASS_KEPT),
          in.floatAt(offset + Abi.ListReport.LARGEST_MASS_EVICTED));
    }
  }

  record PagedCacheUsage(int sequenceCount, long blockCount, long freeCount, long sharedCount, long slotCount,
      long bytes, long bytesInUse, long f32Bytes)
      implements dev.kvevict.PagedCacheUsage {
    static PagedCacheUsage read(Struct in) {
      return new PagedCacheUsage(
          in.intAt(Abi.PagedCacheUsage.N_SEQUENCES),
          in.longAt(Abi.PagedCacheUsage.N_BLOCKS),
          in.longAt(Abi.PagedCacheUsage.N_FREE),
          in.longAt(Abi.PagedCacheUsage.N_SHARED),
          in.longAt(Abi.PagedCacheUsage.N_SLOTS),
          in.longAt(Abi.PagedCacheUsage.BYTES),
          in.longAt(Abi.PagedCacheUsage.BYTES_IN_USE),
          in.longAt(Abi.PagedCacheUsage.F32_BYTES));
    }
  }

  record ParameterInfo(String key, ParameterType type, String words, String doc, double least,
      double most, boolean excludesLeast, boolean takesZero, String defaultText)
      implements dev.kvevict.ParameterInfo {
    static ParameterInfo read(Struct in) {
      return new ParameterInfo(
          in.textAt(Abi.ParameterInfo.KEY),
          in.enumAt(Abi.ParameterInfo.TYPE, ParameterType.class),
          in.textAt(Abi.ParameterInfo.WORDS),
          in.textAt(Abi.ParameterInfo.DOC),
          in.doubleAt(Abi.ParameterInfo.LEAST),
          in.doubleAt(Abi.ParameterInfo.MOST),
          in.flagAt(Abi.ParameterInfo.EXCLUDES_LEAST),
          in.flagAt(Abi.ParameterInfo.TAKES_ZERO),
          NativeSupport.stringAt(in.address + Abi.ParameterInfo.DEFAULT_TEXT));
    }
  }

  record PolicyInfo(String name, String signal, String summary, String trigger, String paper,
      String defaults)
      implements dev.kvevict.PolicyInfo {
    static PolicyInfo read(Struct in) {
      return new PolicyInfo(
          in.textAt(Abi.PolicyInfo.NAME),
          in.textAt(Abi.PolicyInfo.SIGNAL),
          in.textAt(Abi.PolicyInfo.SUMMARY),
          in.textAt(Abi.PolicyInfo.TRIGGER),
          in.textAt(Abi.PolicyInfo.PAPER),
          in.textAt(Abi.PolicyInfo.DEFAULTS));
    }
  }

  record PrefillReport(int chunks, int evictions, int peakTokens, long peakBytes,
      long endBytes)
      implements dev.kvevict.PrefillReport {
    static PrefillReport read(Struct in) {
      return new PrefillReport(
          in.intAt(Abi.PrefillReport.N_CHUNKS),
          in.intAt(Abi.PrefillReport.N_EVICTIONS),
          in.intAt(Abi.PrefillReport.PEAK_TOKENS),
          in.longAt(Abi.PrefillReport.PEAK_BYTES),
          in.longAt(Abi.PrefillReport.END_BYTES));
    }
  }

  record PresetInfo(String name, String policyText, String reproduces)
      implements dev.kvevict.PresetInfo {
    static PresetInfo read(Struct in) {
      return new PresetInfo(
          in.textAt(Abi.PresetInfo.NAME),
          in.textAt(Abi.PresetInfo.POLICY_TEXT),
          in.textAt(Abi.PresetInfo.REPRODUCES));
    }
  }

  record ResolvedPolicy(int budget, int sink, int recent, int selected, int queryRows,
      boolean scoresAreMass)
      implements dev.kvevict.ResolvedPolicy {
    static ResolvedPolicy read(Struct in) {
      return new ResolvedPolicy(
          in.intAt(Abi.ResolvedPolicy.BUDGET),
          in.intAt(Abi.ResolvedPolicy.N_SINK),
          in.intAt(Abi.ResolvedPolicy.N_RECENT),
          in.intAt(Abi.ResolvedPolicy.N_SELECTED),
          in.intAt(Abi.ResolvedPolicy.N_QUERY_ROWS),
          in.flagAt(Abi.ResolvedPolicy.SCORES_ARE_MASS));
    }
  }

  record Selection(SelectOptions options, int listCount, int count)
      implements dev.kvevict.Selection {}

  record SequenceMemory(
      long lengths,
      long positions,
      long listedCounts,
      int listedCount,
      int listCount,
      long sums,
      int sumHeads,
      long sumStride)
      implements dev.kvevict.SequenceMemory {
    static SequenceMemory read(Struct in) {
      return new SequenceMemory(
          in.longAt(Abi.SequenceMemory.LENGTHS),
          in.longAt(Abi.SequenceMemory.POSITIONS),
          in.longAt(Abi.SequenceMemory.LISTED_COUNTS),
          in.intAt(Abi.SequenceMemory.N_LISTED),
          in.intAt(Abi.SequenceMemory.N_LISTS),
          in.longAt(Abi.SequenceMemory.SUMS),
          in.intAt(Abi.SequenceMemory.N_SUM_HEADS),
          in.longAt(Abi.SequenceMemory.SUM_STRIDE));
    }
  }

  record Workspace(int alignment, long leastBytes, long bestBytes, Device device)
      implements dev.kvevict.Workspace {
    static Workspace read(Struct in, Device device) {
      return new Workspace(
          in.intAt(Abi.Workspace.ALIGNMENT),
          in.longAt(Abi.Workspace.LEAST_BYTES),
          in.longAt(Abi.Workspace.BEST_BYTES),
          device);
    }

    /** What a call writes to the struct at an address. */
    static Workspace of(Device device, LongConsumer call) {
      try (Struct out = Struct.sized(Abi.Workspace.SIZEOF)) {
        call.accept(out.address);
        return read(out, device);
      }
    }

    @Override
    public ByteBuffer allocate() {
      if (device != Device.CPU) {
        throw new IllegalStateException("the context is on " + device + ", where a workspace is "
            + "device memory: pass the address of " + bestBytes + " bytes there, " + alignment
            + "-byte aligned");
      }
      int bytes = Math.toIntExact(bestBytes);
      ByteBuffer raw = ByteBuffer.allocateDirect(Math.addExact(bytes, alignment - 1));
      int skip = Math.floorMod(-NativeSupport.addressOf(raw), alignment);
      return raw.slice(skip, bytes);
    }
  }
}
