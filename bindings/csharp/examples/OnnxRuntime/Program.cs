// An engine over ONNX Runtime that evicts its cache. It reads a prompt and generates, evicting as it goes, beside one
// that keeps all tokens and only hides those that were evicted: both compute the same, but for rounding.
using System.Diagnostics;
using KvEvict;
using Microsoft.ML.OnnxRuntime;

const int Layers = 2, QueryHeads = 4, KvHeads = 2, Dim = 32, Vocabulary = 64, Prompt = 1200, Steps = 300;
const int Budget = 256, Margin = 64;
// Logits of magnitude 1 in f32, whose sums over slots are taken in other blocks: ten times what was seen.
const float Bound = 2e-5f;

byte[] model = new Decoder(Layers, QueryHeads, KvHeads, Dim, Vocabulary, maxPositions: 4096).Write();
using var options = new SessionOptions { IntraOpNumThreads = 1, LogSeverityLevel = OrtLoggingLevel.ORT_LOGGING_LEVEL_ERROR };
using var session = new InferenceSession(model, options);

using var context = new KvContext();
var layer = new KvLayerGeometry { QueryHeads = QueryHeads, KvHeads = KvHeads, KeyHeadDim = Dim, ValueHeadDim = Dim };
// scope=model: all heads keep the same tokens, which a mask can hide. Without a reference, leave it out.
using var plan = new KvPlan(context, new KvGeometry(Layers, layer, maxTokens: 4096),
                            KvPolicy.Parse($"snapkv:budget={Budget},margin={Margin},scope=model"));
using var evicting = new Engine(session, plan, Layers, KvHeads, Dim);
using var hiding = new Engine(session, null, Layers, KvHeads, Dim);
using var whole = new Engine(session, null, Layers, KvHeads, Dim);
Engine[] engines = [evicting, hiding, whole];

var random = new Random(7);
long[] prompt = [.. Enumerable.Range(0, Prompt).Select(_ => (long)random.Next(Vocabulary))];
var clocks = engines.Select(_ => new Stopwatch()).ToArray();
float[][] logits = [.. engines.Select(engine => engine.Read(prompt))];
int evictions = 0;
float difference = 0, away = 0;
for (int step = 0; step < Steps; ++step)
{
    if (evicting.Evict())
    {
        ++evictions;
        hiding.Hidden.Clear();
        hiding.Hidden.UnionWith(Enumerable.Range(0, hiding.Length).Except(evicting.Sequence!.KeepPositions(0, 0)));
    }
    long[] next = [Array.IndexOf(logits[1], logits[1].Max())];
    for (int i = 0; i < engines.Length; ++i)
    {
        clocks[i].Start();
        logits[i] = engines[i].Read(next);
        clocks[i].Stop();
    }
    difference = Math.Max(difference, Distance(logits[0], logits[1]));
    away = Math.Max(away, Distance(logits[0], logits[2]));
}

Console.WriteLine($"{evicting.Length} tokens seen, {evicting.Slots} of them held after {evictions} evictions");
Console.WriteLine($"cache: {evicting.CacheBytes >> 10} KiB instead of {whole.CacheBytes >> 10} KiB");
Console.WriteLine($"logits: within {difference:g2} of the model that hides the same tokens, {away:g2} from the one that sees all");
Console.WriteLine($"a token takes {Milliseconds(0):f2} ms instead of {Milliseconds(2):f2} ms");
bool right = difference <= Bound && away > 100 * Bound && evictions > 3 && evicting.Slots <= Budget + Margin + 1;
Console.WriteLine(right ? "right" : $"WRONG: the bound is {Bound:g2}");
return right ? 0 : 1;

double Milliseconds(int engine) => clocks[engine].Elapsed.TotalMilliseconds / Steps;
static float Distance(float[] a, float[] b) => a.Zip(b, (x, y) => Math.Abs(x - y)).Max();
