using System.Runtime.InteropServices;
using System.Text;

/// <summary>Writes a graph as an .onnx file, which is a message of protobuf; field numbers are those of onnx.proto.</summary>
internal sealed class OnnxFile
{
    private const int Float = 1, Int64 = 7;
    private readonly Message _graph = new();
    private int _names;

    public void Input(string name, bool isFloat, params object[] shape) => _graph.Add(11, Value(name, isFloat, shape));

    public void Output(string name, params object[] shape) => _graph.Add(12, Value(name, true, shape));

    /// <summary>A constant of floats.</summary>
    public string Constant(ReadOnlySpan<float> values, params long[] shape) => Constant(Float, MemoryMarshal.AsBytes(values), shape);

    /// <summary>A constant list of integers.</summary>
    public string List(params long[] values) => Constant(Int64, MemoryMarshal.AsBytes<long>(values), values.Length);

    /// <summary>A constant integer.</summary>
    public string Integer(long value) => Constant(Int64, MemoryMarshal.AsBytes<long>([value]));

    /// <summary>An operation with one result, whose name is returned.</summary>
    /// <param name="operation">As ONNX names it.</param>
    /// <param name="inputs">Names; "" for an input that is left out.</param>
    /// <param name="attributes">Integers, or lists of them.</param>
    /// <param name="output">The result's name, or a new one.</param>
    public string Node(string operation, string[] inputs, (string Name, object Value)[]? attributes = null, string? output = null)
    {
        output ??= $"t{_names++}";
        var node = new Message();
        foreach (string input in inputs) node.Add(1, input);
        node.Add(2, output);
        node.Add(4, operation);
        foreach ((string name, object value) in attributes ?? [])
        {
            var attribute = new Message();
            attribute.Add(1, name);
            foreach (long number in value as long[] ?? [(long)value]) attribute.Add(value is long[] ? 8 : 3, number);
            attribute.Add(20, value is long[] ? 7L : 2L);
            node.Add(5, attribute);
        }
        _graph.Add(1, node);
        return output;
    }

    /// <summary>The file's bytes.</summary>
    public byte[] Finish(int opset)
    {
        _graph.Add(2, "decoder");
        var operators = new Message();
        operators.Add(2, opset);
        var model = new Message();
        model.Add(1, 8);
        model.Add(7, _graph);
        model.Add(8, operators);
        return model.ToArray();
    }

    private string Constant(int type, ReadOnlySpan<byte> bytes, params long[] shape)
    {
        string name = $"c{_names++}";
        var tensor = new Message();
        foreach (long n in shape) tensor.Add(1, n);
        tensor.Add(2, type);
        tensor.Add(8, name);
        tensor.Add(9, bytes);
        _graph.Add(5, tensor);
        return name;
    }

    /// <summary>A name with a type; sizes are numbers or, where they differ from call to call, names.</summary>
    private static Message Value(string name, bool isFloat, object[] sizes)
    {
        var shape = new Message();
        foreach (object size in sizes)
        {
            var dimension = new Message();
            if (size is string symbol) dimension.Add(2, symbol);
            else dimension.Add(1, (int)size);
            shape.Add(1, dimension);
        }
        Message tensor = new(), type = new(), value = new();
        tensor.Add(1, isFloat ? Float : Int64);
        tensor.Add(2, shape);
        type.Add(1, tensor);
        value.Add(1, name);
        value.Add(2, type);
        return value;
    }

    private sealed class Message
    {
        private readonly MemoryStream _bytes = new();

        public void Add(int field, long number)
        {
            Varint((ulong)field << 3);
            Varint((ulong)number);
        }

        public void Add(int field, string text) => Add(field, Encoding.UTF8.GetBytes(text));

        public void Add(int field, Message message) => Add(field, message.ToArray());

        public void Add(int field, ReadOnlySpan<byte> bytes)
        {
            Varint(((ulong)field << 3) | 2);
            Varint((ulong)bytes.Length);
            _bytes.Write(bytes);
        }

        public byte[] ToArray() => _bytes.ToArray();

        private void Varint(ulong value)
        {
            for (; value > 127; value >>= 7) _bytes.WriteByte((byte)(value | 128));
            _bytes.WriteByte((byte)value);
        }
    }
}
