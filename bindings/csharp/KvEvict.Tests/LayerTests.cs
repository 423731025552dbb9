using Xunit;

namespace KvEvict.Tests;

/// <summary>Models whose layers differ: heads, dims, types, and whether there is a cache to evict.</summary>
public sealed class LayerTests : IDisposable
{
    private const int Tokens = 40, MaxTokens = 64, Window = 4;

    private static readonly KvLayerGeometry s_small = SmallModel.Layer;
    private static readonly KvLayerGeometry s_large = new()
    {
        QueryHeads = 6, KvHeads = 3, KeyHeadDim = 16, ValueHeadDim = 4, KeyType = KvDType.F16, SoftmaxScale = 0.5f,
    };

    /// <summary>A window, a small layer, no cache, and a large layer.</summary>
    private static readonly KvGeometry s_mixed = new(
        [KvLayerGeometry.Window, s_small, s_large with { Cache = KvLayerCache.None }, s_large], MaxTokens);

    /// <summary>The places of the layers that are evicted.</summary>
    private static readonly int[] s_full = [1, 3];

    private readonly KvContext _context = new();
    private readonly List<IDisposable> _memory = [];

    public void Dispose()
    {
        _context.Dispose();
        _memory.ForEach(memory => memory.Dispose());
    }

    [Fact]
    public void A_plan_tells_what_its_layers_are()
    {
        using KvPlan plan = Plan("snapkv:budget=24,window=4");
        Assert.Equal(new KvLayerInfo(KvLayerCache.Window, 0, 0, 0, 0), plan.Layer(0) with { QueryHeads = 0 });
        Assert.Equal(new KvLayerInfo(KvLayerCache.Full, 4, 2, 2, 0), plan.Layer(1));
        Assert.Equal((KvLayerCache.None, 0), (plan.Layer(2).Cache, plan.Layer(2).ListCount));
        Assert.Equal(new KvLayerInfo(KvLayerCache.Full, 6, 3, 3, 2), plan.Layer(3));
        Assert.Equal(5, plan.ListCount);
        Assert.Equal([0, 24, 0, 24], plan.LayerBudgets(Tokens));
        Assert.Equal(KvReason.NoFullCache, plan.Capabilities(0).MoveReason);
        Assert.Equal(KvReason.None, plan.Capabilities(3).MoveReason);
        Assert.Throws<ArgumentException>(() => plan.Layer(4));
        Assert.Throws<ArgumentOutOfRangeException>(() => plan.Layer(-1));
        Assert.Throws<ArgumentException>(() => plan.Selection(2, Tokens, out _));

        using KvPlan streaming = Plan("streaming-llm:budget=16,sink=4"); // one list for all heads
        Assert.Equal((2, 1), (streaming.ListCount, streaming.Layer(3).FirstList));
        using var alike = new KvPlan(_context, SmallModel.Geometry, KvPolicy.Parse("snapkv:budget=24,window=4"));
        Assert.Equal(new KvLayerInfo(KvLayerCache.Full, 4, 2, 2, 2), alike.Layer(1));
    }

    [Theory]
    [InlineData("snapkv:budget=24,window=4,sink=2")]
    [InlineData("streaming-llm:budget=16,sink=4")]
    public void Each_is_evicted_as_if_it_were_alone(string policy)
    {
        using KvPlan plan = Plan(policy);
        using var sequence = new KvSequence(plan);
        using KvWorkspace workspace = plan.CreateWorkspace(KvOperation.Evict);
        Layer[] layers = Layers();
        sequence.BeginObserving();
        // Inputs of the other layers are not read, whatever they are.
        const int Early = Tokens - 3;
        sequence.Observe([.. layers.Select((layer, l) => new KvObservation(l, layer.Rows))], Early);
        sequence.Append(Early);
        for (int l = 0; l < layers.Length; ++l) sequence.Observe(l, layers[l].Queries[(Early * layers[l].Row)..]);
        sequence.Append(Tokens - Early);
        KvView[] views = [null!, layers[1].View, new(9, default), layers[3].View];
        KvEvictReport report = sequence.Evict(views, workspace);

        long before = 0, after = 0, tokens = 0;
        foreach (int l in s_full)
        {
            Layer alone = new(this, s_mixed.Layers[l]);
            using var one = new KvPlan(_context, new KvGeometry(1, alone.Geometry, MaxTokens), KvPolicy.Parse(policy));
            using var sole = new KvSequence(one);
            using KvWorkspace scratch = one.CreateWorkspace(KvOperation.Evict);
            sole.BeginObserving();
            sole.Observe(0, alone.Queries[..(Tokens * alone.Row)]);
            sole.Append(Tokens);
            KvEvictReport its = sole.Evict([alone.View], scratch);
            (before, after, tokens) = (before + its.BytesBefore, after + its.BytesAfter, tokens + its.TokensAfter);
            for (int h = 0; h < alone.Geometry.KvHeads; ++h)
                Assert.Equal(sole.KeepPositions(0, h), sequence.KeepPositions(l, h));
            Assert.Equal(alone.Bytes, layers[l].Bytes);
            KvListReport list = sole.ListReports()[0];
            Assert.All(sequence.ListReports().Where(other => other.Layer == l),
                       other => Assert.Equal(list, other with { Layer = 0 }));
        }
        Assert.Equal(new KvEvictReport(true, before, after, 2 * Tokens, tokens, 0), report);
        foreach (int l in new[] { 0, 2 })
            Assert.Contains($"layer {l} has no full cache",
                            Assert.Throws<ArgumentException>(() => sequence.StoredLength(l)).Message);
        Assert.Equal(0, sequence.MemoryOf(0).Lengths);
        Assert.Equal(plan.ListCount, sequence.ListReports().Length);
        Assert.Equal(s_full, sequence.ListReports().Select(list => list.Layer).Distinct());
    }

