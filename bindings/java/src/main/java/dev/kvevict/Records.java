package dev.kvevict;

/**
 * What calls return. The records are hidden behind interfaces, which can get more to tell: nobody
 * else constructs, matches or implements them.
 */
final class Records {
  private Records() {}

  record Capabilities(boolean canMove, boolean canScore, boolean canRotate, Reason moveReason,
      Reason scoreReason, Reason rotateReason, boolean needsScore)
      implements dev.kvevict.Capabilities {
    static final int SIZE = 32;

    static Capabilities read(Struct in) {
      in.seek(4);
      return new Capabilities(
          in.getFlag(),
          in.getFlag(),
          in.getFlag(),
          in.getEnum(Reason.class),
          in.getEnum(Reason.class),
          in.getEnum(Reason.class),
          in.getFlag());
    }
  }

  record DTypeInfo(DType dtype, String name, int elementBytes, boolean canMove, boolean canScore,
      boolean canRotate)
      implements dev.kvevict.DTypeInfo {
    static final int SIZE = 32;

    static DTypeInfo read(Struct in) {
      in.seek(4);
      return new DTypeInfo(
          in.getEnum(DType.class),
          in.getText(),
          in.getInt(),
          in.getFlag(),
          in.getFlag(),
          in.getFlag());
    }
  }

  record EvictReport(boolean evicted, long bytesBefore, long bytesAfter, long tokensBefore,
      long tokensAfter, long blocksFreed)
      implements dev.kvevict.EvictReport {
    static final int SIZE = 48;

    static EvictReport read(Struct in, int offset) {
      in.seek(offset + 4);
      return new EvictReport(
          in.getFlag(),
          in.getLong(),
          in.getLong(),
          in.getLong(),
          in.getLong(),
          in.getLong());
    }
  }

  record GpuInfo(int computeCapability, int driverVersion, int nvrtcVersion, String name,
      String nvrtc, String target, String problem)
      implements dev.kvevict.GpuInfo {
    static final int SIZE = 48;

    static GpuInfo read(Struct in) {
      in.seek(4);
      return new GpuInfo(
          in.getInt(),
          in.getInt(),
          in.getInt(),
          in.getText(),
          in.getText(),
          in.getText(),
          in.getText());
    }
  }

  record PolicyInfo(PolicyKind kind, String name, String signal, String shaping, String budget,
      String trigger, String paper)
      implements dev.kvevict.PolicyInfo {
    static final int SIZE = 56;

    static PolicyInfo read(Struct in) {
      in.seek(4);
      return new PolicyInfo(
          in.getEnum(PolicyKind.class),
          in.getText(),
          in.getText(),
          in.getText(),
          in.getText(),
          in.getText(),
          in.getText());
    }
  }

  record PresetInfo(String name, String policyText, String reproduces)
      implements dev.kvevict.PresetInfo {
    static final int SIZE = 32;

    static PresetInfo read(Struct in) {
      in.seek(8);
      return new PresetInfo(
          in.getText(),
          in.getText(),
          in.getText());
    }
  }

  record ResolvedPolicy(int budget, int nSink, int nRecent, int nSelected, int obsWindow)
      implements dev.kvevict.ResolvedPolicy {
    static final int SIZE = 24;

    static ResolvedPolicy read(Struct in) {
      in.seek(4);
      return new ResolvedPolicy(
          in.getInt(),
          in.getInt(),
          in.getInt(),
          in.getInt(),
          in.getInt());
    }
  }

  record SequenceMemory(long lengths, long positions, int nListed, int nLists)
      implements dev.kvevict.SequenceMemory {
    static final int SIZE = 32;

    static SequenceMemory read(Struct in) {
      in.seek(8);
      return new SequenceMemory(
          in.getLong(),
          in.getLong(),
          in.getInt(),
          in.getInt());
    }
  }
}
