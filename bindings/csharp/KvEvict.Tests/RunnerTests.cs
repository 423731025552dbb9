using System.Collections.Concurrent;
using System.Runtime.CompilerServices;
using System.Runtime.InteropServices;
using Xunit;

namespace KvEvict.Tests;

/// <summary>Parallel runners: where their exceptions come out, and mistakes that native code must not see.</summary>
public class RunnerTests
{
    private const string Text = "snapkv:budget=24,window=4,sink=2";

    private static SmallModel Model(KvParallelRunner run, int threads = 2)
    {
        var model = new SmallModel(
            Text, new KvContext(new KvContextOptions { ThreadCount = threads, Parallel = run }));
        model.Prefill(60);
        return model;
    }

    private static KvSequence Prefilled(KvPlan plan, SmallModel cache)
    {
        var sequence = new KvSequence(plan);
        sequence.BeginObserving();
        for (int l = 0; l < SmallModel.Layers; ++l) sequence.Observe(l, cache.QueryPlane, 60, 0);
        sequence.Append(60);
        return sequence;
    }

    private static void EvictAlso(KvPlan plan, KvSequence sequence, SmallModel cache)
    {
        using KvWorkspace workspace = plan.CreateWorkspace(KvOperation.Evict);
        sequence.Evict(cache.Views, workspace);
    }

    private static void RunAll(int itemCount, KvParallelTask task)
    {
        for (int i = 0; i < itemCount; ++i) task.Run(i, 0);
    }

    private static void AssertIsLikeAlone(SmallModel model)
    {
        using var alone = new SmallModel(Text);
        alone.Prefill(60);
        alone.Evict();
        for (int l = 0; l < SmallModel.Layers; ++l)
        {
            Assert.Equal(alone.Sequence.KeepPositions(l, 1), model.Sequence.KeepPositions(l, 1));
            Assert.Equal(alone.Keys[l].Span.ToArray(), model.Keys[l].Span.ToArray());
            Assert.Equal(alone.Values[l].Span.ToArray(), model.Values[l].Span.ToArray());
        }
    }

    /// <summary>
    /// A call whose runner has thrown is still at work, and waits in its next runner until another thread's call,
    /// and one of the same thread, are over.
    /// </summary>
    [Fact]
    public void An_exception_comes_out_of_the_call_it_happened_in()
    {
        int failing = 0, runs = 0;
        using SmallModel second = new(Text), third = new(Text);
        Exception? elsewhere = null, within = null;
        Action evictSecond = () => { }, evictThird = () => { };
        void Run(int itemCount, KvParallelTask task)
        {
            RunAll(itemCount, task);
            if (Environment.CurrentManagedThreadId != failing) return;
            if (++runs == 1) throw new TimeoutException("pool is shut down");
            if (runs != 2) return;
            var thread = new Thread(() => elsewhere = Record.Exception(evictSecond));
            thread.Start();
            thread.Join();
            failing = 0;
            within = Record.Exception(evictThird);
        }
        using SmallModel model = Model(Run);
        using KvSequence inSecond = Prefilled(model.Plan, second), inThird = Prefilled(model.Plan, third);
        evictSecond = () => EvictAlso(model.Plan, inSecond, second);
        evictThird = () => EvictAlso(model.Plan, inThird, third);
        failing = Environment.CurrentManagedThreadId;
        Assert.Equal("pool is shut down", Assert.Throws<TimeoutException>(() => model.Evict()).Message);
        Assert.True(runs >= 2, "the runner was called once only");
        Assert.Null(elsewhere);
        Assert.Null(within);
        Assert.Equal((24, 24), (inSecond.StoredLength(1), inThird.StoredLength(1)));
        AssertIsLikeAlone(model);
    }

    [Fact]
    public void A_failed_call_carries_what_its_callback_threw()
    {
        var call = new NativeCall();
        NativeCall.Fail(new TimeoutException("first"));
        NativeCall.Fail(new TimeoutException("second"));
        Assert.Throws<ArgumentException>(() => KvPolicy.Parse("typo")); // a call within the call
        var e = Assert.Throws<KvEvictException>(() => call.End(KvStatus.Unavailable));
        Assert.Equal("first", Assert.IsType<TimeoutException>(e.InnerException).Message);
        new NativeCall().End(KvStatus.Ok); // and it does not come again
    }

    [Fact]
    public void An_item_is_run_once()
    {
        Exception? seen = null;
        using SmallModel model = Model((itemCount, task) =>
        {
            RunAll(itemCount, task);
            seen ??= Record.Exception(() => task.Run(itemCount - 1, 1));
        });
        model.Evict();
        Assert.Contains("was run already", Assert.IsType<InvalidOperationException>(seen).Message);
        AssertIsLikeAlone(model);
    }

