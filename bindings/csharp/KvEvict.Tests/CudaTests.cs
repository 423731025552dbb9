using System.Runtime.InteropServices;
using Xunit;

namespace KvEvict.Tests;

/// <summary>
/// Contexts on CUDA, by libraries that run the kernels on the CPU: device memory is the process's own.
/// </summary>
public sealed class CudaTests : IDisposable
{
    private const int Tokens = 48;
    private const string PolicyText = "snapkv:budget=24,window=4,sink=2";
    private readonly DeviceMemory _device = new();

    public void Dispose() => _device.Dispose();

    /// <summary>The machine has a driver of CUDA 12.4 and NVRTC 12.4, as ctest sets it up.</summary>
    [CudaFact]
    public void The_driver_s_GPUs_are_listed()
    {
        KvEvictLibrary.CheckDevice(KvDevice.Cuda);
        Assert.True(KvEvictLibrary.IsAvailable(KvDevice.Cuda));
        IReadOnlyList<KvGpuInfo> gpus = KvEvictLibrary.GetGpus();
        Assert.Equal(3, gpus.Count);
        Assert.Contains("compute capability 6.1", gpus[0].Problem);
        Assert.Equal(new KvGpuInfo("Fake GPU", 61, 12040, 0, "", "", ""), gpus[0] with { Problem = "" });
        Assert.Equal(new KvGpuInfo("Fake GPU", 90, 12040, 12040, "libnvrtc.so.12", "sm_90", ""), gpus[1]);
        Assert.Equal(new KvGpuInfo("Fake GPU", 89, 12040, 12040, "libnvrtc.so.12", "compute_80", ""), gpus[2]);
    }

    [CudaFact]
    public void A_sequence_keeps_what_it_keeps_on_the_CPU()
    {
        using var cpu = new SmallModel(PolicyText);
        using var gpu = new SmallModel(PolicyText, new KvContext(Cuda));
        gpu.Context.Prepare(gpu.Plan);
        KvRegion workspace = _device.Allocate(gpu.Plan.WorkspaceSize(KvOperation.Evict));
        cpu.Prefill(Tokens);
        gpu.Sequence.Observe([new(0, gpu.QueriesFrom(0)), new(1, gpu.QueriesFrom(0))], Tokens);
        gpu.Sequence.Append(Tokens);
        Assert.Equal(cpu.Evict(), gpu.Sequence.Evict(gpu.Views, workspace));
        for (int l = 0; l < SmallModel.Layers; ++l)
        {
            KvSequenceMemory memory = gpu.Sequence.MemoryOf(l);
            var lengths = new KvRegion(memory.Lengths, memory.ListCount * 2 * sizeof(uint));
            Assert.Equal([24u, Tokens, 24u, Tokens], DeviceMemory.Read<uint>(lengths).ToArray());
            for (int h = 0; h < SmallModel.KvHeads; ++h)
                Assert.Equal(cpu.Sequence.KeepPositions(l, h), gpu.Sequence.KeepPositions(l, h));
            int n = 24 * SmallModel.KvHeads * SmallModel.Dim;
            Assert.Equal(cpu.Keys[l].Span[..n], gpu.Keys[l].Span[..n]);
            Assert.Equal(cpu.Values[l].Span[..n], gpu.Values[l].Span[..n]);
        }
    }

