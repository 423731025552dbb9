using KvEvict;
using Microsoft.ML.OnnxRuntime;
using Microsoft.ML.OnnxRuntime.Tensors;

/// <summary>
/// Runs a decoder in ONNX Runtime, whose "present" outputs are the cache. They are evicted where they lie: survivors
/// move to the first slots of each head, and the heads then close up, so that the same memory is a smaller tensor.
/// </summary>
internal sealed class Engine : IDisposable
{
    private readonly InferenceSession _session;
    private readonly KvPlan? _plan;
    private readonly KvWorkspace? _workspace;
    private readonly RunOptions _options = new();
    private readonly int _layers, _kvHeads, _dim;
    private readonly Dictionary<string, OrtValue> _past = [];
    private readonly List<IDisposable> _garbage = [];

    /// <summary>An engine; without a plan it never evicts.</summary>
    public Engine(InferenceSession session, KvPlan? plan, int layers, int kvHeads, int dim)
    {
        (_session, _plan, _layers, _kvHeads, _dim) = (session, plan, layers, kvHeads, dim);
        foreach (string name in session.InputMetadata.Keys.Where(n => n.StartsWith("past", StringComparison.Ordinal)))
            _past[name] = OrtValue.CreateTensorValueFromMemory(Array.Empty<float>(), [1, kvHeads, 0, dim]);
        if (plan is null) return;
        Sequence = new KvSequence(plan);
        Sequence.BeginObserving();
        _workspace = plan.CreateWorkspace(KvOperation.Evict);
    }

    /// <summary>What KvEvict knows of the cache; null without a plan.</summary>
    public KvSequence? Sequence { get; }

    /// <summary>Tokens seen so far: the position of the next one.</summary>
    public int Length { get; private set; }

    /// <summary>Slots that are held.</summary>
    public int Slots { get; private set; }

    /// <summary>Slots that attention leaves out, by slot: for a reference that hides tokens instead of evicting them.</summary>
    public HashSet<int> Hidden { get; } = [];

    /// <summary>Bytes of all keys and values.</summary>
    public long CacheBytes => 2L * _layers * _kvHeads * Slots * _dim * sizeof(float);

    /// <summary>Reads tokens. Returns the logits of the last one.</summary>
    public float[] Read(ReadOnlySpan<long> tokens)
    {
        int count = tokens.Length;
        var inputs = new Dictionary<string, OrtValue>(_past);
        void Input(string name, long[] values) =>
            inputs[name] = OrtValue.CreateTensorValueFromMemory(values, [1, values.Length]);
        Input("input_ids", tokens.ToArray());
        Input("attention_mask", [.. Enumerable.Range(0, Slots + count).Select(slot => Hidden.Contains(slot) ? 0L : 1L)]);
        Input("position_ids", [.. Enumerable.Range(Length, count).Select(p => (long)p)]);
        string[] names = [.. _session.OutputMetadata.Keys];
        using var outputs = new Outputs(names, _session.Run(_options, inputs, names));
        foreach (OrtValue input in inputs.Values) input.Dispose();

        for (int l = 0; l < _layers && Sequence is not null; ++l)
        {
            // [query heads, new tokens, dim], as the graph gives them.
            OrtValue queries = outputs[$"query.{l}"];
            Sequence.Observe(l, KvPlane.HeadMajor(RegionOf(queries), KvDType.F32, count, _dim), count, Length);
        }
        Sequence?.Append(count);
        Length += count;
        Slots += count;
        foreach (IDisposable garbage in _garbage) garbage.Dispose();
        _garbage.Clear();
        foreach (string name in _past.Keys.ToArray()) _past[name] = outputs.Take(name.Replace("past_key_values", "present"));
        ReadOnlySpan<float> logits = outputs["logits"].GetTensorDataAsSpan<float>();
        return logits[(logits.Length / count * (count - 1))..].ToArray();
    }

    /// <summary>Evicts, if the cache exceeds the budget and margin of the policy. Returns whether it did.</summary>
    public bool Evict()
    {
        var views = new KvView[_layers];
        for (int l = 0; l < _layers; ++l) views[l] = new KvView(_kvHeads, PlaneOf(l, "key"), PlaneOf(l, "value"));
        Sequence!.Evict(views, _workspace!);
        int kept = Sequence.StoredLength(0);
        if (kept == Slots) return false;
        foreach (string name in _past.Keys.ToArray()) _past[name] = CloseUp(_past[name], kept);
        Slots = kept;
        return true;
    }

    public void Dispose()
    {
        foreach (OrtValue value in _past.Values) value.Dispose();
        foreach (IDisposable garbage in _garbage) garbage.Dispose();
        Sequence?.Dispose();
        _workspace?.Dispose();
        _options.Dispose();
    }

    private KvPlane PlaneOf(int layer, string name) =>
        KvPlane.HeadMajor(RegionOf(_past[$"past_key_values.{layer}.{name}"]), KvDType.F32, Slots, _dim);

    /// <summary>Memory that ONNX Runtime owns and does not move.</summary>
    private static unsafe KvRegion RegionOf(OrtValue value)
    {
        Span<float> span = value.GetTensorMutableDataAsSpan<float>();
        fixed (float* p = span) return new KvRegion((nint)p, span.Length * (long)sizeof(float), value);
    }

    /// <summary>[1, heads, slots, dim] with survivors in the first slots becomes [1, heads, kept, dim] in the same memory.</summary>
    private unsafe OrtValue CloseUp(OrtValue value, int kept)
    {
        Span<float> span = value.GetTensorMutableDataAsSpan<float>();
        int rows = kept * _dim;
        for (int h = 1; h < _kvHeads; ++h) span.Slice(h * Slots * _dim, rows).CopyTo(span.Slice(h * rows, rows));
        _garbage.Add(value); // owns the memory until the next call has read it
        fixed (float* p = span)
        {
            return OrtValue.CreateTensorValueWithData(OrtMemoryInfo.DefaultInstance, TensorElementType.Float,
                                                      [1, _kvHeads, kept, _dim], (nint)p, _kvHeads * rows * (long)sizeof(float));
        }
    }

    /// <summary>The outputs of a run by name. What is taken out of it lives on.</summary>
    private sealed class Outputs(string[] names, IDisposableReadOnlyCollection<OrtValue> values) : IDisposable
    {
        private readonly Dictionary<string, OrtValue> _values = names.Zip(values).ToDictionary(x => x.First, x => x.Second);

        public OrtValue this[string name] => _values[name];

        public OrtValue Take(string name)
        {
            _values.Remove(name, out OrtValue? value);
            return value!;
        }

        public void Dispose()
        {
            foreach (OrtValue value in _values.Values) value.Dispose();
        }
    }
}
