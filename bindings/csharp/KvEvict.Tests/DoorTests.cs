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
        using KvWorkspace scoring = doors.Plan.CreateWorkspace(KvOperation.Score);
        using KvWorkspace selecting = doors.Context.CreateSelectWorkspace(Tokens, SmallModel.KvHeads);
        KvSignalInputs window = doors.QueriesFrom(Tokens - 4);
        for (int l = 0; l < SmallModel.Layers; ++l)
        {
            doors.Plan.Score(new KvScoreJob(l, doors.Views[l], Tokens) { Inputs = window }, scores, scoring);
            KvSelectOptions options = doors.Plan.Selection(l, Tokens, out KvKeepLists lists);
            Assert.Equal((24, SmallModel.KvHeads), (lists.Count, lists.ListCount));
            doors.Context.Select(options, scores, keep, selecting, lists.ListCount);
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

    [Fact]
    public void Protected_slots_stay()
    {
        using var context = new KvContext();
        using KvWorkspace workspace = context.CreateSelectWorkspace(10, 2);
        int[] keep = new int[8];
        context.Select(new KvSelectOptions { TokenCount = 10, ProtectedSlots = [7, 9] }, new float[2 * 10], keep,
                       workspace, 2);
        Assert.Equal([0, 1, 7, 9, 0, 1, 7, 9], keep);
    }

    [Fact]
    public void Ranges_of_slots_go_last_or_first()
    {
        using var context = new KvContext();
        using KvWorkspace workspace = context.CreateSelectWorkspace(10, 2);
        int[] keep = new int[8];
        var options = new KvSelectOptions { TokenCount = 10, Ranges = [new(0, 1, -1), new(8, 9, 2)] };
        context.Select(options, new float[2 * 10], keep, workspace, 2);
        Assert.Equal([1, 2, 3, 8, 1, 2, 3, 8], keep);
    }

    [Fact]
    public void A_budget_keeps_a_share_of_the_mass()
    {
        using var context = new KvContext();
        KvLayerScores[] layers = [new(new float[] { 1, 8, 4, 3 }, 1), new(new float[] { 1, 1, 0, 5 }, 2)];
        Assert.Equal([2, 1], context.BudgetForMass(layers, new KvMassOptions(0.75)));
        Assert.Equal([2, 2], context.BudgetForMass(layers, new KvMassOptions(0.75) { EveryRow = true }));
        Assert.Equal([2, 2, 1], context.BudgetForMass(layers, new KvMassOptions(0.75) { Scope = KvScope.KvHead }));
        Assert.Equal([2], context.BudgetForMass(layers, new KvMassOptions(0.9) { Scope = KvScope.Model }));
        Assert.Equal([3, 2], context.BudgetForMass(
            layers, new KvMassOptions(0.75) { SinkCount = 1, RecentCount = 1 }));
        Assert.Empty(context.BudgetForMass([], new KvMassOptions(0.5) { Scope = KvScope.Model }));
        Assert.Throws<ArgumentException>(() => context.BudgetForMass(layers, default));
        Assert.Throws<ArgumentException>(
            () => context.BudgetForMass([new(new float[4], 3)], new KvMassOptions(0.5)));
    }

    [Fact]
    public void Every_list_may_have_a_count_of_its_own()
    {
        using var context = new KvContext();
        using KvWorkspace workspace = context.CreateSelectWorkspace(10, 2);
        using var scores = new KvPinnedMemory<float>(new float[] { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0 });
        using var held = new KvPinnedMemory<int>(new[] { 10, 6 });
        using var slots = new KvPinnedMemory<int>(Enumerable.Repeat(-1, 10).ToArray());
        using var counts = new KvPinnedMemory<int>(new[] { 4, 2 });
        var lists = new KvKeepLists(slots, 4, 2) { ListStride = 5, Counts = counts };
        context.Select(new KvSelectOptions { TokenCount = 10, TokenCounts = held, Scores = scores, SinkCount = 1 },
                       lists, workspace);
        Assert.Equal([0, 7, 8, 9, -1, 0, 1, -1, -1, -1], slots.Span.ToArray());

        // Without scores the first tokens stay, or the last.
        context.Select(new KvSelectOptions { TokenCount = 10, Tie = KvTie.HigherPosition, SinkCount = 1 }, lists,
                       workspace);
        Assert.Equal([0, 7, 8, 9, -1, 0, 9, -1, -1, -1], slots.Span.ToArray());

        counts.Span[1] = 5;
        Fails("keep.counts[1] 5 > 4");
        counts.Span[1] = 0;
        Fails("sink 1");
        lists = lists with { Counts = counts.ToRegion().Slice(0, 4) };
        Assert.Contains("Counts has 1 elements, 2 are needed", Assert.Throws<ArgumentException>(
            () => context.Select(new KvSelectOptions { TokenCount = 10 }, lists, workspace)).Message);

        void Fails(string text) => Assert.Contains(text, Assert.Throws<ArgumentException>(
            () => context.Select(new KvSelectOptions { TokenCount = 10, SinkCount = 1 }, lists, workspace)).Message);
    }

    [Fact]
    public void All_layers_move_in_one_call()
    {
        using var model = new SmallModel("none");
        using var slots = new KvPinnedMemory<int>(new[] { 1, 5, 9, 2, 40, 0 });
        using var counts = new KvPinnedMemory<int>(new[] { 3, 2 });
        var shared = new KvKeepLists(slots, 3);
        KvKeepLists ragged = shared with { ListCount = 2, Counts = counts };
        KvMove[] moves = [new(model.Views[0], Tokens, shared), new(model.Views[1], Tokens, ragged)];
        Assert.Equal(new KvWorkspaceSize(64, 0, 0), model.Context.CompactWorkspaceSize(moves));
        model.Context.Compact(moves);
        for (int i = 0; i < 3; ++i)
        {
            Assert.Equal(slots.Span[i], model.TokenInSlot(0, 0, i));
            Assert.Equal(slots.Span[i], model.TokenInSlot(0, 1, i));
            Assert.Equal(slots.Span[i], model.TokenInSlot(1, 0, i));
            if (i < 2) Assert.Equal(slots.Span[3 + i], model.TokenInSlot(1, 1, i));
        }

        KvMove[] merging = [new(model.Views[0], 3, new KvKeepLists(slots, 1)) { Merge = KvMerge.Pivot }];
        Assert.True(model.Context.CompactWorkspaceSize(merging).Least > 0);
        merging[0] = merging[0] with { MergeThreshold = 2 };
        Assert.Contains("merge_threshold 2",
                        Assert.Throws<ArgumentException>(() => model.Context.Compact(merging)).Message);

        // Both layers go back to front; the second one's lists have 3 and 2 slots.
        using var backwards = new KvPinnedMemory<int>(new[] { 2, 1, 0, 1, 0, 9 });
        moves = [new(model.Views[0], 3, new KvKeepLists(backwards, 3)),
                 new(model.Views[1], 3, new KvKeepLists(backwards, 3, 2) { Counts = counts })];
        using KvWorkspace workspace = model.Context.CreateReorderWorkspace(moves);
        model.Context.Reorder(moves, workspace);
        Assert.Equal([9, 5, 1], Enumerable.Range(0, 3).Select(i => model.TokenInSlot(0, 1, i)));
        Assert.Equal([9, 5, 1], Enumerable.Range(0, 3).Select(i => model.TokenInSlot(1, 0, i)));
        Assert.Equal([40, 2], Enumerable.Range(0, 2).Select(i => model.TokenInSlot(1, 1, i)));

        moves = [moves[0] with { Keep = shared with { Count = 1 } }, moves[0] with { Keep = shared with { Count = 1 } }];
        Assert.Contains("moves[1]", Assert.Throws<ArgumentException>(() => model.Context.Compact(moves)).Message);
        moves = [.. Enumerable.Repeat(moves[0], 129)];
        Assert.Contains("moves_len 129 > 128",
                        Assert.Throws<ArgumentException>(() => model.Context.Compact(moves)).Message);
        model.Context.Compact([]);
    }

    [Fact]
    public void Rows_move_from_a_slot_on_and_to_another_cache()
    {
        using var model = new SmallModel("none");
        using var other = new SmallModel("none");
        using var slots = new KvPinnedMemory<int>(new[] { 12, 40 });
        var tail = new KvMove(model.Views[0], Tokens, new KvKeepLists(slots, 2)) { FirstSlot = 10 };
        Assert.Equal(new KvWorkspaceSize(64, 0, 0), model.Context.CompactWorkspaceSize([tail]));
        model.Context.Compact([tail]);
        Assert.Equal([8, 9, 12, 40], Enumerable.Range(8, 4).Select(i => model.TokenInSlot(0, 1, i)));
        Fails("[13, n_tokens", tail with { FirstSlot = 13 });

        KvMove copy = tail with { View = model.Views[1], FirstSlot = 30, Destination = other.Views[1] };
        Assert.Equal(0, model.Context.CompactWorkspaceSize([copy]).Best);
        model.Context.Compact([copy]);
        Assert.Equal([29, 12, 40, 32], Enumerable.Range(29, 4).Select(i => other.TokenInSlot(1, 0, i)));
        Assert.Equal(Enumerable.Range(0, Tokens), Enumerable.Range(0, Tokens).Select(i => model.TokenInSlot(1, 0, i)));
        Fails("destination is the view itself", copy with { Destination = copy.View });

        void Fails(string text, KvMove move) => Assert.Contains(
            text, Assert.Throws<ArgumentException>(() => model.Context.Compact([move])).Message);
    }

    [Fact]
    public void Rows_are_quantized_on_their_way_and_read_on_the_way_back()
    {
        const int row = SmallModel.KvHeads * SmallModel.Dim, heads = SmallModel.KvHeads, kept = 3;
        using var context = new KvContext();
        using var source = new KvPinnedMemory<float>(8 * row);
        using var codes = new KvPinnedMemory<byte>(kept * row);
        using var scales = new KvPinnedMemory<float>(kept * heads);
        using var minima = new KvPinnedMemory<float>(kept * heads);
        using var back = new KvPinnedMemory<float>(kept * row);
        using var slots = new KvPinnedMemory<int>(new[] { 1, 4, 7 });
        for (int i = 0; i < source.Length; ++i) source.Span[i] = i * 37 % 101 - 50;
        KvView Plain(KvPinnedMemory<float> rows) => new(heads, KvPlane.TokenMajor(rows, heads, SmallModel.Dim));
        var quantized = new KvView(heads, KvPlane.TokenMajor(codes, KvDType.U8, heads, SmallModel.Dim))
        {
            Companions =
            [
                KvPlane.TokenMajor(scales, heads, 1) with { Role = KvRole.KeyScale },
                KvPlane.TokenMajor(minima, heads, 1) with { Role = KvRole.KeyMinimum },
            ],
        };
        var move = new KvMove(Plain(source), 8, new KvKeepLists(slots, kept)) { Destination = quantized };
        context.Compact([move]);
        for (int i = 0; i < kept * heads; ++i)
        {
            Span<float> rows = source.Span.Slice(slots.Span[i / heads] * row + i % heads * SmallModel.Dim,
                                                 SmallModel.Dim);
            float least = rows.ToArray().Min(), most = rows.ToArray().Max();
            Assert.Equal(least, minima.Span[i]);
            Assert.Equal((most - least) / 255, scales.Span[i]);
        }
        using var all = new KvPinnedMemory<int>(new[] { 0, 1, 2 });
        context.Compact([new KvMove(quantized, kept, new KvKeepLists(all, kept)) { Destination = Plain(back) }]);
        for (int i = 0; i < back.Length; ++i)
        {
            float half = scales.Span[i / SmallModel.Dim] * 0.5001f;
            Assert.InRange(back.Span[i] - source.Span[slots.Span[i / row] * row + i % row], -half, half);
        }

        var bare = new KvView(heads, quantized.Keys);
        Assert.Contains("scale", Assert.ThrowsAny<Exception>(
            () => context.Compact([move with { Destination = bare }])).Message);
    }

    [Fact]
    public void All_layers_score_in_one_call()
    {
        using var model = new SmallModel("snapkv:budget=24,window=4");
        using KvWorkspace workspace = model.Plan.CreateWorkspace(KvOperation.Score);
        using var first = new KvPinnedMemory<float>(SmallModel.KvHeads * Tokens);
        using var second = new KvPinnedMemory<float>(SmallModel.KvHeads * 40);
        KvScoreJob[] jobs =
        [
            new(0, model.Views[0], Tokens) { Inputs = model.QueriesFrom(Tokens - 4), Scores = first },
            new(1, model.Views[1], 40) { Inputs = model.QueriesFrom(36), Scores = second },
        ];
        model.Plan.Score(jobs, workspace);
        foreach ((KvScoreJob job, KvPinnedMemory<float> scores) in jobs.Zip([first, second]))
        {
            float[] alone = new float[scores.Length];
            model.Plan.Score(job, alone, workspace);
            Assert.Equal(alone, scores.Span.ToArray());
        }
        jobs[1] = jobs[1] with { Inputs = model.QueriesFrom(61) };
        Assert.Contains("Queries[1]",
                        Assert.Throws<ArgumentException>(() => model.Plan.Score(jobs, workspace)).Message);
        Assert.Contains("jobs_len 129 > 128", Assert.Throws<ArgumentException>(
            () => model.Plan.Score([.. Enumerable.Repeat(jobs[0], 129)], workspace)).Message);
        model.Plan.Score([], workspace);
    }

    [Fact]
    public void Own_scores_are_shaped()
    {
        using var model = new SmallModel("custom:sink=0,budget=6,pool=max3");
        using KvWorkspace workspace = model.Plan.CreateWorkspace(KvOperation.Score);
        using var own = new KvPinnedMemory<float>(SmallModel.KvHeads * Tokens);
        own.Span[10] = own.Span[Tokens + 20] = 1;
        float[] scores = new float[own.Length], expected = new float[own.Length];
        for (int i = -1; i <= 1; ++i) expected[10 + i] = expected[Tokens + 20 + i] = 1;
        var job = new KvScoreJob(0, model.Views[0], Tokens);
        Assert.Throws<ArgumentException>(() => model.Plan.Score(job, scores, workspace));
        model.Plan.Score(job with { Inputs = new() { Scores = KvPlane.HeadMajor(own, Tokens, 1) } }, scores, workspace);
        Assert.Equal(expected, scores);
    }

    [Fact]
    public void Accumulated_attention_is_scored()
    {
        float[] sums = [5, 4, 3, 2, 1, 10, 8, 3, 0, 7];
        using var pinned = new KvPinnedMemory<float>(sums.Concat(sums).ToArray());
        var all = new KvSignalInputs { AttentionSums = KvPlane.HeadMajor(pinned, 5, 1) };
        KvSignalInputs reduced = all with { SumHeads = SmallModel.KvHeads };
        Assert.Equal(sums, Score("h2o", reduced));
        // The first of five tokens was seen by five queries, the last by one.
        Assert.Equal([1, 1, 1, 1, 1, 2, 2, 1, 0, 7], Score("h2o:rows=mean", reduced));
        Assert.Equal([10, 8, 3, 2, 7, 10, 8, 3, 2, 7], Score("h2o:group=max", all));
        Assert.Contains("attention_sums is NULL", Assert.Throws<ArgumentException>(() => Score("h2o", default)).Message);
        Assert.Contains("n_sum_heads 3", Assert.Throws<ArgumentException>(
            () => Score("h2o", all with { SumHeads = 3 })).Message);
        Assert.Throws<ArgumentOutOfRangeException>(() => Score("h2o", all with { SumHeads = -1 }));

        static float[] Score(string policy, KvSignalInputs inputs)
        {
            using var model = new SmallModel(policy);
            using KvWorkspace workspace = model.Plan.CreateWorkspace(KvOperation.Score);
            float[] scores = new float[SmallModel.KvHeads * 5];
            model.Plan.Score(new KvScoreJob(0, model.Views[0], 5) { Inputs = inputs }, scores, workspace);
            return scores;
        }
    }

    [Fact]
    public void Attention_that_is_observed_is_added_up()
    {
        using var model = new SmallModel("h2o:budget=3,recent=1");
        Observe([5, 0, 3, 0, 0, 9, 0, 1], 4, null);
        model.Sequence.Append(5);
        Assert.Throws<ArgumentException>(() => Observe([0, 0, 0, 0, 0, 0, 0, 0], 1, 4));
        Observe([0, 1, 0, 0, 0, 0, 0, 0, 8, 0], 1, 4);
        Assert.Contains("do not follow", Assert.Throws<ArgumentException>(
            () => Observe([0, 0, 0, 0, 0, 0, 0, 0, 0, 0], 1, 4)).Message);
        model.Evict();
        Assert.Equal([0, 2, 4], model.Sequence.KeepPositions(1, 0));
        Assert.Equal([1, 3, 4], model.Sequence.KeepPositions(1, 1));
        KvSequenceMemory memory = model.Sequence.MemoryOf(1);
        Assert.Equal((SmallModel.KvHeads, (long)SmallModel.MaxTokens), (memory.SumHeads, memory.SumStride));
        Assert.NotEqual(0, memory.Sums);

        void Observe(float[] sums, int rows, int? first)
        {
            using var pinned = new KvPinnedMemory<float>(sums);
            var inputs = new KvSignalInputs
            {
                AttentionSums = KvPlane.HeadMajor(pinned, sums.Length / SmallModel.KvHeads, 1),
                SumHeads = SmallModel.KvHeads, QueryRows = 77,
            };
            model.Sequence.Observe([new(0, inputs), new(1, inputs)], rows, first);
        }
    }

    [Fact]
    public void Inputs_that_are_too_short_are_refused()
    {
        const int Q = SmallModel.QueryHeads, Kv = SmallModel.KvHeads, Dim = SmallModel.Dim;
        using var model = new SmallModel("random:sink=0,budget=24");
        using KvWorkspace workspace = model.Plan.CreateWorkspace(KvOperation.Score);
        float[] scores = new float[Kv * Tokens];
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
    public void Caps_and_sinks_are_of_the_geometry()
    {
        using var context = new KvContext();
        KvPolicy policy = KvPolicy.Parse("snapkv:budget=24,window=4");
        KvLayerGeometry layer = SmallModel.Geometry.Layers[0] with { LogitSoftcap = 30 };
        var sinks = new float[layer.QueryHeads];
        KvGeometry Of(KvLayerGeometry each, float[] logits) => new(1, each, Tokens) { SinkLogits = logits };
        using (new KvPlan(context, Of(layer, sinks), policy)) { }
        Assert.Contains("sink_logits_len", Assert.Throws<ArgumentException>(
            () => new KvPlan(context, Of(layer, sinks[1..]), policy)).Message);
        Assert.Contains("logit_softcap -1", Assert.Throws<ArgumentException>(
            () => new KvPlan(context, Of(layer with { LogitSoftcap = -1 }, []), policy)).Message);
    }

    [Fact]
    public void Triattention_scores_by_centers_of_queries()
    {
        const int Q = SmallModel.QueryHeads, Kv = SmallModel.KvHeads, Pairs = SmallModel.Dim / 2;
        using var model = new SmallModel("random:sink=0,budget=24");
        using var context = new KvContext();
        KvPolicy policy = KvPolicy.Parse("triattention:sink=0,budget=24");
        KvLayerGeometry layer = model.Plan.Geometry.Layers[0];
        Assert.Contains("rope_inv_freq is NULL", Assert.Throws<ArgumentException>(
            () => new KvPlan(context, new KvGeometry(1, layer, Tokens), policy)).Message);
        float[] frequencies = [.. Enumerable.Range(0, Pairs).Select(f => MathF.Pow(100, -(float)f / Pairs))];
        var geometry = new KvGeometry(1, layer, Tokens)
        {
            RopeInverseFrequencies = frequencies, RopeLayout = KvRopeLayout.Interleaved,
        };
        using var plan = new KvPlan(context, geometry, policy);
        using KvWorkspace workspace = plan.CreateWorkspace(KvOperation.Score);
        using var centers = new KvPinnedMemory<float>(Q * 3 * Pairs);
        for (int i = 0; i < centers.Length; ++i) centers.Span[i] = i % 7 + 1;
        var job = new KvScoreJob(0, model.Views[0], Tokens)
        {
            Inputs = new() { QueryCenters = KvPlane.HeadMajor(centers, 3, Pairs) },
        };
        float[] now = new float[Kv * Tokens], later = new float[Kv * Tokens];
        plan.Score(job, now, workspace);
        Assert.InRange(now.Max(), 0.1f, 100f);
        plan.Score(job with { SeenCount = Tokens }, later, workspace);
        Assert.Equal(now, later);
        plan.Score(job with { SeenCount = Tokens + 100 }, later, workspace);
        Assert.NotEqual(now, later);
        Assert.Contains("n_seen 1", Assert.Throws<ArgumentException>(
            () => plan.Score(job with { SeenCount = 1 }, later, workspace)).Message);
    }

    [Fact]
    public void Heads_may_hold_different_numbers_of_tokens()
    {
        using var model = new SmallModel("knorm:sink=0,budget=24");
        using KvWorkspace workspace = model.Plan.CreateWorkspace(KvOperation.Score);
        using var counts = new KvPinnedMemory<int>(new[] { Tokens, 20 });
        float[] all = new float[SmallModel.KvHeads * Tokens], scores = new float[all.Length];
        var job = new KvScoreJob(0, model.Views[0], Tokens);
        model.Plan.Score(job, all, workspace);
        model.Plan.Score(job with { TokenCounts = counts }, scores, workspace);
        Assert.Equal(all[..(Tokens + 20)], scores[..(Tokens + 20)]);

        using var slots = new KvPinnedMemory<int>(new[] { 5, 30, 5, 19 });
        KvMove move = new(model.Views[0], Tokens, new KvKeepLists(slots, 2, 2)) { TokenCounts = counts };
        model.Context.Compact([move]);
        Assert.Equal([5, 30], new[] { model.TokenInSlot(0, 0, 0), model.TokenInSlot(0, 0, 1) });
        Assert.Equal([5, 19], new[] { model.TokenInSlot(0, 1, 0), model.TokenInSlot(0, 1, 1) });
        slots.Span[3] = 20; // the second head has no such slot
        Assert.Contains("keep[1][1] 20", Assert.Throws<ArgumentException>(() => model.Context.Compact([move])).Message);
        Assert.Throws<ArgumentException>(() => model.Context.Reorder([move], workspace));
        counts.Span[0] = Tokens + 1;
        Assert.Throws<ArgumentException>(() => model.Context.Compact([move]));
        move = move with { TokenCounts = counts.ToRegion().Slice(4) };
        Assert.Contains("TokenCounts has 1 elements, 2 are needed",
                        Assert.Throws<ArgumentException>(() => model.Context.Compact([move])).Message);
    }

    [Fact]
    public void A_policy_without_queries_scores_too()
    {
        using var model = new SmallModel("random:sink=0,budget=24,seed=7");
        using KvWorkspace workspace = model.Plan.CreateWorkspace(KvOperation.Score);
        float[] first = new float[SmallModel.KvHeads * Tokens], second = new float[first.Length];
        model.Plan.Score(new KvScoreJob(0, model.Views[0], Tokens), first, workspace);
        model.Plan.Score(new KvScoreJob(1, model.Views[1], Tokens), second, workspace);
        Assert.NotEqual(first, second);
        using var streaming = new SmallModel("streaming-llm:budget=24,sink=4");
        Assert.Contains("nothing to score", Assert.Throws<ArgumentException>(() => streaming.Plan.Score(
            new KvScoreJob(0, model.Views[0], Tokens), first, workspace)).Message);
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
    public void A_plan_answers_questions()
    {
        using var model = new SmallModel("pyramidkv:budget=24,window=4");
        Assert.Equal(48, model.Plan.LayerBudgets(60).Sum());
        foreach (KvOperation operation in Enum.GetValues<KvOperation>())
        {
            KvWorkspaceSize size = model.Plan.WorkspaceSize(operation), few = model.Plan.WorkspaceSize(operation, 8);
            Assert.Equal(64, size.Alignment);
            Assert.InRange(size.Least, 1, size.Best);
            Assert.InRange(few.Best, few.Least, size.Best - (operation == KvOperation.Evict ? 1 : 0));
            using KvWorkspace workspace = model.Plan.CreateWorkspace(operation, 8);
            Assert.Equal(few.Best, workspace.ToRegion().Bytes);
        }
        Assert.Equal(SmallModel.Layers * 4 * SmallModel.QueryHeads * SmallModel.Dim * sizeof(float),
                     model.Plan.WorkspaceSize(KvOperation.Observe).Least);
        Assert.InRange(model.Context.SelectWorkspaceSize(Tokens).Least, 1,
                       model.Context.SelectWorkspaceSize(Tokens, 2).Best);
        Assert.Throws<ArgumentException>(() => model.Plan.WorkspaceSize((KvOperation)9));
        Assert.Throws<ArgumentException>(() => model.Plan.WorkspaceSize(KvOperation.Evict, SmallModel.MaxTokens + 1));
        Assert.Throws<ArgumentOutOfRangeException>(() => model.Plan.WorkspaceSize(KvOperation.Evict, -1));
        Assert.Throws<ArgumentOutOfRangeException>(() => model.Context.SelectWorkspaceSize(-1));
        Assert.Throws<ArgumentOutOfRangeException>(() => new KvWorkspace(-1));
        Assert.Throws<ArgumentOutOfRangeException>(() => new KvWorkspace(1, 0));
        KvCapabilities can = model.Plan.Capabilities(1);
        Assert.True(can is { CanMove: true, CanScore: true, CanRotate: false, NeedsScore: true });
        Assert.Equal(KvReason.NoRope, can.RotateReason);
        Assert.NotEqual("", KvEvictLibrary.ReasonText(can.RotateReason));
        Assert.Throws<ArgumentException>(() => model.Plan.Capabilities(2));
        Assert.Throws<ArgumentOutOfRangeException>(() => model.Plan.LayerBudgets(-5));
    }

    [Fact]
    public void The_library_answers_questions()
    {
        Assert.NotEmpty(KvEvictLibrary.SimdTargets);
        Assert.Equal(Enum.GetValues<KvDType>().Order(), KvEvictLibrary.DTypes.Select(t => t.DType).Order());
        Assert.Contains(new KvDTypeInfo(KvDType.F16, "f16", 2, true, true, true, 1, 2, false, false, false),
                        KvEvictLibrary.DTypes);
        Assert.Contains(new KvDTypeInfo(KvDType.U4, "u4", 0, true, true, false, 2, 1, true, true, true),
                        KvEvictLibrary.DTypes);
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
        var e = Assert.Throws<ArgumentException>(() => new KvContext(new KvContextOptions { SimdTarget = "MMX" }));
        Assert.Contains("simd_target \"MMX\"", e.Message);
    }
}
