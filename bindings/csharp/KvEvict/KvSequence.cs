namespace KvEvict;

/// <summary>
/// What one request carries between steps: the position of every slot, stored and logical length, and, while it
/// observes, the last queries of every layer. One thread at a time. Keeps its plan alive.
/// </summary>
public sealed unsafe partial class KvSequence : IDisposable
{
    internal const uint NextPosition = NativeConstants.KVEVICT_POSITION_NEXT;
    // If there are more layers, a call's arguments go into an array that stays, not on the stack.
    private const int MaxStackLayers = 64;

    private readonly SequenceHandle _handle;
    private readonly KvPlan _plan;
    private kvevict_view[] _manyViews = [];
    private kvevict_view[] _destinations = [];
    private kvevict_signal_inputs[] _manyInputs = [];
    private NativeInputs[] _manyPlanes = [];
    private kvevict_observation[] _manyObservations = [];
    private kvevict_list_report[] _lists = [];
    private readonly uint[] _heldByHead = [];
    private object? _lent;

    /// <summary>Creates an empty sequence.</summary>
    /// <param name="plan">What to do with its cache.</param>
    /// <exception cref="KvEvictException">There is no memory left.</exception>
    public KvSequence(KvPlan plan) : this(plan, made => Native.kvevict_sequence_create(plan.Handle, made))
    {
    }

    private KvSequence(KvPlan plan, Action<SequenceHandle> create)
    {
        ArgumentNullException.ThrowIfNull(plan);
        _plan = plan;
        if (plan.HeadsDiffer) _heldByHead = new uint[plan.Geometry.Layers.Max(layer => layer.KvHeads)];
        _handle = new SequenceHandle(plan.Handle);
        try
        {
            create(_handle);
        }
        catch
        {
            _handle.Dispose();
            throw;
        }
    }

    internal SequenceHandle Handle => Check.Open(_handle, this);

    internal ContextHandle Context => _plan.Context;

    /// <summary>
    /// Takes memory for query rows from the context, which keeps what is given back. Policies that score by queries
    /// need it before the first <see cref="Observe(int, KvPlane, int, int?, nint)"/>; for others it does nothing.
    /// </summary>
    /// <exception cref="ArgumentException">The sequence observes already.</exception>
    /// <exception cref="KvEvictException">There is no memory left.</exception>
    public void BeginObserving() => Native.kvevict_sequence_begin_observing(Handle, null, 0);

    /// <summary>Does the same with memory of the caller's, until <see cref="EndObserving"/>.</summary>
    /// <param name="memory">The workspace of <see cref="KvOperation.Observe"/>.</param>
    /// <exception cref="InvalidOperationException">Host memory, and the context works on CUDA.</exception>
    /// <exception cref="ArgumentException">It is too small, or the sequence observes already.</exception>
    public void BeginObserving(KvRegion memory)
    {
        nint address = memory.Resolve(_plan.Context, nameof(memory));
        Native.kvevict_sequence_begin_observing(Handle, (void*)address, (nuint)memory.Bytes);
        _lent = memory.Owner;
    }

    /// <summary>
    /// Forgets the query rows and gives their memory back. The eviction that uses them must be done: on CUDA its
    /// work must have run. A sequence that only decodes needs no query memory.
    /// </summary>
    public void EndObserving()
    {
        Native.kvevict_sequence_end_observing(Handle);
        _lent = null;
    }

