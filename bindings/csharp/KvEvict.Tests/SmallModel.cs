namespace KvEvict.Tests;

/// <summary>
/// A model with filled caches: element e of KV head h of token t of layer l says where it comes from, so that a
/// test can see which row lies in a slot.
/// </summary>
internal sealed class SmallModel : IDisposable
{
    public const int Layers = 2, QueryHeads = 4, KvHeads = 2, Dim = 8, MaxTokens = 64;

    public SmallModel(string policy, Context? context = null)
    {
        Context = context ?? new Context();
        Plan = new Plan(Context, Geometry, Policy.Parse(policy));
        Sequence = new Sequence(Plan);
        if (Context.Device == Device.Cpu) Workspace = Plan.CreateWorkspace(Operation.Evict);
        for (int l = 0; l < Layers; ++l)
        {
            Keys[l] = new PinnedMemory<float>(MaxTokens * KvHeads * Dim);
            Values[l] = new PinnedMemory<float>(MaxTokens * KvHeads * Dim);
            for (int i = 0; i < Keys[l].Length; ++i)
            {
                Keys[l].Span[i] = Content(l, i / (KvHeads * Dim), i / Dim % KvHeads);
                Values[l].Span[i] = -Content(l, i / (KvHeads * Dim), i / Dim % KvHeads);
            }
            Views[l] = new View(KvHeads, Plane.TokenMajor(Place(Keys[l]), DType.F32, KvHeads, Dim),
                                Plane.TokenMajor(Place(Values[l]), DType.F32, KvHeads, Dim));
        }
        Queries = new PinnedMemory<float>(MaxTokens * QueryHeads * Dim);
        for (int i = 0; i < Queries.Length; ++i) Queries.Span[i] = (i * 37 % 101 - 50) / 50f;
    }

    public static Geometry Geometry => new()
    {
        Layers = Layers, QueryHeads = QueryHeads, KvHeads = KvHeads, KeyHeadDim = Dim, ValueHeadDim = Dim,
        MaxTokens = MaxTokens,
    };

    public Context Context { get; }
    public Plan Plan { get; }
    public Sequence Sequence { get; }
    public Workspace Workspace { get; } = null!; // for the CPU only
    public PinnedMemory<float>[] Keys { get; } = new PinnedMemory<float>[Layers];
    public PinnedMemory<float>[] Values { get; } = new PinnedMemory<float>[Layers];
    public PinnedMemory<float> Queries { get; }
    public View[] Views { get; } = new View[Layers];

    public static float Content(int layer, int token, int head) => token + head / 4f + layer / 16f;

    public Plane QueryPlane => Plane.TokenMajor(Place(Queries), DType.F32, QueryHeads, Dim);

    public void Prefill(int tokens)
    {
        for (int l = 0; l < Layers; ++l) Sequence.Capture(l, QueryPlane, tokens, 0);
        Sequence.Append(tokens);
    }

    public EvictReport Evict() => Sequence.Evict(Views, Workspace);

    /// <summary>The token whose key row lies in a slot, by the row's content.</summary>
    public int TokenInSlot(int layer, int head, int slot)
    {
        float key = Keys[layer].Span[(slot * KvHeads + head) * Dim];
        float value = Values[layer].Span[(slot * KvHeads + head) * Dim + Dim - 1];
        int token = (int)key;
        return key == Content(layer, token, head) && value == -key ? token : -1;
    }

    // On CUDA by its address, as memory that the driver knows.
    private Region Place(PinnedMemory<float> memory)
    {
        Region region = memory;
        return Context.Device == Device.Cpu ? region : new Region(region.Address, region.Bytes, memory);
    }

    public void Dispose()
    {
        Sequence.Dispose();
        Plan.Dispose();
        Context.Dispose();
        Workspace?.Dispose();
        Queries.Dispose();
        foreach (PinnedMemory<float> memory in Keys.Concat(Values)) memory.Dispose();
    }
}
