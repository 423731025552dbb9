namespace KvEvict;

// One call of the library's parallel runner after another: a thread has one object for all of them, so that
// calls allocate nothing. It checks what runners do, since native code relies on it: every item once, no
// worker's memory is used by two threads, and nothing runs after the call.
internal sealed unsafe class ParallelWork : IThreadPoolWorkItem
{
    [ThreadStatic] private static ParallelWork? t_idle;

    private delegate* unmanaged[Cdecl]<void*, uint, uint, void> _run;
    private void* _task;
    private int _itemCount;
    private int _workerCount;
    private int[] _begun = []; // per item: 1 once it runs
    private int[] _busy = [];  // per worker: 1 while it runs an item
    private int _done;
    private int _nextItem;
    private int _nextWorker;
    private long _call;  // odd: the number of the call; even: there is none
    private int _inside; // threads that may look at the above

    // Does all items of a call, by a runner or by the .NET thread pool.
    internal static void Do(delegate* unmanaged[Cdecl]<void*, uint, uint, void> run, void* task, int itemCount,
                            int workerCount, KvParallelRunner? runner)
    {
        ParallelWork work = t_idle ?? new ParallelWork();
        t_idle = null; // a runner may use the library
        work.Open(run, task, itemCount, workerCount, pooled: runner is null);
        if (runner is null) work.RunOnThreadPool();
        else work.RunBy(runner);
        t_idle = work;
    }

    internal void Run(long call, int item, int worker)
    {
        Interlocked.Increment(ref _inside);
        try
        {
            if (Volatile.Read(ref _call) != call) throw new InvalidOperationException("the task's call is over");
            ArgumentOutOfRangeException.ThrowIfNegative(item);
            ArgumentOutOfRangeException.ThrowIfGreaterThanOrEqual(item, _itemCount);
            ArgumentOutOfRangeException.ThrowIfNegative(worker);
            ArgumentOutOfRangeException.ThrowIfGreaterThanOrEqual(worker, _workerCount);
            if (Interlocked.Exchange(ref _busy[worker], 1) != 0)
                throw new InvalidOperationException($"worker {worker} is running another item");
            try
            {
                if (Interlocked.Exchange(ref _begun[item], 1) != 0)
                    throw new InvalidOperationException($"item {item} was run already");
                _run(_task, (uint)item, (uint)worker);
                Interlocked.Increment(ref _done);
            }
            finally
            {
                Volatile.Write(ref _busy[worker], 0);
            }
        }
        finally
        {
            Interlocked.Decrement(ref _inside);
        }
    }

    // A thread of the pool joins. It may come so late that the call is over or is another one: then it helps
    // there or finds nothing to do.
    void IThreadPoolWorkItem.Execute()
    {
        Interlocked.Increment(ref _inside);
        if (long.IsOddInteger(Volatile.Read(ref _call)) && Volatile.Read(ref _nextWorker) < _workerCount)
        {
            int worker = Interlocked.Increment(ref _nextWorker) - 1;
            if (worker < _workerCount) RunItems(worker);
        }
        Interlocked.Decrement(ref _inside);
    }

    private void Open(delegate* unmanaged[Cdecl]<void*, uint, uint, void> run, void* task, int itemCount,
                      int workerCount, bool pooled)
    {
        _run = run;
        _task = task;
        _itemCount = itemCount;
        _workerCount = workerCount;
        if (_begun.Length < itemCount) _begun = new int[itemCount];
        if (_busy.Length < workerCount) _busy = new int[workerCount];
        Array.Clear(_begun, 0, itemCount);
        _done = 0;
        _nextItem = 0;
        _nextWorker = pooled ? 1 : workerCount; // the calling thread is worker 0
        Interlocked.Increment(ref _call);
    }

    // Afterwards no other thread runs an item, nor will.
    private void Close()
    {
        Interlocked.Increment(ref _call);
        while (Volatile.Read(ref _inside) != 0) Thread.Yield(); // shorter than an item takes
    }

    private void RunOnThreadPool()
    {
        int helpers = Math.Min(_workerCount, _itemCount) - 1;
        for (int i = 0; i < helpers; ++i) ThreadPool.UnsafeQueueUserWorkItem(this, preferLocal: false);
        RunItems(worker: 0);
        Close();
    }

    private void RunItems(int worker)
    {
        for (int item; (item = Interlocked.Increment(ref _nextItem) - 1) < _itemCount;)
            _run(_task, (uint)item, (uint)worker);
    }

    private void RunBy(KvParallelRunner runner)
    {
        try
        {
            runner(_itemCount, new KvParallelTask(this, _call));
        }
        catch (Exception e)
        {
            NativeCall.Fail(e);
        }
        int missing = _itemCount - Volatile.Read(ref _done);
        Close();
        // The cache must be whole in any case.
        for (int item = 0; item < _itemCount; ++item)
        {
            if (_begun[item] == 0) _run(_task, (uint)item, 0);
        }
        if (missing > 0 && !NativeCall.HasFailed)
        {
            NativeCall.Fail(new InvalidOperationException(
                $"the parallel runner returned before {missing} of {_itemCount} items were done"));
        }
    }
}
