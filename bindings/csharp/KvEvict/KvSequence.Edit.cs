namespace KvEvict;

/// <summary>
/// One change of a text whose cache is already computed. Positions are those before it, except
/// <see cref="To"/>.
/// </summary>
/// <param name="First">First position of the span.</param>
/// <param name="End">One past the last. An insertion has <paramref name="First"/>.</param>
public readonly partial record struct KvEdit(int First, int End);

public sealed unsafe partial class KvSequence
{
    /// <summary>
    /// Removes, replaces, inserts or moves tokens in the middle. Rows move to their new slots in every layer with a
    /// full cache, and keys rotate by as many positions as their tokens move. Tokens that were evicted stay so. Keys
    /// and values behind the edit still remember the old text; only <see cref="ExactPrefix"/> tokens are as if it had
    /// always been the new one. Make room in the views, call, then write the rows of new tokens, in each layer and
    /// head from the slot of position <see cref="KvEdit.First"/> on. This allocates. The last eviction cannot be
    /// undone any more.
    /// </summary>
    /// <param name="views">
    /// One for each layer, with room for all slots held before and after; null for layers without a full cache.
    /// </param>
    /// <param name="edit">What changes.</param>
    /// <param name="stream">CUstream on which the work is queued, and for which this waits.</param>
    /// <exception cref="ArgumentException">
    /// The span does not fit, rows lie outside their memory, or a view is null. Nothing has changed.
    /// </exception>
    /// <exception cref="InvalidOperationException">Host memory, and the context works on CUDA.</exception>
    /// <exception cref="KvEvictException">
    /// Keys cannot rotate, or there is no memory left, and nothing has changed; or the device failed.
    /// </exception>
    public void Edit(ReadOnlySpan<KvView> views, KvEdit edit, nint stream = 0)
    {
        SequenceHandle handle = Handle;
        kvevict_edit nativeEdit;
        edit.Fill(&nativeEdit);
        Span<kvevict_view> native = First(ref _manyViews, views.Length);
        fixed (kvevict_view* nativeViews = native)
        {
            Write(views, [], nativeViews, null, null);
            if (edit.NewCount > 0) CheckRoom(views, edit, nativeViews);
            Native.kvevict_sequence_edit(handle, nativeViews, (nuint)views.Length, &nativeEdit, stream);
        }
        foreach (KvView view in views) GC.KeepAlive(view);
    }

    // Fails if the rows that are held after an edit lie outside their memory.
    private void CheckRoom(ReadOnlySpan<KvView> views, in KvEdit edit, kvevict_view* native)
    {
        for (int layer = 0; layer < Math.Min(views.Length, _plan.Geometry.LayerCount); ++layer)
        {
            KvLayerGeometry geometry = _plan.Geometry.Of(layer);
            if (!geometry.HasFullCache) continue;
            var held = new uint[geometry.KvHeads];
            for (int head = 0; head < held.Length; ++head)
            {
                held[head] = (uint)edit.NewCount;
                foreach (int position in KeepPositions(layer, head))
                {
                    if (position < edit.First || position >= edit.End) ++held[head];
                }
            }
            fixed (uint* heads = held)
            {
                views[layer].Write(native + layer, checked((int)held.Max()), _plan.Context,
                                   views[layer].KvHeads == held.Length ? heads : null);
            }
        }
    }
}
