using Xunit;

namespace KvEvict.Tests;

public class SequenceTests
{
    public static TheoryData<KvDType> Scored => [KvDType.F32, KvDType.F16, KvDType.BF16];

    [Theory]
    [MemberData(nameof(Scored))]
    public void Queries_may_be_any_span(KvDType dtype)
    {
        using var planes = new SmallModel("snapkv:budget=24,window=4", queryType: dtype);
        using var spans = new SmallModel("snapkv:budget=24,window=4", queryType: dtype);
        planes.Prefill(40);
        float[] rows = spans.Queries.Span[..(40 * Row)].ToArray();
        for (int l = 0; l < SmallModel.Layers; ++l)
        {
            Observe(l, rows.AsSpan(0, 30 * Row), 0);
            Observe(l, rows.AsSpan(30 * Row), l == 0 ? 30 : null);
            if (l == 0) spans.Sequence.Append(30); // where the next rows of layer 1 go by themselves
        }
        spans.Sequence.Append(10);
        planes.Evict();
        spans.Evict();
        for (int l = 0; l < SmallModel.Layers; ++l)
            Assert.Equal(planes.Sequence.KeepPositions(l, 1), spans.Sequence.KeepPositions(l, 1));

        Assert.Contains("63", Assert.Throws<ArgumentException>(
            () => Observe(0, rows.AsSpan(0, 63), 0)).Message);
        Assert.Throws<ArgumentOutOfRangeException>(() => Observe(0, rows, -1));
        Observe(0, [], 0);
        Assert.Throws<ArgumentException>(() => Observe(2, rows, 0));
        var e = Assert.Throws<ArgumentException>(() =>
        {
            if (dtype == KvDType.F16) spans.Sequence.Observe(0, SmallModel.ToBF16(new float[Row]));
            else spans.Sequence.Observe(0, new Half[Row]);
        });
        Assert.Contains("dtype", e.Message);

        void Observe(int layer, ReadOnlySpan<float> values, int? first)
        {
            if (dtype == KvDType.F32) spans.Sequence.Observe(layer, values, first);
            else if (dtype == KvDType.F16) spans.Sequence.Observe(layer, SmallModel.ToHalf(values), first);
            else spans.Sequence.Observe(layer, SmallModel.ToBF16(values), first);
        }
    }

    private const int Row = SmallModel.QueryHeads * SmallModel.Dim;

    [Fact]
    public void Wrong_head_budgets_are_refused()
    {
        Assert.Contains("head_budgets_len 3", Assert.Throws<ArgumentException>(
            () => new SmallModel("snapkv:budget=24,window=4", options: Budgets(24, 24, 24))).Message);
        Assert.Throws<ArgumentOutOfRangeException>(
            () => new SmallModel("snapkv:budget=24,window=4", options: Budgets(24, 24, 24, -1)));
        using var model = new SmallModel("snapkv:budget=24,window=4", options: Budgets(24, 24, 24, 24));
        Assert.Equal(KvStatus.Unsupported, Assert.Throws<KvEvictException>(
            () => model.Plan.Selection(0, 40, out _)).Status);
        model.Prefill(40);
        Assert.Contains("lists has 3 elements, 4 are needed", Assert.Throws<ArgumentException>(
            () => model.Sequence.ListReports(new KvListReport[3])).Message);
        Assert.Throws<ArgumentException>(() => model.Sequence.StoredLength(0, SmallModel.KvHeads));
        Assert.Equal(40, model.Sequence.StoredLength(1, 1));
    }

    private static KvPlanOptions Budgets(params int[] heads) => new() { HeadBudgets = heads };

    [Fact]
    public void Wrong_use_is_refused_and_moves_nothing()
    {
        using var model = new SmallModel("snapkv:budget=24,window=4");
        model.Prefill(40);
        KvSequence s = model.Sequence;
        Assert.Throws<ArgumentNullException>(() => s.Evict([model.Views[0], null!], model.Workspace));
        Assert.Throws<ArgumentNullException>(() => s.Evict(model.Views, (KvWorkspace)null!));
        Assert.Throws<ArgumentException>(() => s.Evict(model.Views.AsSpan(1), model.Workspace));
        Assert.Throws<ArgumentException>(() => s.Evict(model.Views, default));
        var e = Assert.Throws<ArgumentException>(() => s.Append(SmallModel.MaxTokens));
        Assert.Contains("64", e.Message);
        Assert.Throws<ArgumentOutOfRangeException>(() => s.Append(-1));
        foreach (int layer in new[] { -1, SmallModel.Layers })
            Assert.ThrowsAny<ArgumentException>(() => s.StoredLength(layer));
        Assert.Throws<ArgumentOutOfRangeException>(() => s.Observe(0, model.QueryPlane, 1, -1));
        Assert.Throws<ArgumentException>(() => s.KeepPositions(0, 0, new int[39]));
        Assert.Equal(40, s.KeepPositions(0, 0, new int[41]));
        Assert.Equal(Enumerable.Range(0, 40), Enumerable.Range(0, 40).Select(slot => model.TokenInSlot(1, 1, slot)));
    }
}