    [Fact]
    public void Each_has_inputs_of_its_own_shape()
    {
        using KvPlan plan = Plan("custom:budget=6,sink=0");
        using var sequence = new KvSequence(plan);
        using KvWorkspace workspace = plan.CreateWorkspace(KvOperation.Evict);
        KvView[] views = [.. Layers().Select(layer => layer.View)];
        sequence.Append(Tokens);
        KvPlane Best(int heads, params int[] slots)
        {
            KvPinnedMemory<float> scores = Pinned<float>(heads * Tokens);
            for (int h = 0; h < heads; ++h)
            {
                foreach (int slot in slots) scores.Span[h * Tokens + slot] = 1;
            }
            return KvPlane.HeadMajor(scores, Tokens, 1);
        }
        KvPlane nowhere = KvPlane.HeadMajor(new KvRegion(64, 0), KvDType.F32, Tokens, 1);
        KvSignalInputs[] inputs =
        [
            new() { Scores = nowhere }, new() { Scores = Best(2, 1, 4, 9, 12, 16, 19) },
            new() { Queries = nowhere }, new() { Scores = Best(3, 0, 2, 4, 6, 8, 39) },
        ];
        KvPlane two = Best(2, 1);
        Assert.Contains("Scores[3]", Assert.Throws<ArgumentException>(
            () => Evict([.. inputs[..3], new() { Scores = two }])).Message); // of three heads
        Evict(inputs);
        Assert.Equal([1, 4, 9, 12, 16, 19], sequence.KeepPositions(1, 1));
        Assert.Equal([0, 2, 4, 6, 8, 39], sequence.KeepPositions(3, 2));

        void Evict(KvSignalInputs[] inputs) =>
            sequence.Evict(views, workspace, new KvEvictOptions { Inputs = inputs });
    }

    [Fact]
    public void Each_is_scored_by_its_own_shape()
    {
        using KvPlan plan = Plan("snapkv:budget=24,window=4");
        using KvWorkspace workspace = plan.CreateWorkspace(KvOperation.Score);
        Layer[] layers = Layers();
        float[] expected = new float[3 * Tokens], scores = new float[3 * Tokens];
        var job = new KvScoreJob(3, layers[3].View, Tokens);
        plan.Score(job with { Inputs = layers[3].Rows }, expected, workspace);
        plan.Score(job, layers[3].Queries[..(Window * layers[3].Row)], scores, workspace);
        Assert.Equal(expected, scores);
        Assert.Contains("Scores has 119 elements, 120 are needed", Assert.Throws<ArgumentException>(
            () => plan.Score(job with { Inputs = layers[3].Rows }, scores.AsSpan(1), workspace)).Message);
        Assert.Contains("layer 2", Assert.Throws<ArgumentException>(
            () => plan.Score(job with { Layer = 2, Inputs = layers[3].Rows }, scores, workspace)).Message);
    }

    [Fact]
    public void Heads_of_full_layers_alone_have_budgets()
    {
        KvPolicy policy = KvPolicy.Parse("snapkv:budget=24,window=4,sink=0");
        using var plan = new KvPlan(_context, s_mixed, policy,
                                    new KvPlanOptions { HeadBudgets = new[] { 4, 9, 12, 20, 40 } });
        using var sequence = new KvSequence(plan);
        using KvWorkspace workspace = plan.CreateWorkspace(KvOperation.Evict);
        Layer[] layers = Layers();
        sequence.Append(Tokens);
        KvSignalInputs[] inputs = [.. layers.Select(layer => layer.Rows)];
        for (int round = 0; round < 2; ++round)
        {
            sequence.Evict([.. layers.Select(layer => layer.View)], workspace, new KvEvictOptions { Inputs = inputs });
            Assert.Equal([4, 9], new[] { sequence.StoredLength(1), sequence.StoredLength(1, 1) });
            Assert.Equal([12, 20, 40], Enumerable.Range(0, 3).Select(h => sequence.StoredLength(3, h)));
            Assert.Equal([new(1, round == 0 ? 40 : 4, 4), new(1, round == 0 ? 40 : 9, 9)], sequence.ListReports()[..2]);
        }
        Assert.Throws<ArgumentException>(() => new KvPlan(
            _context, s_mixed, policy, new KvPlanOptions { HeadBudgets = new[] { 4, 9, 12, 20 } }));
    }

