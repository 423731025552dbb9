using Xunit;

namespace KvEvict.Tests;

/// <summary>Rows in an order that does not ascend.</summary>
public sealed class ReorderTests : IDisposable
{
    private const int Heads = 2, Dim = 4, Row = Heads * Dim, Tokens = 10;
    private readonly KvContext _context = new();
    private readonly KvPinnedMemory<float> _keys = new(Tokens * Row);
    private readonly KvPinnedMemory<float> _values = new(Tokens * Row);
    private readonly KvPinnedMemory<int> _table = new(new[] { 7, 2, 9, 0, 4, 1, 8, 3, 6, 5 });
    private readonly KvView _view;

    public ReorderTests()
    {
        Fill(place: slot => slot);
        _view = new KvView(Heads, KvPlane.TokenMajor(_keys, KvDType.F32, Heads, Dim),
                           KvPlane.TokenMajor(_values, KvDType.F32, Heads, Dim));
    }

    public void Dispose()
    {
        _context.Dispose();
        _keys.Dispose();
        _values.Dispose();
        _table.Dispose();
    }

    // The oldest token lies in slot 4.
    private static int[] Ring => [4, 5, 6, 7, 8, 9, 0, 1, 2, 3];

    [Fact]
    public void A_wrapped_ring_is_straightened()
    {
        using KvWorkspace workspace = _context.CreateReorderWorkspace([Sized(_view, Tokens)]);
        _context.Reorder(_view, Tokens, Ring, workspace);
        Assert.Equal(Ring, TokensInSlots(0));
        Assert.Equal(Ring, TokensInSlots(1));
    }

    [Fact]
    public void A_wrapped_ring_in_a_pool_of_tokens_is_straightened()
    {
        Fill(place: slot => _table.Span[slot]);
        var view = new KvView(Heads, KvPlane.PagedTokenMajor(_keys, KvDType.F32, 1, Heads, Dim),
                              KvPlane.PagedTokenMajor(_values, KvDType.F32, 1, Heads, Dim))
        {
            BlockSize = 1, BlockTable = _table,
        };
        using var slots = new KvPinnedMemory<int>(Ring);
        using KvWorkspace workspace = _context.CreateReorderWorkspace([Sized(view, Tokens)]);
        _context.Reorder([new KvMove(view, Tokens, new KvKeepLists(slots, Tokens))], workspace);
        Assert.Equal(Ring, TokensInSlots(0, place: slot => _table.Span[slot]));
        Assert.Equal(Ring, TokensInSlots(1, place: slot => _table.Span[slot]));
    }

    [Fact]
    public void A_row_may_go_to_several_slots()
    {
        using KvWorkspace workspace = _context.CreateReorderWorkspace([Sized(_view, Tokens)]); // for more than 4
        _context.Reorder(_view, Tokens, [9, 0, 9, 0], workspace);
        Assert.Equal([9, 0, 9, 0, 4, 5, 6, 7, 8, 9], TokensInSlots(1));
    }

    [Fact]
    public void Heads_have_lists_of_their_own()
    {
        using KvWorkspace workspace = _context.CreateReorderWorkspace([Sized(_view, 3, Heads)]);
        _context.Reorder(_view, Tokens, [2, 1, 0, 8, 8, 1], workspace, Heads);
        Assert.Equal([2, 1, 0], TokensInSlots(0)[..3]);
        Assert.Equal([8, 8, 1], TokensInSlots(1)[..3]);
        using var slots = new KvPinnedMemory<int>(new[] { 1, 1, 0, 2, 0, 1 });
        _context.Reorder([new KvMove(_view, Tokens, new KvKeepLists(slots, 3, Heads))], workspace);
        Assert.Equal([1, 1, 2], TokensInSlots(0)[..3]);
        Assert.Equal([1, 8, 8], TokensInSlots(1)[..3]);
    }

    [Fact]
    public void Workspaces_have_the_librarys_size()
    {
        KvWorkspaceSize size = _context.ReorderWorkspaceSize([Sized(_view, Tokens)]);
        Assert.Equal(64, size.Alignment);
        Assert.InRange(size.Least, Tokens * 8, size.Best);
        Assert.True(_context.ReorderWorkspaceSize([Sized(_view, Tokens, Heads)]).Least > size.Least);
        Assert.Equal((0, 0), Bytes(_context.ReorderWorkspaceSize([Sized(_view, 0)])));
        Assert.Equal((0, 0), Bytes(_context.CompactWorkspaceSize([Sized(_view, Tokens)])));
        _context.Reorder(_view, Tokens, [], default(KvRegion));
        Assert.Equal(Enumerable.Range(0, Tokens), TokensInSlots(0));

        using KvWorkspace workspace = _context.CreateReorderWorkspace([Sized(_view, Tokens)]);
        KvRegion region = workspace;
        Assert.Equal(size.Best, region.Bytes);
        var e = Assert.Throws<ArgumentException>(
            () => _context.Reorder(_view, Tokens, Ring, new KvRegion(region.Address, size.Least - 1, workspace)));
        Assert.Equal($"workspace_bytes {size.Least - 1} < {size.Least}", e.Message);
        Assert.Equal(Enumerable.Range(0, Tokens), TokensInSlots(0));
        _context.Reorder(_view, Tokens, Ring, new KvRegion(region.Address, size.Least, workspace));
        Assert.Equal(Ring, TokensInSlots(0));

        static (long, long) Bytes(KvWorkspaceSize size) => (size.Least, size.Best);
    }

