namespace KvEvict;

/// <summary>The attention geometry of a model whose layers are alike.</summary>
public sealed record KvGeometry
{
    /// <summary>Layers, 1 to 4096.</summary>
    public required int Layers { get; init; }

    /// <summary>Query heads, a multiple of <see cref="KvHeads"/>.</summary>
    public required int QueryHeads { get; init; }

    /// <summary>KV heads; query head h reads KV head h / (QueryHeads / KvHeads).</summary>
    public required int KvHeads { get; init; }

    /// <summary>Elements of a key row; 0 if opaque.</summary>
    public required int KeyHeadDim { get; init; }

    /// <summary>Elements of a value row; 0 if opaque or if there are no values.</summary>
    public required int ValueHeadDim { get; init; }

    /// <summary>Most slots a layer will ever hold.</summary>
    public required int MaxTokens { get; init; }

    /// <summary>Element type of the queries handed to observe and score.</summary>
    public KvDType QueryType { get; init; } = KvDType.F32;

    /// <summary>Element type of the keys.</summary>
    public KvDType KeyType { get; init; } = KvDType.F32;

    /// <summary>Element type of the values.</summary>
    public KvDType ValueType { get; init; } = KvDType.F32;

    /// <summary>Multiplies q.k; 0 means 1/sqrt(KeyHeadDim).</summary>
    public float SoftmaxScale { get; init; }

    /// <summary>Packed query rows [rows, query heads, key dim], and how many those are.</summary>
    internal unsafe kvevict_plane QueryRows(void* rows, int length, KvDType dtype, out int rowCount)
    {
        int elementBytes = KvEvictLibrary.ElementBytes(dtype);
        long row = (long)QueryHeads * KeyHeadDim;
        if (row == 0 || length % row != 0)
        {
            throw new ArgumentException(
                $"queries has {length} elements, not rows of {QueryHeads} heads * {KeyHeadDim}", "queries");
        }
        rowCount = (int)(length / row);
        return new kvevict_plane
        {
            data = (ulong)rows,
            token_stride_bytes = row * elementBytes,
            head_stride_bytes = (long)KeyHeadDim * elementBytes,
            dtype = dtype,
            head_dim = (uint)KeyHeadDim,
        };
    }

    internal unsafe kvevict_geometry ToNative()
    {
        kvevict_geometry native;
        Native.kvevict_geometry_init(&native, (nuint)sizeof(kvevict_geometry));
        native.n_layers = Check.Count(Layers, nameof(Layers));
        native.n_q_heads = Check.Count(QueryHeads, nameof(QueryHeads));
        native.n_kv_heads = Check.Count(KvHeads, nameof(KvHeads));
        native.k_head_dim = Check.Count(KeyHeadDim, nameof(KeyHeadDim));
        native.v_head_dim = Check.Count(ValueHeadDim, nameof(ValueHeadDim));
        native.q_dtype = QueryType;
        native.k_dtype = KeyType;
        native.v_dtype = ValueType;
        native.max_tokens = Check.Count(MaxTokens, nameof(MaxTokens));
        native.softmax_scale = SoftmaxScale;
        return native;
    }
}