    /// <summary>
    /// Captured work runs with its graph: so each call has queued its work on the stream it was
    /// given, and nowhere else.
    /// </summary>
    [CudaFact]
    public unsafe void Every_call_queues_its_work_on_the_stream_it_is_given()
    {
        nint driver = NativeLibrary.Load(CudaFactAttribute.Libcuda!);
        void* Entry(string name) => (void*)NativeLibrary.GetExport(driver, name);
        var create = (delegate* unmanaged<nint*, uint, int>)Entry("cuStreamCreate");
        var begin = (delegate* unmanaged<nint, int, int>)Entry("cuStreamBeginCapture_v2");
        var end = (delegate* unmanaged<nint, nint*, int>)Entry("cuStreamEndCapture");
        var instantiate = (delegate* unmanaged<nint*, nint, ulong, int>)Entry("cuGraphInstantiateWithFlags");
        var launch = (delegate* unmanaged<nint, nint, int>)Entry("cuGraphLaunch");
        nint made;
        Assert.Equal(0, create(&made, 0));
        nint stream = made;
        void Captures(KvRegion state, Action call)
        {
            nint graph, executable;
            byte[] before = DeviceMemory.Read<byte>(state).ToArray();
            Assert.Equal(0, begin(stream, 0));
            call();
            Assert.Equal(0, end(stream, &graph));
            Assert.Equal(before, DeviceMemory.Read<byte>(state));
            Assert.Equal(0, instantiate(&executable, graph, 0));
            Assert.Equal(0, launch(executable, stream));
            Assert.NotEqual(before, DeviceMemory.Read<byte>(state).ToArray());
        }

        using var gpu = new SmallModel(PolicyText, new KvContext(Cuda));
        gpu.Context.Prepare(gpu.Plan);
        KvSequence s = gpu.Sequence;
        s.EndObserving();
        KvRegion rows = _device.Allocate(gpu.Plan.WorkspaceSize(KvOperation.Observe));
        KvRegion workspace = _device.Allocate(gpu.Plan.WorkspaceSize(KvOperation.Evict));
        var lengths = new KvRegion(s.MemoryOf(0).Lengths, 2 * sizeof(uint));
        s.BeginObserving(rows);
        Captures(rows, () => s.Observe(0, gpu.QueryPlane, Tokens, stream: stream));
        Captures(rows, () => s.Observe([new(1, gpu.QueriesFrom(0))], Tokens, stream: stream));
        Captures(lengths, () => s.Append(Tokens, stream));
        Captures(lengths, () => s.Evict(gpu.Views, workspace, stream: stream));
        s.Append(2);
        Captures(lengths, () => s.TrimTo(Tokens + 1, stream));
        Captures(lengths, () => s.Reset(stream));

        KvRegion scores = _device.Allocate(SmallModel.KvHeads * Tokens * sizeof(float));
        KvRegion slots = _device.Allocate(24 * sizeof(int));
        KvRegion keys = gpu.Views[0].Keys.Region;
        var job = new KvScoreJob(0, gpu.Views[0], Tokens) { Inputs = gpu.QueriesFrom(0), Scores = scores };
        KvMove[] moves = [new(gpu.Views[0], Tokens, new KvKeepLists(slots, 24))];
        Captures(scores, () => gpu.Plan.Score([job], workspace, stream));
        KvRegion reordering = _device.Allocate(gpu.Context.ReorderWorkspaceSize(moves));
        Captures(slots, () => gpu.Context.Select(Last(), moves[0].Keep, workspace, stream));
        Captures(keys, () => gpu.Context.Compact(moves, default, stream));
        gpu.Keys[0].Span[..SmallModel.Dim].Clear();
        Captures(keys, () => gpu.Context.Reorder(moves, reordering, stream));

        static KvSelectOptions Last() => new() { TokenCount = Tokens, Tie = KvTie.HigherPosition };
    }

    [CudaFact]
    public void Options_reach_the_library()
    {
        string cache = Directory.CreateTempSubdirectory("kvevict").FullName;
        var hooks = new CountingHooks(_device);
        var compiled = new List<string>();
        KvContextOptions options = Cuda with
        {
            KernelCacheDirectory = cache, DeviceMemory = hooks, SelectOnHost = true, Debug = true,
            LogLevel = KvLogLevel.Info, Log = (_, line) => compiled.Add(line),
        };
        using (var gpu = new SmallModel(PolicyText, new KvContext(options)))
        {
            gpu.Prefill(Tokens);
            gpu.Sequence.Evict(gpu.Views, _device.Allocate(gpu.Plan.WorkspaceSize(KvOperation.Evict)));
            Assert.NotEqual(0, hooks.Live);
            Assert.NotEmpty(Directory.GetFiles(cache));
            KvRegion keep = _device.Allocate(2 * sizeof(int));
            new[] { 5, 4 }.CopyTo(DeviceMemory.Read<int>(keep));
            var e = Assert.Throws<ArgumentException>(
                () => gpu.Context.Compact([new KvMove(gpu.Views[0], 24, new KvKeepLists(keep, 2))]));
            Assert.Contains("ascend", e.Message);
        }
        Assert.Equal(0, hooks.Live);
        Assert.Contains(compiled, line => line.Contains("gather_rows"));
        Assert.DoesNotContain(compiled, line => line.Contains("topk"));
        Directory.Delete(cache, recursive: true);
    }

