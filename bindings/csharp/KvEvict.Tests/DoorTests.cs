using Xunit;

namespace KvEvict.Tests;

/// <summary>Score, select and compact, each entered alone.</summary>
public class DoorTests
{
    private const int Tokens = 48;

    [Fact]
    public void Addresses_do_what_spans_do()
    {
        using var model = new SmallModel("snapkv:budget=24,window=4");
        using KvWorkspace workspace = model.Plan.CreateWorkspace(KvOperation.Score);
        using KvWorkspace selecting = model.Context.CreateSelectWorkspace(Tokens, SmallModel.KvHeads);
        using var lse = new KvPinnedMemory<float>(SmallModel.QueryHeads * 4);
        using var scores = new KvPinnedMemory<float>(SmallModel.KvHeads * Tokens);
        using var keep = new KvPinnedMemory<int>(SmallModel.KvHeads * 24);
        float[] expectedScores = new float[scores.Length];
        int[] expectedKeep = new int[keep.Length];
        var job = new KvScoreJob(0, model.Views[0], Tokens) { Inputs = model.QueriesFrom(0) };
        model.Plan.Score(job, expectedScores, workspace);
        KvPlane rowLse = KvPlane.HeadMajor(lse, KvDType.F32, 4, 1);
        model.Plan.Score([job with { Inputs = job.Inputs with { RowLse = rowLse }, Scores = scores }], workspace);
        Assert.Equal(expectedScores, scores.Span.ToArray());
        KvSelectOptions options = model.Plan.Selection(0, Tokens, out KvKeepLists lists);
        model.Context.Select(options, expectedScores, expectedKeep, selecting, lists.ListCount);
        lists = lists with { Slots = keep };
        model.Context.Select(options with { Scores = scores }, lists, selecting);
        Assert.Equal(expectedKeep, keep.Span.ToArray());
        model.Context.Compact([new KvMove(model.Views[0], Tokens, lists)]);
        Assert.Equal(expectedKeep[30], model.TokenInSlot(0, 1, 6));
    }

    public static TheoryData<KvDType> Scored => [KvDType.F32, KvDType.F16, KvDType.BF16];

    [Theory]
    [MemberData(nameof(Scored))]
    public void Queries_may_be_any_span(KvDType dtype)
    {
        const int Row = SmallModel.QueryHeads * SmallModel.Dim;
        using var model = new SmallModel("snapkv:budget=24,window=4", queryType: dtype);
        using KvWorkspace workspace = model.Plan.CreateWorkspace(KvOperation.Score);
        var job = new KvScoreJob(0, model.Views[0], Tokens);
        float[] expected = new float[SmallModel.KvHeads * Tokens], scores = new float[expected.Length];
        model.Plan.Score(job with { Inputs = model.QueriesFrom(0) }, expected, workspace);
        Score(model.Queries.Span[..(4 * Row)]);
        Assert.Equal(expected, scores);
        Assert.Contains("rows of 4 tokens", Assert.Throws<ArgumentException>(
            () => Score(model.Queries.Span[..(3 * Row)])).Message);
        Assert.Throws<ArgumentException>(() => Score(model.Queries.Span[..(4 * Row + 1)]));

        void Score(ReadOnlySpan<float> rows)
        {
            if (dtype == KvDType.F32) model.Plan.Score(job, rows, scores, workspace);
            else if (dtype == KvDType.F16) model.Plan.Score(job, SmallModel.ToHalf(rows), scores, workspace);
            else model.Plan.Score(job, SmallModel.ToBF16(rows), scores, workspace);
        }
    }