    [Fact]
    public void Wrong_layers_are_refused()
    {
        KvPolicy policy = KvPolicy.Parse("none");
        Assert.Throws<ArgumentNullException>(() => new KvGeometry([s_small, null!], MaxTokens));
        Assert.Throws<ArgumentNullException>(() => new KvGeometry(2, null!, MaxTokens));
        Assert.Throws<ArgumentException>(() => new KvPlan(_context, new KvGeometry([], MaxTokens), policy));
        Assert.Throws<ArgumentException>(() => new KvPlan(_context, new KvGeometry(0, s_small, MaxTokens), policy));
        Assert.Throws<ArgumentOutOfRangeException>(
            () => new KvPlan(_context, new KvGeometry(-1, s_small, MaxTokens), policy));
        Assert.Throws<ArgumentOutOfRangeException>(
            () => new KvPlan(_context, new KvGeometry(1, s_small with { KvHeads = -1 }, MaxTokens), policy));
        Assert.Contains("layers[1]", Assert.Throws<ArgumentException>(() => new KvPlan(
            _context, new KvGeometry([s_small, s_small with { QueryHeads = 3 }], MaxTokens), policy)).Message);
        Assert.Equal((4, MaxTokens, 4), (s_mixed.LayerCount, s_mixed.MaxTokens, s_mixed.Layers.Count));
        Assert.Equal((2, 1), (SmallModel.Geometry.LayerCount, SmallModel.Geometry.Layers.Count));
    }

    private KvPlan Plan(string policy) => new(_context, s_mixed, KvPolicy.Parse(policy));

    private Layer[] Layers() => [.. s_mixed.Layers.Select(layer => new Layer(this, layer))];

    private KvPinnedMemory<T> Pinned<T>(int length) where T : unmanaged
    {
        var memory = new KvPinnedMemory<T>(length);
        _memory.Add(memory);
        return memory;
    }

    /// <summary>A layer's cache and its queries of <see cref="Tokens"/> tokens.</summary>
    private sealed class Layer
    {
        private readonly KvPinnedMemory<byte> _keys, _values;
        private readonly KvPinnedMemory<float> _queries;

        public Layer(LayerTests owner, KvLayerGeometry geometry)
        {
            Geometry = geometry;
            int heads = Math.Max(geometry.KvHeads, 1), keyBytes = geometry.KeyType == KvDType.F16 ? 2 : 4;
            int keyDim = Math.Max(geometry.KeyHeadDim, 1), valueDim = Math.Max(geometry.ValueHeadDim, 1);
            _keys = owner.Pinned<byte>(MaxTokens * heads * keyDim * keyBytes);
            _values = owner.Pinned<byte>(MaxTokens * heads * valueDim * sizeof(float));
            _queries = owner.Pinned<float>(Tokens * Math.Max(Row, 1));
            for (int i = 0; i < MaxTokens * heads * keyDim; ++i)
            {
                float value = (i * 53 % 211 - 100) / 100f;
                if (keyBytes == 2) BitConverter.TryWriteBytes(_keys.Span[(i * 2)..], (Half)value);
                else BitConverter.TryWriteBytes(_keys.Span[(i * 4)..], value);
            }
            for (int i = 0; i < _values.Length; ++i) _values.Span[i] = (byte)(i / (valueDim * sizeof(float)));
            for (int i = 0; i < _queries.Length; ++i) _queries.Span[i] = (i * 37 % 101 - 50) / 50f;
            View = new KvView(heads, KvPlane.TokenMajor(_keys, geometry.KeyType, heads, keyDim),
                              KvPlane.TokenMajor(_values, KvDType.F32, heads, valueDim));
        }

        public KvLayerGeometry Geometry { get; }
        public KvView View { get; }

        /// <summary>Elements of a token's queries.</summary>
        public int Row => Geometry.QueryHeads * Geometry.KeyHeadDim;

        public ReadOnlySpan<float> Queries => _queries.Span;

        public KvSignalInputs Rows => new()
        {
            Queries = KvPlane.TokenMajor(_queries, Math.Max(Geometry.QueryHeads, 1), Math.Max(Geometry.KeyHeadDim, 1)),
        };

        public byte[] Bytes => [.. _keys.Span, .. _values.Span];
    }
}
