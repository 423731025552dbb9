package dev.kvevict;

import java.nio.Buffer;
import java.nio.ByteBuffer;
import java.nio.FloatBuffer;
import java.nio.ShortBuffer;
import java.util.Objects;

/**
 * Rows of one tensor, one per token and head, in any layout.
 *
 * <p>Element e of head h of token t lies at {@code t * tokenStride + h * headStride + e *
 * elementStride} bytes from the start; in a paged cache the token counts inside its block and
 * {@code blockTable[t / blockSize] * blockStride} is added. A value: memory is referred to, never
 * copied, and kept reachable.
 *
 * <p>CUDA can use a buffer whose memory is registered with the driver (cuMemHostRegister). A call
 * keeps only its address: keep the plane reachable until the stream has passed the call.
 */
public final class Plane {
  private final Object owner;
  private final long start;
  private final long before; // bytes of the buffer before `start`
  private final long after; // bytes from `start` on; UNKNOWN for an address
  private final boolean readOnly;
  private final DType dtype;
  private final int headDim;
  private final int rowBytes;
  private final long tokenStride;
  private final long headStride;
  private final long elementStride;
  private final long blockStride;

  private static final long UNKNOWN = Long.MAX_VALUE;

  private Plane(Object owner, long start, long before, long after, boolean readOnly, DType dtype,
      int headDim, int rowBytes, long tokenStride, long headStride, long elementStride,
      long blockStride) {
    this.owner = owner;
    this.start = start;
    this.before = before;
    this.after = after;
    this.readOnly = readOnly;
    this.dtype = dtype;
    this.headDim = headDim;
    this.rowBytes = rowBytes;
    this.tokenStride = tokenStride;
    this.headStride = headStride;
    this.elementStride = elementStride;
    this.blockStride = blockStride;
  }

  /**
   * Rows of numbers in a buffer, from its position on.
   *
   * @param data direct, in native order: a ByteBuffer, FloatBuffer (f32) or ShortBuffer (f16, bf16)
   * @param dtype element type
   * @param headDim elements per row
   * @param tokenStride bytes from one token's row to the next's
   * @param headStride bytes from one head's row to the next's
   * @return the plane
   */
  public static Plane of(
      Buffer data, DType dtype, int headDim, long tokenStride, long headStride) {
    long address = Memory.numbers(data, "data");
    if (Objects.requireNonNull(dtype, "dtype") == DType.OPAQUE) {
      throw new IllegalArgumentException("dtype is OPAQUE: use Plane.opaque()");
    }
    if (!(data instanceof ByteBuffer || data instanceof FloatBuffer && dtype == DType.F32
        || data instanceof ShortBuffer && elementBytes(dtype) == 2)) {
      throw new IllegalArgumentException(
          "data is a " + bufferName(data) + ", which does not hold " + dtype);
    }
    return new Plane(data, address, 0, Memory.bytes(data), data.isReadOnly(), dtype,
        Memory.count(headDim, "headDim"), 0, tokenStride, headStride, 0, 0);
  }

  /**
   * Rows of numbers at an address, whose end nobody checks.
   *
   * @param address of a host or device, by the context's device
   * @param dtype element type
   * @param headDim elements per row
   * @param tokenStride bytes from one token's row to the next's
   * @param headStride bytes from one head's row to the next's
   * @return the plane
   */
  public static Plane at(
      long address, DType dtype, int headDim, long tokenStride, long headStride) {
    return new Plane(null, address, UNKNOWN, UNKNOWN, false, Objects.requireNonNull(dtype, "dtype"),
        Memory.count(headDim, "headDim"), 0, tokenStride, headStride, 0, 0);
  }

  /**
   * Rows of bytes that only the engine understands, in a buffer from its position on.
   *
   * @param data direct
   * @param rowBytes bytes per row
   * @param tokenStride bytes from one token's row to the next's
   * @param headStride bytes from one head's row to the next's
   * @return the plane
   */
  public static Plane opaque(Buffer data, int rowBytes, long tokenStride, long headStride) {
    return new Plane(data, Memory.address(data, "data"), 0, Memory.bytes(data), data.isReadOnly(),
        DType.OPAQUE, 0, Memory.count(rowBytes, "rowBytes"), tokenStride, headStride, 0, 0);
  }

  /**
   * Rows of bytes that only the engine understands, at an address.
   *
   * @param address of a host or device, by the context's device
   * @param rowBytes bytes per row
   * @param tokenStride bytes from one token's row to the next's
   * @param headStride bytes from one head's row to the next's
   * @return the plane
   */
  public static Plane opaqueAt(long address, int rowBytes, long tokenStride, long headStride) {
    return new Plane(null, address, UNKNOWN, UNKNOWN, false, DType.OPAQUE, 0,
        Memory.count(rowBytes, "rowBytes"), tokenStride, headStride, 0, 0);
  }

  /**
   * The same rows, elements not packed.
   *
   * @param bytes from one element to the next; 0: packed
   * @return the plane
   */
  public Plane withElementStride(long bytes) {
    return new Plane(owner, start, before, after, readOnly, dtype, headDim, rowBytes, tokenStride,
        headStride, bytes, blockStride);
  }

