using System.Runtime.InteropServices;
using Xunit;

namespace KvEvict.Tests;

/// <summary>Layouts, and rows that would lie outside their memory.</summary>
public class ViewTests
{
    private const int Heads = 2, Dim = 4, Tokens = 10, BlockSize = 4;

    /// <summary>Element e of head h of token t lies where the layout's name says.</summary>
    [Fact]
    public void Planes_have_the_strides_of_their_layouts()
    {
        const int Size = 2, Row = Size * Dim;
        using var memory = new KvPinnedMemory<Half>(3 * BlockSize * Heads * Dim);
        KvPlane Of(long token, long head, long element = 0, long block = 0) => new()
        {
            Region = memory, DType = KvDType.F16, HeadDim = Dim, TokenStride = token, HeadStride = head,
            ElementStride = element, BlockStride = block,
        };
        const int Block = Row * Heads * BlockSize;
        Assert.Equal(Of(Row * Heads, Row), KvPlane.TokenMajor(memory, KvDType.F16, Heads, Dim));
        Assert.Equal(Of(Row, Row * Tokens), KvPlane.HeadMajor(memory, KvDType.F16, Tokens, Dim));
        Assert.Equal(Of(Size, Row * Tokens, Size * Tokens), KvPlane.Transposed(memory, KvDType.F16, Tokens, Dim));
        Assert.Equal(Of(Row * Heads, Row, block: Block), KvPlane.PagedTokenMajor(memory, KvDType.F16, BlockSize, Heads, Dim));
        Assert.Equal(Of(Row, Row * BlockSize, block: Block), KvPlane.PagedHeadMajor(memory, KvDType.F16, BlockSize, Heads, Dim));
        // [blocks, heads, groups, tokens of a block, elements of a group].
        Assert.Equal(Of(2 * Size, Row * BlockSize, block: Block) with { GroupElements = 2, GroupStride = 2 * Size * BlockSize },
                     KvPlane.Vectorised(memory, KvDType.F16, BlockSize, Heads, Dim, groupElements: 2));
        using var addresses = new KvPinnedMemory<nint>(2);
        Assert.Equal(Of(Row * Heads, Row) with { Region = default, AddressTable = addresses, Offset = 64 },
                     KvPlane.InBlocks(addresses, KvDType.F16, Heads, Dim, 64));
        Assert.Throws<ArgumentException>(() => new KvView(Heads, KvPlane.InBlocks(addresses, KvDType.F16, Heads, Dim) with
        {
            Region = memory,
        }).Validate(1));
        foreach (KvPlane plane in new[] { Of(Row * Heads, Row), Of(Row, Row * 3 * BlockSize), Of(Size, 3 * Row * BlockSize, 3 * Size * BlockSize) })
        {
            new KvView(Heads, plane).Validate(3 * BlockSize);
            Assert.Throws<ArgumentException>(() => new KvView(Heads, plane).Validate(3 * BlockSize + 1));
        }
    }

    /// <summary>One table holds the blocks of several sequences: [4, 0, 2 | far outside, 1, 3 | 1, 3].</summary>
    [Theory]
    [InlineData(true)]
    [InlineData(false)]
    public void A_table_that_is_part_of_another_is_checked_from_its_own_begin(bool ofOwner)
    {
        using var context = new KvContext();
        using var pool = new KvPinnedMemory<float>(5 * BlockSize * Heads * Dim);
        using var tables = new KvPinnedMemory<int>(new[] { 4, 0, 2, 1 << 28, 1, 3, 1, 3 });
        KvView View(int first, int count) => new(Heads, KvPlane.PagedTokenMajor(pool, BlockSize, Heads, Dim))
        {
            BlockSize = BlockSize,
            BlockTable = new KvRegion(tables.Address + first * 4, count * 4, ofOwner ? tables : null),
        };
        foreach (KvView view in new[] { View(0, 3), View(6, 2) })
        {
            view.Validate(2 * BlockSize);
            context.Compact(view, 2 * BlockSize, [2, 5]);
        }
        var e = Assert.Throws<ArgumentException>(() => View(3, 3).Validate(Tokens));
        Assert.Contains("keys", e.Message);
        Assert.Throws<ArgumentException>(() => context.Compact(View(3, 3), Tokens, [2, 5, 8]));
        Assert.Throws<ArgumentException>(() => View(6, 2).Validate(2 * BlockSize + 1)); // too short
        var absent = new KvView(Heads, KvPlane.PagedTokenMajor(pool, BlockSize, Heads, Dim))
        {
            BlockSize = BlockSize, BlockTable = new KvRegion(0, 1000),
        };
        Assert.Throws<ArgumentException>(() => absent.Validate(Tokens));
    }

