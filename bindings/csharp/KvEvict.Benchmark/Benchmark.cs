// What a call costs, in ns: plain C (benchmark/call_cost.c, given as argument), a minimal hand-written P/Invoke,
// and the public layer, on the same work in the same run.
using System.Diagnostics;
using System.Globalization;
using System.Runtime.InteropServices;
using KvEvict;

NativeLibrary.SetDllImportResolver(typeof(ByHand).Assembly, NativeLoader.Resolve);
const int Layers = 2, QueryHeads = 8, KvHeads = 2, Dim = 64, Tokens = 256, Window = 8;

using var context = new KvContext();
var layer = new KvLayerGeometry { QueryHeads = QueryHeads, KvHeads = KvHeads, KeyHeadDim = Dim, ValueHeadDim = Dim };
using var plan = new KvPlan(context, new KvGeometry(Layers, layer, Tokens), KvPolicy.Parse("snapkv:budget=64,window=8"));
using var sequence = new KvSequence(plan);
sequence.BeginObserving();
using var workspace = plan.CreateWorkspace(KvOperation.Evict);
using var scoring = plan.CreateWorkspace(KvOperation.Score);
KvPlane queries = KvPlane.TokenMajor(Rows(QueryHeads), QueryHeads, Dim);
KvView[] views = Enumerable.Range(0, Layers).Select(_ => new KvView(
    KvHeads, KvPlane.TokenMajor(Rows(KvHeads), KvHeads, Dim),
    KvPlane.TokenMajor(Rows(KvHeads), KvHeads, Dim))).ToArray();
var job = new KvScoreJob(0, views[0], Tokens) { Inputs = new KvSignalInputs { Queries = queries } };
float[] scores = new float[KvHeads * Tokens];
int sink = 0;

Dictionary<string, double> c = args.Length > 0 ? PlainC(args[0]) : [];
Console.WriteLine($"{"ns per call",-12} {"plain C",10} {"by hand",10} {"KvEvict",10} {"/ by hand",10}");
var hand = new ByHand(plan, sequence, queries, views, workspace, scoring, scores);
Report("no-op", hand.NoOp, n =>
{
    for (int i = 0; i < n; ++i) sink = KvEvictLibrary.AbiVersion;
});
Report("length", hand.Length, n =>
{
    for (int i = 0; i < n; ++i) sink = sequence.StoredLength(0);
});
Report("score", hand.Score, n =>
{
    for (int i = 0; i < n; ++i) plan.Score(job, scores, scoring);
});
Report("evict", hand.Evict, n =>
{
    for (int i = 0; i < n; ++i)
    {
        sequence.Reset();
        for (int l = 0; l < Layers; ++l) sequence.Observe(l, queries, Window, Tokens - Window);
        sequence.Append(Tokens);
        sequence.Evict(views, workspace);
    }
});

void Report(string name, Action<int> byHand, Action<int> layer)
{
    // They take turns, so that a change of the machine's clock meets both.
    double hand = double.MaxValue, mine = double.MaxValue;
    Measure(byHand, 10);
    Measure(layer, 10);
    for (int i = 0; i < 5; ++i)
    {
        hand = Math.Min(hand, Measure(byHand, 7));
        mine = Math.Min(mine, Measure(layer, 7));
    }
    string plain = c.TryGetValue(name, out double ns) ? ns.ToString("F1") : "-";
    Console.WriteLine($"{name,-12} {plain,10} {hand,10:F1} {mine,10:F1} {mine / hand,10:F2}");
}

// The best of some batches of 20 ms. The loops are in what is measured: the
// compiler would inline the first delegate that it sees here, and no other.
static double Measure(Action<int> run, int batches)
{
    double best = double.MaxValue;
    for (int batch = 0; batch < batches; ++batch)
    {
        long calls = 0;
        long begin = Stopwatch.GetTimestamp();
        TimeSpan elapsed;
        do
        {
            run(64);
            calls += 64;
            elapsed = Stopwatch.GetElapsedTime(begin);
        }
        while (elapsed.TotalMilliseconds < 20);
        best = Math.Min(best, elapsed.TotalNanoseconds / calls);
    }
    return best;
}

static Dictionary<string, double> PlainC(string program)
{
    using var process = Process.Start(new ProcessStartInfo(program) { RedirectStandardOutput = true })!;
    string output = process.StandardOutput.ReadToEnd();
    process.WaitForExit();
    return output.Split('\n', StringSplitOptions.RemoveEmptyEntries).Select(line => line.Split(' '))
                 .ToDictionary(row => row[0], row => double.Parse(row[1], CultureInfo.InvariantCulture));
}

static KvPinnedMemory<float> Rows(int heads)
{
    var rows = new KvPinnedMemory<float>(Tokens * heads * Dim);
    for (int i = 0; i < rows.Length; ++i) rows.Span[i] = i * 37L % 101 / 50f - 1;
    return rows;
}

