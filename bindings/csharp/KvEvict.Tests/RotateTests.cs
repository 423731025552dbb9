using Xunit;

namespace KvEvict.Tests;

/// <summary>Keys at other positions.</summary>
public sealed class RotateTests : IDisposable
{
    private const int Heads = 2, Dim = 8, Pairs = Dim / 2, Row = Heads * Dim, Tokens = 10;
    private static readonly float[] Frequencies = [1, 0.1f, 0.01f, 0.001f];
    private readonly KvContext _context = new();
    private readonly KvPlan _plan;
    private readonly KvPinnedMemory<float>[] _keys = [new(Tokens * Row), new(Tokens * Row)];
    private readonly KvPinnedMemory<float>[] _values = [new(Tokens * Row), new(Tokens * Row)];
    private readonly KvView[] _views;

    public RotateTests()
    {
        _plan = new KvPlan(_context, Geometry(Frequencies), new KvPolicy("none"));
        foreach (KvPinnedMemory<float> keys in _keys)
            for (int i = 0; i < keys.Length; ++i) keys.Span[i] = Old(i);
        _views = [.. _keys.Zip(_values, (keys, values) => new KvView(
            Heads, KvPlane.TokenMajor(keys, KvDType.F32, Heads, Dim),
            KvPlane.TokenMajor(values, KvDType.F32, Heads, Dim)))];
    }

    public void Dispose()
    {
        _plan.Dispose();
        _context.Dispose();
        foreach (KvPinnedMemory<float> rows in _keys.Concat(_values)) rows.Dispose();
    }

    private static float Old(int i) => MathF.Sin(i * 1.7f) + 0.5f;

    private static KvGeometry Geometry(float[] frequencies) =>
        new(2, new KvLayerGeometry { QueryHeads = 4, KvHeads = Heads, KeyHeadDim = Dim, ValueHeadDim = Dim }, 2 * Tokens)
        {
            RopeInverseFrequencies = frequencies,
        };

    [Fact]
    public void Keys_are_turned_as_at_other_positions()
    {
        int[] offsets = [0, -1, 7, -300, 2, 2, 0, 1, 5, -2];
        Assert.True(_plan.Capabilities(0) is { CanRotate: true, RotateReason: KvReason.None });
        _plan.Rotate(new KvRotation(0, _views[0], Tokens, default), offsets);
        Turned(0, 0, offsets);
        Turned(0, 1, offsets);
        Turned(1, 0);
    }

    [Fact]
    public void Layers_and_heads_have_offsets_of_their_own()
    {
        using var shared = new KvPinnedMemory<int>(new[] { 1, 2, 3, 99 });
        using var each = new KvPinnedMemory<int>(new[] { 3, 0, -5, 8, 9, 9, -9, 1 });
        using var counts = new KvPinnedMemory<int>(new[] { 4, 2 });
        _plan.Rotate([new KvRotation(0, _views[0], 3, shared),
                      new KvRotation(1, _views[1], 4, each, Heads) { TokenCounts = counts }]);
        Turned(0, 0, 1, 2, 3);
        Turned(0, 1, 1, 2, 3);
        Turned(1, 0, 3, 0, -5, 8);
        Turned(1, 1, 9, 9);
        _plan.Rotate([]);
    }

    [Fact]
    public void Wrong_use_is_refused()
    {
        int[] offsets = new int[Tokens];
        using var one = new KvPinnedMemory<int>(1);
        var good = new KvRotation(0, _views[0], Tokens, default);
        Assert.Throws<ArgumentNullException>(() => _plan.Rotate(good with { View = null! }, offsets));
        Assert.Throws<ArgumentOutOfRangeException>(() => _plan.Rotate(good with { Layer = -1 }, offsets));
        Assert.Throws<ArgumentOutOfRangeException>(() => _plan.Rotate(good with { TokenCount = -1 }, offsets));
        Assert.Throws<ArgumentOutOfRangeException>(() => _plan.Rotate(good with { ListCount = -1 }, offsets));
        Assert.Throws<ArgumentException>(() => _plan.Rotate(good with { TokenCount = Tokens + 1 }, new int[Tokens + 1]));
        Assert.Contains("Offsets has 10 elements, 20 are needed", Assert.Throws<ArgumentException>(
            () => _plan.Rotate(good with { ListCount = 2 }, offsets)).Message);
        Assert.Contains("TokenCounts has 1 elements, 2 are needed", Assert.Throws<ArgumentException>(
            () => _plan.Rotate(good with { TokenCounts = one }, offsets)).Message);
        Fails("layer 2", () => _plan.Rotate(good with { Layer = 2 }, offsets));
        Fails("n_lists 3", () => _plan.Rotate(good with { ListCount = 3 }, new int[3 * Tokens]));
        Fails("offsets", () => _plan.Rotate([good]));
        using var plain = new KvPlan(_context, Geometry([]), new KvPolicy("none"));
        Assert.Contains("rope_inv_freq", Assert.Throws<KvEvictException>(() => plain.Rotate(good, offsets)).Message);
        Turned(0, 0);
        _plan.Dispose();
        Assert.Throws<ObjectDisposedException>(() => _plan.Rotate(good, offsets));

        static void Fails(string text, Action call) =>
            Assert.Contains(text, Assert.Throws<ArgumentException>(call).Message);
    }

    /// <summary>Every key of a head is turned by its slot's offset, others by none.</summary>
    private void Turned(int layer, int head, params int[] offsets)
    {
        Span<float> keys = _keys[layer].Span;
        for (int slot = 0; slot < Tokens; ++slot)
        {
            for (int f = 0; f < Pairs; ++f)
            {
                int at = slot * Row + head * Dim + f;
                double angle = (slot < offsets.Length ? offsets[slot] : 0) * (double)Frequencies[f];
                double re = Old(at), im = Old(at + Pairs);
                Assert.Equal(re * Math.Cos(angle) - im * Math.Sin(angle), keys[at], 4e-6);
                Assert.Equal(re * Math.Sin(angle) + im * Math.Cos(angle), keys[at + Pairs], 4e-6);
            }
        }
    }
}