    /// <summary>A head's table may have anything behind the blocks of its own tokens.</summary>
    [Fact]
    public void A_head_needs_blocks_for_its_own_tokens_only()
    {
        using var context = new KvContext();
        using var pool = new KvPinnedMemory<float>(5 * BlockSize * Dim);
        using var counts = new KvPinnedMemory<int>(2);
        using var slots = new KvPinnedMemory<int>(new[] { 2, 9, 0, 1 });
        for (int i = 0; i < pool.Length; ++i) pool.Span[i] = i / Dim;
        var view = new KvView(Heads, KvPlane.PagedTokenMajor(pool, BlockSize, 1, Dim) with { HeadStride = 0 })
        {
            BlockSize = BlockSize, BlockTableHeadStride = 3,
        };
        Compact([4, 0, 2, 1, -1, 1 << 28], 2);
        Assert.Throws<ArgumentException>(() => Compact([4, 0, 2, 1, -1, 1 << 28], 9));
        Assert.Throws<ArgumentException>(() => Compact([4, 0, 2, 5, 1, 3], 2)); // a block behind the pool
        Assert.Throws<ArgumentException>(() => Compact([4, 0, 2], 2)); // the second has no table
        Assert.Throws<ArgumentException>(() => Compact([4, 0, 2, 1, 3, 3], -1)); // above all that are held
        // Slots 2 and 9 of the first table are token 2 of block 4 and token 1 of block 2.
        Assert.Equal([18, 9, 18, 19], Enumerable.Range(16, 4).Select(row => (int)pool.Span[row * Dim]));
        Assert.Equal([4, 5, 6, 7], Enumerable.Range(4, 4).Select(row => (int)pool.Span[row * Dim]));

        void Compact(int[] table, int ofSecond)
        {
            (counts.Span[0], counts.Span[1]) = (Tokens, ofSecond);
            view.SetBlockTable(table);
            context.Compact([new KvMove(view, Tokens, new KvKeepLists(slots, 2, Heads)) { TokenCounts = counts }]);
        }
    }

    [Fact]
    public void A_table_may_be_any_span()
    {
        using var context = new KvContext();
        using var pool = new KvPinnedMemory<float>(5 * BlockSize * Heads * Dim);
        var view = new KvView(Heads, KvPlane.PagedTokenMajor(pool, BlockSize, Heads, Dim)) { BlockSize = BlockSize };
        var table = new List<int> { 3 };
        for (int t = 0; t < Tokens; ++t)
        {
            if (t / BlockSize == table.Count) table.Add(2 - table.Count); // 3, 1, 0
            for (int h = 0; h < Heads; ++h) pool.Span[Place(t, h)] = t;
            view.SetBlockTable(CollectionsMarshal.AsSpan(table));
            view.Validate(t + 1);
        }
        Assert.Equal(3 * sizeof(int), view.BlockTable.Bytes);
        Assert.Throws<ArgumentException>(() => view.Validate(3 * BlockSize + 1)); // the table ends there
        context.Compact(view, Tokens, [2, 5, 8]);
        Assert.Equal([2f, 5f, 8f], Enumerable.Range(0, 3).Select(t => pool.Span[Place(t, 1)]));
        view.SetBlockTable([5]); // a block behind the pool
        Assert.Throws<ArgumentException>(() => view.Validate(1));
        view.SetBlockTable([]);
        view.Validate(0);
        Assert.Throws<ArgumentException>(() => view.Validate(1));

        int Place(int token, int head) =>
            ((table[token / BlockSize] * BlockSize + token % BlockSize) * Heads + head) * Dim;
    }

