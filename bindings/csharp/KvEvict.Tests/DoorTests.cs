using Xunit;

namespace KvEvict.Tests;

/// <summary>Score, select and compact, each entered alone.</summary>
public class DoorTests
{
    private const int Tokens = 48;

    [Fact]
    public void The_three_doors_do_what_an_eviction_does()
    {
        using var whole = new SmallModel("snapkv:budget=24,window=4,sink=2");
        using var doors = new SmallModel("snapkv:budget=24,window=4,sink=2");
        whole.Prefill(Tokens);
        whole.Evict();

        float[] scores = new float[SmallModel.KvHeads * Tokens];
        int[] keep = new int[SmallModel.KvHeads * 24];
        using KvWorkspace scoring = doors.Plan.CreateWorkspace(KvOperation.ScoreWindow);
        using KvWorkspace selecting = doors.Plan.CreateWorkspace(KvOperation.Select);
        KvPlane window = doors.QueryPlane with { Offset = (Tokens - 4) * doors.QueryPlane.TokenStride };
        for (int l = 0; l < SmallModel.Layers; ++l)
        {
            doors.Plan.ScoreWindow(window, doors.Views[l], Tokens, scores, scoring);
            Assert.Equal(24, doors.Plan.Select(l, scores, Tokens, keep, selecting));
            doors.Context.Compact(doors.Views[l], Tokens, keep, SmallModel.KvHeads);
            for (int h = 0; h < SmallModel.KvHeads; ++h)
            {
                Assert.Equal(whole.Sequence.KeepPositions(l, h), keep[(h * 24)..((h + 1) * 24)]);
                for (int slot = 0; slot < 24; ++slot)
                    Assert.Equal(keep[h * 24 + slot], doors.TokenInSlot(l, h, slot));
            }
        }
    }

    [Fact]
    public void Addresses_do_what_spans_do()
    {
        using var model = new SmallModel("snapkv:budget=24,window=4");
        using KvWorkspace workspace = model.Plan.CreateWorkspace(KvOperation.ScoreWindow);
        using KvWorkspace selecting = model.Plan.CreateWorkspace(KvOperation.Select);
        using var lse = new KvPinnedMemory<float>(SmallModel.QueryHeads * 4);
        using var scores = new KvPinnedMemory<float>(SmallModel.KvHeads * Tokens);
        using var keep = new KvPinnedMemory<int>(SmallModel.KvHeads * 24);
        float[] expectedScores = new float[scores.Length];
        int[] expectedKeep = new int[keep.Length];
        model.Plan.ScoreWindow(model.QueryPlane, model.Views[0], Tokens, expectedScores, workspace);
        model.Plan.ScoreWindow(model.QueryPlane, model.Views[0], Tokens, scores, workspace,
                               rowLse: KvPlane.HeadMajor(lse, KvDType.F32, 4, 1));
        Assert.Equal(expectedScores, scores.Span.ToArray());
        model.Plan.Select(0, expectedScores, Tokens, expectedKeep, selecting);
        Assert.Equal(24, model.Plan.Select(0, scores, Tokens, keep, selecting));
        Assert.Equal(expectedKeep, keep.Span.ToArray());
        model.Context.Compact(model.Views[0], Tokens, keep, SmallModel.KvHeads);
        Assert.Equal(expectedKeep[30], model.TokenInSlot(0, 1, 6));
    }

    public static TheoryData<KvDType> Scored => [KvDType.F32, KvDType.F16, KvDType.BF16];

    [Theory]
    [MemberData(nameof(Scored))]
    public void Queries_may_be_any_span(KvDType dtype)
    {
        const int Row = SmallModel.QueryHeads * SmallModel.Dim;
        using var model = new SmallModel("snapkv:budget=24,window=4", queryType: dtype);
        using KvWorkspace workspace = model.Plan.CreateWorkspace(KvOperation.ScoreWindow);
        float[] expected = new float[SmallModel.KvHeads * Tokens], scores = new float[expected.Length];
        model.Plan.ScoreWindow(model.QueryPlane, model.Views[0], Tokens, expected, workspace);
        Score(model.Queries.Span[..(4 * Row)]);
        Assert.Equal(expected, scores);
        Assert.Contains("3 rows", Assert.Throws<ArgumentException>(
            () => Score(model.Queries.Span[..(3 * Row)])).Message);
        Assert.Throws<ArgumentException>(() => Score(model.Queries.Span[..(4 * Row + 1)]));

        void Score(ReadOnlySpan<float> rows)
        {
            KvView view = model.Views[0];
            if (dtype == KvDType.F32) model.Plan.ScoreWindow(rows, view, Tokens, scores, workspace);
            else if (dtype == KvDType.F16)
                model.Plan.ScoreWindow(SmallModel.ToHalf(rows), view, Tokens, scores, workspace);
            else model.Plan.ScoreWindow(SmallModel.ToBF16(rows), view, Tokens, scores, workspace);
        }
    }