    /// <summary>
    /// Shows the query rows of one chunk, for one layer or many, and remembers the last ones; or the attention
    /// weights of the chunk, which are added up; or the scores of its tokens for the policy <c>custom</c>, which then
    /// live with their slots.
    /// </summary>
    /// <remarks>
    /// Any split of a prompt into chunks leaves the same rows behind. Showing earlier positions again replaces them and
    /// forgets what came after (rollback). Log-sum-exps may come with the rows or after them; they save CUDA a pass
    /// over the keys. On CUDA neighbouring layers whose planes lie alike take one launch. Attention must be of rows
    /// that follow those observed before. Its sums move with the rows of the cache.
    /// </remarks>
    /// <param name="observations">Layers must ascend. If one is refused, none is remembered.</param>
    /// <param name="rowCount">Rows of each layer; 0 does nothing.</param>
    /// <param name="firstPosition">Position of row 0; null: the sequence's logical length.</param>
    /// <param name="stream">CUstream on which the work is queued.</param>
    /// <exception cref="ArgumentException">
    /// Rows lie outside their memory. A plane does not match the geometry, or there is no such layer.
    /// </exception>
    /// <exception cref="InvalidOperationException">Host memory, and the context works on CUDA.</exception>
    public void Observe(ReadOnlySpan<KvObservation> observations, int rowCount, int? firstPosition = null,
                        nint stream = 0)
    {
        int count = observations.Length;
        uint first = firstPosition is { } position ? Check.Count(position, nameof(firstPosition)) : NextPosition;
        SequenceHandle handle = Handle;
        Span<kvevict_observation> native = count <= MaxStackLayers ? stackalloc kvevict_observation[count]
                                                                   : First(ref _manyObservations, count);
        Span<kvevict_signal_inputs> inputs = count <= MaxStackLayers ? stackalloc kvevict_signal_inputs[count]
                                                                     : First(ref _manyInputs, count);
        Span<NativeInputs> planes = count <= MaxStackLayers ? stackalloc NativeInputs[count]
                                                            : First(ref _manyPlanes, count);
        fixed (kvevict_observation* nativeObservations = native)
        fixed (kvevict_signal_inputs* nativeInputs = inputs)
        fixed (NativeInputs* nativePlanes = planes)
        {
            Write(observations, rowCount, firstPosition, nativeObservations, nativeInputs, nativePlanes);
            Native.kvevict_sequence_observe(handle, nativeObservations, (nuint)count,
                                            Check.Count(rowCount, nameof(rowCount)), first, stream);
        }
        foreach (ref readonly KvObservation observation in observations) observation.Inputs.KeepAlive();
    }

    /// <summary>Does the same with one layer's queries.</summary>
    /// <param name="layer">Below the number of layers.</param>
    /// <param name="queries">[query heads, rows, key dim] after RoPE; copied.</param>
    /// <param name="rowCount">Rows; 0 does nothing.</param>
    /// <param name="firstPosition">Position of row 0; null: the sequence's logical length.</param>
    /// <param name="stream">CUstream on which the work is queued.</param>
    /// <exception cref="ArgumentException">
    /// Rows lie outside their memory. The plane does not match the geometry, or there is no such layer.
    /// </exception>
    /// <exception cref="InvalidOperationException">Host memory, and the context works on CUDA.</exception>
    public void Observe(int layer, KvPlane queries, int rowCount, int? firstPosition = null, nint stream = 0) =>
        Observe([new KvObservation(layer, new KvSignalInputs { Queries = queries })], rowCount, firstPosition, stream);

    /// <summary>
    /// Does the same with rows that lie packed in any host memory. For contexts on the CPU.
    /// </summary>
    /// <param name="layer">Below the number of layers.</param>
    /// <param name="queries">
    /// [rows, query heads, key dim] after RoPE; ushort for the bits of <see cref="KvDType.BF16"/>. Copied.
    /// </param>
    /// <param name="firstPosition">Position of row 0; null: the sequence's logical length.</param>
    /// <exception cref="ArgumentException">
    /// The rows are not whole, or the geometry's queries are of another type.
    /// </exception>
    /// <exception cref="InvalidOperationException">The context works on CUDA.</exception>
    public void Observe(int layer, ReadOnlySpan<float> queries, int? firstPosition = null) =>
        Observe(layer, queries, KvDType.F32, firstPosition);

    /// <inheritdoc cref="Observe(int, ReadOnlySpan{float}, int?)"/>
    public void Observe(int layer, ReadOnlySpan<Half> queries, int? firstPosition = null) =>
        Observe(layer, queries, KvDType.F16, firstPosition);

    /// <inheritdoc cref="Observe(int, ReadOnlySpan{float}, int?)"/>
    public void Observe(int layer, ReadOnlySpan<ushort> queries, int? firstPosition = null) =>
        Observe(layer, queries, KvDType.BF16, firstPosition);

    /// <summary>Notes that the engine stored more rows in every layer, each at the layer's next slot.</summary>
    /// <param name="tokenCount">Tokens.</param>
    /// <param name="stream">CUstream on which the work is queued.</param>
    /// <exception cref="ArgumentException">A layer would hold more than the geometry's tokens.</exception>
    public void Append(int tokenCount, nint stream = 0) =>
        Native.kvevict_sequence_append(Handle, Check.Count(tokenCount, nameof(tokenCount)), stream);