    [Fact]
    public void Planes_know_the_type_of_their_elements()
    {
        using var floats = new KvPinnedMemory<float>(1024);
        using var halves = new KvPinnedMemory<Half>(1024);
        Assert.Equal(KvPlane.TokenMajor(floats, KvDType.F32, Heads, Dim), KvPlane.TokenMajor(floats, Heads, Dim));
        Assert.Equal(KvPlane.TokenMajor(halves, KvDType.F16, Heads, Dim), KvPlane.TokenMajor(halves, Heads, Dim));
        Assert.Equal(KvPlane.HeadMajor(halves, KvDType.F16, 9, Dim), KvPlane.HeadMajor(halves, 9, Dim));
        Assert.Equal(KvPlane.Transposed(halves, KvDType.F16, 9, Dim), KvPlane.Transposed(halves, 9, Dim));
        Assert.Equal(KvPlane.PagedTokenMajor(halves, KvDType.F16, 4, Heads, Dim),
                     KvPlane.PagedTokenMajor(halves, 4, Heads, Dim));
        Assert.Equal(KvPlane.PagedHeadMajor(halves, KvDType.F16, 4, Heads, Dim),
                     KvPlane.PagedHeadMajor(halves, 4, Heads, Dim));
        Assert.Equal(KvDType.F16, KvPlane.TokenMajor(halves.ToRegion().Slice(64), Heads, Dim).DType);

        using var bits = new KvPinnedMemory<ushort>(1024); // F16 or BF16
        using var scratch = new KvWorkspace(1024);
        Assert.Contains("KvDType", Assert.Throws<ArgumentException>(
            () => KvPlane.TokenMajor(bits, Heads, Dim)).Message);
        Assert.Throws<ArgumentException>(() => KvPlane.HeadMajor(scratch, 4, Dim));
        Assert.Throws<ArgumentException>(() => KvPlane.Transposed(new KvRegion(64, 64), 4, Dim));
    }

    [Fact]
    public void A_named_type_must_be_that_of_the_elements()
    {
        using var floats = new KvPinnedMemory<float>(1024);
        using var halves = new KvPinnedMemory<Half>(1024);
        using var bits = new KvPinnedMemory<ushort>(1024);
        using var bytes = new KvPinnedMemory<byte>(1024);
        using var doubles = new KvPinnedMemory<double>(1024);
        Refuses(floats, KvDType.BF16, "Keys: DType is BF16, which a region of F32 does not hold");
        Refuses(floats, KvDType.Q8_0, "F32");
        Refuses(halves, KvDType.BF16, "F16");
        Refuses(halves.ToRegion().Slice(64), KvDType.F32, "F16");
        Refuses(bits, KvDType.F32, "2-byte elements");
        Refuses(doubles, KvDType.F32, "8-byte elements");
        foreach (KvDType dtype in new[] { KvDType.F16, KvDType.BF16 }) View(bits, dtype).Validate(1);
        foreach (KvDType dtype in Enum.GetValues<KvDType>().Where(dtype => dtype != KvDType.Opaque))
        {
            View(bytes, dtype).Validate(1);
            View(new KvRegion(bytes.Address, bytes.Length), dtype).Validate(1);
        }
        new KvView(1, KvPlane.Opaque(floats, 64, 64, 64)).Validate(1);
        KvPlane changed = KvPlane.TokenMajor(floats, 1, 64) with { DType = KvDType.F16 };
        Assert.Throws<ArgumentException>(() => new KvView(1, changed).Validate(1));

        static KvView View(KvRegion region, KvDType dtype) => new(1, KvPlane.TokenMajor(region, dtype, 1, 64));
        static void Refuses(KvRegion region, KvDType dtype, string text) => Assert.Contains(
            text, Assert.Throws<ArgumentException>(() => View(region, dtype).Validate(1)).Message);
    }

    [Fact]
    public void Memory_of_a_negative_length_is_refused() =>
        Assert.Throws<ArgumentOutOfRangeException>("length", () => new KvPinnedMemory<float>(-1));

