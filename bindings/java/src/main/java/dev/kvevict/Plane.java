package dev.kvevict;

import java.nio.Buffer;
import java.nio.ByteBuffer;
import java.nio.FloatBuffer;
import java.nio.LongBuffer;
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
public final class Plane extends PlaneFields<Plane> {
  private static final long UNKNOWN = Long.MAX_VALUE;

  private final Object owner;
  private final boolean readOnly;
  private long start;
  private long before; // bytes of the buffer before `start`
  private long after; // bytes from `start` on; UNKNOWN for an address
  private LongBuffer table; // null unless in a buffer
  private long tableAddress;
  private int tableLength;

  private Plane(Buffer data, long start) {
    owner = data;
    this.start = start;
    before = data == null ? UNKNOWN : 0;
    after = data == null ? UNKNOWN : Memory.bytes(data);
    readOnly = data != null && data.isReadOnly();
  }

  private Plane(Buffer data, long start, DType dtype, int headDim, long tokenStride, long headStride) {
    this(data, start);
    this.dtype = Objects.requireNonNull(dtype, "dtype");
    this.headDim = Memory.count(headDim, "headDim");
    this.tokenStride = tokenStride;
    this.headStride = headStride;
  }

  private Plane(Buffer data, long start, int rowBytes, long tokenStride, long headStride) {
    this(data, start);
    this.rowBytes = Memory.count(rowBytes, "rowBytes");
    this.tokenStride = tokenStride;
    this.headStride = headStride;
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
        || data instanceof ShortBuffer && info(dtype).elementBytes() == 2)) {
      throw new IllegalArgumentException(
          "data is a " + bufferName(data) + ", which does not hold " + dtype);
    }
    return new Plane(data, address, dtype, headDim, tokenStride, headStride);
  }

  /**
   * Rows of numbers at an address. Nobody checks where they end.
   *
   * @param address an address on the host or a device, by the context's device
   * @param dtype element type
   * @param headDim elements per row
   * @param tokenStride bytes from one token's row to the next's
   * @param headStride bytes from one head's row to the next's
   * @return the plane
   */
  public static Plane at(
      long address, DType dtype, int headDim, long tokenStride, long headStride) {
    return new Plane(null, address, dtype, headDim, tokenStride, headStride);
  }

  /**
   * [tokens, heads, dim].
   *
   * @param data direct, in native order: the rows from its position on
   * @param dtype element type
   * @param headCount heads in memory
   * @param headDim elements per row
   * @return the plane
   */
  public static Plane tokenMajor(Buffer data, DType dtype, int headCount, int headDim) {
    return of(data, dtype, headDim, stride(dtype, headDim, headCount), stride(dtype, headDim, 1));
  }

  /**
   * [tokens, heads, dim], at an address.
   *
   * @param address address of the first row on the host or a device; nobody checks where rows end
   * @param dtype element type
   * @param headCount heads in memory
   * @param headDim elements per row
   * @return the plane
   */
  public static Plane tokenMajor(long address, DType dtype, int headCount, int headDim) {
    return at(address, dtype, headDim, stride(dtype, headDim, headCount), stride(dtype, headDim, 1));
  }

  /**
   * [heads, capacity, dim].
   *
   * @param data direct, in native order: the rows from its position on
   * @param dtype element type
   * @param capacity tokens for which there is room per head
   * @param headDim elements per row
   * @return the plane
   */
  public static Plane headMajor(Buffer data, DType dtype, int capacity, int headDim) {
    return of(data, dtype, headDim, stride(dtype, headDim, 1), stride(dtype, headDim, capacity));
  }

  /**
   * [heads, capacity, dim], at an address.
   *
   * @param address address of the first row on the host or a device; nobody checks where rows end
   * @param dtype element type
   * @param capacity tokens for which there is room per head
   * @param headDim elements per row
   * @return the plane
   */
  public static Plane headMajor(long address, DType dtype, int capacity, int headDim) {
    return at(address, dtype, headDim, stride(dtype, headDim, 1), stride(dtype, headDim, capacity));
  }

  /**
   * [heads, dim, capacity]: transposed, as some engines store V.
   *
   * @param data direct, in native order: the rows from its position on
   * @param dtype element type
   * @param capacity tokens for which there is room per head
   * @param headDim elements per row
   * @return the plane
   */
  public static Plane transposed(Buffer data, DType dtype, int capacity, int headDim) {
    return of(data, dtype, headDim, elementBytes(dtype), stride(dtype, headDim, capacity))
        .withElementStride(times(elementBytes(dtype), capacity));
  }

  /**
   * [heads, dim, capacity]: transposed, as some engines store V, at an address.
   *
   * @param address address of the first row on the host or a device; nobody checks where rows end
   * @param dtype element type
   * @param capacity tokens for which there is room per head
   * @param headDim elements per row
   * @return the plane
   */
  public static Plane transposed(long address, DType dtype, int capacity, int headDim) {
    return at(address, dtype, headDim, elementBytes(dtype), stride(dtype, headDim, capacity))
        .withElementStride(times(elementBytes(dtype), capacity));
  }

  /**
   * [blocks, tokens of a block, heads, dim], for a paged view.
   *
   * @param data direct, in native order, from its position on: the whole pool
   * @param dtype element type
   * @param blockSize tokens per block
   * @param headCount heads in memory
   * @param headDim elements per row
   * @return the plane
   */
  public static Plane pagedTokenMajor(
      Buffer data, DType dtype, int blockSize, int headCount, int headDim) {
    return tokenMajor(data, dtype, headCount, headDim)
        .withBlockStride(times(stride(dtype, headDim, headCount), blockSize));
  }

  /**
   * [blocks, tokens of a block, heads, dim], for a paged view, at an address.
   *
   * @param address address of the pool on the host or a device; nobody checks its end
   * @param dtype element type
   * @param blockSize tokens per block
   * @param headCount heads in memory
   * @param headDim elements per row
   * @return the plane
   */
  public static Plane pagedTokenMajor(
      long address, DType dtype, int blockSize, int headCount, int headDim) {
    return tokenMajor(address, dtype, headCount, headDim)
        .withBlockStride(times(stride(dtype, headDim, headCount), blockSize));
  }

  /**
   * [blocks, heads, tokens of a block, dim], for a paged view.
   *
   * @param data direct, in native order, from its position on: the whole pool
   * @param dtype element type
   * @param blockSize tokens per block
   * @param headCount heads in memory
   * @param headDim elements per row
   * @return the plane
   */
  public static Plane pagedHeadMajor(
      Buffer data, DType dtype, int blockSize, int headCount, int headDim) {
    return headMajor(data, dtype, blockSize, headDim)
        .withBlockStride(times(stride(dtype, headDim, blockSize), headCount));
  }

  /**
   * [blocks, heads, tokens of a block, dim], for a paged view, at an address.
   *
   * @param address address of the pool on the host or a device; nobody checks its end
   * @param dtype element type
   * @param blockSize tokens per block
   * @param headCount heads in memory
   * @param headDim elements per row
   * @return the plane
   */
  public static Plane pagedHeadMajor(
      long address, DType dtype, int blockSize, int headCount, int headDim) {
    return headMajor(address, dtype, blockSize, headDim)
        .withBlockStride(times(stride(dtype, headDim, blockSize), headCount));
  }

  /**
   * [blocks, heads, groups, tokens of a block, elements of a group], for a paged view: vectorised, as
   * some engines store K.
   *
   * @param data direct, in native order, from its position on: the whole pool
   * @param dtype element type
   * @param blockSize tokens per block
   * @param headCount heads in memory
   * @param headDim elements per row
   * @param groupElements elements of a group; a divisor of them
   * @return the plane
   */
  public static Plane vectorised(
      Buffer data, DType dtype, int blockSize, int headCount, int headDim, int groupElements) {
    return of(data, dtype, headDim, stride(dtype, groupElements, 1), stride(dtype, headDim, blockSize))
        .withGroupElements(groupElements)
        .withGroupStride(stride(dtype, groupElements, blockSize))
        .withBlockStride(times(stride(dtype, headDim, blockSize), headCount));
  }

  /**
   * [blocks, heads, groups, tokens of a block, elements of a group], for a paged view: vectorised, as
   * some engines store K, at an address.
   *
   * @param address address of the pool on the host or a device; nobody checks its end
   * @param dtype element type
   * @param blockSize tokens per block
   * @param headCount heads in memory
   * @param headDim elements per row
   * @param groupElements elements of a group; a divisor of them
   * @return the plane
   */
  public static Plane vectorised(
      long address, DType dtype, int blockSize, int headCount, int headDim, int groupElements) {
    return at(address, dtype, headDim, stride(dtype, groupElements, 1), stride(dtype, headDim, blockSize))
        .withGroupElements(groupElements)
        .withGroupStride(stride(dtype, groupElements, blockSize))
        .withBlockStride(times(stride(dtype, headDim, blockSize), headCount));
  }

  /**
   * [tokens of a block, heads, dim] in blocks that were allocated one by one, for a paged view.
   *
   * @param addresses see {@link #withAddressTable(LongBuffer)}
   * @param dtype element type
   * @param headCount heads in memory
   * @param headDim elements per row
   * @param offset bytes from a block's beginning to its first row
   * @return the plane
   */
  public static Plane inBlocks(
      LongBuffer addresses, DType dtype, int headCount, int headDim, long offset) {
    return tokenMajor(offset, dtype, headCount, headDim).withAddressTable(addresses);
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
    return new Plane(data, Memory.address(data, "data"), rowBytes, tokenStride, headStride);
  }

  /**
   * Rows of bytes that only the engine understands, at an address.
   *
   * @param address an address on the host or a device, by the context's device
   * @param rowBytes bytes per row
   * @param tokenStride bytes from one token's row to the next's
   * @param headStride bytes from one head's row to the next's
   * @return the plane
   */
  public static Plane opaqueAt(long address, int rowBytes, long tokenStride, long headStride) {
    return new Plane(null, address, rowBytes, tokenStride, headStride);
  }

  /**
   * The same rows in blocks that were allocated one by one, for a paged view. The plane is one
   * {@link #at at} its begin in a block, which may be 0; nobody checks where blocks
   * end. The table is read when calls are made.
   *
   * @param addresses direct, in native order: those of the blocks by id, or in token order for a
   *     view without block ids, from position to limit; 0 for blocks without tokens
   * @return the plane
   */
  public Plane withAddressTable(LongBuffer addresses) {
    long address = Memory.numbers(addresses, "addresses");
    LongBuffer table = addresses.duplicate(); // whose position stays
    return withAddressTable(table, address, table.remaining());
  }

  /**
   * Does what {@link #withAddressTable(LongBuffer)} does with a table at an address.
   *
   * @param address address of u64 on the context's device
   * @param length block ids
   * @return the plane
   */
  public Plane withAddressTable(long address, int length) {
    return withAddressTable(null, address, length);
  }

  private Plane withAddressTable(LongBuffer table, long address, int length) {
    if (owner != null) {
      throw new IllegalArgumentException("the plane is in a buffer: use Plane.at()");
    }
    Plane next = next();
    next.table = table;
    next.tableAddress = address;
    next.tableLength = Memory.count(length, "length");
    return next;
  }

  boolean isRecent() {
    return role == Role.KEY_RECENT || role == Role.VALUE_RECENT;
  }

  /** Rows that so many tokens have, or share. */
  int rowsFor(int tokenCount) {
    return groupTokens == 0 || tokenCount == 0 ? tokenCount : (tokenCount - 1) / groupTokens + 1;
  }

  boolean hasTableBuffer() {
    return table != null;
  }

  boolean hasReadOnlyTable() {
    return table != null && table.isReadOnly();
  }

  /**
   * The rows from another place of the same memory on, for example the next token's.
   *
   * @param bytes the distance; negative: back
   * @return the plane
   */
  public Plane from(long bytes) {
    boolean known = after != UNKNOWN;
    if (known && (bytes > after || bytes < -before)) {
      throw new IllegalArgumentException(
          bytes + " bytes from here is outside of the buffer, which has " + before
              + " before and " + after + " after");
    }
    Plane next = next();
    next.start += bytes;
    next.before += known ? bytes : 0;
    next.after -= known ? bytes : 0;
    return next;
  }

  boolean isReadOnly() {
    return readOnly;
  }

  boolean hasEnd() {
    return after != UNKNOWN;
  }

  /** Replaces strides of 0, which inputs except queries may have, by those of packed rows. */
  Plane packed(int tokenCount) {
    if (tokenStride != 0 && headStride != 0) {
      return this;
    }
    long row = (long) headDim * info(dtype).elementBytes();
    return withTokenStride(tokenStride == 0 ? row : tokenStride)
        .withHeadStride(headStride == 0 ? row * tokenCount : headStride);
  }

  /** Throws unless the buffer holds tokenCount rows of headCount heads. */
  void require(int tokenCount, int headCount, String name) {
    long capacity = capacity(headCount);
    if (tokenCount > capacity) {
      throw new IllegalArgumentException(
          name + " holds " + capacity + " rows of " + headCount + " heads, not " + tokenCount);
    }
  }

  /** Tokens whose rows of headCount heads all lie inside the buffer. */
  long capacity(int headCount) {
    return steps(headCount, 1, tokenStride);
  }

  /** Blocks whose rows of headCount heads all lie inside the buffer. */
  long blocks(int headCount, int blockSize) {
    return steps(headCount, rowsFor(blockSize), blockStride);
  }

  /** How often a group of tokenCount tokens and headCount heads fits at distances of `stride`. */
  private long steps(int headCount, int tokenCount, long stride) {
    if (!hasEnd()) {
      return UNKNOWN;
    }
    int elementBytes = info(dtype).elementBytes();
    int elements = headDim;
    if (elementBytes == 0) { // packed
      elementBytes = 1;
      elements = packedBytes();
    }
    if (headCount <= 0 || elements == 0) {
      return UNKNOWN; // the native checks name this better
    }
    long[] reach = {0, elementBytes};
    try {
      int group = groupElements > 0 ? Math.min(groupElements, elements) : elements;
      extend(reach, group - 1, elementStride == 0 ? elementBytes : elementStride);
      extend(reach, elements / group - 1, groupStride);
      extend(reach, headCount - 1, headStride);
      extend(reach, tokenCount - 1, tokenStride);
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

  /** The library's table of element types, by their ordinals. */
  private static final class Infos {
    static final DTypeInfo[] OF = new DTypeInfo[DType.values().length];

    static {
      for (DTypeInfo info : KvEvict.dtypes()) {
        OF[info.dtype().ordinal()] = info;
      }
    }
  }

  /** Bytes of so many packed rows. */
  private static long stride(DType dtype, int headDim, int rows) {
    DTypeInfo info = info(Objects.requireNonNull(dtype, "dtype"));
    long bytes = info.blockElements() == 0 ? 0
        : (long) Memory.count(headDim, "headDim") / info.blockElements() * info.blockBytes();
    if (bytes == 0) {
      throw new IllegalArgumentException(headDim + " elements of " + dtype
          + " make no row; opaque rows have none, use Plane.opaque()");
    }
    return times(bytes, rows);
  }

  private static long times(long bytes, int count) {
    try {
      return Math.multiplyExact(bytes, Memory.count(count, "count"));
    } catch (ArithmeticException e) {
      throw new IllegalArgumentException(
          "a stride of " + bytes + " * " + count + " bytes exceeds 64 bits", e);
    }
  }

  private static int elementBytes(DType dtype) {
    int bytes = info(Objects.requireNonNull(dtype, "dtype")).elementBytes();
    if (bytes == 0) {
      throw new IllegalArgumentException("elements of " + dtype + " are not bytes of their own");
    }
    return bytes;
  }

  private static DTypeInfo info(DType dtype) {
    return Infos.OF[dtype.ordinal()];
  }

  /** Bytes of a row whose elements are not bytes of their own. */
  private int packedBytes() {
    DTypeInfo info = info(dtype);
    return info.blockElements() == 0 ? rowBytes
        : Math.multiplyExact(headDim / info.blockElements(), info.blockBytes());
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

  /** A plane at an offset without a check of its end; null if it is absent. */
  static Plane read(Struct in, int offset) {
    long data = in.longAt(offset + Abi.Plane.DATA);
    return data == 0 ? null : new Plane(null, data).take(in, offset);
  }

  /** Writes a plane, or for null an absent one, at an offset where nothing else ever lies. */
  static void write(Plane plane, Struct out, int offset) {
    if (plane == null) {
      plane = at(0, DType.OPAQUE, 0, 0, 0);
    }
    plane.fill(out, offset)
        .putLong(offset + Abi.Plane.DATA, plane.start)
        .putLong(offset + Abi.Plane.ADDRESS_TABLE, plane.tableAddress)
        .putInt(offset + Abi.Plane.ADDRESS_TABLE_LEN, plane.tableLength);
  }
}
