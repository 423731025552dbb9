namespace KvEvict;

/// <summary>How many tokens a sequence of a batch appends.</summary>
/// <param name="Sequence">The sequence.</param>
/// <param name="TokenCount">Tokens.</param>
public readonly partial record struct KvSequenceTokens(KvSequence Sequence, int TokenCount);

/// <summary>The logical length that a sequence of a batch returns to.</summary>
/// <param name="Sequence">The sequence.</param>
/// <param name="NewLength">The length.</param>
public readonly partial record struct KvSequenceLength(KvSequence Sequence, int NewLength);

/// <summary>The observations of a sequence of a batch, for
/// <see cref="KvSequence.Observe(ReadOnlySpan{KvObservation}, int, int?, nint)"/>.</summary>
/// <param name="Sequence">The sequence.</param>
/// <param name="Observations">One per layer, in ascending order of layers.</param>
/// <param name="RowCount">Rows of each layer.</param>
/// <param name="FirstPosition">Position of row 0; null: the sequence's logical length.</param>
public readonly partial record struct KvSequenceObservations(
    KvSequence Sequence, ReadOnlyMemory<KvObservation> Observations, int RowCount, int? FirstPosition = null);

/// <summary>The arguments of <see cref="KvSequence.Evict"/> for a sequence of a batch.</summary>
/// <param name="Sequence">The sequence.</param>
/// <param name="Views">One per layer; null is allowed for layers without a full cache.</param>
/// <param name="Options">What it is told beside the policy. Items must not share tables, undo or destinations.</param>
public readonly record struct KvSequenceEviction(
    KvSequence Sequence, ReadOnlyMemory<KvView> Views, KvEvictOptions Options = default);

/// <summary>
/// Calls for many sequences of one context, of any lengths and plans. No sequence may come up twice. They do to
/// each, in order and to the same bytes, what <see cref="KvSequence"/>'s method does. All are checked before the first
/// changes. An error's message begins with the item that it is about.
/// </summary>
public static unsafe class KvBatch
{
    /// <summary><see cref="KvSequence.Append"/> for each item.</summary>
    /// <param name="items">Tokens to append.</param>
    /// <param name="stream">CUstream on which the work is queued.</param>
    /// <exception cref="ArgumentException">A layer would hold more than its geometry's tokens.</exception>
    public static void Append(ReadOnlySpan<KvSequenceTokens> items, nint stream = 0)
    {
        using var handles = new Held(items.Length);
        fixed (kvevict_sequence_tokens* native = new kvevict_sequence_tokens[items.Length])
        {
            for (int i = 0; i < items.Length; ++i)
            {
                items[i].Fill(native + i);
                native[i].sequence = handles.Add(items[i].Sequence);
            }
            Native.kvevict_sequences_append(native, (nuint)items.Length, stream);
        }
    }

    /// <summary>
    /// <see cref="KvSequence.TrimTo"/> for each item: a batch of speculations, each accepted up to another token.
    /// </summary>
    /// <param name="items">Lengths to return to.</param>
    /// <param name="stream">CUstream on which the work is queued.</param>
    /// <exception cref="ArgumentException">A length is above the present one, or not exact.</exception>
    public static void TrimTo(ReadOnlySpan<KvSequenceLength> items, nint stream = 0)
    {
        using var handles = new Held(items.Length);
        fixed (kvevict_sequence_length* native = new kvevict_sequence_length[items.Length])
        {
            for (int i = 0; i < items.Length; ++i)
            {
                items[i].Fill(native + i);
                native[i].sequence = handles.Add(items[i].Sequence);
            }
            Native.kvevict_sequences_trim_to(native, (nuint)items.Length, stream);
        }
    }

