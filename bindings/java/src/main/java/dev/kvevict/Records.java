package dev.kvevict;

import java.util.List;

/**
 * What calls return. The records are hidden behind interfaces, which can get more to tell: nobody
 * else constructs, matches or implements them.
 */
final class Records {
  private Records() {}

  record Capabilities(boolean canMove, boolean canScore, boolean canRotate, Reason moveReason,
      Reason scoreReason, Reason rotateReason, boolean needsScore)
      implements dev.kvevict.Capabilities {
    static Capabilities read(Struct in) {
      return new Capabilities(
          in.flagAt(Abi.Capabilities.CAN_MOVE),
          in.flagAt(Abi.Capabilities.CAN_SCORE),
          in.flagAt(Abi.Capabilities.CAN_ROTATE),
          in.enumAt(Abi.Capabilities.MOVE_REASON, Reason.class),
          in.enumAt(Abi.Capabilities.SCORE_REASON, Reason.class),
          in.enumAt(Abi.Capabilities.ROTATE_REASON, Reason.class),
          in.flagAt(Abi.Capabilities.NEEDS_SCORE));
    }
  }

  record DTypeInfo(DType dtype, String name, int elementBytes, boolean canMove, boolean canScore,
      boolean canRotate)
      implements dev.kvevict.DTypeInfo {
    static DTypeInfo read(Struct in) {
      return new DTypeInfo(
          in.enumAt(Abi.DTypeInfo.DTYPE, DType.class),
          in.textAt(Abi.DTypeInfo.NAME),
          in.intAt(Abi.DTypeInfo.ELEMENT_BYTES),
          in.flagAt(Abi.DTypeInfo.CAN_MOVE),
          in.flagAt(Abi.DTypeInfo.CAN_SCORE),
          in.flagAt(Abi.DTypeInfo.CAN_ROTATE));
    }
  }

  record EvictReport(boolean evicted, long bytesBefore, long bytesAfter, long tokensBefore,
      long tokensAfter, long blocksFreed, List<Integer> listTokensBefore,
      List<Integer> listTokensAfter)
      implements dev.kvevict.EvictReport {
    static EvictReport read(Struct in, int offset, List<Integer> before, List<Integer> after) {
      return new EvictReport(
          in.flagAt(offset + Abi.EvictReport.EVICTED),
          in.longAt(offset + Abi.EvictReport.BYTES_BEFORE),
          in.longAt(offset + Abi.EvictReport.BYTES_AFTER),
          in.longAt(offset + Abi.EvictReport.TOKENS_BEFORE),
          in.longAt(offset + Abi.EvictReport.TOKENS_AFTER),
          in.longAt(offset + Abi.EvictReport.BLOCKS_FREED),
          before,
          after);
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

  record PolicyInfo(PolicyKind kind, String name, String signal, String shaping, String budget,
      String trigger, String paper)
      implements dev.kvevict.PolicyInfo {
    static PolicyInfo read(Struct in) {
      return new PolicyInfo(
          in.enumAt(Abi.PolicyInfo.KIND, PolicyKind.class),
          in.textAt(Abi.PolicyInfo.NAME),
          in.textAt(Abi.PolicyInfo.SIGNAL),
          in.textAt(Abi.PolicyInfo.SHAPING),
          in.textAt(Abi.PolicyInfo.BUDGET),
          in.textAt(Abi.PolicyInfo.TRIGGER),
          in.textAt(Abi.PolicyInfo.PAPER));
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

  record ResolvedPolicy(int budget, int nSink, int nRecent, int nSelected, int obsWindow)
      implements dev.kvevict.ResolvedPolicy {
    static ResolvedPolicy read(Struct in) {
      return new ResolvedPolicy(
          in.intAt(Abi.ResolvedPolicy.BUDGET),
          in.intAt(Abi.ResolvedPolicy.N_SINK),
          in.intAt(Abi.ResolvedPolicy.N_RECENT),
          in.intAt(Abi.ResolvedPolicy.N_SELECTED),
          in.intAt(Abi.ResolvedPolicy.OBS_WINDOW));
    }
  }

  record Selection(SelectOptions options, int nLists, int count)
      implements dev.kvevict.Selection {}

  record SequenceMemory(long lengths, long positions, long listedCounts, int nListed, int nLists)
      implements dev.kvevict.SequenceMemory {
    static SequenceMemory read(Struct in) {
      return new SequenceMemory(
          in.longAt(Abi.SequenceMemory.LENGTHS),
          in.longAt(Abi.SequenceMemory.POSITIONS),
          in.longAt(Abi.SequenceMemory.LISTED_COUNTS),
          in.intAt(Abi.SequenceMemory.N_LISTED),
          in.intAt(Abi.SequenceMemory.N_LISTS));
    }
  }
}
