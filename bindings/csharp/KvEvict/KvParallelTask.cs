namespace KvEvict;

/// <summary>A piece of the library's work that a <see cref="KvParallelRunner"/> spreads over threads.</summary>
public readonly struct KvParallelTask
{
    private readonly ParallelWork? _work;
    private readonly long _call;

    internal KvParallelTask(ParallelWork work, long call)
    {
        _work = work;
        _call = call;
    }

    /// <summary>Does one item. Mistakes are refused before native code sees them.</summary>
    /// <param name="item">0 to the number of items - 1, each once.</param>
    /// <param name="worker">Below the context's thread count, and running no other item now.</param>
    /// <exception cref="ArgumentOutOfRangeException">There is no such item or worker.</exception>
    /// <exception cref="InvalidOperationException">
    /// The item was run already, the worker is running another one, or the runner has returned.
    /// </exception>
    public void Run(int item, int worker)
    {
        if (_work is null) throw new InvalidOperationException("the task is no runner's");
        _work.Run(_call, item, worker);
    }
}