    [Theory]
    [InlineData("random:sink=0,budget=24")]
    [InlineData("snapkv:budget=24,window=4,reference=3")]
    public void Inputs_that_are_too_short_are_refused(string policy)
    {
        const int Q = SmallModel.QueryHeads, Kv = SmallModel.KvHeads, Dim = SmallModel.Dim;
        using var model = new SmallModel(policy);
        using KvWorkspace workspace = model.Plan.CreateWorkspace(KvOperation.Score);
        float[] scores = new float[Kv * Tokens];
        if (policy.Contains("reference"))
        {
            Needs(Q, 3, Dim, plane => new() { ReferenceQueries = plane, ReferenceRows = 3 }, "ReferenceQueries");
            using var positions = new KvPinnedMemory<int>(2);
            var placed = new KvSignalInputs { ReferencePositions = positions, ReferenceRows = 3 };
            Assert.StartsWith("ReferencePositions has 2 elements, 3 are needed", Assert.Throws<ArgumentException>(
                () => model.Plan.Score(new KvScoreJob(0, model.Views[0], Tokens) { Inputs = placed }, scores, workspace)).Message);
            return;
        }
        Needs(Q, 9, Dim, plane => new() { Queries = plane, QueryRows = 9 }, nameof(KvSignalInputs.Queries));
        Needs(Q, 9, 1, plane => new() { RowLse = plane, QueryRows = 9 }, nameof(KvSignalInputs.RowLse));
        Needs(Kv, Tokens, 1, plane => new() { Scores = plane }, nameof(KvSignalInputs.Scores));
        Needs(Q, Tokens, 1, plane => new() { AttentionSums = plane }, nameof(KvSignalInputs.AttentionSums));
        Needs(Kv, Tokens, 1, plane => new() { AttentionSums = plane, SumHeads = Kv }, "AttentionSums");
        Needs(Q, 1, Dim, plane => new() { QueryMean = plane }, nameof(KvSignalInputs.QueryMean));
        Needs(Q, Dim, Dim, plane => new() { QueryCovariance = plane }, nameof(KvSignalInputs.QueryCovariance));
        Needs(Kv, 1, Dim, plane => new() { KeyFilter = plane }, nameof(KvSignalInputs.KeyFilter));
        Needs(Kv, Tokens, 1, plane => new() { TokenWeights = plane }, nameof(KvSignalInputs.TokenWeights));
        Needs(Q, 3, Dim / 2, plane => new() { QueryCenters = plane }, nameof(KvSignalInputs.QueryCenters));

        void Needs(int heads, int rows, int dim, Func<KvPlane, KvSignalInputs> inputs, string name)
        {
            using var enough = new KvPinnedMemory<float>(heads * rows * dim);
            var job = new KvScoreJob(0, model.Views[0], Tokens)
            {
                Inputs = inputs(KvPlane.HeadMajor(enough, rows, dim)),
            };
            model.Plan.Score(job, scores, workspace);
            using var less = new KvPinnedMemory<float>(enough.Length - 1);
            job = job with { Inputs = inputs(KvPlane.HeadMajor(less, rows, dim)) };
            Assert.StartsWith($"{name}: the rows of {rows} tokens and {heads} heads", Assert.Throws<ArgumentException>(
                () => model.Plan.Score(job, scores, workspace)).Message);
        }
    }