    [Theory]
    [InlineData(0, 2)]
    [InlineData(0, int.MaxValue)]
    [InlineData(0, -1)]
    [InlineData(-1, 0)]
    [InlineData(int.MaxValue, 0)]
    public void Items_and_workers_that_are_none_are_refused(int item, int worker)
    {
        Exception? seen = null;
        using SmallModel model = Model((itemCount, task) =>
        {
            seen ??= Record.Exception(() => task.Run(item, worker));
            RunAll(itemCount, task);
        });
        model.Evict();
        Assert.Equal(item == 0 ? "worker" : "item", Assert.IsType<ArgumentOutOfRangeException>(seen).ParamName);
        AssertIsLikeAlone(model);
    }

    [Fact]
    public void A_task_ends_with_its_runner()
    {
        var tasks = new List<KvParallelTask>();
        using SmallModel model = Model((itemCount, task) =>
        {
            // These tasks belong to calls that are over, while another is at work.
            foreach (KvParallelTask old in tasks)
                Assert.Throws<InvalidOperationException>(() => old.Run(0, 0));
            tasks.Add(task);
            RunAll(itemCount, task);
        });
        model.Evict();
        Assert.True(tasks.Count > 1);
        foreach (KvParallelTask old in tasks)
            Assert.Contains("over", Assert.Throws<InvalidOperationException>(() => old.Run(0, 0)).Message);
        Assert.Throws<InvalidOperationException>(() => default(KvParallelTask).Run(0, 0));
        AssertIsLikeAlone(model);
    }

    /// <summary>Work that a test can watch, in place of the library's.</summary>
    private sealed unsafe class Work(Action<int, int> run)
    {
        public void Do(int itemCount, int workerCount, KvParallelRunner runner)
        {
            GCHandle self = GCHandle.Alloc(this);
            var call = new NativeCall();
            ParallelWork.Do(&Run, (void*)GCHandle.ToIntPtr(self), itemCount, workerCount, runner);
            self.Free();
            call.End(KvStatus.Ok);
        }

        [UnmanagedCallersOnly(CallConvs = [typeof(CallConvCdecl)])]
        private static void Run(void* task, uint item, uint worker) =>
            ((Work)GCHandle.FromIntPtr((nint)task).Target!)._run((int)item, (int)worker);

        private readonly Action<int, int> _run = run;
    }

    [Fact]
    public void A_worker_is_at_one_place()
    {
        var items = new List<int>();
        KvParallelTask? again = null;
        Exception? seen = null;
        var work = new Work((item, worker) =>
        {
            if (item == 0) seen = Record.Exception(() => again!.Value.Run(1, worker)); // another thread might
            items.Add(item);
        });
        work.Do(2, 2, (itemCount, task) =>
        {
            again = task;
            RunAll(itemCount, task);
        });
        Assert.Contains("worker 0 is running", Assert.IsType<InvalidOperationException>(seen).Message);
        Assert.Equal([0, 1], items);
    }

    [Fact]
    public void Nothing_runs_after_a_runner_that_did_not_wait()
    {
        using var begun = new ManualResetEventSlim();
        var items = new ConcurrentQueue<(int Item, int Thread)>();
        Thread? late = null;
        var work = new Work((item, worker) =>
        {
            begun.Set();
            if (item == 2) Thread.Sleep(50);
            items.Enqueue((item, Environment.CurrentManagedThreadId));
        });
        var e = Assert.Throws<InvalidOperationException>(() => work.Do(4, 2, (_, task) =>
        {
            late = new Thread(() => task.Run(2, 1));
            late.Start();
            begun.Wait();
        }));
        Assert.Equal("the parallel runner returned before 4 of 4 items were done", e.Message);
        int me = Environment.CurrentManagedThreadId;
        Assert.Equal([(2, late!.ManagedThreadId), (0, me), (1, me), (3, me)], items);
        late.Join();
    }

    [Fact]
    public void The_thread_pool_serves_many_callers_at_once()
    {
        using var context = new KvContext(new KvContextOptions { ThreadCount = 3 });
        using var plan = new KvPlan(context, SmallModel.Geometry, KvPolicy.Parse(Text));
        Parallel.For(0, 8, _ =>
        {
            for (int round = 0; round < 20; ++round)
            {
                using var cache = new SmallModel(Text);
                using KvSequence sequence = Prefilled(plan, cache);
                EvictAlso(plan, sequence, cache);
                for (int slot = 0; slot < 24; ++slot)
                    Assert.Equal(sequence.PositionOfSlot(1, 1, slot), cache.TokenInSlot(1, 1, slot));
            }
        });
    }
}
