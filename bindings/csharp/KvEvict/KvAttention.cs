namespace KvEvict;

/// <summary>One layer of one sequence in <see cref="KvContext.Attend"/>.</summary>
/// <param name="View">The cache, which also holds the queries' own tokens.</param>
/// <param name="TokenCount">Slots held, the most of any head.</param>
/// <param name="QueryHeads">A multiple of the view's KV heads.</param>
/// <param name="QueryCount">
/// Queries of each head; query i belongs to slot <paramref name="TokenCount"/> - <paramref name="QueryCount"/> + i.
/// </param>
/// <param name="Queries">[query heads, queries, key dim] after RoPE.</param>
/// <param name="Output">
/// [query heads, queries, value dim] floats or 16-bit floats, in which no two rows overlap: written.
/// </param>
public readonly partial record struct KvAttention(KvView View, int TokenCount, int QueryHeads, int QueryCount, KvPlane Queries,
                                          KvPlane Output)
{
    /// <summary>
    /// Absent, or slots held by each head: 32-bit numbers, [KV heads], each at most <see cref="TokenCount"/>.
    /// </summary>
    public KvRegion TokenCounts { get; init; }

    /// <summary>Absent, or floats [query heads]: a term of each head's softmax that has no value.</summary>
    public KvRegion SinkLogits { get; init; }

    /// <summary>
    /// Absent, or floats [query heads, queries] with one element per row: receives the log-sum-exp of each query's
    /// logits, as <see cref="KvSignalInputs.RowLse"/> has it.
    /// </summary>
    public KvPlane RowLse { get; init; }

    /// <summary>
    /// Absent, or floats [<see cref="SumHeads"/>, slots held] with one element per row: receives the attention weight
    /// that each slot got from all queries, as <see cref="KvSignalInputs.AttentionSums"/> of a step or chunk has it.
    /// </summary>
    public KvPlane AttentionSums { get; init; }

    internal void KeepAlive()
    {
        GC.KeepAlive(View);
        GC.KeepAlive(TokenCounts.Owner);
        GC.KeepAlive(Queries.Region.Owner);
        GC.KeepAlive(Output.Region.Owner);
        GC.KeepAlive(SinkLogits.Owner);
        GC.KeepAlive(RowLse.Region.Owner);
        GC.KeepAlive(AttentionSums.Region.Owner);
    }
}

// The native structs of one job. They point to each other, so they must not move.
internal unsafe struct NativeAttention
{
    private kvevict_view _view;
    private kvevict_plane _queries;
    private kvevict_plane _output;
    private kvevict_plane _rowLse;
    private kvevict_plane _attentionSums;

    // Writes a job. Its rows must lie in their memory.
    internal static void Write(NativeAttention* self, kvevict_attention_job* native, in KvAttention job,
                               ContextHandle context)
    {
        if (job.View is null) throw new ArgumentNullException(nameof(job.View));
        uint* counts = (uint*)job.TokenCounts.Each(context, nameof(job.TokenCounts), job.View.KvHeads);
        job.View.Write(&self->_view, job.TokenCount, context, counts);
        job.Fill(native);
        native->token_counts = counts;
        native->view = &self->_view;
        native->sink_logits = (float*)job.SinkLogits.Each(context, nameof(job.SinkLogits), job.QueryHeads);
        native->sink_logits_len = native->sink_logits is null ? 0 : (nuint)job.QueryHeads;
        int sumHeads = job.SumHeads == 0 ? job.QueryHeads : job.SumHeads;
        native->queries = Write(&self->_queries, job.Queries, nameof(job.Queries), job.QueryCount, job.QueryHeads);
        native->@out = Write(&self->_output, job.Output, nameof(job.Output), job.QueryCount, job.QueryHeads);
        native->row_lse = Write(&self->_rowLse, job.RowLse, nameof(job.RowLse), job.QueryCount, job.QueryHeads);
        native->attention_sums =
            Write(&self->_attentionSums, job.AttentionSums, nameof(job.AttentionSums), job.TokenCount, sumHeads);

        kvevict_plane* Write(kvevict_plane* to, KvPlane plane, string name, int count, int headCount)
        {
            if (plane.Region.Address == 0) return null;
            plane.CheckRows(name, count, headCount);
            *to = plane.ToNative(context, name);
            return to;
        }
    }
}

public sealed unsafe partial class KvContext
{
    /// <summary>
    /// Attention of queries over caches in place: the softmax of the logits of the slots that a query sees, and the
    /// mean of their values by it. It serves engines without a kernel of their own, for decoding and prefill.
    /// </summary>
    /// <param name="jobs">
    /// At most 128, each for a layer of a sequence, of any shapes. They may share caches. Outputs must not overlap
    /// anything that a job reads or writes.
    /// </param>
    /// <param name="workspace">Scratch of <see cref="AttendWorkspaceSize"/>.</param>
    /// <param name="stream">CUstream on which the work is queued.</param>
    /// <exception cref="ArgumentException">
    /// A region is too short, or rows lie outside their memory. A view is invalid, rows cannot be read, or outputs
    /// overlap.
    /// </exception>
    /// <exception cref="InvalidOperationException">Host memory, and the context works on CUDA.</exception>
    public void Attend(ReadOnlySpan<KvAttention> jobs, KvRegion workspace, nint stream = 0)
    {
        void* scratch = (void*)workspace.Resolve(Handle, nameof(workspace));
        Attention(jobs, scratch, (nuint)workspace.Bytes, stream, null);
        GC.KeepAlive(workspace.Owner);
    }

    /// <summary>The workspace of attention. With few queries the best holds results of parts of the cache.</summary>
    /// <param name="jobs">The jobs of the call.</param>
    /// <returns>Its size.</returns>
    /// <exception cref="ArgumentException">
    /// Rows lie outside their memory, a view is invalid, or rows cannot be read.
    /// </exception>
    public KvWorkspaceSize AttendWorkspaceSize(ReadOnlySpan<KvAttention> jobs)
    {
        kvevict_workspace size = new() { struct_size = (uint)sizeof(kvevict_workspace) };
        Attention(jobs, null, 0, 0, &size);
        return new KvWorkspaceSize(size);
    }

    /// <summary>Allocates the scratch that attention needs on the CPU.</summary>
    /// <param name="jobs">The jobs of the call.</param>
    /// <returns>A workspace to dispose.</returns>
    /// <exception cref="InvalidOperationException">The context works on CUDA.</exception>
    public KvWorkspace CreateAttendWorkspace(ReadOnlySpan<KvAttention> jobs)
    {
        Handle.RefuseHostMemory("workspace");
        return new KvWorkspace(AttendWorkspaceSize(jobs));
    }

    // Runs the jobs, or asks for their workspace.
    private void Attention(ReadOnlySpan<KvAttention> jobs, void* scratch, nuint bytes, nint stream,
                           kvevict_workspace* size)
    {
        ContextHandle handle = Handle;
        // A job's structs take a kilobyte, so they are not on the stack.
        var parts = new NativeAttention[jobs.Length];
        var native = new kvevict_attention_job[jobs.Length];
        fixed (NativeAttention* part = parts)
        fixed (kvevict_attention_job* first = native)
        {
            for (int i = 0; i < jobs.Length; ++i) NativeAttention.Write(part + i, first + i, jobs[i], handle);
            if (size is null) Native.kvevict_attend(handle, first, (nuint)jobs.Length, scratch, bytes, stream);
            else Native.kvevict_attend_workspace(handle, first, (nuint)jobs.Length, size);
        }
        foreach (ref readonly KvAttention job in jobs) job.KeepAlive();
    }
}