    /// <summary><see cref="KvSequence.Observe(ReadOnlySpan{KvObservation}, int, int?, nint)"/> for each item.</summary>
    /// <param name="items">Rows.</param>
    /// <param name="stream">CUstream on which the work is queued.</param>
    /// <exception cref="ArgumentException">
    /// Rows lie outside their memory. A plane does not match its geometry.
    /// </exception>
    /// <exception cref="InvalidOperationException">Host memory, and the context works on CUDA.</exception>
    public static void Observe(ReadOnlySpan<KvSequenceObservations> items, nint stream = 0)
    {
        int count = 0;
        foreach (ref readonly KvSequenceObservations item in items) count += item.Observations.Length;
        using var handles = new Held(items.Length);
        var native = new kvevict_sequence_observations[items.Length];
        fixed (kvevict_sequence_observations* nativeItems = native)
        fixed (kvevict_observation* observations = new kvevict_observation[count])
        fixed (kvevict_signal_inputs* inputs = new kvevict_signal_inputs[count])
        fixed (NativeInputs* planes = new NativeInputs[count])
        {
            int next = 0;
            for (int i = 0; i < items.Length; ++i)
            {
                ref readonly KvSequenceObservations item = ref items[i];
                kvevict_sequence_observations* at = nativeItems + i;
                item.Fill(at);
                at->sequence = handles.Add(item.Sequence);
                item.Sequence.Write(item.Observations.Span, item.RowCount, item.FirstPosition, observations + next,
                                    inputs + next, planes + next);
                at->observations = observations + next;
                at->observations_len = (nuint)item.Observations.Length;
                at->first_position = item.FirstPosition is { } first
                    ? Check.Count(first, nameof(item.FirstPosition)) : KvSequence.NextPosition;
                next += item.Observations.Length;
            }
            Native.kvevict_sequences_observe(nativeItems, (nuint)items.Length, stream);
        }
        foreach (ref readonly KvSequenceObservations item in items)
            foreach (ref readonly KvObservation one in item.Observations.Span) one.Inputs.KeepAlive();
    }

    /// <summary>
    /// The workspace of <see cref="Evict"/> for sequences as long as they are now: the largest that any of them needs.
    /// The workspace of their plans for all tokens serves at any length.
    /// </summary>
    /// <param name="sequences">Sequences of one context.</param>
    /// <returns>Its size.</returns>
    public static KvWorkspaceSize WorkspaceSize(ReadOnlySpan<KvSequence> sequences)
    {
        using var handles = new Held(sequences.Length);
        kvevict_workspace size = new() { struct_size = (uint)sizeof(kvevict_workspace) };
        fixed (kvevict_sequence_eviction* native = new kvevict_sequence_eviction[sequences.Length])
        {
            for (int i = 0; i < sequences.Length; ++i)
            {
                native[i] = kvevict_sequence_eviction.Init;
                native[i].sequence = handles.Add(sequences[i]);
            }
            Native.kvevict_sequences_workspace(native, (nuint)sequences.Length, &size);
        }
        return new KvWorkspaceSize(size);
    }

    /// <summary>
    /// <see cref="KvSequence.Evict"/> for each item, in one workspace. Contiguous caches of two sequences must not
    /// overlap if one of them is to lose tokens. Each sequence's <see cref="KvSequence.Report"/> says what was done to
    /// it.
    /// </summary>
    /// <param name="items">Sequences and their caches.</param>
    /// <param name="workspace">Scratch, see <see cref="WorkspaceSize"/>.</param>
    /// <param name="stream">CUstream on which the work is queued.</param>
    /// <exception cref="ArgumentException">
    /// Rows lie outside their memory, a view is null, or <see cref="KvSequence.Evict"/> refuses an item. Nothing was
    /// moved.
    /// </exception>
    /// <exception cref="InvalidOperationException">Host memory, and the context works on CUDA.</exception>
    public static void Evict(ReadOnlySpan<KvSequenceEviction> items, KvRegion workspace, nint stream = 0)
    {
        nuint count = (nuint)items.Length;
        Run(items, workspace, (native, memory, bytes) =>
            Native.kvevict_sequences_evict(native, count, memory, bytes, stream));
    }

    /// <summary>
    /// <see cref="Evict"/> of sequences in one paged cache, which gets emptied blocks back. Blocks that others
    /// share are copied before survivors move to them; the others hold theirs unchanged.
    /// </summary>
    /// <param name="items">Sequences and the places of their rows.</param>
    /// <param name="workspace">Scratch, the largest for <see cref="KvOperation.Evict"/> of the plans.</param>
    /// <param name="stream">CUstream on which the work is queued.</param>
    /// <exception cref="InvalidOperationException">Host memory, and the context works on CUDA.</exception>
    /// <exception cref="ArgumentException">The same errors as of <see cref="Evict"/>; nothing was moved.</exception>
    /// <exception cref="KvEvictException">Too few blocks are free for copies; nothing was moved in any.</exception>
    public static void EvictPaged(ReadOnlySpan<KvPagedEviction> items, KvRegion workspace, nint stream = 0)
    {
        using var handles = new Held(items.Length);
        var sequences = new KvSequenceEviction[items.Length];
        var paged = new kvevict_paged_eviction[items.Length];
        for (int i = 0; i < items.Length; ++i)
        {
            ref readonly KvPagedEviction item = ref items[i];
            ArgumentNullException.ThrowIfNull(item.Cached);
            if (item.Options.Undo.Address != 0)
                throw new ArgumentException("Undo is set: make a fork before the eviction instead", nameof(items));
            if (!item.Options.Destinations.IsEmpty)
                throw new ArgumentException("Destinations are set: KvSequence.Evict takes them", nameof(items));
            fixed (kvevict_paged_eviction* at = &paged[i])
            {
                *at = kvevict_paged_eviction.Init;
                at->cached = handles.Add(item.Cached.Handle);
            }
            sequences[i] = new KvSequenceEviction(item.Sequence, default, item.Options);
        }
        Run(sequences, workspace, (native, memory, bytes) =>
        {
            for (int i = 0; i < paged.Length; ++i)
            {
                paged[i].sequence = native[i].sequence;
                paged[i].options = native[i].options;
            }
            fixed (kvevict_paged_eviction* nativeItems = paged)
                Native.kvevict_paged_evict(nativeItems, (nuint)paged.Length, memory, bytes, stream);
        });
    }

