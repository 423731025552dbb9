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
        Assert.Equal(report, model.Sequence.Report);
        Assert.Equal([new(0, 60, 24), new(0, 60, 24), new(1, 60, 24), new(1, 60, 24)], model.Sequence.ListReports());
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
        Assert.Contains("KvSequence.BeginObserving() first", Assert.Throws<ArgumentException>(() => lent.Prefill(40)).Message);
        using KvWorkspace memory = lent.Plan.CreateWorkspace(KvOperation.Observe);
        Assert.Throws<ArgumentException>(() => lent.Sequence.BeginObserving(memory.ToRegion().Slice(64)));
        lent.Sequence.BeginObserving(memory);
        Assert.Contains("KvSequence.EndObserving() first",
                        Assert.Throws<ArgumentException>(lent.Sequence.BeginObserving).Message);
        pooled.Prefill(40);
        lent.Prefill(40);
        pooled.Evict();
        lent.Evict();
        lent.Sequence.EndObserving();
        Assert.Equal(pooled.Sequence.KeepPositions(1, 1), lent.Sequence.KeepPositions(1, 1));
        using var streaming = new SmallModel("streaming-llm:budget=16,sink=4");
        Assert.Equal(new KvWorkspaceSize(64, 0, 0), streaming.Plan.WorkspaceSize(KvOperation.Observe));
    }

    [Fact]
    public void Copies_go_on_from_where_a_sequence_is()
    {
        using var model = new SmallModel("snapkv:budget=16,window=4,sink=4,scope=head");
        model.Prefill(60);
        using KvSequence observing = model.Sequence.Fork();
        model.Evict();
        Assert.Throws<ArgumentException>(() => observing.BeginObserving()); // it does, with the rows
        int prefix = model.Sequence.ExactPrefix();
        Assert.InRange(prefix, 4, 16);
        model.Sequence.Append(3);
        int[][][] lists = [.. Enumerable.Range(0, SmallModel.Layers).Select(
            l => Enumerable.Range(0, SmallModel.KvHeads).Select(h => model.Sequence.KeepPositions(l, h)).ToArray())];
        using KvWorkspace memory = model.Plan.CreateWorkspace(KvOperation.Observe);
        using KvSequence fork = model.Sequence.Fork(memory);
        using var loaded = new KvSequence(model.Plan);
        using var started = new KvSequence(model.Plan);
        byte[] saved = model.Sequence.Save();
        loaded.Load(saved);
        started.Start(lists, 63);
        foreach (KvSequence copy in new[] { fork, loaded, started })
        {
            Assert.Equal(63, copy.LogicalLength);
            for (int l = 0; l < SmallModel.Layers; ++l)
                for (int h = 0; h < SmallModel.KvHeads; ++h) Assert.Equal(lists[l][h], copy.KeepPositions(l, h));
            copy.TrimTo(60);
            Assert.Contains("up to", Assert.Throws<ArgumentException>(() => copy.TrimTo(prefix + 1)).Message);
            copy.TrimTo(prefix);
            Assert.Equal(prefix, copy.ExactPrefix());
        }
        saved[40] ^= 1;
        Assert.Contains("CRC-32", Assert.Throws<ArgumentException>(() => loaded.Load(saved)).Message);
        Assert.Contains("data_len 0", Assert.Throws<ArgumentException>(() => loaded.Load([])).Message);
        Assert.Contains("reset", Assert.Throws<ArgumentException>(() => started.Start(9)).Message);
        started.Reset();
        Assert.Contains("n_lists 0", Assert.Throws<ArgumentException>(() => started.Start([null, null], 9)).Message);
        started.Start(9);
        Assert.Equal(9, started.StoredLength(1));
    }

    [Fact]
    public void Reset_starts_over()
    {
        using var model = new SmallModel("streaming-llm:budget=16,sink=4");
        model.Prefill(32);
        model.Evict();
        Assert.Equal((64, 32), (model.Sequence.Report.TokensBefore, model.Sequence.Report.TokensAfter));
        model.Sequence.Reset();
        Assert.Equal(default, model.Sequence.Report);
        Assert.Equal(0, model.Sequence.LogicalLength);
        Assert.Equal(0, model.Sequence.StoredLength(1));
        Assert.Empty(model.Sequence.KeepPositions(0, 0));
    }

    [Fact]
    public void Protected_positions_stay()
    {
        using var model = new SmallModel("snapkv:budget=16,sink=4,window=4");
        model.Prefill(32);
        Assert.Throws<ArgumentException>(() => model.Sequence.Evict(
            model.Views, model.Workspace, new KvEvictOptions { ProtectedPositions = new[] { 11, 10 } }));
        model.Sequence.Evict(model.Views, model.Workspace, new KvEvictOptions { ProtectedPositions = new[] { 10, 11 } });
        Assert.Subset(model.Sequence.KeepPositions(0, 0).ToHashSet(), new HashSet<int> { 10, 11 });
    }

    [Fact]
    public void Undo_takes_an_eviction_back()
    {
        using var model = new SmallModel("knorm:budget=16");
        model.Prefill(32);
        float[] before = model.Keys[1].Span.ToArray();
        long bytes = model.Sequence.UndoBytes(model.Views);
        using var undo = new KvWorkspace(bytes);
        Assert.Throws<ArgumentException>(() => model.Sequence.Undo(model.Views, undo));
        model.Sequence.Evict(model.Views, model.Workspace, new KvEvictOptions { Undo = undo });
        Assert.Equal(16, model.Sequence.StoredLength(1));
        model.Sequence.Undo(model.Views, undo);
        Assert.Equal(32, model.Sequence.StoredLength(1));
        Assert.Equal(before, model.Keys[1].Span.ToArray());
        Assert.Throws<ArgumentException>(() => model.Sequence.Undo(model.Views, undo));
        Assert.Throws<ArgumentException>(() => model.Sequence.UndoBytes([]));
    }

    [Fact]
    public void Rows_that_stay_go_to_destinations()
    {
        using var model = new SmallModel("knorm:budget=16", options: new KvPlanOptions { HasDestinations = true });
        using var there = new SmallModel("knorm:budget=16");
        using var single = new SmallModel("knorm:budget=16", options: new KvPlanOptions { HasDestinations = true });
        model.Prefill(32);
        Assert.Equal([16, 16], model.Sequence.KeptSlots(model.Views));
        float[] before = model.Keys[1].Span.ToArray();
        foreach (KvPinnedMemory<float> keys in there.Keys) keys.Span.Clear();
        var small = new KvView(SmallModel.KvHeads,
                               there.Views[1].Keys with { Offset = 49 * there.Views[1].Keys.TokenStride },
                               there.Views[1].Values);
        Assert.Throws<ArgumentException>(() => model.Sequence.Evict(
            model.Views, model.Workspace, new KvEvictOptions { Destinations = new[] { there.Views[0], small } }));
        KvEvictReport report = model.Sequence.Evict(
            model.Views, model.Workspace, new KvEvictOptions { Destinations = there.Views });
        Assert.Equal(report.BytesBefore / 2, report.BytesAfter);
        Assert.Equal(before, model.Keys[1].Span.ToArray());
        int[] positions = model.Sequence.KeepPositions(1, 1);
        Assert.Equal(16, positions.Length);
        for (int slot = 0; slot < 16; ++slot) Assert.Equal(positions[slot], there.TokenInSlot(1, 1, slot));
        // Destinations work in a batch, and a plan may have no room for them.
        single.Prefill(32);
        KvBatch.Evict([new KvSequenceEviction(single.Sequence, single.Views, new KvEvictOptions { Destinations = there.Views })],
                      single.Workspace);
        Assert.Equal(16, single.Sequence.StoredLength(0));
        there.Prefill(32);
        Assert.Throws<ArgumentException>(() => there.Sequence.Evict(
            there.Views, there.Workspace, new KvEvictOptions { Destinations = model.Views }));
    }

    [Fact]
    public void Blocks_go_by_table()
    {
        using var model = new SmallModel("streaming-llm:budget=10,sink=4,select_block=4");
        Assert.True(model.Plan.Capabilities(1) is
            { TableBlock: 4, NeedsHeadTables: false, NeedsLayerTables: false });
        model.Prefill(14);
        float[] before = model.Keys[1].Span.ToArray();
        const int block = 4 * SmallModel.KvHeads * SmallModel.Dim * sizeof(float);
        KvView[] paged = [.. model.Views.Select(view => new KvView(
            SmallModel.KvHeads, view.Keys with { BlockStride = block }, view.Values with { BlockStride = block })
        {
            BlockSize = 4,
        })];
        foreach (KvView view in paged) view.SetBlockTable([3, 1, 0, 2]);
        var options = new KvEvictOptions { ByTable = true };
        Assert.Equal(2, model.Sequence.Evict(paged, model.Workspace, options).BlocksFreed);
        Assert.Equal([3, 0, 2, 1], paged[1].OwnBlockTable.ToArray());
        Assert.Equal(before, model.Keys[1].Span.ToArray());
        Assert.Equal(10, model.Sequence.StoredLength(1));
        Assert.Throws<KvEvictException>(
            () => model.Sequence.Evict(model.Views, model.Workspace, new KvEvictOptions { ByTable = true }));
    }

    [Fact]
    public void Ranges_go_last_or_first_and_the_mass_that_stays_is_told()
    {
        using var model = new SmallModel("custom:budget=6,sink=1", options: new KvPlanOptions { ReportMass = true });
        model.Prefill(20);
        using var scores = new KvPinnedMemory<float>(SmallModel.KvHeads * 20);
        for (int i = 0; i < scores.Length; ++i) scores.Span[i] = i % 20;
        KvSignalInputs own = new() { Scores = KvPlane.HeadMajor(scores, 20, 1) };
        Assert.Throws<ArgumentException>(() => Evict([new(3, 5, 1), new(4, 6, 1)]));
        Assert.Throws<ArgumentOutOfRangeException>(() => Evict([new(-1, 5, 1)]));
        Assert.Throws<ArgumentException>(() => Evict([.. Enumerable.Range(0, 65).Select(i => new KvTokenRange(i, i, 1))]));
        Evict([new(3, 5, 1), new(18, int.MaxValue, -1)]);
        Assert.Equal([0, 3, 4, 15, 16, 17], model.Sequence.KeepPositions(0, 1));
        Assert.All(model.Sequence.ListReports(), list =>
        {
            Assert.Equal((20, 6), (list.TokensBefore, list.TokensAfter));
            Assert.Equal((55f / 190, 19f / 190), (list.MassKept, list.LargestMassEvicted));
        });

        void Evict(KvTokenRange[] ranges) => model.Sequence.Evict(
            model.Views, model.Workspace, new KvEvictOptions { Inputs = new[] { own, own }, Ranges = ranges });
    }

    [Fact]
    public void Own_scores_decide()
    {
        using var model = new SmallModel("custom:budget=6,sink=0");
        model.Prefill(20);
        using var scores = new KvPinnedMemory<float>(SmallModel.KvHeads * 20);
        using var others = new KvPinnedMemory<float>(SmallModel.KvHeads * 32); // rows apart
        int[] best = [1, 4, 9, 12, 16, 19];
        for (int head = 0; head < SmallModel.KvHeads; ++head)
        {
            foreach (int slot in best)
            {
                scores.Span[head * 20 + slot] = 1;
                others.Span[head * 32 + 19 - slot] = 1;
            }
        }
        KvSignalInputs[] inputs =
        [
            new() { Scores = KvPlane.HeadMajor(scores, 20, 1) }, new() { Scores = KvPlane.HeadMajor(others, 32, 1) },
        ];
        Refuses<ArgumentException>("Scores[1]", [inputs[0], new() { Scores = KvPlane.HeadMajor(others, 50, 1) }]);
        Refuses<ArgumentException>("inputs_len 1", [inputs[0]]);
        Refuses<ArgumentException>("inputs_len 3", [.. inputs, inputs[0]]);
        Refuses<ArgumentException>("scores", [inputs[0], default]);
        Refuses<ArgumentException>("scores", []);
        Assert.Equal(20, model.Sequence.StoredLength(0));
        Evict(inputs);
        Assert.Equal(best, model.Sequence.KeepPositions(0, 1));
        Assert.Equal(best.Select(slot => 19 - slot).Order(), model.Sequence.KeepPositions(1, 0));
        Assert.Equal(10, model.TokenInSlot(1, 0, 3));

        void Evict(KvSignalInputs[] inputs) =>
            model.Sequence.Evict(model.Views, model.Workspace, new KvEvictOptions { Inputs = inputs });
        void Refuses<T>(string text, KvSignalInputs[] inputs) where T : Exception =>
            Assert.Contains(text, Assert.Throws<T>(() => Evict(inputs)).Message);
    }

    [Fact]
    public void Many_layers_do_not_need_the_stack()
    {
        var geometry = new KvGeometry(200, SmallModel.Layer with { ValueHeadDim = 0 }, SmallModel.MaxTokens);
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
        all.Sequence.Observe([new(0, all.QueriesFrom(0)), new(1, all.QueriesFrom(0))], 30);
        KvObservation[] rest = [new(0, all.QueriesFrom(30)), new(1, all.QueriesFrom(30))];
        all.Sequence.Observe(rest, 10, 30);
        // Refused calls leave what is known.
        KvPlane rows = all.QueryPlane;
        KvObservation earlier = new(0, all.QueriesFrom(8));
        Refuses<ArgumentException>("layer 1", earlier, new(1, new() { Queries = rows with { HeadDim = 7 } }));
        Refuses<ArgumentException>("layer", rest[1], earlier);
        Refuses<ArgumentException>("layer 2", earlier, rest[1] with { Layer = 2 });
        Refuses<ArgumentException>("queries", earlier, new(1, default));
        Refuses<ArgumentException>("Queries[1]", earlier, new(1, all.QueriesFrom(60)));
        Refuses<ArgumentOutOfRangeException>("Layer", earlier with { Layer = -1 });
        Assert.Throws<ArgumentOutOfRangeException>(() => all.Sequence.Observe(rest, 10, -1));
        Assert.Throws<ArgumentOutOfRangeException>(() => all.Sequence.Observe(rest, -1));
        all.Sequence.Observe([], 10, 30);
        all.Sequence.Append(40);
        one.Evict();
        all.Evict();
        for (int l = 0; l < SmallModel.Layers; ++l)
        {
            Assert.Equal(one.Sequence.KeepPositions(l, 0), all.Sequence.KeepPositions(l, 0));
        }

        void Refuses<T>(string text, params KvObservation[] wrong) where T : Exception =>
            Assert.Contains(text, Assert.Throws<T>(() => all.Sequence.Observe(wrong, 10, 30)).Message);
    }

    [Fact]
    public void A_window_may_be_handed_over_with_the_eviction()
    {
        using var observed = new SmallModel("snapkv:budget=24,window=4");
        using var handed = new SmallModel("snapkv:budget=24,window=4");
        handed.Sequence.EndObserving();
        observed.Prefill(40);
        handed.Sequence.Append(40);
        Assert.Throws<ArgumentException>(() => handed.Evict());
        Refuses<ArgumentException>("Queries[1]", handed.QueriesFrom(36), handed.QueriesFrom(61));
        Refuses<ArgumentException>("layer 1", handed.QueriesFrom(36), default);
        using var lse = new KvPinnedMemory<float>(SmallModel.QueryHeads * 4);
        KvPlane rowLse = KvPlane.HeadMajor(lse, 4, 1);
        Refuses<ArgumentException>("RowLse[0]", handed.QueriesFrom(36) with { RowLse = rowLse with { Offset = 4 } },
                                   handed.QueriesFrom(36));
        Assert.Equal(40, handed.Sequence.StoredLength(0));
        Assert.Equal(observed.Evict(), Evict(handed.QueriesFrom(36), handed.QueriesFrom(36) with { RowLse = rowLse }));
        for (int l = 0; l < SmallModel.Layers; ++l)
        {
            for (int h = 0; h < SmallModel.KvHeads; ++h)
                Assert.Equal(observed.Sequence.KeepPositions(l, h), handed.Sequence.KeepPositions(l, h));
            Assert.Equal(observed.Keys[l].Span.ToArray(), handed.Keys[l].Span.ToArray());
        }

        KvEvictReport Evict(params KvSignalInputs[] inputs) =>
            handed.Sequence.Evict(handed.Views, handed.Workspace, new KvEvictOptions { Inputs = inputs });
        void Refuses<T>(string text, params KvSignalInputs[] inputs) where T : Exception =>
            Assert.Contains(text, Assert.Throws<T>(() => Evict(inputs)).Message);
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
            Assert.Equal([16u, 32u], new ReadOnlySpan<uint>((uint*)memory.Lengths, 2).ToArray());
            Assert.Equal(memory.Lengths, model.Sequence.MemoryOf(0).Lengths + memory.ListCount * 2 * sizeof(uint));
            Assert.Equal(model.Sequence.KeepPositions(1, 0),
                         new ReadOnlySpan<int>((int*)memory.Positions, 16).ToArray());
        }
    }

    [Fact]
    public void Heads_may_hold_different_numbers_of_tokens()
    {
        int[] budgets = [4, 9, 12, 40];
        using var model = new SmallModel("snapkv:budget=24,window=4,sink=0", options: new KvPlanOptions { HeadBudgets = budgets });
        KvSequence s = model.Sequence;
        Assert.Equal(4, model.Plan.ListCount);
        Assert.All(s.ListReports(), list => Assert.Equal((0, 0), (list.TokensBefore, list.TokensAfter)));
        model.Prefill(30);
        KvEvictReport report = model.Evict();
        Assert.Equal([new(0, 30, 4), new(0, 30, 9), new(1, 30, 12), new(1, 30, 30)], s.ListReports());
        Assert.Equal((60, 9 + 30), (report.TokensBefore, report.TokensAfter));
        Assert.Equal([4, 9, 12, 30], Lengths());
        AssertRows();

        // Every head's next row goes to a slot of its own.
        for (int l = 0; l < SmallModel.Layers; ++l) model.Store(l, 30, 6);
        for (int l = 0; l < SmallModel.Layers; ++l)
            s.Observe(l, model.QueryPlane with { Offset = 30 * model.QueryPlane.TokenStride }, 6);
        s.Append(6);
        Assert.Equal([10, 15, 18, 36], Lengths());
        s.TrimTo(34);
        Assert.Equal([8, 13, 16, 34], Lengths());
        Assert.Equal(34, s.LogicalLength);
        for (int l = 0; l < SmallModel.Layers; ++l)
            s.Observe(l, model.QueryPlane with { Offset = 30 * model.QueryPlane.TokenStride }, 4, 30);
        AssertRows();

        model.Evict();
        Assert.Equal([new(0, 8, 4), new(0, 13, 9), new(1, 16, 12), new(1, 34, 34)], s.ListReports());
        Assert.Equal([4, 9, 12, 34], Lengths());
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
        Assert.Contains("head_budgets_len 3", Assert.Throws<ArgumentException>(
            () => new SmallModel("snapkv:budget=24,window=4", options: new KvPlanOptions { HeadBudgets = new[] { 24, 24, 24 } })).Message);
        Assert.Throws<ArgumentOutOfRangeException>(
            () => new SmallModel("snapkv:budget=24,window=4", options: new KvPlanOptions { HeadBudgets = new[] { 24, 24, 24, -1 } }));
        using var model = new SmallModel("snapkv:budget=24,window=4", options: new KvPlanOptions { HeadBudgets = new[] { 24, 24, 24, 24 } });
        Assert.Equal(KvStatus.Unsupported, Assert.Throws<KvEvictException>(
            () => model.Plan.Selection(0, 40, out _)).Status);
        model.Prefill(40);
        Assert.Contains("lists has 3 elements, 4 are needed", Assert.Throws<ArgumentException>(
            () => model.Sequence.ListReports(new KvListReport[3])).Message);
        Assert.Throws<ArgumentException>(() => model.Sequence.StoredLength(0, SmallModel.KvHeads));
        Assert.Equal(40, model.Sequence.StoredLength(1, 1));
    }

    [Fact]
    public void What_concerns_cuda_is_accepted_on_the_cpu()
    {
        using var model = new SmallModel("snapkv:budget=24,window=4");
        using var lse = new KvPinnedMemory<float>(SmallModel.QueryHeads * 40);
        KvSignalInputs rows = new() { RowLse = KvPlane.HeadMajor(lse, 40, 1) };
        model.Prefill(40);
        model.Sequence.Observe([new(0, rows)], 40, 0, stream: 7);
        model.Sequence.Observe([new(1, rows)], 0);
        model.Sequence.Append(1, stream: 7);
        model.Sequence.TrimTo(40, stream: 7);
        model.Sequence.Reset(stream: 7);
        model.Prefill(40);
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
        model.Sequence.TrimTo(41);
        Assert.Equal(41, model.Sequence.LogicalLength);
        Assert.Equal(25, model.Sequence.StoredLength(0));
        Assert.Throws<ArgumentException>(() => model.Sequence.TrimTo(39));
        Assert.Throws<ArgumentException>(() => model.Sequence.TrimTo(42));
        Assert.Equal(41, model.Sequence.LogicalLength);
    }

    [Fact]
    public void A_view_without_the_values_of_the_geometry_is_refused_and_nothing_moves()
    {
        using var model = new SmallModel("streaming-llm:budget=16,sink=4");
        model.Prefill(40);
        var keysAlone = new KvView(SmallModel.KvHeads,
                                   KvPlane.TokenMajor(model.Keys[1], SmallModel.KvHeads, SmallModel.Dim));
        var e = Assert.Throws<ArgumentException>(
            () => model.Sequence.Evict([model.Views[0], keysAlone], model.Workspace));
        Assert.Contains("views[1]: v.data is 0", e.Message);
        for (int l = 0; l < SmallModel.Layers; ++l)
        {
            Assert.Equal(40, model.Sequence.StoredLength(l));
            Assert.Equal(Enumerable.Range(0, 40),
                         Enumerable.Range(0, 40).Select(slot => model.TokenInSlot(l, 1, slot)));
        }
    }

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
