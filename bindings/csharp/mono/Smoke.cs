// Calls the C interface from mono, which lacks what the KvEvict assembly needs
// (spans, function pointers): plain P/Invoke, as an engine on mono would do it.
using System;
using System.Runtime.InteropServices;

[StructLayout(LayoutKind.Sequential)]
struct Plane
{
    public ulong Data;
    public long TokenStride, HeadStride, ElementStride, BlockStride;
    public int DType;
    public uint HeadDim, RowBytes, Reserved32;
    public long GroupStride;
    public ulong AddressTable;
    public uint AddressTableLength, GroupElements;
    public ulong Reserved0, Reserved1, Reserved2, Reserved3, Reserved4, Reserved5;
}

[StructLayout(LayoutKind.Sequential)]
struct View
{
    public uint StructSize, KvHeads;
    public Plane K, V;
    public IntPtr Companions;
    public uint CompanionCount, BlockSize;
    public IntPtr BlockTable;
    public UIntPtr BlockTableLength;
    public ulong BlockTableHeadStride;
    public uint RingSlots, RingFirst, SharedBlocks, Reserved;
}

[StructLayout(LayoutKind.Sequential)]
struct KeepLists
{
    public uint StructSize, ListCount;
    public IntPtr Slots;
    public UIntPtr SlotsLength;
    public ulong ListStride;
    public uint Count, Reserved;
    public IntPtr Counts;
}

[StructLayout(LayoutKind.Sequential)]
struct Move
{
    public uint StructSize, TokenCount;
    public IntPtr View, Keep, TokenCounts;
    public int Merge;
    public uint FirstSlot;
    public double MergeThreshold, MergeFraction;
    public IntPtr Destination;
}

static class Smoke
{
    const int F32 = 1, InvalidArgument = 1;

    [DllImport("kvevict")] static extern IntPtr kvevict_version();
    [DllImport("kvevict")] static extern IntPtr kvevict_last_error_message();
    [DllImport("kvevict")] static extern int kvevict_context_create(IntPtr options, out IntPtr context);
    [DllImport("kvevict")] static extern void kvevict_context_destroy(IntPtr context);
    [DllImport("kvevict")]
    static extern int kvevict_compact(IntPtr context, Move[] moves, UIntPtr movesLength, IntPtr workspace,
                                      UIntPtr workspaceBytes, IntPtr stream);

    static void Expect(bool condition, string what)
    {
        if (!condition)
        {
            Console.WriteLine("not so: " + what);
            Environment.Exit(1);
        }
    }

    static IntPtr Copied<T>(T value) where T : struct
    {
        IntPtr copy = Marshal.AllocHGlobal(Marshal.SizeOf(typeof(T)));
        Marshal.StructureToPtr(value, copy, false);
        return copy;
    }

    static int Compact(IntPtr context, View view, uint tokens, int[] keep)
    {
        GCHandle slots = GCHandle.Alloc(keep, GCHandleType.Pinned);
        var lists = new KeepLists
        {
            StructSize = (uint)Marshal.SizeOf(typeof(KeepLists)), ListCount = 1, Slots = slots.AddrOfPinnedObject(),
            SlotsLength = (UIntPtr)keep.Length, Count = (uint)keep.Length,
        };
        var move = new Move
        {
            StructSize = (uint)Marshal.SizeOf(typeof(Move)), TokenCount = tokens, View = Copied(view),
            Keep = Copied(lists),
        };
        int status = kvevict_compact(context, new[] { move }, (UIntPtr)1, IntPtr.Zero, UIntPtr.Zero, IntPtr.Zero);
        Marshal.FreeHGlobal(move.View);
        Marshal.FreeHGlobal(move.Keep);
        slots.Free();
        return status;
    }

    static string LastError()
    {
        return Marshal.PtrToStringAnsi(kvevict_last_error_message());
    }

    static Plane TokenMajor(float[] rows, int heads, int dim)
    {
        return new Plane
        {
            Data = (ulong)Marshal.UnsafeAddrOfPinnedArrayElement(rows, 0).ToInt64(),
            TokenStride = heads * dim * sizeof(float), HeadStride = dim * sizeof(float),
            DType = F32, HeadDim = (uint)dim,
        };
    }

    static void Main()
    {
        const int Tokens = 100, Heads = 2, Dim = 8, Row = Heads * Dim;
        Expect(Marshal.PtrToStringAnsi(kvevict_version()).Split('.').Length == 3, "a version");
        IntPtr context;
        Expect(kvevict_context_create(IntPtr.Zero, out context) == 0, LastError());
        var k = new float[Tokens * Row];
        var v = new float[Tokens * Row];
        for (int i = 0; i < k.Length; ++i) v[i] = -(k[i] = i / Row);
        GCHandle pinK = GCHandle.Alloc(k, GCHandleType.Pinned), pinV = GCHandle.Alloc(v, GCHandleType.Pinned);
        var view = new View { StructSize = (uint)Marshal.SizeOf(typeof(View)) };
        view.KvHeads = Heads;
        view.K = TokenMajor(k, Heads, Dim);
        view.V = TokenMajor(v, Heads, Dim);

        int[] keep = { 0, 3, 50, 99 };
        Expect(Compact(context, view, Tokens, keep) == 0, LastError());
        for (int i = 0; i < keep.Length * Row; ++i)
        {
            Expect(k[i] == keep[i / Row] && v[i] == -keep[i / Row], "element " + i);
        }
        int[] wrong = { 3, 3 };
        Expect(Compact(context, view, Tokens, wrong) == InvalidArgument, "an error");
        Expect(LastError().Contains("keep[0][1] 3"), LastError());
        kvevict_context_destroy(context);
        pinK.Free();
        pinV.Free();
        Console.WriteLine("kvevict on mono: compaction and errors as expected");
    }
}
