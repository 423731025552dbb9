using Xunit;

namespace KvEvict.Tests;

public class SequenceTests
{
    [Fact]
    public void Evicting_moves_the_survivors_and_reports_it()
    {
        using var model = new SmallModel("snapkv:budget=24,window=4,sink=2");
        model.Prefill(60);
        KvEvictReport report = model.Evict();
        long rowBytes = SmallModel.KvHeads * SmallModel.Dim * 4 * 2 * SmallModel.Layers;
        Assert.Equal(new KvEvictReport(true, 60 * rowBytes, 24 * rowBytes, 120, 48, 0), report);
        Assert.Equal(60, model.Sequence.LogicalLength);
        for (int l = 0; l < SmallModel.Layers; ++l)
        {
            Assert.Equal(24, model.Sequence.StoredLength(l));
            for (int h = 0; h < SmallModel.KvHeads; ++h)
            {
                int[] keep = model.Sequence.KeepPositions(l, h);
                Assert.Equal([0, 1, 56, 57, 58, 59], keep[..2].Concat(keep[^4..]));
                for (int slot = 0; slot < keep.Length; ++slot)
                {
                    Assert.Equal(keep[slot], model.TokenInSlot(l, h, slot));
                    Assert.Equal(keep[slot], model.Sequence.PositionOfSlot(l, h, slot));
                    Assert.Equal(slot, model.Sequence.SlotOfPosition(l, h, keep[slot]));
                }
            }
        }
        int evicted = Enumerable.Range(0, 60).Except(model.Sequence.KeepPositions(0, 0)).First();
        Assert.Equal(-1, model.Sequence.SlotOfPosition(0, 0, evicted));
    }

    [Fact]
    public void Token_by_token_observe_is_chunked_observe()
    {
        using var chunked = new SmallModel("snapkv:budget=24,window=4");
        using var single = new SmallModel("snapkv:budget=24,window=4");
        chunked.Prefill(40);
        for (int t = 0; t < 40; ++t)
        {
            KvPlane row = single.QueryPlane with { Offset = t * single.QueryPlane.TokenStride };
            for (int l = 0; l < SmallModel.Layers; ++l) single.Sequence.Observe(l, row, 1);
            single.Sequence.Append(1);
        }
        chunked.Evict();
        single.Evict();
        Assert.Equal(chunked.Sequence.KeepPositions(1, 1), single.Sequence.KeepPositions(1, 1));
    }

    [Fact]
    public void Query_memory_is_the_contexts_or_lent()
    {
        using var pooled = new SmallModel("snapkv:budget=24,window=4");
        using var lent = new SmallModel("snapkv:budget=24,window=4");
        lent.Sequence.EndObserving();
        Assert.Contains("begin_observing", Assert.Throws<KvEvictException>(() => lent.Prefill(40)).Message);
        using var memory = new KvWorkspace(lent.Plan.QueryMemoryBytes);
        Assert.Throws<KvEvictException>(() => lent.Sequence.BeginObserving(memory.ToRegion().Slice(64)));
        lent.Sequence.BeginObserving(memory);
        Assert.Contains("end_observing",
                        Assert.Throws<KvEvictException>(lent.Sequence.BeginObserving).Message);
        pooled.Prefill(40);
        lent.Prefill(40);
        pooled.Evict();
        lent.Evict();
        lent.Sequence.EndObserving();
        Assert.Equal(pooled.Sequence.KeepPositions(1, 1), lent.Sequence.KeepPositions(1, 1));
        Assert.InRange(lent.Plan.LeastWorkspaceBytes(KvOperation.Evict, 40), 1,
                       lent.Plan.WorkspaceBytes(KvOperation.Evict, 40));
        Assert.True(lent.Plan.WorkspaceBytes(KvOperation.Evict, 8) < lent.Plan.WorkspaceBytes(KvOperation.Evict));
        using var streaming = new SmallModel("streaming-llm:budget=16,sink=4");
        Assert.Equal(0, streaming.Plan.QueryMemoryBytes);
    }

    [Fact]
    public void Reset_starts_over()
    {
        using var model = new SmallModel("streaming-llm:budget=16,sink=4");
        model.Prefill(32);
        model.Evict();
        model.Sequence.Reset();
        Assert.Equal(0, model.Sequence.LogicalLength);
        Assert.Equal(0, model.Sequence.StoredLength(1));
        Assert.Empty(model.Sequence.KeepPositions(0, 0));
    }

