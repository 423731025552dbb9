// A small engine that owns its cache and uses KvEvict; bindings/examples/engine/README.md has the model.
using KvEvict;

const int Layers = 2, QueryHeads = 4, KvHeads = 2, Dim = 16, X = QueryHeads * Dim, Kv = KvHeads * Dim, Max = 160;
const int Prompt = 104, Steps = 12, Drafts = 3;

uint seed = args.Length > 0 ? uint.Parse(args[0]) : 1;
var layer = new KvLayerGeometry { QueryHeads = QueryHeads, KvHeads = KvHeads, KeyHeadDim = Dim, ValueHeadDim = Dim };
var model = new KvGeometry(Layers, layer, Max);
using var context = new KvContext();
// A step may take back this many drafts and leave the window whole.
using var plan = new KvPlan(context, model, KvPolicy.Parse("snapkv:budget=40,window=8,sink=2"),
                            new KvPlanOptions { DraftTokens = Drafts });
using var sequence = new KvSequence(plan);
sequence.BeginObserving();
using var workspace = plan.CreateWorkspace(KvOperation.Evict);

// The cache by slot in arrays that the collector does not move, and the queries of one token.
var k = new KvPinnedMemory<float>[Layers];
var v = new KvPinnedMemory<float>[Layers];
var q = new float[Layers][];
var views = new KvView[Layers];
for (int l = 0; l < Layers; ++l)
{
    k[l] = new KvPinnedMemory<float>(Max * Kv);
    v[l] = new KvPinnedMemory<float>(Max * Kv);
    q[l] = new float[X];
    views[l] = new KvView(KvHeads, KvPlane.TokenMajor(k[l], KvHeads, Dim), KvPlane.TokenMajor(v[l], KvHeads, Dim));
}
int[] x = new int[X];

ulong checksum = 14695981039346656037;
uint token = 0;
for (uint i = 0; i < Prompt; ++i) token = Step(Hash(i) % 256);
sequence.Evict(views, workspace);
for (int i = 0; i < Steps; ++i)
{
    token = Speculate(token);
    sequence.Evict(views, workspace);
}
for (int l = 0; l < Layers; ++l)
{
    for (int h = 0; h < KvHeads; ++h)
        Console.WriteLine($"layer {l} head {h} keeps {string.Join(' ', sequence.KeepPositions(l, h))}");
}
Console.WriteLine($"length {sequence.LogicalLength}, last token {token}, checksum {checksum:x16}");
foreach (KvPinnedMemory<float> memory in k.Concat(v)) memory.Dispose();

uint Hash(uint a)
{
    uint h = (a ^ seed) * 2654435761;
    h = (h ^ (h >> 15)) * 2246822519;
    return h ^ (h >> 13);
}

// Runs a token through all layers; returns the next one.
uint Step(uint token)
{
    int position = sequence.LogicalLength;
    for (int i = 0; i < X; ++i) x[i] = (int)(Hash((token * 1024 + (uint)position) * X + (uint)i) >> 28) - 8;
    for (int l = 0; l < Layers; ++l)
    {
        int slot = sequence.StoredLength(l);
        float[] query = q[l];
        Span<float> key = k[l].Span.Slice(slot * Kv, Kv);
        Span<float> value = v[l].Span.Slice(slot * Kv, Kv);
        for (int i = 0; i < X; ++i) query[i] = x[(5 * i + 3 * l + 1) % X];
        for (int i = 0; i < Kv; ++i)
        {
            key[i] = x[(7 * i + l) % X];
            value[i] = x[(3 * i + 2 * l + 5) % X];
        }
        sequence.Observe(l, query, position);
        Attend(l, slot + 1, query);
    }
    sequence.Append(1);
    uint next = 0;
    for (int i = 0; i < X; ++i) next += (uint)((x[i] + 8) * (i + 1));
    return next % 256;
}

void Attend(int layer, int slots, ReadOnlySpan<float> query)
{
    Span<double> sums = stackalloc double[Dim];
    for (int h = 0; h < QueryHeads; ++h)
    {
        int column = h / (QueryHeads / KvHeads) * Dim;
        double total = 0;
        sums.Clear();
        for (int s = 0; s < slots; ++s)
        {
            ReadOnlySpan<float> key = k[layer].Span.Slice(s * Kv + column, Dim);
            ReadOnlySpan<float> value = v[layer].Span.Slice(s * Kv + column, Dim);
            double dot = 0;
            for (int i = 0; i < Dim; ++i) dot += query[h * Dim + i] * key[i];
            double weight = dot > 0 ? 1 + dot * dot : 1;
            for (int i = 0; i < Dim; ++i) sums[i] += weight * value[i];
            total += weight;
        }
        for (int i = 0; i < Dim; ++i)
        {
            ref int state = ref x[h * Dim + i];
            state = ((state + (int)Math.Floor(4 * (sums[i] / total) + 0.5) + 8) & 15) - 8;
        }
    }
}

// Runs a token and drafts of the next ones through all layers. The first draft that the model does not say, and all
// after it, are taken back. Returns the next token.
uint Speculate(uint token)
{
    int length = sequence.LogicalLength, accepted = 0;
    uint next = 0;
    bool right = true;
    for (int i = 0; i <= Drafts; ++i)
    {
        uint said = Step(token);
        // This stands for a draft model that is wrong now and then.
        token = said ^ (1u >> (int)(Hash(1000 + (uint)(length + i)) % 4));
        if (!right) continue;
        ++accepted;
        next = said;
        right = token == said;
        foreach (int value in x) checksum = (checksum ^ (ulong)(value + 8)) * 1099511628211;
    }
    sequence.TrimTo(length + accepted);
    return next;
}
