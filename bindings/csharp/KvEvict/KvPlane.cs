namespace KvEvict;

/// <summary>
/// Rows of one tensor, one per token and head, in any layout; strides are in bytes and may be negative. Element e of head h of
/// token t lies at <c>Offset + t * TokenStride + h * HeadStride + e * ElementStride</c> of the region; in a
/// paged pool at <c>Offset + table[t / blockSize] * BlockStride + (t % blockSize) * TokenStride + ...</c>.
/// Elements may lie in groups, and blocks may have addresses of their own in place of a region.
/// </summary>
/// <remarks>
/// The factories below make the usual layouts, with the region's element type if it is known. Change what
/// differs with a <c>with</c> expression, for example the values of fused rows [tokens, K heads + V heads, dim]:
/// <code>KvPlane.TokenMajor(pool, KvDType.BF16, 16, 64) with { Offset = 8 * 64 * 2 }</code>
/// A companion such as <code>KvPlane.TokenMajor(scales, KvDType.F16, 8, 1) with { Role = KvRole.KeyScale }</code>
/// moves with the rows. With a token stride of 0 a head has one number for all tokens, which stays.
/// <c>default</c> is an absent plane.
/// </remarks>
public readonly partial record struct KvPlane
{
    /// <summary>The memory that all rows lie in.</summary>
    public KvRegion Region { get; init; }

    /// <summary>Bytes from the region's begin to the first element of token 0, head 0.</summary>
    public long Offset { get; init; }

    /// <summary>
    /// Paged: the addresses of blocks that were allocated one by one, 64 bits each, by block id, or in token order
    /// for a view without a block table; such as a <see cref="KvPinnedMemory{T}"/> of ulong or nint. Then there is no
    /// <see cref="Region"/>, <see cref="Offset"/> is the begin of the rows in a block, and nobody checks where blocks
    /// end. Entries of blocks that hold no tokens may be 0. Calls read the table when they run.
    /// </summary>
    public KvRegion AddressTable { get; init; }

    /// <summary>[tokens, heads, dim].</summary>
    /// <param name="region">The memory, from its first row on; of typed elements.</param>
    /// <param name="headCount">Heads in memory.</param>
    /// <param name="headDim">Elements per row.</param>
    /// <returns>The plane.</returns>
    /// <exception cref="ArgumentException">The region does not know its elements.</exception>
    public static KvPlane TokenMajor(KvRegion region, int headCount, int headDim) =>
        TokenMajor(region, TypeOf(region), headCount, headDim);

    /// <summary>[tokens, heads, dim].</summary>
    /// <param name="region">The memory, from its first row on.</param>
    /// <param name="dtype">Element type.</param>
    /// <param name="headCount">Heads in memory.</param>
    /// <param name="headDim">Elements per row.</param>
    /// <returns>The plane.</returns>
    public static KvPlane TokenMajor(KvRegion region, KvDType dtype, int headCount, int headDim) =>
        Packed(region, dtype, headDim) with
        {
            TokenStride = Stride(dtype, headDim, headCount),
            HeadStride = Stride(dtype, headDim),
        };

    /// <summary>[heads, capacity, dim].</summary>
    /// <param name="region">The memory, from its first row on; of typed elements.</param>
    /// <param name="capacity">The tokens that each head has room for.</param>
    /// <param name="headDim">Elements per row.</param>
    /// <returns>The plane.</returns>
    /// <exception cref="ArgumentException">The region does not know its elements.</exception>
    public static KvPlane HeadMajor(KvRegion region, int capacity, int headDim) =>
        HeadMajor(region, TypeOf(region), capacity, headDim);

    /// <summary>[heads, capacity, dim].</summary>
    /// <param name="region">The memory, from its first row on.</param>
    /// <param name="dtype">Element type.</param>
    /// <param name="capacity">The tokens that each head has room for.</param>
    /// <param name="headDim">Elements per row.</param>
    /// <returns>The plane.</returns>
    public static KvPlane HeadMajor(KvRegion region, KvDType dtype, int capacity, int headDim) =>
        Packed(region, dtype, headDim) with
        {
            TokenStride = Stride(dtype, headDim),
            HeadStride = Stride(dtype, headDim, capacity),
        };

    /// <summary>[heads, dim, capacity]: transposed, as some engines store V.</summary>
    /// <param name="region">The memory, from its first row on; of typed elements.</param>
    /// <param name="capacity">The tokens that there is room for.</param>
    /// <param name="headDim">Elements per row.</param>
    /// <returns>The plane.</returns>
    /// <exception cref="ArgumentException">The region does not know its elements.</exception>
    public static KvPlane Transposed(KvRegion region, int capacity, int headDim) =>
        Transposed(region, TypeOf(region), capacity, headDim);

    /// <summary>[heads, dim, capacity]: transposed, as some engines store V.</summary>
    /// <param name="region">The memory, from its first row on.</param>
    /// <param name="dtype">Element type.</param>
    /// <param name="capacity">The tokens that there is room for.</param>
    /// <param name="headDim">Elements per row.</param>
    /// <returns>The plane.</returns>
    public static KvPlane Transposed(KvRegion region, KvDType dtype, int capacity, int headDim) =>
        Packed(region, dtype, headDim) with
        {
            TokenStride = ElementBytes(dtype),
            HeadStride = Stride(dtype, headDim, capacity),
            ElementStride = Check.Stride(ElementBytes(dtype), Positive(capacity, nameof(capacity))),
        };

    /// <summary>[blocks, tokens of a block, heads, dim], for a view with a block table.</summary>
    /// <param name="region">The whole pool; of typed elements.</param>
    /// <param name="blockSize">Tokens per block.</param>
    /// <param name="headCount">Heads in memory.</param>
    /// <param name="headDim">Elements per row.</param>
    /// <returns>The plane.</returns>
    /// <exception cref="ArgumentException">The region does not know its elements.</exception>
    public static KvPlane PagedTokenMajor(KvRegion region, int blockSize, int headCount, int headDim) =>
        PagedTokenMajor(region, TypeOf(region), blockSize, headCount, headDim);

    /// <summary>[blocks, tokens of a block, heads, dim], for a view with a block table.</summary>
    /// <param name="region">The whole pool.</param>
    /// <param name="dtype">Element type.</param>
    /// <param name="blockSize">Tokens per block.</param>
    /// <param name="headCount">Heads in memory.</param>
    /// <param name="headDim">Elements per row.</param>
    /// <returns>The plane.</returns>
    public static KvPlane PagedTokenMajor(KvRegion region, KvDType dtype, int blockSize, int headCount, int headDim) =>
        TokenMajor(region, dtype, headCount, headDim) with
        {
            BlockStride = Check.Stride(Stride(dtype, headDim, headCount), Positive(blockSize, nameof(blockSize))),
        };

    /// <summary>[blocks, heads, tokens of a block, dim], for a view with a block table.</summary>
    /// <param name="region">The whole pool; of typed elements.</param>
    /// <param name="blockSize">Tokens per block.</param>
    /// <param name="headCount">Heads in memory.</param>
    /// <param name="headDim">Elements per row.</param>
    /// <returns>The plane.</returns>
    /// <exception cref="ArgumentException">The region does not know its elements.</exception>
    public static KvPlane PagedHeadMajor(KvRegion region, int blockSize, int headCount, int headDim) =>
        PagedHeadMajor(region, TypeOf(region), blockSize, headCount, headDim);

    /// <summary>[blocks, heads, tokens of a block, dim], for a view with a block table.</summary>
    /// <param name="region">The whole pool.</param>
    /// <param name="dtype">Element type.</param>
    /// <param name="blockSize">Tokens per block.</param>
    /// <param name="headCount">Heads in memory.</param>
    /// <param name="headDim">Elements per row.</param>
    /// <returns>The plane.</returns>
    public static KvPlane PagedHeadMajor(KvRegion region, KvDType dtype, int blockSize, int headCount, int headDim) =>
        HeadMajor(region, dtype, blockSize, headDim) with
        {
            BlockStride = Check.Stride(Stride(dtype, headDim, blockSize), Positive(headCount, nameof(headCount))),
        };

    /// <summary>
    /// [blocks, heads, groups, tokens of a block, elements of a group], for a view with a block table: vectorised, as
    /// some engines store K.
    /// </summary>
    /// <param name="region">The whole pool.</param>
    /// <param name="dtype">Element type.</param>
    /// <param name="blockSize">Tokens per block.</param>
    /// <param name="headCount">Heads in memory.</param>
    /// <param name="headDim">Elements per row.</param>
    /// <param name="groupElements">Elements of a group; it must divide the elements per row.</param>
    /// <returns>The plane.</returns>
    public static KvPlane Vectorised(
        KvRegion region, KvDType dtype, int blockSize, int headCount, int headDim, int groupElements) =>
        Packed(region, dtype, headDim) with
        {
            GroupElements = groupElements,
            GroupStride = Stride(dtype, groupElements, blockSize),
            TokenStride = Stride(dtype, groupElements),
            HeadStride = Stride(dtype, headDim, blockSize),
            BlockStride = Check.Stride(Stride(dtype, headDim, blockSize), Positive(headCount, nameof(headCount))),
        };

    /// <summary>[tokens of a block, heads, dim] in blocks that were allocated one by one.</summary>
    /// <param name="addresses">See <see cref="AddressTable"/>.</param>
    /// <param name="dtype">Element type.</param>
    /// <param name="headCount">Heads in memory.</param>
    /// <param name="headDim">Elements per row.</param>
    /// <param name="offset">Bytes from a block's begin to the first row.</param>
    /// <returns>The plane.</returns>
    public static KvPlane InBlocks(
        KvRegion addresses, KvDType dtype, int headCount, int headDim, long offset = 0) =>
        TokenMajor(default, dtype, headCount, headDim) with { AddressTable = addresses, Offset = offset };

    /// <summary>Rows that nobody but the engine can read: they move, but cannot be scored.</summary>
    /// <param name="region">The memory, from its first row on.</param>
    /// <param name="rowBytes">Bytes per row.</param>
    /// <param name="tokenStride">Bytes from a token to the next.</param>
    /// <param name="headStride">Bytes from a head to the next.</param>
    /// <returns>The plane.</returns>
    public static KvPlane Opaque(KvRegion region, int rowBytes, long tokenStride, long headStride) => new()
    {
        Region = region,
        RowBytes = Positive(rowBytes, nameof(rowBytes)),
        TokenStride = tokenStride,
        HeadStride = headStride,
    };

    internal unsafe kvevict_plane ToNative(ContextHandle? context, string name)
    {
        nint address = Region.Resolve(context, name);
        nint table = AddressTable.Resolve(context, nameof(AddressTable));
        if (!Region.Holds(DType))
            throw new ArgumentException($"{name}: DType is {DType}, which a region of {Region.ElementName} does not hold", name);
        if (address != 0 && table != 0)
            throw new ArgumentException($"{name} has both a Region and an AddressTable", name);
        kvevict_plane native;
        Fill(&native);
        native.data = address == 0 && table == 0 ? 0 : (ulong)(nuint)address + (ulong)Offset;
        native.address_table = (ulong)(nuint)table;
        native.address_table_len = (uint)Math.Min(AddressTable.Elements<ulong>(), int.MaxValue);
        return native;
    }

    // Replaces strides of 0, which inputs other than queries may have, by those of so many packed rows.
    internal KvPlane Packed(int rowCount)
    {
        long row = (long)HeadDim * KvEvictLibrary.InfoOf(DType).ElementBytes;
        return this with
        {
            TokenStride = TokenStride == 0 ? row : TokenStride,
            HeadStride = HeadStride == 0 ? row * rowCount : HeadStride,
        };
    }

    internal bool IsRecent => Role is KvRole.KeyRecent or KvRole.ValueRecent;

    // The rows that so many tokens have or share.
    internal int RowsFor(int tokenCount) =>
        GroupTokens > 0 && tokenCount > 0 ? (tokenCount - 1) / GroupTokens + 1 : tokenCount;

    // Fails unless every row lies in the region. The highest block is -1 if the plane is not paged, the index -1
    // if it is none of several.
    internal void CheckRows(string name, int tokenCount, int headCount, int highestBlock = -1, int index = -1)
    {
        if (tokenCount <= 0 || headCount <= 0 || Region.Address == 0) return;
        int elementBytes = KvEvictLibrary.InfoOf(DType).ElementBytes;
        Int128 low = Offset;
        Int128 high = Offset + (DType == KvDType.Opaque ? RowBytes
                                : elementBytes == 0 ? PackedBytes(DType, HeadDim) : elementBytes);
        Reach((Int128)(tokenCount - 1) * TokenStride);
        Reach((Int128)(headCount - 1) * HeadStride);
        int group = elementBytes == 0 ? 0 : GroupElements > 0 ? Math.Min(GroupElements, HeadDim) : HeadDim;
        if (group > 0) Reach((Int128)(group - 1) * (ElementStride == 0 ? elementBytes : ElementStride));
        if (group > 0) Reach((Int128)(HeadDim / group - 1) * GroupStride);
        if (highestBlock >= 0) Reach((Int128)highestBlock * BlockStride);
        if (low < 0 || high > Region.Bytes)
        {
            string which = index < 0 ? name : $"{name}[{index}]";
            throw new ArgumentException(
                $"{which}: the rows of {tokenCount} tokens and {headCount} heads span bytes [{low}, {high}) of a "
                + $"region of {Region.Bytes}", name);
        }

        void Reach(Int128 distance)
        {
            if (distance < 0) low += distance;
            else high += distance;
        }
    }

    private static KvDType TypeOf(KvRegion region)
    {
        if (region.ElementType != KvDType.Opaque) return region.ElementType;
        throw new ArgumentException("the region does not know its element type: name a KvDType", nameof(region));
    }

    private static KvPlane Packed(KvRegion region, KvDType dtype, int headDim) => new()
    {
        Region = region,
        DType = dtype,
        HeadDim = Positive(headDim, nameof(headDim)),
    };

    // The stride of so many packed rows.
    private static long Stride(KvDType dtype, int headDim, int rows = 1)
    {
        long bytes = PackedBytes(dtype, Positive(headDim, nameof(headDim)));
        if (bytes == 0)
        {
            throw new ArgumentException(
                $"{headDim} elements of {dtype} make no row; opaque rows have none, use KvPlane.Opaque", nameof(dtype));
        }
        return Check.Stride(bytes, Positive(rows, "count"));
    }

    private static long PackedBytes(KvDType dtype, int headDim)
    {
        KvDTypeInfo info = KvEvictLibrary.InfoOf(dtype);
        return info.BlockElements == 0 ? 0 : (long)headDim / info.BlockElements * info.BlockBytes;
    }

    private static int ElementBytes(KvDType dtype)
    {
        int bytes = KvEvictLibrary.InfoOf(dtype).ElementBytes;
        if (bytes == 0) throw new ArgumentException($"elements of {dtype} are not bytes of their own", nameof(dtype));
        return bytes;
    }

    private static int Positive(int value, string name)
    {
        ArgumentOutOfRangeException.ThrowIfNegativeOrZero(value, name);
        return value;
    }
}
