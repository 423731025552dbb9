namespace KvEvict;

/// <summary>A piece of the library's work that a <see cref="KvParallelRunner"/> spreads over threads.</summary>
public sealed unsafe class KvParallelTask
{
    private readonly delegate* unmanaged[Cdecl]<void*, uint, uint, void> _run;
    private readonly void* _task;
    private readonly bool[] _done;

    internal KvParallelTask(delegate* unmanaged[Cdecl]<void*, uint, uint, void> run, void* task, int itemCount)
    {
        _run = run;
        _task = task;
        _done = new bool[itemCount];
    }

    /// <summary>Does one item.</summary>
    /// <param name="item">0 to the number of items - 1, each once.</param>
    /// <param name="worker">Below the context's thread count; not in use by another thread now.</param>
    public void Run(int item, int worker)
    {
        ArgumentOutOfRangeException.ThrowIfNegative(worker);
        ArgumentOutOfRangeException.ThrowIfGreaterThanOrEqual((uint)item, (uint)_done.Length, nameof(item));
        _done[item] = true;
        _run(_task, (uint)item, (uint)worker);
    }

    /// <summary>Does the items that a runner left out; returns how many those were.</summary>
    internal int RunTheRest()
    {
        int rest = 0;
        for (int item = 0; item < _done.Length; ++item)
        {
            if (_done[item]) continue;
            Run(item, 0);
            ++rest;
        }
        return rest;
    }

    /// <summary>The default runner: tasks of the .NET thread pool.</summary>
    internal static KvParallelRunner OnThreadPool(int threadCount) => (itemCount, task) =>
    {
        int next = -1;
        Parallel.For(0, Math.Min(threadCount, itemCount), worker =>
        {
            for (int item; (item = Interlocked.Increment(ref next)) < itemCount;) task.Run(item, worker);
        });
    };
}
