using System.Numerics;

namespace KvEvict;

/// <summary>
/// The layout of one layer's cache: K, V, what moves along with them, and the block table of a paged pool.
/// No row is copied; make it once and use it for every eviction. What can be set must not change while a call uses it.
/// </summary>
public sealed unsafe partial class KvView
{
    private readonly KvPlane _keys;
    private readonly KvPlane _values;
    private readonly KvPlane[] _companions = [];
    // Native code reads it while a call runs, so it must not move.
    private readonly kvevict_plane[] _nativeCompanions = [];
    private KvRegion _blockTable;
    private KvPinnedMemory<int>? _ownTable;

    /// <summary>Describes a layer.</summary>
    /// <param name="kvHeads">KV heads.</param>
    /// <param name="keys">Keys.</param>
    /// <param name="values">Values; absent for caches with one row per token (MLA).</param>
    public KvView(int kvHeads, KvPlane keys, KvPlane values = default)
    {
        ArgumentOutOfRangeException.ThrowIfNegativeOrZero(kvHeads);
        KvHeads = kvHeads;
        _keys = keys;
        _values = values;
    }

    /// <summary>KV heads.</summary>
    public int KvHeads { get; }

    /// <summary>Keys.</summary>
    public KvPlane Keys => _keys;

    /// <summary>Values.</summary>
    public KvPlane Values => _values;

    /// <summary>Other planes with a row per token and head that must move along: scales, position arrays.</summary>
    public IReadOnlyList<KvPlane> Companions
    {
        get => _companions;
        init
        {
            ArgumentNullException.ThrowIfNull(value);
            _companions = [.. value];
            _nativeCompanions = GC.AllocateArray<kvevict_plane>(_companions.Length, pinned: true);
        }
    }

    /// <summary>
    /// Paged: 32-bit block ids in token order, non-negative, all different. A call reads them when it runs, on CUDA
    /// when its work does; the engine may go on adding ids. On the CPU blocks outside the planes' memory are an error.
    /// </summary>
    public KvRegion BlockTable
    {
        get => _blockTable;
        init => _blockTable = value;
    }

    /// <summary>
    /// Sets <see cref="BlockTable"/> to a copy, which the view owns. For contexts on the CPU; must not run while a
    /// call uses the view. Allocates only if the table outgrows all before.
    /// </summary>
    /// <param name="blocks">Block ids in token order.</param>
    public void SetBlockTable(ReadOnlySpan<int> blocks)
    {
        if (_ownTable is null || _ownTable.Length < blocks.Length)
        {
            _ownTable?.Dispose();
            _ownTable = new KvPinnedMemory<int>((int)BitOperations.RoundUpToPowerOf2((uint)blocks.Length));
        }
        blocks.CopyTo(_ownTable.Span);
        _blockTable = _ownTable.ToRegion().Slice(0, (long)blocks.Length * sizeof(int));
    }

    /// <summary>The table of <see cref="SetBlockTable"/> as evictions by table left it; empty without one.</summary>
    public ReadOnlySpan<int> OwnBlockTable =>
        _ownTable is null ? default : _ownTable.Span[..(int)(_blockTable.Bytes / sizeof(int))];

    /// <summary>Checks the view as executing calls on the CPU do, which read the block table.</summary>
    /// <param name="tokenCount">Slots that will be addressed; 0 is valid.</param>
    /// <exception cref="ArgumentException">
    /// Rows lie outside their memory. Rows overlap, or a block table is too short or negative.
    /// </exception>
    public void Validate(int tokenCount)
    {
        kvevict_view native;
        Write(&native, tokenCount, context: null);
        Native.kvevict_view_validate(&native, (uint)tokenCount);
        GC.KeepAlive(this);
    }

    // Writes the native view, whose pointers hold as long as this object; fails if rows of so many tokens lie
    // outside their memory. If heads hold different numbers, the context's memory has one for each.
    internal void Write(kvevict_view* native, int tokenCount, ContextHandle? context, uint* tokenCounts = null)
    {
        Fill(native);
        native->k = _keys.ToNative(context, nameof(Keys));
        native->v = _values.ToNative(context, nameof(Values));
        for (int i = 0; i < _companions.Length; ++i)
            _nativeCompanions[i] = _companions[i].ToNative(context, nameof(Companions));
        if (_companions.Length > 0)
        {
            fixed (kvevict_plane* companions = _nativeCompanions) native->companions = companions;
        }
        native->n_companions = (uint)_companions.Length;
        native->block_table = (int*)BlockTable.Resolve(context, nameof(BlockTable));
        native->block_table_len = BlockTable.Elements<int>();
        CheckRows(tokenCount, tokenCounts, onHost: context is null or { Device: KvDevice.Cpu });
    }

    private void CheckRows(int tokenCount, uint* tokenCounts, bool onHost)
    {
        Check.Count(tokenCount, nameof(tokenCount));
        int recent = 0;
        foreach (KvPlane companion in _companions)
        {
            if (companion.IsRecent && tokenCount > FirstRecent)
                (tokenCount, recent) = (FirstRecent, tokenCount - FirstRecent);
        }
        if (RingSlots > 0 && tokenCount > 0)
        {
            tokenCount = Math.Max(tokenCount, RingSlots); // all of it is in use
            tokenCounts = null;
        }
        int highestBlock = -1;
        int rows = tokenCount;
        if (BlockSize > 0 && tokenCount > 0)
        {
            if (!onHost) return; // a table in device memory cannot be read here
            rows = Math.Min(tokenCount, BlockSize);
            for (int head = 0; head < KvHeads; ++head)
            {
                // Entries beyond a head's tokens may be anything.
                long tokens = tokenCounts is null ? tokenCount : Math.Min(tokenCounts[head], (uint)tokenCount);
                int blocks = (int)((tokens + BlockSize - 1) / BlockSize);
                Int128 elements = (Int128)head * BlockTableHeadStride + blocks;
                if (BlockTable.Address == 0 || elements > BlockTable.Elements<int>()) return; // the library says so
                int* first = (int*)BlockTable.Address + head * BlockTableHeadStride;
                foreach (int block in new ReadOnlySpan<int>(first, blocks))
                    highestBlock = Math.Max(highestBlock, block);
                if (BlockTableHeadStride == 0 && tokenCounts is null) break; // all heads are like the first
            }
        }
        _keys.CheckRows("keys", rows, KvHeads, highestBlock);
        _values.CheckRows("values", rows, KvHeads, highestBlock);
        foreach (KvPlane companion in _companions)
        {
            if (companion.IsRecent) companion.CheckRows("companion", recent, KvHeads);
            else companion.CheckRows("companion", companion.RowsFor(rows), KvHeads, highestBlock);
        }
    }
}