    [Fact]
    public void Compaction_takes_a_workspace_too()
    {
        using var keep = new KvPinnedMemory<int>(new[] { 1, 5 });
        KvMove[] moves = [new(_view, Tokens, new KvKeepLists(keep, keep.Length))];
        using var workspace = new KvWorkspace(_context.CompactWorkspaceSize(moves).Best + 64);
        _context.Compact(moves, workspace);
        Assert.Equal([1, 5], TokensInSlots(0)[..2]);
        workspace.Dispose();
        Assert.Throws<ObjectDisposedException>(() => _context.Compact(moves, workspace));
    }

    [Fact]
    public void Wrong_use_is_refused()
    {
        using KvWorkspace workspace = _context.CreateReorderWorkspace([Sized(_view, Tokens)]);
        KvRegion scratch = workspace;
        Assert.Throws<ArgumentNullException>(() => _context.Reorder(null!, Tokens, Ring, scratch));
        Assert.Throws<ArgumentNullException>(() => _context.ReorderWorkspaceSize([Sized(null!, Tokens)]));
        Assert.Throws<ArgumentNullException>(() => _context.CompactWorkspaceSize([Sized(null!, Tokens)]));
        Refuses("tokenCount", () => _context.Reorder(_view, -1, Ring, scratch));
        Refuses("listCount", () => _context.Reorder(_view, Tokens, Ring, scratch, -1));
        Refuses("tokenCount", () => _context.ReorderWorkspaceSize([Sized(_view, -1)]));
        Refuses("ListCount", () => _context.ReorderWorkspaceSize([Sized(_view, Tokens, -1)]));
        Refuses("tokenCount", () => _context.CompactWorkspaceSize([Sized(_view, -1)]));
        Assert.Throws<ArgumentException>(() => _context.Reorder(_view, Tokens, Ring, scratch, 3));
        Assert.Throws<ArgumentException>(() => _context.Reorder(_view, Tokens + 1, Ring, scratch));
        Assert.Throws<ArgumentException>(() => _context.ReorderWorkspaceSize([Sized(_view, Tokens + 1)]));
        Fails("keep[0][1] 10 is not in [0, n_tokens 10)",
              () => _context.Reorder(_view, Tokens, [0, Tokens], scratch));
        Fails("keep[0][0] -1", () => _context.Reorder(_view, Tokens, [-1], scratch));
        Fails("keep.count 10 > n_tokens 9", () => _context.Reorder(_view, 9, Ring, scratch));
        Fails("keep.n_lists 3", () => _context.Reorder(_view, Tokens, [1, 2, 0], scratch, 3));
        Fails("keep.n_lists 3", () => _context.ReorderWorkspaceSize([Sized(_view, Tokens, 3)]));
        Assert.Equal(Enumerable.Range(0, Tokens), TokensInSlots(1));
        workspace.Dispose();
        Assert.Throws<ObjectDisposedException>(() => _context.Reorder(_view, Tokens, Ring, scratch));
        _context.Dispose();
        Assert.Throws<ObjectDisposedException>(() => _context.Reorder(_view, Tokens, [], default(KvRegion)));
        Assert.Throws<ObjectDisposedException>(() => _context.ReorderWorkspaceSize([Sized(_view, Tokens)]));
    }

    private static KvMove Sized(KvView view, int slots, int lists = 1) =>
        new(view, 0, new KvKeepLists(default, slots, lists));

    private static void Refuses(string parameter, Action call) =>
        Assert.Equal(parameter, Assert.Throws<ArgumentOutOfRangeException>(call).ParamName);

    private static void Fails(string text, Action call) =>
        Assert.Contains(text, Assert.Throws<ArgumentException>(call).Message);

    // Element e of head h of the token in a slot says so; values are the keys' negatives.
    private static float Content(int token, int head, int element) => token * 16 + head * 4 + element;

    private void Fill(Func<int, int> place)
    {
        for (int i = 0; i < Tokens * Row; ++i)
        {
            int at = place(i / Row) * Row + i % Row;
            _keys.Span[at] = Content(i / Row, i % Row / Dim, i % Dim);
            _values.Span[at] = -_keys.Span[at];
        }
    }

    // The tokens whose rows, whole, lie in the slots.
    private int[] TokensInSlots(int head, Func<int, int>? place = null)
    {
        int[] tokens = new int[Tokens];
        for (int slot = 0; slot < Tokens; ++slot)
        {
            int at = (place?.Invoke(slot) ?? slot) * Row + head * Dim;
            tokens[slot] = (int)_keys.Span[at] / 16;
            for (int e = 0; e < Dim; ++e)
            {
                Assert.Equal(Content(tokens[slot], head, e), _keys.Span[at + e]);
                Assert.Equal(-Content(tokens[slot], head, e), _values.Span[at + e]);
            }
        }
        return tokens;
    }
}
