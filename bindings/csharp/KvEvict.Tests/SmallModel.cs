namespace KvEvict.Tests;

/// <summary>
/// A model with filled caches: element e of KV head h of token t of layer l says where it comes from, so that a
/// test can see which row lies in a slot.
/// </summary>
internal sealed class SmallModel : IDisposable
{
    public const int Layers = 2, QueryHeads = 4, KvHeads = 2, Dim = 8, MaxTokens = 64;

    public SmallModel(string policy, KvContext? context = null, KvDType queryType = KvDType.F32,
                      KvPlanOptions? options = null)
    {
        Context = context ?? new KvContext();
        var geometry = new KvGeometry(Layers, Layer with { QueryType = queryType }, MaxTokens);
        Plan = new KvPlan(Context, geometry, KvPolicy.Parse(policy), options);
        Sequence = new KvSequence(Plan);
        Sequence.BeginObserving();
        if (Context.Device == KvDevice.Cpu) Workspace = Plan.CreateWorkspace(KvOperation.Evict);
        for (int l = 0; l < Layers; ++l)
        {
            Keys[l] = new KvPinnedMemory<float>(MaxTokens * KvHeads * Dim);
            Values[l] = new KvPinnedMemory<float>(MaxTokens * KvHeads * Dim);
            for (int i = 0; i < Keys[l].Length; ++i)
            {
                Keys[l].Span[i] = Content(l, i / (KvHeads * Dim), i / Dim % KvHeads);
                Values[l].Span[i] = -Content(l, i / (KvHeads * Dim), i / Dim % KvHeads);
            }
            Views[l] = new KvView(KvHeads, KvPlane.TokenMajor(Place(Keys[l]), KvDType.F32, KvHeads, Dim),
                                  KvPlane.TokenMajor(Place(Values[l]), KvDType.F32, KvHeads, Dim));
        }
        Queries = new KvPinnedMemory<float>(MaxTokens * QueryHeads * Dim);
        for (int i = 0; i < Queries.Length; ++i) Queries.Span[i] = (i * 37 % 101 - 50) / 50f;
    }

    public static KvLayerGeometry Layer => new()
    {
        QueryHeads = QueryHeads, KvHeads = KvHeads, KeyHeadDim = Dim, ValueHeadDim = Dim,
    };

    public static KvGeometry Geometry => new(Layers, Layer, MaxTokens);

    public KvContext Context { get; }
    public KvPlan Plan { get; }
    public KvSequence Sequence { get; }
    public KvWorkspace Workspace { get; } = null!; // for the CPU only
    public KvPinnedMemory<float>[] Keys { get; } = new KvPinnedMemory<float>[Layers];
    public KvPinnedMemory<float>[] Values { get; } = new KvPinnedMemory<float>[Layers];
    public KvPinnedMemory<float> Queries { get; }
    public KvView[] Views { get; } = new KvView[Layers];

    public static float Content(int layer, int token, int head) => token + head / 4f + layer / 16f;

    /// <summary>The queries, in the geometry's type.</summary>
    public KvPlane QueryPlane => Plan.Geometry.Layers[0].QueryType switch
    {
        KvDType.F16 => KvPlane.TokenMajor(new KvPinnedMemory<Half>(ToHalf(Queries.Span)), QueryHeads, Dim),
        KvDType.BF16 => KvPlane.TokenMajor(new KvPinnedMemory<ushort>(ToBF16(Queries.Span)), KvDType.BF16,
                                           QueryHeads, Dim),
        _ => KvPlane.TokenMajor(Place(Queries), KvDType.F32, QueryHeads, Dim),
    };

    /// <summary>The queries from a token on, as a layer's inputs.</summary>
    public KvSignalInputs QueriesFrom(int token) =>
        new() { Queries = QueryPlane with { Offset = token * QueryPlane.TokenStride } };

    public static Half[] ToHalf(ReadOnlySpan<float> values) => [.. values.ToArray().Select(v => (Half)v)];

    public static ushort[] ToBF16(ReadOnlySpan<float> values) =>
        [.. values.ToArray().Select(v => (ushort)(BitConverter.SingleToUInt32Bits(v) >> 16))];

    public void Prefill(int tokens)
    {
        for (int l = 0; l < Layers; ++l) Sequence.Observe(l, QueryPlane, tokens, 0);
        Sequence.Append(tokens);
    }

    /// <summary>Writes rows of tokens to every head's next slots, as an engine does.</summary>
    public void Store(int layer, int firstToken, int tokens)
    {
        for (int head = 0; head < KvHeads; ++head)
        {
            int stored = Sequence.StoredLength(layer, head);
            for (int i = 0; i < tokens; ++i)
            {
                int row = ((stored + i) * KvHeads + head) * Dim;
                Keys[layer].Span.Slice(row, Dim).Fill(Content(layer, firstToken + i, head));
                Values[layer].Span.Slice(row, Dim).Fill(-Content(layer, firstToken + i, head));
            }
        }
    }

    public KvEvictReport Evict() => Sequence.Evict(Views, Workspace);

    /// <summary>The token whose key row lies in a slot, by the row's content.</summary>
    public int TokenInSlot(int layer, int head, int slot)
    {
        float key = Keys[layer].Span[(slot * KvHeads + head) * Dim];
        float value = Values[layer].Span[(slot * KvHeads + head) * Dim + Dim - 1];
        int token = (int)key;
        return key == Content(layer, token, head) && value == -key ? token : -1;
    }

    // CUDA gets the address, as memory that the driver knows.
    private KvRegion Place(KvPinnedMemory<float> memory)
    {
        KvRegion region = memory;
        return Context.Device == KvDevice.Cpu ? region : new KvRegion(region.Address, region.Bytes, memory);
    }

    public void Dispose()
    {
        Sequence.Dispose();
        Plan.Dispose();
        Context.Dispose();
        Workspace?.Dispose();
        Queries.Dispose();
        foreach (KvPinnedMemory<float> memory in Keys.Concat(Values)) memory.Dispose();
    }
}