/// <summary>The least that P/Invoke can do: bare pointers, prepared structs, a status that is compared.</summary>
internal sealed unsafe class ByHand
{
    private readonly void* _plan;
    private readonly void* _sequence;
    private readonly float* _scores;
    private readonly kvevict_signal_inputs* _inputs;
    private readonly kvevict_observation* _observations;
    private readonly kvevict_view* _views;
    private readonly KvRegion _workspace;
    private readonly KvRegion _scoring;
    private readonly int _layers;
    private uint _sink;

    internal ByHand(KvPlan plan, KvSequence sequence, KvPlane queries, KvView[] views, KvRegion workspace,
                    KvRegion scoring, float[] scores)
    {
        _plan = NativeHandle.Pointer(plan.Handle);
        _sequence = NativeHandle.Pointer(sequence.Handle);
        GCHandle.Alloc(scores, GCHandleType.Pinned);
        fixed (float* first = scores) _scores = first;
        var rows = (kvevict_plane*)NativeMemory.Alloc((nuint)sizeof(kvevict_plane));
        *rows = queries.ToNative(plan.Context, nameof(queries));
        _inputs = (kvevict_signal_inputs*)NativeMemory.Alloc((nuint)sizeof(kvevict_signal_inputs));
        *_inputs = new() { struct_size = (uint)sizeof(kvevict_signal_inputs), queries = rows };
        _layers = views.Length;
        _observations = (kvevict_observation*)NativeMemory.Alloc((nuint)(sizeof(kvevict_observation) * _layers));
        for (uint l = 0; l < _layers; ++l)
        {
            _observations[l] = new()
            {
                struct_size = (uint)sizeof(kvevict_observation), layer = l, inputs = _inputs,
            };
        }
        _views = (kvevict_view*)NativeMemory.Alloc((nuint)(sizeof(kvevict_view) * views.Length));
        for (int l = 0; l < views.Length; ++l) views[l].Write(_views + l, 256, plan.Context);
        _workspace = workspace;
        _scoring = scoring;
    }

    internal void NoOp(int n)
    {
        for (int i = 0; i < n; ++i) _sink = abi_version();
    }

    internal void Length(int n)
    {
        for (int i = 0; i < n; ++i)
        {
            uint length;
            Check(stored_length(_sequence, 0, 0, &length));
            _sink = length;
        }
    }

    internal void Score(int n)
    {
        for (int i = 0; i < n; ++i)
        {
            kvevict_score_job job = new()
            {
                struct_size = (uint)sizeof(kvevict_score_job), n_tokens = 256, view = _views, inputs = _inputs,
                scores = _scores, scores_len = 2 * 256,
            };
            Check(score(_plan, &job, 1, (void*)_scoring.Address, (nuint)_scoring.Bytes, null));
        }
    }

    internal void Evict(int n)
    {
        for (int i = 0; i < n; ++i)
        {
            Check(reset(_sequence, null));
            for (int l = 0; l < _layers; ++l) Check(observe(_sequence, _observations + l, 1, 8, 256 - 8, null));
            Check(append(_sequence, 256, null));
            Check(evict(_sequence, _views, (nuint)_layers, null, (void*)_workspace.Address, (nuint)_workspace.Bytes,
                        null));
        }
    }

    private static void Check(int status)
    {
        if (status != 0) throw new InvalidOperationException();
    }

    private const string Library = "kvevict_csharp";
    private const string Prefix = "CSharp_KvEvict_kvevict_";

    [DllImport(Library, EntryPoint = Prefix + "abi_version")]
    private static extern uint abi_version();

    [DllImport(Library, EntryPoint = Prefix + "sequence_stored_length")]
    private static extern int stored_length(void* sequence, uint layer, uint head, uint* length);

    [DllImport(Library, EntryPoint = Prefix + "score")]
    private static extern int score(void* plan, kvevict_score_job* jobs, nuint jobsLength, void* workspace,
                                    nuint workspaceBytes, void* stream);

    [DllImport(Library, EntryPoint = Prefix + "sequence_reset")]
    private static extern int reset(void* sequence, void* stream);

    [DllImport(Library, EntryPoint = Prefix + "sequence_observe")]
    private static extern int observe(void* sequence, kvevict_observation* observations, nuint observationsLength,
                                      uint rows, uint first, void* stream);

    [DllImport(Library, EntryPoint = Prefix + "sequence_append")]
    private static extern int append(void* sequence, uint tokens, void* stream);

    [DllImport(Library, EntryPoint = Prefix + "sequence_evict")]
    private static extern int evict(void* sequence, kvevict_view* views, nuint viewsLength, void* options,
                                    void* workspace, nuint workspaceBytes, void* stream);
}
