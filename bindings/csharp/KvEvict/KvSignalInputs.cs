namespace KvEvict;

/// <summary>
/// What signals read of a layer beside its keys. Each policy's signal needs some of it; what it has no use for may be
/// absent.
/// </summary>
public readonly record struct KvSignalInputs
{
    /// <summary>Window attention: [query heads, rows, key dim] rows after RoPE.</summary>
    public KvPlane Queries { get; init; }

    /// <summary>
    /// Absent, or floats [query heads, rows] with one element per row: the log-sum-exp of each query row, as flash
    /// attention leaves it behind. Saves CUDA one of two passes over the keys.
    /// </summary>
    public KvPlane RowLse { get; init; }

    /// <summary>
    /// <see cref="KvPolicyKind.Custom"/>: floats [KV heads, slots held] with one element per row, such as
    /// <c>KvPlane.HeadMajor(scores, slots, 1)</c>.
    /// </summary>
    public KvPlane Scores { get; init; }

    internal void KeepAlive()
    {
        GC.KeepAlive(Queries.Region.Owner);
        GC.KeepAlive(RowLse.Region.Owner);
        GC.KeepAlive(Scores.Region.Owner);
    }
}

/// <summary>What a layer shows of one chunk of tokens.</summary>
/// <param name="Layer">Below the number of layers.</param>
/// <param name="Inputs">Queries, their log-sum-exps, or both; copied.</param>
public readonly record struct KvObservation(int Layer, KvSignalInputs Inputs);

/// <summary>The native planes of a layer's inputs, to which they point and which so must not move themselves.</summary>
internal unsafe struct NativeInputs
{
    private kvevict_plane _queries;
    private kvevict_plane _rowLse;
    private kvevict_plane _scores;

    /// <summary>
    /// Writes inputs of so many query rows and slots, which must lie in their memory; none of a layer of which
    /// nothing is read. The index is -1 if they are none of several.
    /// </summary>
    internal static void Write(NativeInputs* self, kvevict_signal_inputs* native, in KvSignalInputs inputs,
                               KvLayerGeometry layer, int rowCount, int slotCount, ContextHandle context, int index)
    {
        Native.kvevict_signal_inputs_init(native, (nuint)sizeof(kvevict_signal_inputs));
        if (!layer.HasFullCache) return;
        native->queries = Write(&self->_queries, inputs.Queries, nameof(inputs.Queries), rowCount, layer.QueryHeads);
        native->row_lse = Write(&self->_rowLse, inputs.RowLse, nameof(inputs.RowLse), rowCount, layer.QueryHeads);
        native->scores = Write(&self->_scores, inputs.Scores, nameof(inputs.Scores), slotCount, layer.KvHeads);

        kvevict_plane* Write(kvevict_plane* at, KvPlane plane, string name, int count, int headCount)
        {
            if (plane.Region.Address == 0) return null;
            plane.CheckRows(name, count, headCount, index: index);
            *at = plane.ToNative(context, name);
            return at;
        }
    }
}
