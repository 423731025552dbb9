using Xunit;

namespace KvEvict.Tests;

/// <summary>The library calls back: thread pool, log sink, allocator.</summary>
public class CallbackTests
{
    private const string Text = "snapkv:budget=24,window=4,sink=2";

    [Fact]
    public void Log_lines_arrive()
    {
        var lines = new List<(KvLogLevel Level, string Line)>();
        var options = new KvContextOptions
        {
            LogLevel = KvLogLevel.Debug, Log = (level, line) => lines.Add((level, line)),
        };
        using var context = new KvContext(options);
        using var plan = new KvPlan(context, SmallModel.Geometry, KvPolicy.Parse(Text));
        Assert.NotEmpty(lines);
        Assert.All(lines, l => Assert.True(l.Level <= KvLogLevel.Debug && l.Line.Length > 0));
    }

    [Fact]
    public void A_sink_that_throws_is_heard()
    {
        var options = new KvContextOptions
        {
            LogLevel = KvLogLevel.Debug, Log = (_, _) => throw new InvalidOperationException("disk full"),
        };
        Assert.Equal("disk full", Assert.Throws<InvalidOperationException>(() =>
        {
            using var context = new KvContext(options);
            using var plan = new KvPlan(context, SmallModel.Geometry, KvPolicy.Parse(Text));
        }).Message);
    }

    private sealed class NoMemory(bool throws) : KvMemoryHooks
    {
        public override nint Allocate(nuint bytes, nuint alignment) =>
            throws ? throw new OutOfMemoryException() : 0;

        public override void Free(nint address, nuint bytes, nuint alignment) => Assert.Fail("nothing was allocated");
    }

    [Theory]
    [InlineData(true)]
    [InlineData(false)]
    public void An_allocator_without_memory_is_reported(bool throws)
    {
        var e = Assert.Throws<KvEvictException>(
            () => new KvContext(new KvContextOptions { Memory = new NoMemory(throws) }));
        Assert.Equal(KvStatus.OutOfMemory, e.Status);
    }

    [Fact]
    public void Wrong_options_are_refused()
    {
        Assert.Throws<ArgumentOutOfRangeException>(() => new KvContext(new KvContextOptions { ThreadCount = -1 }));
        Assert.Throws<ArgumentException>(() => new KvContext(new KvContextOptions { ThreadCount = 5000 }));
        Assert.Throws<ArgumentException>(() => new KvContext(new KvContextOptions { LibcudaPath = "/x" })); // on the CPU
        Assert.Throws<ArgumentException>(() => new KvContext(new KvContextOptions { Debug = true }));
        Assert.Throws<ArgumentException>(
            () => new KvContext(new KvContextOptions { DeviceMemory = new NoMemory(throws: false) }));
        Assert.Throws<ArgumentNullException>(
            () => new KvPlan(null!, SmallModel.Geometry, new KvPolicy("none")));
        using var context = new KvContext();
        Assert.Equal(KvDevice.Cpu, context.Device);
        Assert.Throws<ArgumentNullException>(() => new KvPlan(context, null!, new KvPolicy("none")));
        Assert.Throws<ArgumentNullException>(() => new KvPlan(context, SmallModel.Geometry, null!));
        Assert.Throws<ArgumentNullException>(() => new KvSequence(null!));
    }

    [Fact]
    public void The_text_of_an_error_is_this_threads()
    {
        Parallel.For(0, 200, i =>
        {
            string typo = $"typo{i}";
            Assert.Contains(typo, Assert.Throws<ArgumentException>(() => KvPolicy.Parse(typo)).Message);
        });
    }
}
