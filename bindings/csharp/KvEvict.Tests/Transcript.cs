using System.Globalization;
using System.Runtime.InteropServices;

namespace KvEvict.Tests;

/// <summary>A call or a struct of a transcript, with its arguments by name: see bindings/transcript.</summary>
internal sealed class Line
{
    private readonly Dictionary<string, string> _values = [];
    private readonly HashSet<string> _used = ["name"];

    public Line(string text)
    {
        string[] words = text.Split(' ');
        (Content, Name) = (text, words[0]);
        foreach (string word in words.Skip(1))
        {
            int equals = word.IndexOf('=');
            _values[word[..equals]] = word[(equals + 1)..].Replace("%20", " ").Replace("%25", "%");
        }
    }

    public string Content { get; }
    public string Name { get; }

    public bool Has(string key) => _values.ContainsKey(key);

    public string Text(string key)
    {
        _used.Add(key);
        return _values.GetValueOrDefault(key, "");
    }

    public string[] List(string key, char by = ',') => Text(key).Split(by, StringSplitOptions.RemoveEmptyEntries);

    /// <summary>Returns what each name of a list names.</summary>
    public T[] Each<T>(string key, Func<string, T> of) => [.. List(key).Select(of)];

    public long Long(string key) => Has(key) ? long.Parse(Text(key), CultureInfo.InvariantCulture) : 0;

    public int Int(string key) => unchecked((int)Long(key));

    public bool Flag(string key) => Long(key) != 0;

    public double Double(string key) => Has(key) ? double.Parse(Text(key), CultureInfo.InvariantCulture) : 0;

    public float Float(string key) => Has(key) ? float.Parse(Text(key), CultureInfo.InvariantCulture) : 0;

    public int[] Ints(string key) => Each(key, int.Parse);

    public string? Unused() => _values.Keys.FirstOrDefault(key => !_used.Contains(key)) is { } key
        ? $"{key} is not given to the library: {Content}" : null;
}

/// <summary>Memory that calls read or write. It begins at a multiple of 256 bytes.</summary>
internal sealed unsafe class Data
{
    private readonly string _type;
    private readonly nint _address;
    private ulong _seen;

    public Data(string type, int length)
    {
        _type = type;
        (Region, _address) = type switch
        {
            "u8" => Pin<byte>(length),
            "f16" => Pin<Half>(length),
            "bf16" => Pin<ushort>(length),
            "i32" => Pin<int>(length),
            "u32" => Pin<uint>(length),
            "u64" => Pin<ulong>(length),
            _ => Pin<float>(length),
        };
    }

    public Data(Line line, Func<string, Data> named)
        : this(line.Text("type"), line.Int("length") + line.List("values").Length + line.List("addresses").Length)
    {
        if (line.Has("seed")) Draw((uint)line.Int("seed"));
        string[] values = line.List("values"), addresses = line.List("addresses");
        for (int i = 0; i < values.Length; ++i)
        {
            if (_type == "f32") Span<float>()[i] = float.Parse(values[i], CultureInfo.InvariantCulture);
            else Span<int>()[i] = unchecked((int)long.Parse(values[i]));
        }
        for (int i = 0; i < addresses.Length; ++i) Span<ulong>()[i] = (ulong)named(addresses[i])._address;
        Changed();
    }

    /// <summary>The memory as a caller of the library names it.</summary>
    public KvRegion Region { get; }

    public Span<T> Span<T>() where T : unmanaged => new((void*)_address, (int)(Region.Bytes / sizeof(T)));

    /// <summary>Whether the bytes have changed since the last call of this; addresses do not count.</summary>
    public bool Changed()
    {
        ulong before = _seen;
        _seen = Hash();
        return _seen != before;
    }

    public ulong Hash()
    {
        ulong hash = 0xcbf29ce484222325;
        if (_type == "u64") return hash;
        foreach (byte x in Span<byte>()) hash = (hash ^ x) * 0x100000001b3;
        return hash;
    }

    private static (KvRegion, nint) Pin<T>(int length) where T : unmanaged
    {
        int room = 256 / sizeof(T);
        T[] array = GC.AllocateArray<T>(length + room, pinned: true);
        nint address = (nint)Marshal.UnsafeAddrOfPinnedArrayElement(array, 0);
        int skip = (int)(-address & 255) / sizeof(T);
        var memory = new KvPinnedMemory<T>(array.AsMemory(skip, length));
        return (memory, memory.Address);
    }

    private void Draw(uint seed)
    {
        int size = _type == "u8" ? 1 : _type.EndsWith("f16") ? 2 : 4;
        for (int i = 0; i < Region.Bytes / size; ++i)
        {
            uint x = unchecked(seed * 0x9e3779b9 + (uint)i);
            x ^= x >> 16;
            x = unchecked(x * 0x7feb352d);
            x ^= x >> 15;
            x = unchecked(x * 0x846ca68b);
            x ^= x >> 16;
            float real = (float)(x >> 8) / 8388608 - 1;
            switch (_type)
            {
                case "u8": Span<byte>()[i] = (byte)x; break;
                case "f16": Span<ushort>()[i] = (ushort)(0x3800 | x & 0x83ff); break;
                case "bf16": Span<ushort>()[i] = (ushort)(BitConverter.SingleToUInt32Bits(real) >> 16); break;
                default: Span<float>()[i] = real; break;
            }
        }
    }
}

/// <summary>What comes out of calls, as text.</summary>
internal static unsafe class Texts
{
    public static string Escaped(string text) => text.Replace("%", "%25").Replace(" ", "%20");

    /// <summary>Values in a row: 1:2:3. Flags are 1 and 0, enums and floats the numbers that C has.</summary>
    public static string Joined(params object[] values) => string.Join(':', values.Select(value => value switch
    {
        bool flag => flag ? "1" : "0",
        Enum e => Convert.ToInt32(e).ToString(CultureInfo.InvariantCulture),
        float.NaN => "nan",
        float f => BitConverter.SingleToUInt32Bits(f).ToString(CultureInfo.InvariantCulture),
        _ => Convert.ToString(value, CultureInfo.InvariantCulture),
    }));

    public static string Listed<T>(IEnumerable<T> values) => string.Join(',', values);

    /// <summary>Numbers at an address of this process.</summary>
    public static uint[] Words(nint address, int count) =>
        address == 0 ? [] : new ReadOnlySpan<uint>((void*)address, count).ToArray();

    public static string Result(string key, object value) => $" {key}={Escaped(Joined(value))}";
}
