using Xunit;

namespace KvEvict.Tests;

public class PolicyTests
{
    [Fact]
    public void Text_form_is_read_and_written()
    {
        KvPolicy policy = KvPolicy.Parse("snapkv:budget=2048, window=64, pool=max5, keep_window=no");
        Assert.Equal(KvPolicyKind.SnapKV, policy.Kind);
        Assert.Equal(2048, policy.Budget);
        Assert.Equal(64, policy.ObservationWindow);
        Assert.Equal((KvPool.Max, 5, false), (policy.Pool, policy.PoolKernel, policy.KeepWindow));
        Assert.Equal(policy, KvPolicy.Parse(policy.ToString()));
    }

    [Fact]
    public void Every_property_survives_the_text_form()
    {
        var policy = new KvPolicy(KvPolicyKind.PyramidKV) with
        {
            Budget = 0.25,
            Sink = 3,
            Recent = 5,
            ObservationWindow = 16,
            KeepWindow = false,
            Pool = KvPool.Max,
            PoolKernel = 9,
            PoolEdge = KvPoolEdge.Shrink,
            WindowReduce = KvReduce.Sum,
            RowWeight = KvRowWeight.Past,
            SoftmaxKeys = KvSoftmaxKeys.Past,
            GroupReduce = KvReduce.Max,
            ShapingOrder = KvShapingOrder.PoolThenReduce,
            Scope = KvScope.Layer,
            ScopeReduce = KvReduce.Max,
            Tie = KvTie.HigherPosition,
            LayerSplit = KvLayerSplit.ArithmeticKvf,
            PyramidAlpha = 0.5,
            PyramidBeta = 14,
            ValueWeight = KvValueWeight.Given,
            WeightEpsilon = 0.125,
            Redundancy = 0.75,
            Similarity = 0.625,
        };
        policy.Validate();
        KvPolicy back = KvPolicy.Parse(policy.ToString());
        Assert.Equal(policy, back);
        Assert.Equal(policy.GetHashCode(), back.GetHashCode());
        Assert.Equal(
            (0.25, 3, 5, 16, false, KvPool.Max, 9),
            (back.Budget, back.Sink, back.Recent, back.ObservationWindow, back.KeepWindow, back.Pool, back.PoolKernel));
        Assert.Equal(
            (KvPoolEdge.Shrink, KvReduce.Sum, KvReduce.Max, KvShapingOrder.PoolThenReduce, KvScope.Layer, KvReduce.Max),
            (back.PoolEdge, back.WindowReduce, back.GroupReduce, back.ShapingOrder, back.Scope, back.ScopeReduce));
        Assert.Equal(
            (KvTie.HigherPosition, KvLayerSplit.ArithmeticKvf, 0.5, 14, KvValueWeight.Given, 0.125),
            (back.Tie, back.LayerSplit, back.PyramidAlpha, back.PyramidBeta, back.ValueWeight, back.WeightEpsilon));
        Assert.Equal((KvRowWeight.Past, KvSoftmaxKeys.Past), (back.RowWeight, back.SoftmaxKeys));
        Assert.Equal((0.75, 0.625), (back.Redundancy, back.Similarity));
        KvPolicy shared = policy with
        {
            Scope = KvScope.KvHead, HeadSplit = KvHeadSplit.AdaptiveBlend, HeadFloor = 0.0625, ScoreThreshold = -4,
            HeadNormalize = true, Secure = 0.375,
        };
        back = KvPolicy.Parse(shared.ToString());
        Assert.Equal(
            (KvHeadSplit.AdaptiveBlend, 0.0625, -4.0), (back.HeadSplit, back.HeadFloor, back.ScoreThreshold));
        Assert.Equal((true, 0.375), (back.HeadNormalize, back.Secure));
        KvPolicy merging = policy with { Merge = KvMerge.Pivot, MergeThreshold = 0.5, MergeFraction = 0.75 };
        back = KvPolicy.Parse(merging.ToString());
        Assert.Equal((KvMerge.Pivot, 0.5, 0.75), (back.Merge, back.MergeThreshold, back.MergeFraction));
        KvPolicy diverse = KvPolicy.Parse("openvino-genai-adaptive-r-kv");
        Assert.Equal((0.9, 8, true), (diverse.DiverseMass, diverse.SumLast, diverse.SumRawFirst));
        KvPolicy other = diverse with { DiverseMass = 0.5, SumLast = 3, SumRawFirst = false };
        Assert.Equal((0.5, 3, false), (other.DiverseMass, other.SumLast, other.SumRawFirst));
        Assert.Equal((128, 64), (policy.Block, (policy with { Block = 64 }).Block));
        var lag = new KvPolicy(KvPolicyKind.LagKV) with { LagRanks = false, BudgetOfPartition = true };
        KvPolicy lagBack = KvPolicy.Parse(lag.ToString());
        Assert.Equal((lag, false, true), (lagBack, lagBack.LagRanks, lagBack.BudgetOfPartition));
        Assert.Equal((1, 16), (policy.SelectBlock, (policy with { SelectBlock = 16 }).SelectBlock));
        KvPolicy chunks = new KvPolicy(KvPolicyKind.Knorm) with { Chunk = 1024 };
        Assert.Equal((0, 1024, "knorm:chunk=1024"), (policy.Chunk, chunks.Chunk, chunks.ToString()));
        var cake = new KvPolicy(KvPolicyKind.Cake) with
        {
            RowSpread = 3.5, CakeTau1 = 1.5, CakeTau2 = 0.25, LazyThreshold = 0.75,
        };
        KvPolicy cakeBack = KvPolicy.Parse(cake.ToString());
        Assert.Equal(cake, cakeBack);
        Assert.Equal(
            (3.5, 1.5, 0.25, 0.75),
            (cakeBack.RowSpread, cakeBack.CakeTau1, cakeBack.CakeTau2, cakeBack.LazyThreshold));
        var drawn = new KvPolicy(KvPolicyKind.Random) with { Seed = 1 };
        Assert.Equal(drawn, KvPolicy.Parse(drawn.ToString()));
    }

