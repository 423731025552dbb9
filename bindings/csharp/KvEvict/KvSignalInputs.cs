namespace KvEvict;

/// <summary>
/// What signals read of a layer beside its keys. Each policy's signal needs some of it; the rest may be
/// absent.
/// </summary>
public readonly partial record struct KvSignalInputs
{
    /// <summary>Query rows after RoPE for window attention: [query heads, rows, key dim].</summary>
    public KvPlane Queries { get; init; }

    /// <summary>
    /// Absent, or floats [query heads, rows] with one element per row: the log-sum-exp of each query row, as flash
    /// attention computes it. It saves CUDA one of two passes over the keys.
    /// </summary>
    public KvPlane RowLse { get; init; }

    /// <summary>
    /// Policy <c>custom</c>: floats [KV heads, slots held] with one element per row, such as
    /// <c>KvPlane.HeadMajor(scores, slots, 1)</c>. A sequence that observes those of a chunk's tokens, [KV heads, rows],
    /// keeps them with their slots.
    /// </summary>
    public KvPlane Scores { get; init; }

    /// <summary>
    /// Policy <c>h2o</c>: floats [<see cref="SumHeads"/>, slots held] with one element per row: the attention weight
    /// that each slot got. A sequence adds up what it observes, summed over a chunk's rows, for the slots including the
    /// chunk's. For scoring without a sequence it is summed over all queries that saw a slot, and the engine keeps it:
    /// a companion of the view moves with its tokens.
    /// </summary>
    public KvPlane AttentionSums { get; init; }

    /// <summary>
    /// Policy <c>expected-attention</c>: floats [query heads, 1, key dim], packed: the mean of the queries
    /// to come, rotated to their positions.
    /// </summary>
    public KvPlane QueryMean { get; init; }

    /// <summary>
    /// Policy <c>expected-attention</c>: floats [query heads, key dim, key dim], packed: their covariance.
    /// </summary>
    public KvPlane QueryCovariance { get; init; }

    /// <summary>
    /// Policy <c>q-filter</c>: floats [KV heads, 1, key dim], packed: the direction in which a KV head's
    /// keys get no attention.
    /// </summary>
    public KvPlane KeyFilter { get; init; }

    /// <summary>
    /// For <see cref="KvPolicy.Weight"/> given: floats [KV heads, slots held] with one element per row that scores are
    /// multiplied by, whatever the policy.
    /// </summary>
    public KvPlane TokenWeights { get; init; }

    /// <summary>
    /// Policy <c>triattention</c>: floats [query heads, 3, pairs that RoPE rotates], packed: for each pair of
    /// elements of the model's queries before RoPE, the real and the imaginary part of their mean, and the mean length.
    /// </summary>
    public KvPlane QueryCenters { get; init; }

    /// <summary>
    /// For <see cref="KvPolicy.Reference"/> above 0: [query heads, <see cref="ReferenceRows"/>, key dim] after RoPE,
    /// queries of no token held, such as those of a likely question.
    /// </summary>
    public KvPlane ReferenceQueries { get; init; }

    /// <summary>
    /// Absent, or 32-bit positions of the reference queries, [<see cref="ReferenceRows"/>]: a row sees the slots up to
    /// its position. Absent: all.
    /// </summary>
    public KvRegion ReferencePositions { get; init; }

    internal void KeepAlive()
    {
        GC.KeepAlive(Queries.Region.Owner);
        GC.KeepAlive(RowLse.Region.Owner);
        GC.KeepAlive(Scores.Region.Owner);
        GC.KeepAlive(AttentionSums.Region.Owner);
        GC.KeepAlive(QueryMean.Region.Owner);
        GC.KeepAlive(QueryCovariance.Region.Owner);
        GC.KeepAlive(KeyFilter.Region.Owner);
        GC.KeepAlive(TokenWeights.Region.Owner);
        GC.KeepAlive(QueryCenters.Region.Owner);
        GC.KeepAlive(ReferenceQueries.Region.Owner);
        GC.KeepAlive(ReferencePositions.Owner);
    }
}

/// <summary>What a layer shows of one chunk of tokens.</summary>
/// <param name="Layer">Below the number of layers.</param>
/// <param name="Inputs">
/// Queries, their log-sum-exps, or both, or their attention weights, or the scores of the chunk's tokens; copied.
/// </param>
public readonly partial record struct KvObservation(int Layer, KvSignalInputs Inputs);

// The native planes of a layer's inputs. The inputs point to them, so they must not move.
[System.Runtime.CompilerServices.InlineArray(10)]
internal unsafe struct NativeInputs
{
    private kvevict_plane _first;

    // Writes inputs of so many query rows and slots, which must lie in their memory, and none for a layer of which
    // nothing is read. A negative number of rows means as many as slots. The index is -1 for a single layer.
    internal static void Write(NativeInputs* self, kvevict_signal_inputs* native, in KvSignalInputs inputs,
                               KvLayerGeometry layer, int rowCount, int slotCount, ContextHandle context, int index)
    {
        *native = kvevict_signal_inputs.Init;
        if (!layer.HasFullCache) return;
        inputs.Fill(native);
        int queryHeads = layer.QueryHeads, kvHeads = layer.KvHeads, dim = layer.KeyHeadDim;
        int sumHeads = inputs.SumHeads == 0 ? queryHeads : inputs.SumHeads;
        if (slotCount > 0 && inputs.QueryRows > 0) rowCount = inputs.QueryRows;
        else if (rowCount < 0) rowCount = slotCount;
        kvevict_plane* next = &self->_first;
        native->queries = Write(inputs.Queries, nameof(inputs.Queries), rowCount, queryHeads);
        native->row_lse = Write(inputs.RowLse, nameof(inputs.RowLse), rowCount, queryHeads);
        native->scores = Write(inputs.Scores, nameof(inputs.Scores), slotCount, kvHeads);
        native->attention_sums = Write(inputs.AttentionSums, nameof(inputs.AttentionSums), slotCount, sumHeads);
        native->query_mean = Write(inputs.QueryMean, nameof(inputs.QueryMean), 1, queryHeads);
        native->query_covariance = Write(inputs.QueryCovariance, nameof(inputs.QueryCovariance), dim, queryHeads);
        native->key_filter = Write(inputs.KeyFilter, nameof(inputs.KeyFilter), 1, kvHeads);
        native->token_weights = Write(inputs.TokenWeights, nameof(inputs.TokenWeights), slotCount, kvHeads);
        native->query_centers = Write(inputs.QueryCenters, nameof(inputs.QueryCenters), 3, queryHeads);
        native->reference_queries =
            Write(inputs.ReferenceQueries, nameof(inputs.ReferenceQueries), inputs.ReferenceRows, queryHeads);
        native->reference_positions =
            (int*)inputs.ReferencePositions.Each(context, nameof(inputs.ReferencePositions), inputs.ReferenceRows);

        kvevict_plane* Write(KvPlane plane, string name, int count, int headCount)
        {
            if (plane.Region.Address == 0) return null;
            bool anyStrides = name is nameof(KvSignalInputs.Queries) or nameof(KvSignalInputs.ReferenceQueries);
            KvPlane checkedRows = anyStrides ? plane : plane.Packed(count);
            checkedRows.CheckRows(name, count, headCount, index: index);
            *next = plane.ToNative(context, name);
            return next++;
        }
    }
}