    private delegate void Call(kvevict_sequence_eviction* items, void* workspace, nuint workspaceBytes);

    private static void Run(ReadOnlySpan<KvSequenceEviction> items, KvRegion workspace, Call call)
    {
        int viewCount = 0, inputCount = 0, positionCount = 0, rangeCount = 0, destinationCount = 0;
        foreach (ref readonly KvSequenceEviction item in items)
        {
            viewCount += Math.Max(item.Views.Length, item.Options.Inputs.Length);
            inputCount += item.Options.Inputs.Length;
            positionCount += item.Options.ProtectedPositions.Length;
            rangeCount += item.Options.Ranges.Length;
            destinationCount += item.Options.Destinations.Length;
        }
        using var handles = new Held(items.Length);
        fixed (kvevict_sequence_eviction* nativeItems = new kvevict_sequence_eviction[items.Length])
        fixed (kvevict_evict_options* options = new kvevict_evict_options[items.Length])
        fixed (kvevict_view* views = new kvevict_view[viewCount])
        fixed (kvevict_signal_inputs* inputs = new kvevict_signal_inputs[inputCount])
        fixed (NativeInputs* planes = new NativeInputs[inputCount])
        fixed (int* mustStay = new int[positionCount])
        fixed (kvevict_token_range* ranges = new kvevict_token_range[rangeCount])
        fixed (kvevict_view* destinations = new kvevict_view[destinationCount])
        {
            var next = new NativeEviction
            {
                Options = options,
                Views = views,
                Inputs = inputs,
                Planes = planes,
                Ranges = ranges,
                ProtectedPositions = mustStay,
                Destinations = destinations,
            };
            for (int i = 0; i < items.Length; ++i)
            {
                ref readonly KvSequenceEviction item = ref items[i];
                KvEvictOptions told = item.Options;
                nativeItems[i] = kvevict_sequence_eviction.Init;
                nativeItems[i].sequence = handles.Add(item.Sequence);
                nativeItems[i].views = next.Views;
                nativeItems[i].views_len = (nuint)item.Views.Length;
                nativeItems[i].options = next.Options;
                told.ProtectedPositions.Span.CopyTo(
                    new Span<int>(next.ProtectedPositions, told.ProtectedPositions.Length));
                item.Sequence.Write(item.Views.Span, told, next);
                next.Options += 1;
                next.Views += Math.Max(item.Views.Length, told.Inputs.Length);
                next.Inputs += told.Inputs.Length;
                next.Planes += told.Inputs.Length;
                next.Ranges += told.Ranges.Length;
                next.ProtectedPositions += told.ProtectedPositions.Length;
                next.Destinations += told.Destinations.Length;
            }
            ContextHandle? context = items.IsEmpty ? null : items[0].Sequence.Context;
            call(nativeItems, (void*)workspace.Resolve(context, nameof(workspace)), (nuint)workspace.Bytes);
        }
        foreach (ref readonly KvSequenceEviction item in items)
        {
            foreach (KvView view in item.Views.Span) GC.KeepAlive(view);
            item.Options.KeepAlive();
        }
        GC.KeepAlive(workspace.Owner);
    }

    // Keeps the handles of a call open.
    private sealed class Held(int count) : IDisposable
    {
        private readonly List<NativeHandle> _handles = new(count);

        internal void* Add(KvSequence sequence)
        {
            ArgumentNullException.ThrowIfNull(sequence);
            return Add(sequence.Handle);
        }

        internal void* Add(NativeHandle handle)
        {
            bool held = false;
            handle.DangerousAddRef(ref held);
            _handles.Add(handle);
            return NativeHandle.Pointer(handle);
        }

        public void Dispose()
        {
            foreach (NativeHandle handle in _handles) handle.DangerousRelease();
        }
    }
}