    [Theory]
    [InlineData("snapkv:budgte=5", "budgte")]
    [InlineData("snapkw", "snapkw")]
    [InlineData("snapkv:budget=many", "many")]
    public void A_typo_says_where(string text, string typo)
    {
        var e = Assert.Throws<ArgumentException>(() => KvPolicy.Parse(text));
        Assert.Contains($"column {text.IndexOf(typo, StringComparison.Ordinal) + 1}", e.Message);
        Assert.False(KvPolicy.TryParse(text, out KvPolicy? policy));
        Assert.Null(policy);
    }

    [Fact]
    public void Wrong_values_are_refused()
    {
        Assert.Throws<ArgumentNullException>(() => KvPolicy.Parse(null!));
        Assert.False(KvPolicy.TryParse(null, out _));
        Assert.Throws<ArgumentException>(() => KvPolicy.Parse("snapkv\0:budget=5"));
        Assert.False(KvPolicy.TryParse("snapkv\0:budget=5", out _));
        Assert.Throws<ArgumentOutOfRangeException>(() => new KvPolicy(KvPolicyKind.SnapKV) with { Sink = -1 });
        KvPolicy invalid = new KvPolicy(KvPolicyKind.SnapKV) with { PoolKernel = 4 };
        Assert.Contains("pool width", Assert.Throws<ArgumentException>(invalid.Validate).Message);
        Assert.Contains("not valid", invalid.ToString());
        Assert.Throws<ArgumentException>(() => new KvPolicy((KvPolicyKind)99));
    }

    [Fact]
    public void Every_policy_and_preset_can_be_parsed()
    {
        Assert.Equal(Enum.GetValues<KvPolicyKind>(), KvPolicy.All.Select(p => p.Kind).Order());
        foreach (KvPolicyInfo info in KvPolicy.All)
        {
            Assert.Equal(info.Name, new KvPolicy(info.Kind).ToString());
            Assert.NotEqual("", info.Signal + info.Shaping + info.Budget + info.Trigger);
        }
        Assert.Contains(KvPolicy.All, p => p.Paper == "arXiv:2404.14469");
        Assert.NotEmpty(KvPolicy.Presets);
        foreach (KvPresetInfo preset in KvPolicy.Presets)
        {
            Assert.Equal(KvPolicy.Parse(preset.PolicyText), KvPolicy.Parse(preset.Name));
            Assert.NotEqual("", preset.Reproduces);
        }
    }

    [Fact]
    public void A_policy_says_what_it_reads()
    {
        KvPolicy policy = KvPolicy.Parse("snapkv:budget=100,weight=norm");
        Assert.Equal(KvNeed.Required, policy.NeedOf(KvInput.Queries));
        Assert.Equal(KvNeed.Required, policy.NeedOf(KvInput.Values));
        Assert.Equal(KvNeed.Optional, policy.NeedOf(KvInput.RowLse));
        Assert.Equal(KvNeed.None, policy.NeedOf(KvInput.TokenWeights));
        Assert.Throws<ArgumentException>(() => policy.NeedOf((KvInput)99));
        Assert.Throws<ArgumentException>(() => (policy with { Budget = -1 }).NeedOf(KvInput.Keys));
    }

    [Fact]
    public void Budgets_come_out_in_tokens()
    {
        KvPolicy policy = KvPolicy.Parse("snapkv:budget=100,sink=4,window=32");
        Assert.Equal(new KvResolvedPolicy(100, 4, 32, 64, 32, true), policy.Resolve(1000));
        Assert.Equal(new KvResolvedPolicy(20, 4, 16, 0, 32, true), policy.Resolve(20));
        KvPolicy half = KvPolicy.Parse("h2o:budget=1024,recent=0.5");
        Assert.Equal(0.5, half.RecentShare);
        Assert.Equal(512, half.Resolve(5000).Recent);
        Assert.Equal(7, (half with { Recent = 7 }).Resolve(5000).Recent);
        Assert.Equal(256, (half with { RecentShare = 0.25 }).Resolve(5000).Recent);
        Assert.Throws<ArgumentOutOfRangeException>(() => policy.Resolve(-1));
        Assert.Equal([100, 100, 100], policy.LayerBudgets(1000, 3));
        int[] pyramid = KvPolicy.Parse("pyramidkv:budget=100,window=8").LayerBudgets(1000, 3);
        Assert.Equal(300, pyramid.Sum());
        Assert.True(pyramid[0] > pyramid[2]);
        Assert.Equal(4096, KvPolicy.AutoBudget(32768, 4L << 30));
        Assert.Equal(0, KvPolicy.AutoBudget(32768, 1));
        Assert.Throws<ArgumentOutOfRangeException>(() => KvPolicy.AutoBudget(32768, -1));
    }
}