    [Fact]
    public void A_slice_is_a_part_and_keeps_its_owner()
    {
        using var memory = new KvPinnedMemory<float>(100);
        KvRegion all = memory;
        KvRegion part = all.Slice(40, 80);
        Assert.Equal((memory.Address + 40, 80L, KvDType.F32), (part.Address, part.Bytes, part.ElementType));
        Assert.Equal(all.Slice(60, 20), part.Slice(20, 20));
        Assert.Equal(all.Slice(100, 20), part.Slice(60));
        Assert.Equal(all, all.Slice(0));
        Assert.Equal(0, all.Slice(400).Bytes);
        Refuses("offset", () => all.Slice(-1));
        Refuses("offset", () => all.Slice(401));
        Refuses("offset", () => all.Slice(401, 0));
        Refuses("bytes", () => part.Slice(20, 61));
        Refuses("bytes", () => part.Slice(20, -1));
        Refuses("bytes", () => part.Slice(20, long.MaxValue));
        var view = new KvView(1, KvPlane.TokenMajor(part, 1, Dim));
        view.Validate(5);
        Assert.Throws<ArgumentException>(() => view.Validate(6));
        memory.Dispose();
        Assert.Throws<ObjectDisposedException>(() => view.Validate(5));

        static void Refuses(string parameter, Action call) =>
            Assert.Equal(parameter, Assert.Throws<ArgumentOutOfRangeException>(call).ParamName);
    }

    [Fact]
    public void Native_memory_and_negative_strides_are_checked_too()
    {
        using var context = new KvContext();
        using var memory = new KvPinnedMemory<float>(Tokens * Dim);
        KvPlane backwards = KvPlane.TokenMajor(memory, KvDType.F32, 1, Dim) with
        {
            Offset = (Tokens - 1) * Dim * 4,
            TokenStride = -Dim * 4,
        };
        new KvView(1, backwards).Validate(Tokens);
        Assert.Throws<ArgumentException>(() => new KvView(1, backwards).Validate(Tokens + 1));
        var region = new KvRegion(memory.Address, memory.Length * 4 - 1, memory);
        var e = Assert.Throws<ArgumentException>(
            () => new KvView(1, KvPlane.TokenMajor(region, KvDType.F32, 1, Dim)).Validate(Tokens));
        Assert.Contains("[0, 160) of a region of 159", e.Message);
    }

    [Fact]
    public void Wrong_use_is_refused()
    {
        using var memory = new KvPinnedMemory<float>(64);
        Assert.Throws<ArgumentOutOfRangeException>(() => KvPlane.TokenMajor(memory, KvDType.F32, 0, Dim));
        Assert.Throws<ArgumentOutOfRangeException>(() => KvPlane.TokenMajor(memory, KvDType.F32, 1, -1));
        Assert.Throws<ArgumentOutOfRangeException>(() => KvPlane.TokenMajor(memory, (KvDType)77, 1, Dim));
        Assert.Throws<ArgumentException>(() => KvPlane.TokenMajor(memory, KvDType.Opaque, 1, Dim));
        Assert.Throws<ArgumentOutOfRangeException>(
            () => KvPlane.PagedTokenMajor(memory, KvDType.F32, int.MaxValue, int.MaxValue, int.MaxValue));
        Assert.Throws<ArgumentOutOfRangeException>(() => KvPlane.Opaque(memory, 0, 1, 1));
        Assert.Throws<ArgumentOutOfRangeException>(() => new KvView(-1, default));
        Assert.Throws<ArgumentNullException>(() => new KvView(1, default) { Companions = null! });
        Assert.Throws<ArgumentNullException>(() => KvPlane.TokenMajor((KvPinnedMemory<float>)null!, KvDType.F32, 1, 1));
        Assert.Throws<ArgumentOutOfRangeException>(() => new KvRegion(0, -1));
        Assert.Throws<ArgumentException>(() => new KvView(1, default).Validate(1)); // no rows at all
        var view = new KvView(1, KvPlane.TokenMajor(memory, KvDType.F32, 1, Dim));
        Assert.Throws<ArgumentOutOfRangeException>(() => view.Validate(-1));
        view.Validate(0);
    }
}
