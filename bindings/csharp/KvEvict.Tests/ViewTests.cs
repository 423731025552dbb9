using Xunit;

namespace KvEvict.Tests;

/// <summary>Layouts, and rows that would lie outside their memory.</summary>
public class ViewTests
{
    private const int Heads = 2, Dim = 4, Tokens = 10, BlockSize = 4;

    public static TheoryData<string> Layouts => ["token-major", "head-major", "transposed"];

    [Theory]
    [MemberData(nameof(Layouts))]
    public void Compaction_moves_rows_of_a_layout(string layout)
    {
        using var context = new KvContext();
        using var memory = new KvPinnedMemory<Half>(Tokens * Heads * Dim);
        KvPlane plane = layout switch
        {
            "token-major" => KvPlane.TokenMajor(memory, KvDType.F16, Heads, Dim),
            "head-major" => KvPlane.HeadMajor(memory, KvDType.F16, Tokens, Dim),
            _ => KvPlane.Transposed(memory, KvDType.F16, Tokens, Dim),
        };
        Fill(memory, plane);
        var view = new KvView(Heads, plane);
        view.Validate(Tokens);
        context.Compact(view, Tokens, [0, 3, 4, 9]);
        Assert.Equal([0, 3, 4, 9], Rows(memory, plane, 4));
        Assert.Throws<ArgumentException>(() => view.Validate(Tokens + 1));
    }

    [Theory]
    [InlineData(false)]
    [InlineData(true)]
    public void Compaction_moves_rows_of_a_pool(bool headMajor)
    {
        using var context = new KvContext();
        using var pool = new KvPinnedMemory<float>(5 * BlockSize * Heads * Dim);
        using var table = new KvPinnedMemory<int>(new[] { 4, 0, 2 });
        KvPlane plane = headMajor ? KvPlane.PagedHeadMajor(pool, KvDType.F32, BlockSize, Heads, Dim)
                                : KvPlane.PagedTokenMajor(pool, KvDType.F32, BlockSize, Heads, Dim);
        var view = new KvView(Heads, plane) { BlockSize = BlockSize, BlockTable = table };
        for (int t = 0; t < Tokens; ++t)
        {
            for (int h = 0; h < Heads; ++h) pool.Span[Place(t, h)] = t;
        }
        view.Validate(Tokens);
        context.Compact(view, Tokens, [2, 5, 8]);
        Assert.Equal([2f, 5f, 8f], Enumerable.Range(0, 3).Select(t => pool.Span[Place(t, 1)]));

        table.Span[1] = 5; // a block behind the pool
        Assert.Throws<ArgumentException>(() => view.Validate(Tokens));
        table.Span[1] = -1;
        Assert.Throws<KvEvictException>(() => view.Validate(Tokens));
        Assert.Throws<KvEvictException>(() => view.Validate(3 * BlockSize + 1));

        int Place(int token, int head) => (int)(table.Span[token / BlockSize] * plane.BlockStride
            + token % BlockSize * plane.TokenStride + head * plane.HeadStride) / sizeof(float);
    }

    [Fact]
    public void Companions_and_opaque_rows_move_along()
    {
        using var context = new KvContext();
        using var rows = new KvPinnedMemory<byte>(Tokens * Heads * 5);
        using var scales = new KvPinnedMemory<float>(Tokens * Heads);
        for (int i = 0; i < rows.Length; ++i) rows.Span[i] = (byte)(i / 5);
        for (int i = 0; i < scales.Length; ++i) scales.Span[i] = i;
        var view = new KvView(Heads, KvPlane.Opaque(rows, 5, 10, 5))
        {
            Companions = [KvPlane.TokenMajor(scales, KvDType.F32, Heads, 1)],
        };
        view.Validate(Tokens);
        context.Compact(view, Tokens, [1, 7]);
        Assert.Equal([2, 3, 14, 15], Enumerable.Range(0, 4).Select(row => (int)rows.Span[row * 5 + 4]));
        Assert.Equal([2, 3, 14, 15], scales.Span[..4].ToArray());
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
        var region = new KvRegion((nint)memory.Address, memory.Length * 4 - 1, memory);
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
        Assert.Throws<ArgumentOutOfRangeException>(() => new KvRegion(0ul, -1));
        Assert.Throws<KvEvictException>(() => new KvView(1, default).Validate(1)); // no rows at all
        var view = new KvView(1, KvPlane.TokenMajor(memory, KvDType.F32, 1, Dim));
        Assert.Throws<ArgumentOutOfRangeException>(() => view.Validate(-1));
        view.Validate(0);
    }

    private static void Fill(KvPinnedMemory<Half> memory, KvPlane plane)
    {
        for (int t = 0; t < Tokens; ++t)
        {
            for (int h = 0; h < Heads; ++h)
            {
                for (int e = 0; e < Dim; ++e) memory.Span[Place(plane, t, h, e)] = (Half)(t * 16 + h * 4 + e);
            }
        }
    }

    // The tokens whose rows lie in the first slots, whole and for every head.
    private static IEnumerable<int> Rows(KvPinnedMemory<Half> memory, KvPlane plane, int slots)
    {
        for (int slot = 0; slot < slots; ++slot)
        {
            int token = (int)memory.Span[Place(plane, slot, 0, 0)] / 16;
            for (int h = 0; h < Heads; ++h)
            {
                for (int e = 0; e < Dim; ++e)
                    Assert.Equal((Half)(token * 16 + h * 4 + e), memory.Span[Place(plane, slot, h, e)]);
            }
            yield return token;
        }
    }

    private static int Place(KvPlane plane, int token, int head, int element) =>
        (int)(token * plane.TokenStride + head * plane.HeadStride
              + element * (plane.ElementStride == 0 ? 2 : plane.ElementStride)) / 2;
}
