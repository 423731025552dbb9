/// <summary>
/// A small decoder as an ONNX graph: grouped-query attention, RoPE, and the inputs and outputs that exporters give
/// decoders, with one more: "query.N", the queries after RoPE, which policies that score by attention need.
/// </summary>
internal sealed class Decoder(int layers, int queryHeads, int kvHeads, int dim, int vocabulary, int maxPositions)
{
    private readonly OnnxFile _file = new();
    private readonly Random _random = new(1);
    private int Width => queryHeads * dim;

    /// <summary>The model, with random weights.</summary>
    public byte[] Write()
    {
        _file.Input("input_ids", false, 1, "new");
        _file.Input("attention_mask", false, 1, "all");
        _file.Input("position_ids", false, 1, "new");
        string x = Op("Gather", [Weights(vocabulary, Width, 1), "input_ids"]);
        (string cos, string sin) = Rotation();
        string bias = Bias();
        for (int l = 0; l < layers; ++l) x = Op("Add", [x, Mlp(Op("Add", [x, Attention(l, x, cos, sin, bias)]))]);
        _file.Node("MatMul", [Norm(x), Weights(Width, vocabulary)], null, "logits");
        _file.Output("logits", 1, "new", vocabulary);
        return _file.Finish(opset: 17);
    }

    private string Op(string operation, string[] inputs, params (string, object)[] attributes) =>
        _file.Node(operation, inputs, attributes);

    private string Weights(int rows, int columns, double scale = 0)
    {
        var values = new float[rows * columns];
        double spread = scale > 0 ? scale : 1.7 / Math.Sqrt(rows);
        for (int i = 0; i < values.Length; ++i) values[i] = (float)((2 * _random.NextDouble() - 1) * spread);
        return _file.Constant(values, rows, columns);
    }

    private string Norm(string x)
    {
        var ones = new float[Width];
        Array.Fill(ones, 1);
        return Op("LayerNormalization", [x, _file.Constant(ones, Width)], ("axis", -1L));
    }

    private string Mlp(string x)
    {
        string up = Op("Relu", [Op("MatMul", [Norm(x), Weights(Width, 2 * Width)])]);
        return Op("MatMul", [up, Weights(2 * Width, Width)]);
    }

    /// <summary>Cosines and sines of the new tokens' positions, [1, 1, new, dim].</summary>
    private (string Cos, string Sin) Rotation()
    {
        float[] cos = new float[maxPositions * dim], sin = new float[maxPositions * dim];
        for (int p = 0; p < maxPositions; ++p)
        {
            for (int i = 0; i < dim; ++i)
            {
                double angle = p * Math.Pow(10000, -2.0 * (i % (dim / 2)) / dim);
                cos[p * dim + i] = (float)Math.Cos(angle);
                sin[p * dim + i] = (float)Math.Sin(angle);
            }
        }
        string Of(float[] table)
        {
            string rows = Op("Gather", [_file.Constant(table, maxPositions, dim), "position_ids"]);
            return Op("Unsqueeze", [rows, _file.List(1)]);
        }
        return (Of(cos), Of(sin));
    }

    private string Rotate(string x, string cos, string sin)
    {
        string Part(int begin, int end) => Op("Slice", [x, _file.List(begin), _file.List(end), _file.List(3)]);
        string turned = Op("Concat", [Op("Neg", [Part(dim / 2, dim)]), Part(0, dim / 2)], ("axis", -1L));
        return Op("Add", [Op("Mul", [x, cos]), Op("Mul", [turned, sin])]);
    }

    /// <summary>[new, all]: 0 where a token sees a slot, else a large negative number.</summary>
    private string Bias()
    {
        string zero = _file.Integer(0), one = _file.Integer(1);
        string all = Op("Gather", [Op("Shape", ["attention_mask"]), one]);
        string added = Op("Gather", [Op("Shape", ["input_ids"]), one]);
        string slots = Op("Range", [zero, all, one]);
        string own = Op("Unsqueeze", [Op("Range", [Op("Sub", [all, added]), all, one]), _file.List(1)]);
        string seen = Op("And", [Op("LessOrEqual", [slots, own]), Op("Greater", ["attention_mask", zero])]);
        return Op("Where", [seen, _file.Constant([0f]), _file.Constant([-1e9f])]);
    }

    /// <summary>[1, new, heads * dim] to [1, heads, new, dim].</summary>
    private string Heads(string x, int heads) =>
        Op("Transpose", [Op("Reshape", [x, _file.List(0, 0, heads, dim)])], ("perm", new long[] { 0, 2, 1, 3 }));

    /// <summary>The past's rows and the new ones behind them, which become the next call's past.</summary>
    private string Cache(int layer, string name, string rows)
    {
        string past = $"past_key_values.{layer}.{name}", present = $"present.{layer}.{name}";
        _file.Input(past, true, 1, kvHeads, "past", dim);
        _file.Output(present, 1, kvHeads, "all", dim);
        return _file.Node("Concat", [past, rows], [("axis", 2L)], present);
    }

    private string Attention(int layer, string x, string cos, string sin, string bias)
    {
        string n = Norm(x);
        string Project(int heads) => Heads(Op("MatMul", [n, Weights(Width, heads * dim)]), heads);
        string q = Rotate(Project(queryHeads), cos, sin);
        _file.Node("Identity", [q], null, $"query.{layer}");
        _file.Output($"query.{layer}", 1, queryHeads, "new", dim);
        string k = Cache(layer, "key", Rotate(Project(kvHeads), cos, sin));
        string v = Cache(layer, "value", Project(kvHeads));

        string grouped = Op("Reshape", [q, _file.List(1, kvHeads, queryHeads / kvHeads, -1, dim)]);
        string keys = Op("Transpose", [Op("Unsqueeze", [k, _file.List(2)])], ("perm", new long[] { 0, 1, 2, 4, 3 }));
        string scaled = Op("Mul", [Op("MatMul", [grouped, keys]), _file.Constant([1 / MathF.Sqrt(dim)])]);
        string weights = Op("Softmax", [Op("Add", [scaled, bias])], ("axis", -1L));
        string mixed = Op("MatMul", [weights, Op("Unsqueeze", [v, _file.List(2)])]);
        string heads = Op("Reshape", [mixed, _file.List(1, queryHeads, -1, dim)]);
        string tokens = Op("Transpose", [heads], ("perm", new long[] { 0, 2, 1, 3 }));
        return Op("MatMul", [Op("Reshape", [tokens, _file.List(0, 0, Width)]), Weights(Width, Width)]);
    }
}