    [CudaFact]
    public void Host_memory_is_refused()
    {
        using var gpu = new SmallModel(PolicyText, new KvContext(Cuda));
        using var host = new KvWorkspace(1 << 16);
        float[] scores = new float[SmallModel.KvHeads * Tokens];
        int[] keep = new int[SmallModel.KvHeads * 24];
        KvRegion values = _device.Allocate(scores.Length * sizeof(float));
        KvRegion slots = _device.Allocate(keep.Length * sizeof(int));
        KvView view = gpu.Views[0];
        KvPlane hostPlane = KvPlane.TokenMajor(host, KvDType.F32, SmallModel.KvHeads, SmallModel.Dim);
        KvPlane hostQueries = KvPlane.TokenMajor(host, KvDType.F32, SmallModel.QueryHeads, SmallModel.Dim);
        KvPlane hostRows = KvPlane.HeadMajor(host, KvDType.F32, Tokens, 1);
        using var pinned = new KvPinnedMemory<int>(64);
        KvView With(KvPlane values = default, KvPlane companion = default, KvRegion table = default) =>
            new(SmallModel.KvHeads, view.Keys with { BlockStride = 64 }, values)
            {
                Companions = companion == default ? [] : [companion],
                BlockTable = table, BlockSize = table == default ? 0 : 1,
            };
        var job = new KvScoreJob(0, view, Tokens) { Inputs = gpu.QueriesFrom(0), Scores = values };
        var lists = new KvKeepLists(slots, 24, SmallModel.KvHeads);
        KvMove move = new(view, Tokens, lists);
        void RefusesView(string parameter, KvView wrong)
        {
            Refuses(parameter, () => gpu.Plan.Score([job with { View = wrong }], values));
            Refuses(parameter, () => gpu.Context.Compact([move with { View = wrong }]));
            Refuses(parameter, () => gpu.Context.Reorder([move with { View = wrong }], values));
            Refuses(parameter, () => gpu.Sequence.Evict([wrong, wrong], values));
        }
        void RefusesInputs(string parameter, KvSignalInputs wrong)
        {
            Refuses(parameter, () => gpu.Plan.Score([job with { Inputs = wrong }], values));
            Refuses(parameter, () => gpu.Sequence.Observe([new(0, default), new(1, wrong)], 4));
            Refuses(parameter, () => gpu.Sequence.Evict(
                gpu.Views, values, new KvEvictOptions { Inputs = new[] { default, wrong } }));
        }
        RefusesView("Keys", new KvView(SmallModel.KvHeads, hostPlane));
        RefusesView("Values", With(values: hostPlane));
        RefusesView("Companions", With(companion: hostPlane));
        RefusesView("BlockTable", With(table: pinned));
        var withTable = new KvView(SmallModel.KvHeads, view.Keys with { BlockStride = 64 }) { BlockSize = 1 };
        withTable.SetBlockTable(keep);
        RefusesView("BlockTable", withTable);
        Refuses("queries", () => gpu.Sequence.Observe(0, scores));
        Refuses("queries", () => gpu.Sequence.Observe(0, new Half[64], 0));
        Refuses("queries", () => gpu.Plan.Score(job, scores, scores, values));
        Refuses("Queries", () => gpu.Sequence.Observe(0, hostQueries, 4));
        RefusesInputs("Queries", new() { Queries = hostQueries });
        RefusesInputs("RowLse", new() { RowLse = hostRows });
        RefusesInputs("Scores", new() { Scores = hostRows });
        Refuses("TokenCounts", () => gpu.Plan.Score([job with { TokenCounts = pinned }], values));
        Refuses("Scores", () => gpu.Plan.Score([job with { Scores = host }], values));
        Refuses("scores", () => gpu.Plan.Score(job, scores, values));
        Refuses("workspace", () => gpu.Plan.Score([job], host));
        Refuses("workspace", () => gpu.Plan.CreateWorkspace(KvOperation.Evict));
        Refuses("workspace", () => gpu.Context.CreateSelectWorkspace(4));
        Refuses("workspace", () => gpu.Context.CreateReorderWorkspace([move]));
        Refuses("Scores", () => gpu.Context.Select(Options(host), lists, values));
        Refuses("TokenCounts", () => gpu.Context.Select(Options(values, pinned), lists, values));
        Refuses("keep", () => gpu.Context.Select(Options(), scores, keep, values));
        Refuses("workspace", () => gpu.Context.Select(Options(values), lists, host));
        KvKeepLists inHost = lists with { Slots = pinned }, countsInHost = lists with { Counts = pinned };
        Refuses("Slots", () => gpu.Context.Select(Options(values), inHost, values));
        Refuses("Slots", () => gpu.Context.Compact([move with { Keep = inHost }]));
        Refuses("Counts", () => gpu.Context.Compact([move with { Keep = countsInHost }]));
        Refuses("TokenCounts", () => gpu.Context.Compact([move with { TokenCounts = pinned }]));
        Refuses("TokenCounts", () => gpu.Context.Reorder([move with { TokenCounts = pinned }], values));
        Refuses("memory", () => gpu.Sequence.BeginObserving(host));
        Refuses("Slots", () => gpu.Context.Reorder([move with { Keep = inHost }], values));
        Refuses("keep", () => gpu.Context.Compact(view, Tokens, [1, 2]));
        Refuses("workspace", () => gpu.Context.Compact([move], host));
        Refuses("slots", () => gpu.Context.Reorder(view, Tokens, [2, 1], slots));
        Refuses("workspace", () => gpu.Context.Reorder([move], host));
        Refuses("workspace", () => gpu.Sequence.Evict(gpu.Views, host));
    }

