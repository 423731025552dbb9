using Xunit;

namespace KvEvict.Tests;

/// <summary>Attention over a view.</summary>
public sealed class AttendTests : IDisposable
{
    private const int Heads = 2, QueryHeads = 4, Dim = 8, Tokens = 10, Queries = 3;
    private readonly KvContext _context = new();
    private readonly KvPinnedMemory<float> _keys = new(Tokens * Heads * Dim), _values = new(Tokens * Heads * Dim);
    private readonly KvPinnedMemory<float> _queries = new(Queries * QueryHeads * Dim);
    private readonly KvPinnedMemory<float> _output = new(Queries * QueryHeads * Dim);
    private readonly KvAttention _good;

    public AttendTests()
    {
        foreach (KvPinnedMemory<float> rows in new[] { _keys, _values, _queries })
            for (int i = 0; i < rows.Length; ++i) rows.Span[i] = MathF.Sin(i * 1.7f + rows.Length);
        var view = new KvView(Heads, KvPlane.TokenMajor(_keys, KvDType.F32, Heads, Dim),
                              KvPlane.TokenMajor(_values, KvDType.F32, Heads, Dim));
        _good = new KvAttention(view, Tokens, QueryHeads, Queries,
                                KvPlane.TokenMajor(_queries, KvDType.F32, QueryHeads, Dim),
                                KvPlane.TokenMajor(_output, KvDType.F32, QueryHeads, Dim));
    }

    public void Dispose()
    {
        _context.Dispose();
        foreach (KvPinnedMemory<float> rows in new[] { _keys, _values, _queries, _output }) rows.Dispose();
    }

    private void Attend(KvAttention job)
    {
        using KvWorkspace workspace = _context.CreateAttendWorkspace([job]);
        _context.Attend([job], workspace);
    }

    private double Expected(int query, int head, int element, out double lse)
    {
        double sum = 0, output = 0;
        for (int t = 0; t <= Tokens - Queries + query; ++t)
        {
            int row = (t * Heads + head / 2) * Dim;
            double dot = 0;
            for (int e = 0; e < Dim; ++e)
                dot += (double)_queries.Span[(query * QueryHeads + head) * Dim + e] * _keys.Span[row + e];
            double weight = Math.Exp(dot / Math.Sqrt(Dim));
            sum += weight;
            output += weight * _values.Span[row + element];
        }
        lse = Math.Log(sum);
        return output / sum;
    }

    [Fact]
    public void It_is_the_plain_formula()
    {
        using var lse = new KvPinnedMemory<float>(Queries * QueryHeads);
        using var sums = new KvPinnedMemory<float>(Heads * Tokens);
        Attend(_good with
        {
            RowLse = KvPlane.TokenMajor(lse, KvDType.F32, QueryHeads, 1),
            AttentionSums = KvPlane.HeadMajor(sums, KvDType.F32, Tokens, 1),
            SumHeads = Heads,
        });
        for (int i = 0; i < Queries * QueryHeads * Dim; ++i)
        {
            double expected = Expected(i / Dim / QueryHeads, i / Dim % QueryHeads, i % Dim, out double expectedLse);
            Assert.Equal(expected, _output.Span[i], 1e-5);
            Assert.Equal(expectedLse, lse.Span[i / Dim], 1e-5);
        }
        Assert.Equal(Queries * QueryHeads, sums.Span.ToArray().Sum(), 1e-4f);
        _context.Attend([], default);
    }

    [Fact]
    public void Options_matter()
    {
        Attend(_good);
        float[] plain = _output.Span.ToArray();
        using var sinks = new KvPinnedMemory<float>(new[] { 3f, 3, 3, 3 });
        using var counts = new KvPinnedMemory<int>(new[] { 4, 5 });
        foreach (KvAttention job in new[]
                 {
                     _good with { Window = 2 }, _good with { NonCausal = true }, _good with { SoftmaxScale = 2 },
                     _good with { LogitSoftcap = 0.5f }, _good with { SinkLogits = sinks },
                     _good with { TokenCounts = counts },
                 })
        {
            Attend(job);
            Assert.NotEqual(plain[0], _output.Span[0]);
        }
    }

    [Fact]
    public void Wrong_use_is_refused()
    {
        using var few = new KvPinnedMemory<float>(3);
        Assert.Throws<ArgumentNullException>(() => Attend(_good with { View = null! }));
        Assert.Throws<ArgumentOutOfRangeException>(() => Attend(_good with { TokenCount = -1 }));
        Assert.Throws<ArgumentOutOfRangeException>(() => Attend(_good with { Window = -1 }));
        Assert.Throws<ArgumentException>(() => Attend(_good with { TokenCount = Tokens + 1 }));
        Assert.Throws<ArgumentException>(() => Attend(_good with { QueryCount = Queries + 1 }));
        Assert.Throws<ArgumentException>(() => Attend(_good with { SinkLogits = few }));
        Fails("n_q_heads 3", () => Attend(_good with { QueryHeads = 3 }));
        Fails("v_head_dim 9", () => Attend(_good with { ValueHeadDim = 9 }));
        Fails("n_sum_heads 3", () => Attend(_good with { SumHeads = 3 }));
        Fails("out", () => Attend(_good with { Output = default }));
        Fails("jobs[0].out overlaps jobs[0].queries", () =>
        {
            using KvWorkspace workspace = _context.CreateAttendWorkspace([_good]);
            _context.Attend([_good with { Output = _good.Queries }], workspace);
        });
        Fails("workspace_bytes 0", () => _context.Attend([_good], default));
        _context.Dispose();
        Assert.Throws<ObjectDisposedException>(() => Attend(_good));
    }

    private static void Fails(string message, Action call) =>
        Assert.Contains(message, Assert.Throws<ArgumentException>(call).Message);
}
