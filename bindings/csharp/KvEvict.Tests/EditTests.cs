using Xunit;

namespace KvEvict.Tests;

/// <summary>Edits are as if the cache had been computed from the edited text.</summary>
public class EditTests
{
    private const int Layers = 2, KvHeads = 2, Dim = 8, Row = KvHeads * Dim;
    private const int Rows = 44; // of the caches' memory, of 48 that the plan allows
    private const int Gap = -1; // a position without a token
    private static readonly float[] Frequencies = [1, 0.25f, 0.0625f]; // two elements do not rotate

    // A token's key at a position.
    private static double[] Key(int token, int layer, int head, int position)
    {
        var random = new Random(token * 16 + layer * 4 + head);
        double[] key = [.. Enumerable.Range(0, Dim).Select(_ => random.NextDouble() * 2 - 1)];
        for (int f = 0; f < 3; ++f)
        {
            (double re, double im) = (key[f], key[f + 3]);
            (double sin, double cos) = Math.SinCos(position * (double)Frequencies[f]);
            (key[f], key[f + 3]) = (re * cos - im * sin, re * sin + im * cos);
        }
        return key;
    }

    private static float Value(int token, int layer, int head, int element) =>
        token * 64 + layer * 32 + head * 16 + element;

    /// <summary>
    /// A text with its cache, and a naive model of it: its tokens in order. A cache in blocks is copied to keys and
    /// values before they are looked at.
    /// </summary>
    private sealed class Edited : IDisposable
    {
        private readonly KvContext _context = new();
        private readonly KvPlan _plan;
        private readonly KvPagedCache _cache;
        private readonly KvPinnedMemory<float>[] _keys = new KvPinnedMemory<float>[Layers];
        private readonly KvPinnedMemory<float>[] _values = new KvPinnedMemory<float>[Layers];
        private List<int> _text;
        private int _newest;
        private int _edits;

        public Edited(bool paged)
        {
            var layer = new KvLayerGeometry
            {
                QueryHeads = KvHeads, KvHeads = KvHeads, KeyHeadDim = Dim, ValueHeadDim = Dim,
            };
            _plan = new KvPlan(_context, new KvGeometry(Layers, layer, 48) { RopeInverseFrequencies = Frequencies },
                               KvPolicy.Parse("none"));
            _cache = new KvPagedCache(_plan, new KvPagedCacheOptions(30) { BlockSize = 4 });
            Sequence = new KvSequence(_plan);
            for (int l = 0; l < Layers; ++l)
            {
                _keys[l] = new KvPinnedMemory<float>(Rows * Row);
                _values[l] = new KvPinnedMemory<float>(Rows * Row);
                Views[l] = new KvView(KvHeads, Plane(_keys[l]), Plane(_values[l]));
            }
            if (paged)
            {
                Cached = new KvPagedSequence(_cache);
                Cached.Append(40);
            }
            Sequence.Append(40);
            _text = Fresh(40);
            Write(0, 40);
        }

        public KvSequence Sequence { get; }
        public KvPagedSequence? Cached { get; } // null: the rows lie in views
        public KvView[] Views { get; } = new KvView[Layers];

        public void Call(KvEdit edit)
        {
            if (Cached is null) Sequence.Edit(Views, edit);
            else Cached.Edit(Sequence, edit);
        }

        public void Edit(KvEdit edit)
        {
            Call(edit);
            ++_edits;
            bool moves = edit.Kind == KvEditKind.Move;
            List<int> span = _text.GetRange(edit.First, edit.End - edit.First);
            _text.RemoveRange(edit.First, span.Count);
            if (!moves)
            {
                int kept = edit.Positions == KvEditPositions.Keep ? span.Count - edit.NewCount : 0;
                span = [.. Fresh(edit.NewCount), .. Enumerable.Repeat(Gap, kept)];
            }
            _text.InsertRange(moves ? edit.To : edit.First, span);
            Write(edit.First, edit.NewCount);
            Compare();
        }

        /// <summary>Compares every row and position with the model.</summary>
        public void Compare()
        {
            Assert.Equal(_text.Count, Sequence.LogicalLength);
            for (int layer = 0; layer < Layers; ++layer)
            {
                int stored = Sequence.StoredLength(layer);
                if (Cached is not null)
                {
                    Assert.Equal(stored, Cached.Length(layer));
                    Cached.Read([new KvPagedRows(layer, 0, stored, Plane(_keys[layer]), Plane(_values[layer]))]);
                }
                int next = 0;
                for (int position = 0; position < _text.Count; ++position)
                {
                    int slot = Sequence.SlotOfPosition(layer, 1, position);
                    if (_text[position] == Gap)
                    {
                        Assert.Equal(-1, slot);
                        continue;
                    }
                    Assert.Equal(next++, slot);
                    Assert.Equal(position, Sequence.PositionOfSlot(layer, 1, slot));
                    CompareRow(layer, slot, position);
                }
                Assert.Equal(next, stored);
            }
        }

        public void Dispose()
        {
            Cached?.Dispose();
            Sequence.Dispose();
            _cache.Dispose();
            _plan.Dispose();
            _context.Dispose();
            foreach (KvPinnedMemory<float> memory in _keys.Concat(_values)) memory.Dispose();
        }

