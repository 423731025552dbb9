namespace KvEvict;

/// <summary>The attention geometry of one layer.</summary>
public sealed partial record KvLayerGeometry
{
    /// <summary>A layer whose sliding window the engine keeps: it is not evicted, and only its kind matters.</summary>
    public static KvLayerGeometry Window { get; } = Without(KvLayerCache.Window);

    /// <summary>A layer without keys and values: recurrent, or a reader of another layer's.</summary>
    public static KvLayerGeometry None { get; } = Without(KvLayerCache.None);

    /// <summary>Query heads, a multiple of <see cref="KvHeads"/>.</summary>
    public required int QueryHeads { get; init; }

    /// <summary>KV heads; query head h reads KV head h / (QueryHeads / KvHeads).</summary>
    public required int KvHeads { get; init; }

    /// <summary>Elements of a key row; 0 if opaque.</summary>
    public required int KeyHeadDim { get; init; }

    /// <summary>Elements of a value row; 0 if opaque or if there are no values.</summary>
    public required int ValueHeadDim { get; init; }

    internal bool HasFullCache => Cache == KvLayerCache.Full;

    // Packed query rows [rows, query heads, key dim] and their number, which is 0 for a layer that observes nothing.
    internal unsafe KvPlane QueryRows<T>(T* rows, int length, KvDType dtype, out int rowCount) where T : unmanaged
    {
        rowCount = 0;
        if (!HasFullCache) return default;
        long row = (long)QueryHeads * KeyHeadDim;
        if (row == 0 || length % row != 0)
        {
            throw new ArgumentException(
                $"queries has {length} elements, not rows of {QueryHeads} heads * {KeyHeadDim}", "queries");
        }
        rowCount = (int)(length / row);
        return KvPlane.TokenMajor(new KvRegion((nint)rows, (long)length * sizeof(T)), dtype, QueryHeads, KeyHeadDim);
    }

    private static KvLayerGeometry Without(KvLayerCache cache) =>
        new() { Cache = cache, QueryHeads = 0, KvHeads = 0, KeyHeadDim = 0, ValueHeadDim = 0 };
}

/// <summary>The attention geometry of a model.</summary>
/// <example>
/// <code>
/// var full = new KvLayerGeometry { QueryHeads = 8, KvHeads = 2, KeyHeadDim = 64, ValueHeadDim = 64 };
/// var alike = new KvGeometry(32, full, maxTokens: 4096);
/// var mixed = new KvGeometry([full, KvLayerGeometry.Window, full, KvLayerGeometry.Window], maxTokens: 4096);
/// </code>
/// </example>
public sealed partial class KvGeometry
{
    private readonly KvLayerGeometry[] _layers;

    /// <summary>A model whose layers are alike.</summary>
    /// <param name="layerCount">Layers, 1 to 4096.</param>
    /// <param name="layer">The geometry of each.</param>
    /// <param name="maxTokens">Most slots a layer will ever hold.</param>
    public KvGeometry(int layerCount, KvLayerGeometry layer, int maxTokens) : this([layer], maxTokens) =>
        LayerCount = layerCount;

    /// <summary>A model whose layers differ.</summary>
    /// <param name="layers">Each layer, 1 to 4096.</param>
    /// <param name="maxTokens">Most slots a layer will ever hold.</param>
    public KvGeometry(IEnumerable<KvLayerGeometry> layers, int maxTokens)
    {
        _layers = [.. layers];
        foreach (KvLayerGeometry layer in _layers) ArgumentNullException.ThrowIfNull(layer);
        LayerCount = _layers.Length;
        MaxTokens = maxTokens;
    }

    /// <summary>Layers.</summary>
    public int LayerCount { get; }

    /// <summary>One for all layers, or one for each.</summary>
    public IReadOnlyList<KvLayerGeometry> Layers => _layers;

    /// <summary>Most slots a layer will ever hold.</summary>
    public int MaxTokens { get; }

    /// <summary>
    /// How RoPE rotated the keys of layers with a full cache: pair f of a key at position p by p times number f
    /// radians, whatever scaling went into that. Elements beyond the pairs are not rotated. Empty: unknown;
    /// <c>triattention</c> needs it.
    /// </summary>
    public ReadOnlyMemory<float> RopeInverseFrequencies { get; init; }

    /// <summary>
    /// A logit per query head that takes part in its softmax and has no value (gpt-oss), for all layers with a full
    /// cache, layer by layer; negative infinity for a head without one. Empty: no head has one.
    /// </summary>
    public ReadOnlyMemory<float> SinkLogits { get; init; }

    // A layer's geometry, or the nearest layer's if there is no such layer, which the library refuses.
    internal KvLayerGeometry Of(int layer) => _layers[Math.Clamp(layer, 0, _layers.Length - 1)];

    internal unsafe kvevict_layer_geometry[] LayersToNative()
    {
        var native = new kvevict_layer_geometry[_layers.Length];
        fixed (kvevict_layer_geometry* first = native)
        {
            for (int i = 0; i < native.Length; ++i) _layers[i].Fill(first + i);
        }
        return native;
    }

    // Writes everything but the layers, frequencies and sinks, which a caller pins.
    internal unsafe kvevict_geometry ToNative()
    {
        kvevict_geometry native;
        Fill(&native);
        native.rope_inv_freq_len = (nuint)RopeInverseFrequencies.Length;
        native.sink_logits_len = (nuint)SinkLogits.Length;
        return native;
    }
}