    [Fact]
    public void Protected_slots_stay()
    {
        using var model = new SmallModel("custom:budget=4,sink=0");
        using KvWorkspace workspace = model.Plan.CreateWorkspace(KvOperation.Select);
        int[] keep = new int[8];
        Assert.Equal(4, model.Plan.Select(0, new float[2 * 10], 10, keep, workspace, [7, 9]));
        Assert.Equal([0, 1, 7, 9, 0, 1, 7, 9], keep);
    }

    [Fact]
    public void Wrong_use_is_refused()
    {
        using var model = new SmallModel("snapkv:budget=24,window=4");
        using KvWorkspace workspace = model.Plan.CreateWorkspace(KvOperation.ScoreWindow);
        float[] scores = new float[SmallModel.KvHeads * Tokens];
        var e = Assert.Throws<ArgumentException>(
            () => model.Plan.ScoreWindow(model.QueryPlane, model.Views[0], Tokens, scores.AsSpan(1), workspace));
        Assert.Contains("scores has 95 elements, 96 are needed", e.Message);
        Assert.Throws<ArgumentException>(
            () => model.Plan.ScoreWindow(model.QueryPlane, model.Views[0], Tokens, new KvRegion(64, 95 * 4),
                                         workspace));
        Assert.Throws<ArgumentNullException>(
            () => model.Plan.ScoreWindow(model.QueryPlane, null!, Tokens, scores, workspace));
        Assert.Throws<ArgumentNullException>(() => model.Context.Compact(null!, Tokens, [0]));
        Assert.Throws<ArgumentOutOfRangeException>(
            () => model.Plan.ScoreWindow(model.QueryPlane, model.Views[0], -1, scores, workspace));
        // Four query rows are asked for; the last one lies behind the memory.
        KvPlane behind = model.QueryPlane with { Offset = (SmallModel.MaxTokens - 3) * model.QueryPlane.TokenStride };
        Assert.Contains("queries", Assert.Throws<ArgumentException>(
            () => model.Plan.ScoreWindow(behind, model.Views[0], Tokens, scores, workspace)).Message);
        Assert.Throws<KvEvictException>(
            () => model.Plan.ScoreWindow(model.QueryPlane, model.Views[0], Tokens, scores, new KvRegion(64, 1)));
        Assert.Throws<KvEvictException>(() => model.Plan.Select(0, scores, Tokens, new int[3], model.Workspace));
        Assert.Throws<KvEvictException>(() => model.Context.Compact(model.Views[0], Tokens, [5, 5]));
        Assert.Throws<ArgumentOutOfRangeException>(() => model.Context.Compact(model.Views[0], Tokens, [5], -1));
    }

    [Fact]
    public void A_plan_answers_questions()
    {
        using var model = new SmallModel("pyramidkv:budget=24,window=4");
        Assert.Equal(48, model.Plan.LayerBudgets(60).Sum());
        Assert.True(model.Plan.WorkspaceBytes(KvOperation.Evict) > 0);
        Assert.Throws<KvEvictException>(() => model.Plan.WorkspaceBytes((KvOperation)9));
        KvCapabilities can = model.Plan.Capabilities(1);
        Assert.True(can is { CanMove: true, CanScore: true, CanRotate: false, NeedsScore: true });
        Assert.Equal(KvReason.NoRotation, can.RotateReason);
        Assert.NotEqual("", KvEvictLibrary.ReasonText(can.RotateReason));
        Assert.Throws<KvEvictException>(() => model.Plan.Capabilities(2));
        Assert.Throws<ArgumentOutOfRangeException>(() => model.Plan.LayerBudgets(-5));
    }

    [Fact]
    public void The_library_answers_questions()
    {
        Assert.NotEmpty(KvEvictLibrary.SimdTargets);
        Assert.Equal(Enum.GetValues<KvDType>().Order(), KvEvictLibrary.DTypes.Select(t => t.DType).Order());
        Assert.Contains(new KvDTypeInfo(KvDType.F16, "f16", 2, true, true, false), KvEvictLibrary.DTypes);
        Assert.True(KvEvictLibrary.IsAvailable(KvDevice.Cpu));
        KvEvictLibrary.CheckDevice(KvDevice.Cpu);
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
        var e = Assert.Throws<KvEvictException>(() => new KvContext(new KvContextOptions { SimdTarget = "MMX" }));
        Assert.Contains("simd_target \"MMX\"", e.Message);
    }
}