        // A rotation rounds cosine, sine and products by at most 3e-7 of a pair's length, and its result by half a
        // unit; the first row is rounded too.
        private void CompareRow(int layer, int slot, int position)
        {
            int token = _text[position];
            for (int head = 0; head < KvHeads; ++head)
            {
                double[] key = Key(token, layer, head, position), raw = Key(token, layer, head, 0);
                for (int i = 0; i < Dim; ++i)
                {
                    int at = slot * Row + head * Dim + i;
                    double radius = i < 6 ? Math.Sqrt(raw[i % 3] * raw[i % 3] + raw[i % 3 + 3] * raw[i % 3 + 3])
                                          : Math.Abs(raw[i]);
                    double bound = 2 * radius * (_edits * (3e-7 + 1.0 / (1 << 24)) + 1.0 / (1 << 23));
                    Assert.InRange(_keys[layer].Span[at], key[i] - bound, key[i] + bound);
                    Assert.Equal(Value(token, layer, head, i), _values[layer].Span[at]);
                }
            }
        }

        private List<int> Fresh(int count)
        {
            List<int> tokens = [.. Enumerable.Range(_newest, count)];
            _newest += count;
            return tokens;
        }

        // Writes the rows of tokens from a position on, as an engine does.
        private void Write(int first, int count)
        {
            for (int layer = 0; count > 0 && layer < Layers; ++layer)
            {
                int slot = Sequence.SlotOfPosition(layer, 0, first);
                for (int i = 0; i < count * Row; ++i)
                {
                    int position = first + i / Row, head = i / Dim % KvHeads;
                    _keys[layer].Span[slot * Row + i] = (float)Key(_text[position], layer, head, position)[i % Dim];
                    _values[layer].Span[slot * Row + i] = Value(_text[position], layer, head, i % Dim);
                }
                Cached?.Write([new KvPagedRows(layer, slot, count, Plane(_keys[layer], slot),
                                               Plane(_values[layer], slot))]);
            }
        }

        private static KvPlane Plane(KvPinnedMemory<float> rows, int slot = 0) =>
            KvPlane.TokenMajor(rows, KvDType.F32, KvHeads, Dim) with { Offset = slot * Row * sizeof(float) };
    }

    [Theory]
    [InlineData(false)]
    [InlineData(true)]
    public void As_if_the_text_had_been_computed_so(bool paged)
    {
        using var e = new Edited(paged);
        e.Compare();
        e.Edit(new KvEdit(5, 12));
        e.Edit(new KvEdit(9, 9) { NewCount = 4 });
        e.Edit(new KvEdit(20, 26) { Kind = KvEditKind.Move, To = 3 });
        e.Edit(new KvEdit(1, 8) { Kind = KvEditKind.Move, To = 25 });
        e.Edit(new KvEdit(30, 33) { NewCount = 7 });
        e.Edit(new KvEdit(10, 16) { NewCount = 2, Positions = KvEditPositions.Keep });
        e.Edit(new KvEdit(11, 20) { NewCount = 1 }); // with a part of the gap
        Assert.InRange(e.Sequence.ExactPrefix(), 0, 1);
    }

    [Fact]
    public void Forks_stay_as_they_are()
    {
        using var e = new Edited(true);
        using KvPagedSequence cached = e.Cached!.Fork();
        using KvSequence sequence = e.Sequence.Fork();
        cached.Edit(sequence, new KvEdit(3, 20));
        Assert.Equal(23, sequence.LogicalLength);
        e.Compare();
    }

    [Theory]
    [InlineData(false)]
    [InlineData(true)]
    public void What_does_not_fit_changes_nothing(bool paged)
    {
        using var e = new Edited(paged);
        (KvEdit Edit, string[] Parts)[] all =
        [
            (new KvEdit(7, 6), ["first 7", "end 6"]),
            (new KvEdit(7, 41), ["end 41", "40 tokens"]),
            (new KvEdit(-1, 6), ["First"]),
            (new KvEdit(1, 6) { NewCount = -3 }, ["NewCount"]),
            (new KvEdit(3, 5) { Kind = KvEditKind.Move, To = 39 }, ["to 39 + 2", "40"]),
            (new KvEdit(3, 5) { Kind = KvEditKind.Move, NewCount = 1 }, ["n_new 1 of a move"]),
            (new KvEdit(3, 5) { NewCount = 3, Positions = KvEditPositions.Keep }, ["n_new 3 > 2"]),
            (new KvEdit(3, 5) { Kind = (KvEditKind)2 }, ["kind 2"]),
        ];
        foreach ((KvEdit edit, string[] parts) in all)
        {
            string message = Assert.ThrowsAny<ArgumentException>(() => e.Call(edit)).Message;
            foreach (string part in parts) Assert.Contains(part, message);
        }
        e.Compare();
    }

    [Fact]
    public void Views_need_room()
    {
        using var e = new Edited(false);
        Assert.Contains("the rows of 45 tokens", Assert.Throws<ArgumentException>(
            () => e.Call(new KvEdit(9, 9) { NewCount = 5 })).Message);
        e.Compare();
        e.Edit(new KvEdit(9, 9) { NewCount = 4 }); // all rows are in use
        e.Edit(new KvEdit(20, 26) { NewCount = 6 }); // and may be replaced
        Assert.Throws<ArgumentException>(() => e.Sequence.Edit(e.Views.AsSpan(0, 1), default));
        Assert.Throws<ArgumentNullException>(() => e.Sequence.Edit([e.Views[0], null!], default));
        e.Compare();
    }

    [Fact]
    public void Disposed()
    {
        using var e = new Edited(true);
        Assert.Throws<ArgumentNullException>(() => e.Cached!.Edit(null!, default));
        e.Sequence.Dispose();
        Assert.Throws<ObjectDisposedException>(() => e.Sequence.Edit(e.Views, default));
        Assert.Throws<ObjectDisposedException>(() => e.Call(default));
        e.Cached!.Dispose();
        Assert.Throws<ObjectDisposedException>(() => e.Call(default));
    }
}