    /// <summary>
    /// Says that what has been appended so far is the prompt; see <see cref="KvPolicy.Prompt"/> and
    /// <see cref="KvPolicy.Every"/>.
    /// </summary>
    /// <exception cref="ArgumentException">The prompt has already ended.</exception>
    public void EndPrompt() => Native.kvevict_sequence_end_prompt(Handle);

    /// <summary>
    /// Notes that a CUDA graph ran once more which observed (from the logical length on, in every layer) and
    /// appended so many tokens.
    /// </summary>
    /// <param name="tokenCount">Tokens.</param>
    /// <exception cref="ArgumentException">A layer would hold more than the geometry's tokens.</exception>
    public void Replayed(int tokenCount) =>
        Native.kvevict_sequence_replayed(Handle, Check.Count(tokenCount, nameof(tokenCount)));

    /// <summary>
    /// Takes back the last tokens, for example rejected speculation. Exact down to the logical length at the last
    /// eviction, and to lengths up to <see cref="ExactPrefix"/>; no cache byte changes. With a policy that scores by
    /// the last queries, the plan's DraftTokens may be taken back before each eviction. After more, some queries have
    /// to be observed again.
    /// </summary>
    /// <param name="newLength">The logical length to return to.</param>
    /// <param name="stream">CUstream on which the work is queued.</param>
    /// <exception cref="ArgumentException">
    /// It is above the present length, or between the exact ones, the nearest of which the message names.
    /// </exception>
    public void TrimTo(int newLength, nint stream = 0) =>
        Native.kvevict_sequence_trim_to(Handle, Check.Count(newLength, nameof(newLength)), stream);

    // Writes what layers show, equally many rows of each.
    internal void Write(ReadOnlySpan<KvObservation> observations, int rowCount, int? firstPosition,
                        kvevict_observation* nativeObservations, kvevict_signal_inputs* nativeInputs,
                        NativeInputs* nativePlanes)
    {
        for (int i = 0; i < observations.Length; ++i)
        {
            ref readonly KvObservation observation = ref observations[i];
            // Scores are of the chunk's rows, attention of all slots.
            int slotCount = observation.Inputs.AttentionSums.Region.Address == 0
                                ? rowCount
                                : HeldWith(observation.Layer, firstPosition, rowCount);
            NativeInputs.Write(nativePlanes + i, nativeInputs + i, observation.Inputs with { QueryRows = 0 },
                               _plan.Geometry.Of(observation.Layer), rowCount, slotCount, _plan.Context,
                               observations.Length == 1 ? -1 : i);
            observation.Fill(nativeObservations + i);
            nativeObservations[i].inputs = nativeInputs + i;
        }
    }

    /// <summary>Releases it; on CUDA its work must have run. A second call does nothing.</summary>
    public void Dispose() => _handle.Dispose();

    // Slots in use by a layer, the most of any head, and of each head if they differ.
    private int Held(int layer, KvLayerGeometry geometry, int ahead = 0)
    {
        if (!geometry.HasFullCache) return 0;
        if (!_plan.HeadsDiffer) return StoredLength(layer) + ahead;
        Span<uint> heads = _heldByHead.AsSpan(0, geometry.KvHeads);
        uint most = 0;
        for (int head = 0; head < heads.Length; ++head)
            most = Math.Max(most, heads[head] = (uint)(StoredLength(layer, head) + ahead));
        return (int)most;
    }

    private void Observe<T>(int layer, ReadOnlySpan<T> queries, KvDType dtype, int? firstPosition) where T : unmanaged
    {
        _plan.Context.RefuseHostMemory(nameof(queries));
        if (queries.IsEmpty) return;
        fixed (T* rows = queries)
        {
            KvPlane plane = _plan.Geometry.Of(layer).QueryRows(rows, queries.Length, dtype, out int rowCount);
            Observe(layer, plane, rowCount, firstPosition);
        }
    }

    // Slots of a layer once rows from a position on are stored, or 0 if the library refuses them.
    private int HeldWith(int layer, int? firstPosition, int rowCount)
    {
        if ((uint)layer >= (uint)_plan.Geometry.LayerCount) return 0;
        long ahead = firstPosition is { } position ? (long)position - LogicalLength : 0;
        return (int)Math.Clamp(Held(layer, _plan.Geometry.Of(layer)) + ahead + rowCount, 0, int.MaxValue);
    }

    private static Span<T> First<T>(ref T[] array, int count)
    {
        if (array.Length < count) array = new T[count];
        return array.AsSpan(0, count);
    }
}