  /**
   * The same rows in blocks, for a paged view.
   *
   * @param bytes from one block to the next
   * @return the plane
   */
  public Plane withBlockStride(long bytes) {
    return new Plane(owner, start, before, after, readOnly, dtype, headDim, rowBytes, tokenStride,
        headStride, elementStride, bytes);
  }

  /**
   * The rows from another place of the same memory on, for example the next token's.
   *
   * @param bytes how much further; negative: back
   * @return the plane
   */
  public Plane from(long bytes) {
    boolean known = after != UNKNOWN;
    if (known && (bytes > after || bytes < -before)) {
      throw new IllegalArgumentException(
          bytes + " bytes from here is outside of the buffer, which has " + before
              + " before and " + after + " after");
    }
    return new Plane(owner, start + bytes, known ? before + bytes : UNKNOWN,
        known ? after - bytes : UNKNOWN, readOnly, dtype, headDim, rowBytes, tokenStride,
        headStride, elementStride, blockStride);
  }

  boolean isReadOnly() {
    return readOnly;
  }

  boolean hasEnd() {
    return after != UNKNOWN;
  }

  /** Throws unless the buffer holds nTokens rows of nHeads heads. */
  void require(int nTokens, int nHeads, String name) {
    long capacity = capacity(nHeads);
    if (nTokens > capacity) {
      throw new IllegalArgumentException(
          name + " holds " + capacity + " rows of " + nHeads + " heads, not " + nTokens);
    }
  }

  /** Tokens whose rows of nHeads heads all lie inside the buffer. */
  long capacity(int nHeads) {
    return steps(nHeads, 1, tokenStride);
  }

  /** Blocks whose rows of nHeads heads all lie inside the buffer. */
  long blocks(int nHeads, int blockSize) {
    return steps(nHeads, blockSize, blockStride);
  }

  /** How often a group of nTokens tokens and nHeads heads fits at distances of `stride`. */
  private long steps(int nHeads, int nTokens, long stride) {
    if (!hasEnd()) {
      return UNKNOWN;
    }
    int elementBytes = elementBytes(dtype);
    int elements = dtype == DType.OPAQUE ? rowBytes : headDim;
    if (nHeads <= 0 || elements == 0) {
      return UNKNOWN; // the native checks name this better
    }
    long[] reach = {0, elementBytes};
    try {
      extend(reach, elements - 1, elementStride == 0 ? elementBytes : elementStride);
      extend(reach, nHeads - 1, headStride);
      extend(reach, nTokens - 1, tokenStride);
    } catch (ArithmeticException e) {
      throw new IllegalArgumentException("the strides reach beyond 64 bits", e);
    }
    if (reach[0] < -before || reach[1] > after) {
      return 0;
    }
    if (stride == 0) {
      return UNKNOWN;
    }
    return 1 + (stride > 0 ? (after - reach[1]) / stride : (before + reach[0]) / -stride);
  }

  /** What the library says of element types, by their ordinals. */
  private static final class ElementBytes {
    static final int[] OF = new int[DType.values().length];

    static {
      for (DTypeInfo info : KvEvict.dtypes()) {
        OF[info.dtype().ordinal()] = info.elementBytes();
      }
    }
  }

  private static int elementBytes(DType dtype) {
    return dtype == DType.OPAQUE ? 1 : ElementBytes.OF[dtype.ordinal()];
  }

  private static void extend(long[] reach, long count, long stride) {
    long far = Math.multiplyExact(count, stride);
    int end = far < 0 ? 0 : 1;
    reach[end] = Math.addExact(reach[end], far);
  }

  private static String bufferName(Buffer data) {
    Class<?> type = data.getClass();
    while (type.getSuperclass() != Buffer.class) {
      type = type.getSuperclass();
    }
    return type.getSimpleName();
  }

  /** A plane at an offset, whose end nobody checks; null if it is absent. */
  static Plane read(Struct in, int offset) {
    long data = in.longAt(offset + Abi.Plane.DATA);
    return data == 0 ? null : at(data,
        in.enumAt(offset + Abi.Plane.DTYPE, DType.class),
        in.intAt(offset + Abi.Plane.HEAD_DIM),
        in.longAt(offset + Abi.Plane.TOKEN_STRIDE_BYTES),
        in.longAt(offset + Abi.Plane.HEAD_STRIDE_BYTES))
        .withBlockStride(in.longAt(offset + Abi.Plane.BLOCK_STRIDE_BYTES));
  }

  /** Writes a plane, or for null an absent one, at an offset where nothing else ever lies. */
  static void write(Plane plane, Struct out, int offset) {
    if (plane == null) {
      plane = at(0, DType.OPAQUE, 0, 0, 0);
    }
    out.putLong(offset + Abi.Plane.DATA, plane.start)
        .putLong(offset + Abi.Plane.TOKEN_STRIDE_BYTES, plane.tokenStride)
        .putLong(offset + Abi.Plane.HEAD_STRIDE_BYTES, plane.headStride)
        .putLong(offset + Abi.Plane.ELEMENT_STRIDE_BYTES, plane.elementStride)
        .putLong(offset + Abi.Plane.BLOCK_STRIDE_BYTES, plane.blockStride)
        .putEnum(offset + Abi.Plane.DTYPE, plane.dtype)
        .putInt(offset + Abi.Plane.HEAD_DIM, plane.headDim)
        .putInt(offset + Abi.Plane.ROW_BYTES, plane.rowBytes);
  }
}