    [Fact]
    public void Wrong_use_is_refused()
    {
        using var model = new SmallModel("snapkv:budget=24,window=4");
        using KvWorkspace workspace = model.Plan.CreateWorkspace(KvOperation.Score);
        float[] scores = new float[SmallModel.KvHeads * Tokens];
        var job = new KvScoreJob(0, model.Views[0], Tokens) { Inputs = model.QueriesFrom(0) };
        Refuses<ArgumentException>("Scores has 95 elements, 96 are needed", job, scores.AsSpan(1));
        Refuses<ArgumentNullException>("View", job with { View = null! }, scores);
        Refuses<ArgumentOutOfRangeException>("tokenCount", job with { TokenCount = -1 }, scores);
        Refuses<ArgumentOutOfRangeException>("Layer", job with { Layer = -1 }, scores);
        Refuses<ArgumentException>("layer 2", job with { Layer = 2 }, scores);
        using var counts = new KvPinnedMemory<int>(new[] { Tokens });
        Refuses<ArgumentException>("TokenCounts has 1 elements", job with { TokenCounts = counts }, scores);
        // Four query rows are asked for; the last one lies behind the memory.
        KvSignalInputs behind = model.QueriesFrom(SmallModel.MaxTokens - 3);
        Refuses<ArgumentException>("Queries", job with { Inputs = behind }, scores);
        Refuses<ArgumentException>("RowLse", job with { Inputs = job.Inputs with { RowLse = behind.Queries } }, scores);
        using var oneShort = new KvPinnedMemory<float>(SmallModel.QueryHeads * 4 - 1);
        KvPlane packed = KvPlane.HeadMajor(oneShort, KvDType.F32, 4, 1) with { TokenStride = 0, HeadStride = 0 };
        Refuses<ArgumentException>("RowLse", job with { Inputs = job.Inputs with { RowLse = packed } }, scores);
        Refuses<ArgumentException>("queries", job with { Inputs = default }, scores);
        Assert.Throws<ArgumentException>(
            () => model.Plan.Score([job with { Scores = new KvRegion(64, 95 * 4) }], workspace));
        Assert.Throws<ArgumentException>(() => model.Plan.Score([job], workspace)); // no scores at all
        Assert.Throws<ArgumentException>(() => model.Plan.Score(job, scores, new KvRegion(64, 1)));
        Assert.Throws<ArgumentNullException>(() => model.Context.Compact(null!, Tokens, [0]));
        Assert.Throws<ArgumentException>(() => model.Plan.Selection(2, Tokens, out _));
        Assert.Throws<ArgumentException>(() => model.Context.Select(
            new KvSelectOptions { TokenCount = Tokens }, scores, new int[3], model.Workspace, 2));
        Assert.Throws<ArgumentException>(() => model.Context.Select(
            new KvSelectOptions { TokenCount = Tokens }, scores, new int[2], default, 2));
        Assert.Throws<ArgumentException>(() => model.Context.Compact(model.Views[0], Tokens, [5, 5]));
        Assert.Throws<ArgumentOutOfRangeException>(() => model.Context.Compact(model.Views[0], Tokens, [5], -1));

        void Refuses<T>(string text, KvScoreJob job, Span<float> scores) where T : Exception
        {
            Exception? e = null;
            try
            {
                model.Plan.Score(job, scores, workspace);
            }
            catch (Exception thrown)
            {
                e = thrown;
            }
            Assert.Contains(text, Assert.IsType<T>(e).Message);
        }
    }

    [Fact]
    public void The_library_answers_questions()
    {
        Assert.True(KvEvictLibrary.IsAvailable(KvDevice.Cpu));
        Assert.Equal("OUT_OF_MEMORY", KvEvictLibrary.StatusName(KvStatus.OutOfMemory));
        var nowhere = new KvContextOptions { Device = KvDevice.Cuda, LibcudaPath = "/nowhere/libcuda" };
        var e = Assert.Throws<KvEvictException>(() => new KvContext(nowhere));
        Assert.Equal(KvStatus.Unavailable, e.Status);
        Assert.Contains("/nowhere/libcuda", e.Message);
    }

    [Fact]
    public void A_context_runs_the_code_for_the_simd_target_it_is_given()
    {
        foreach (string name in KvEvictLibrary.SimdTargets)
        {
            string said = "";
            using var context = new KvContext(new KvContextOptions
            {
                SimdTarget = name, LogLevel = KvLogLevel.Info, Log = (_, line) => said += line,
            });
            Assert.Contains($"SIMD target {name},", said);
        }
        var e = Assert.Throws<ArgumentException>(() => new KvContext(new KvContextOptions { SimdTarget = "MMX" }));
        Assert.Contains("simd_target \"MMX\"", e.Message);
    }
}