    [Fact]
    public void Protected_positions_stay()
    {
        using var model = new SmallModel("snapkv:budget=16,sink=4,window=4");
        model.Prefill(32);
        Assert.Throws<KvEvictException>(() => model.Sequence.Evict(
            model.Views, model.Workspace, new KvEvictOptions { ProtectedPositions = [11, 10] }));
        model.Sequence.Evict(model.Views, model.Workspace, new KvEvictOptions { ProtectedPositions = [10, 11] });
        Assert.Subset(model.Sequence.KeepPositions(0, 0).ToHashSet(), new HashSet<int> { 10, 11 });
    }

    [Fact]
    public void Own_scores_decide()
    {
        using var model = new SmallModel("custom:budget=6,sink=0");
        model.Prefill(20);
        using var scores = new KvPinnedMemory<float>(SmallModel.Layers * SmallModel.KvHeads * 20);
        int[] best = [1, 4, 9, 12, 16, 19];
        for (int row = 0; row < SmallModel.Layers * SmallModel.KvHeads; ++row)
        {
            foreach (int slot in best) scores.Span[row * 20 + slot] = 1;
        }
        model.Sequence.Evict(model.Views, model.Workspace, new KvEvictOptions
        {
            Scores = scores, ScoresHeadStride = 20, ScoresLayerStride = 20 * SmallModel.KvHeads,
        });
        Assert.Equal(best, model.Sequence.KeepPositions(1, 0));
        Assert.Equal(12, model.TokenInSlot(1, 0, 3));
    }

    [Fact]
    public void Many_layers_do_not_need_the_stack()
    {
        var geometry = SmallModel.Geometry with { Layers = 200, ValueHeadDim = 0 };
        using var context = new KvContext();
        using var plan = new KvPlan(context, geometry, KvPolicy.Parse("streaming-llm:budget=8,sink=2"));
        using var sequence = new KvSequence(plan);
        using var workspace = plan.CreateWorkspace(KvOperation.Evict);
        using var pool = new KvPinnedMemory<float>(200 * 16 * SmallModel.KvHeads * SmallModel.Dim);
        KvPlane rows = KvPlane.TokenMajor(pool, KvDType.F32, SmallModel.KvHeads, SmallModel.Dim);
        KvView[] views = Enumerable.Range(0, 200).Select(
            l => new KvView(SmallModel.KvHeads, rows with { Offset = l * 16 * rows.TokenStride })).ToArray();
        sequence.Append(16);
        Assert.Equal(200 * 8, sequence.Evict(views, workspace).TokensAfter);
    }