    private static KvSelectOptions Options(KvRegion scores = default, KvRegion tokenCounts = default) =>
        new() { TokenCount = Tokens, Scores = scores, TokenCounts = tokenCounts };

    private static KvContextOptions Cuda => new()
    {
        Device = KvDevice.Cuda, LibcudaPath = CudaFactAttribute.Libcuda, LibnvrtcPath = CudaFactAttribute.Libnvrtc,
        KernelCacheDirectory = Environment.GetEnvironmentVariable("KVEVICT_TEST_KERNELS"),
    };

    private static void Refuses(string parameter, Action call) =>
        Assert.StartsWith($"{parameter} is host memory, and the context works on Cuda",
                          Assert.Throws<InvalidOperationException>(call).Message);

    /// <summary>Stands for memory from cuMemAlloc.</summary>
    private sealed unsafe class DeviceMemory : IDisposable
    {
        private readonly List<nint> _all = [];

        public KvRegion Allocate(KvWorkspaceSize size)
        {
            Assert.Equal(256, size.Alignment);
            return Allocate(size.Best);
        }

        public KvRegion Allocate(long bytes)
        {
            _all.Add((nint)NativeMemory.AlignedAlloc((nuint)Math.Max(bytes, 1), 256));
            return new KvRegion(_all[^1], bytes);
        }

        public static Span<T> Read<T>(KvRegion region) where T : unmanaged =>
            new((void*)region.Address, (int)region.Bytes / sizeof(T));

        public void Dispose() => _all.ForEach(memory => NativeMemory.AlignedFree((void*)memory));
    }

    private sealed class CountingHooks(DeviceMemory device) : KvMemoryHooks
    {
        public int Live { get; private set; }

        public override nint Allocate(nuint bytes, nuint alignment)
        {
            ++Live;
            return device.Allocate((long)bytes).Address;
        }

        public override void Free(nint address, nuint bytes, nuint alignment) => --Live;
    }

    /// <summary>A test that is skipped unless those libraries are named.</summary>
    private sealed class CudaFactAttribute : FactAttribute
    {
        public CudaFactAttribute()
        {
            if (string.IsNullOrEmpty(Libcuda)) Skip = "KVEVICT_TEST_LIBCUDA and KVEVICT_TEST_LIBNVRTC are not set";
        }

        public static string? Libcuda => Environment.GetEnvironmentVariable("KVEVICT_TEST_LIBCUDA");
        public static string? Libnvrtc => Environment.GetEnvironmentVariable("KVEVICT_TEST_LIBNVRTC");
    }
}