    [Fact]
    public void Layers_observed_together_are_like_one_after_the_other()
    {
        using var one = new SmallModel("snapkv:budget=24,window=4");
        using var all = new SmallModel("snapkv:budget=24,window=4");
        one.Prefill(40);
        KvPlane[] planes = [all.QueryPlane, all.QueryPlane];
        all.Sequence.ObserveLayers(planes, 30);
        all.Sequence.ObserveLayers([.. planes.Select(p => p with { Offset = 30 * p.TokenStride })], 10, 30);
        // Refused calls leave what is known.
        KvPlane[] bad = [planes[0] with { Offset = 8 * planes[0].TokenStride }, planes[1] with { HeadDim = 7 }];
        Assert.Contains("layer 1", Assert.Throws<KvEvictException>(
            () => all.Sequence.ObserveLayers(bad, 10, 30)).Message);
        Assert.Contains("queries_len 1", Assert.Throws<KvEvictException>(
            () => all.Sequence.ObserveLayers(bad.AsSpan(1), 10, 30)).Message);
        bad[1] = planes[1] with { Offset = 60 * planes[1].TokenStride };
        Assert.Contains("queries[1]", Assert.Throws<ArgumentException>(
            () => all.Sequence.ObserveLayers(bad, 10, 30)).Message);
        Assert.Throws<ArgumentOutOfRangeException>(() => all.Sequence.ObserveLayers(planes, 10, -1));
        all.Sequence.Append(40);
        one.Evict();
        all.Evict();
        for (int l = 0; l < SmallModel.Layers; ++l)
        {
            Assert.Equal(one.Sequence.KeepPositions(l, 0), all.Sequence.KeepPositions(l, 0));
        }
    }

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
        Assert.Throws<KvEvictException>(() => Observe(2, rows, 0));
        var e = Assert.Throws<KvEvictException>(() =>
        {
            if (dtype == KvDType.F32) spans.Sequence.Observe(0, new Half[Row]);
            else spans.Sequence.Observe(0, rows);
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
    public void Memory_of_a_layer_shows_its_lengths()
    {
        using var model = new SmallModel("streaming-llm:budget=16,sink=4");
        model.Prefill(32);
        model.Evict();
        KvSequenceMemory memory = model.Sequence.MemoryOf(1);
        Assert.Equal(16, memory.ListedCount);
        Assert.InRange(memory.ListCount, 1, SmallModel.KvHeads);
        unsafe
        {
            int first = memory.ListCount * 2; // of layer 1
            Assert.Equal([16u, 32u], new ReadOnlySpan<uint>((uint*)memory.Lengths, first + 2)[first..].ToArray());
            Assert.Equal(model.Sequence.KeepPositions(1, 0),
                         new ReadOnlySpan<int>((int*)memory.Positions, 16).ToArray());
        }
    }

    [Fact]
    public void Heads_may_hold_different_numbers_of_tokens()
    {
        int[] budgets = [4, 9, 12, 40];
        using var model = new SmallModel("snapkv:budget=24,window=4,sink=0", headBudgets: budgets);
        KvSequence s = model.Sequence;
        int[] before = new int[4], after = new int[4];
        model.Prefill(30);
        KvEvictReport report = s.Evict(model.Views, model.Workspace, default, before, after);
        Assert.Equal([30, 30, 30, 30], before);
        Assert.Equal([4, 9, 12, 30], after);
        Assert.Equal((60, 9 + 30), (report.TokensBefore, report.TokensAfter));
        Assert.Equal(after, Lengths());
        AssertRows();

        // Every head's next row goes to a slot of its own.
        for (int l = 0; l < SmallModel.Layers; ++l) model.Store(l, 30, 6);
        for (int l = 0; l < SmallModel.Layers; ++l)
            s.Observe(l, model.QueryPlane with { Offset = 30 * model.QueryPlane.TokenStride }, 6);
        s.Append(6);
        Assert.Equal([10, 15, 18, 36], Lengths());
        s.Trim(34);
        Assert.Equal([8, 13, 16, 34], Lengths());
        Assert.Equal(34, s.LogicalLength);
        for (int l = 0; l < SmallModel.Layers; ++l)
            s.Observe(l, model.QueryPlane with { Offset = 30 * model.QueryPlane.TokenStride }, 4, 30);
        AssertRows();

        s.Evict(model.Views, model.Workspace, default, before, after);
        Assert.Equal([8, 13, 16, 34], before);
        Assert.Equal([4, 9, 12, 34], after);
        Assert.Equal(after, Lengths());
        AssertRows();
        unsafe
        {
            KvSequenceMemory memory = s.MemoryOf(0);
            Assert.Equal(2, memory.ListCount);
            Assert.Equal([4, 34, 9, 34], new ReadOnlySpan<int>((int*)memory.Lengths, 4).ToArray());
            Assert.Equal([4, 9], new ReadOnlySpan<int>((int*)memory.ListedCounts, 2).ToArray());
        }

        int[] Lengths() => [.. Enumerable.Range(0, 4).Select(i => s.StoredLength(i / 2, i % 2))];
        void AssertRows()
        {
            for (int i = 0; i < 4; ++i)
            {
                int[] positions = s.KeepPositions(i / 2, i % 2);
                Assert.Equal(s.StoredLength(i / 2, i % 2), positions.Length);
                Assert.Equal(positions, positions.Select((_, slot) => model.TokenInSlot(i / 2, i % 2, slot)));
            }
        }
    }

    [Fact]
    public void Wrong_head_budgets_are_refused()
    {
        Assert.Contains("head_budgets_len 3", Assert.Throws<KvEvictException>(
            () => new SmallModel("snapkv:budget=24,window=4", headBudgets: [24, 24, 24])).Message);
        Assert.Throws<ArgumentOutOfRangeException>(
            () => new SmallModel("snapkv:budget=24,window=4", headBudgets: [24, 24, 24, -1]));
        using var model = new SmallModel("snapkv:budget=24,window=4", headBudgets: [24, 24, 24, 24]);
        Assert.Equal(KvStatus.Unsupported, Assert.Throws<KvEvictException>(
            () => model.Plan.Selection(0, 40, out _)).Status);
        model.Prefill(40);
        Assert.Throws<ArgumentException>(
            () => model.Sequence.Evict(model.Views, model.Workspace, default, new int[4], new int[3]));
        Assert.Contains("list_tokens_len 3", Assert.Throws<KvEvictException>(
            () => model.Sequence.Evict(model.Views, model.Workspace, default, new int[3], new int[3])).Message);
        Assert.Throws<KvEvictException>(() => model.Sequence.StoredLength(0, SmallModel.KvHeads));
        Assert.Equal(40, model.Sequence.StoredLength(1, 1));
    }

    [Fact]
    public void What_concerns_cuda_is_accepted_on_the_cpu()
    {
        using var model = new SmallModel("snapkv:budget=24,window=4");
        using var lse = new KvPinnedMemory<float>(SmallModel.QueryHeads * 40);
        model.Sequence.SetStream(0);
        model.Prefill(40);
        model.Sequence.ObserveLse(0, KvPlane.HeadMajor(lse, KvDType.F32, 40, 1), 40, 0);
        model.Sequence.ObserveLse(0, KvPlane.HeadMajor(lse, KvDType.F32, 40, 1), 0);
        model.Context.Prepare(model.Plan);
        model.Context.Prepare();
        Assert.Equal(40, model.Sequence.LogicalLength);
    }

    [Fact]
    public void Replays_of_graphs_are_unsupported_on_the_cpu()
    {
        using var model = new SmallModel("snapkv:budget=24,window=4");
        model.Prefill(40);
        var e = Assert.Throws<KvEvictException>(() => model.Sequence.Replayed(1));
        Assert.Equal(KvStatus.Unsupported, e.Status);
        Assert.Equal(40, model.Sequence.LogicalLength);
    }

    [Fact]
    public void Trim_takes_tokens_back_as_far_as_the_last_eviction()
    {
        using var model = new SmallModel("snapkv:budget=24,window=4");
        model.Prefill(40);
        model.Sequence.Evict(model.Views, model.Workspace);
        model.Sequence.Append(3);
        model.Sequence.Trim(41);
        Assert.Equal(41, model.Sequence.LogicalLength);
        Assert.Equal(25, model.Sequence.StoredLength(0));
        Assert.Throws<KvEvictException>(() => model.Sequence.Trim(39));
        Assert.Throws<KvEvictException>(() => model.Sequence.Trim(42));
        Assert.Equal(41, model.Sequence.LogicalLength);
    }

    [Fact]
    public void Wrong_use_is_refused_and_moves_nothing()
    {
        using var model = new SmallModel("snapkv:budget=24,window=4");
        model.Prefill(40);
        KvSequence s = model.Sequence;
        Assert.Throws<ArgumentNullException>(() => s.Evict([model.Views[0], null!], model.Workspace));
        Assert.Throws<ArgumentNullException>(() => s.Evict(model.Views, (KvWorkspace)null!));
        Assert.Throws<KvEvictException>(() => s.Evict(model.Views.AsSpan(1), model.Workspace));
        Assert.Throws<KvEvictException>(() => s.Evict(model.Views, default));
        var e = Assert.Throws<KvEvictException>(() => s.Append(SmallModel.MaxTokens));
        Assert.Equal(KvStatus.InvalidArgument, e.Status);
        Assert.Contains("64", e.Message);
        Assert.Throws<ArgumentOutOfRangeException>(() => s.Append(-1));
        Assert.Throws<ArgumentOutOfRangeException>(() => s.StoredLength(-1));
        Assert.Throws<KvEvictException>(() => s.StoredLength(SmallModel.Layers));
        Assert.Throws<ArgumentOutOfRangeException>(() => s.Observe(0, model.QueryPlane, 1, -1));
        Assert.Throws<ArgumentException>(() => s.KeepPositions(0, 0, new int[39]));
        Assert.Equal(40, s.KeepPositions(0, 0, new int[41]));
        Assert.Equal(Enumerable.Range(0, 40), Enumerable.Range(0, 40).Select(slot => model.TokenInSlot(1, 1, slot)));
    }
}
