"""The work of a SnapKV eviction in PyTorch, on the shapes of kvevict_gpu_test, and
attention layer by layer by flash attention, cuDNN and flex.

Times by events, fresh random data, inputs larger than the L2 cache, which a copy clears
before each run as kvevict's stopwatch does; eager and torch.compile. Also the machine's
copy and matrix rates as PyTorch reaches them.

--rehearse does it once on the CPU and small, to see that all steps run.
"""
import argparse
import json
import statistics
import sys
import time
from typing import NamedTuple

try:
    import torch
    import torch.nn.functional as F
except ImportError as error:
    print(f"torch_side.py: skipped, PyTorch is not here: {error}")
    sys.exit(77)


class Shape(NamedTuple):
    layers: int
    q_heads: int
    kv_heads: int
    dim: int
    tokens: int
    window: int
    budget: int


FULL = Shape(36, 32, 8, 128, 16384, 64, 2048)
SMALL = Shape(2, 8, 2, 64, 1024, 16, 128)
# The models of kvevict_gpu_test --rows: layers, query heads, KV heads, elements.
MODELS = {
    "36 layers of 128, group 4": (36, 32, 8, 128),
    "16 layers of 256, group 6": (16, 24, 4, 256),
    "16 layers of 256, group 8": (16, 16, 2, 256),
}
LEAD_BYTES = 512 << 20


LEAD = []


def lead():
    """Queues an untimed copy: the GPU is busy while the work is queued, and none of its
    input is in the L2 cache."""
    if not LEAD:
        LEAD.extend(torch.empty(LEAD_BYTES, dtype=torch.uint8, device="cuda") for _ in range(2))
    LEAD[0].copy_(LEAD[1])


def seconds(work, device):
    if device == "cpu":
        begin = time.perf_counter()
        work()
        return time.perf_counter() - begin
    lead()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    work()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e-3


def milliseconds(work, device, runs=11):
    """Median, least and most over runs, after two warm-up calls."""
    work()
    work()
    times = [seconds(work, device) * 1e3 for _ in range(runs)]
    return {"ms": statistics.median(times), "ms_least": min(times), "ms_most": max(times)}


def score(q, k, mask):
    """[KV, group * W, D] x [KV, S, D] -> [KV, S]: what kvevict's scorer computes."""
    logits = torch.matmul(q, k.transpose(1, 2)).float() * q.shape[-1] ** -0.5 + mask
    weights = torch.softmax(logits, dim=-1)
    scores = weights.mean(dim=1)
    return F.avg_pool1d(scores[:, None], 7, 1, 3)[:, 0]


def select(scores, window, budget):
    """[KV, S] -> ascending keep lists [KV, budget], the window's tokens last."""
    n_heads, n_tokens = scores.shape
    past = scores[:, : n_tokens - window]
    top = past.topk(budget - window, dim=-1).indices.sort(dim=-1).values
    recent = torch.arange(n_tokens - window, n_tokens, device=scores.device)
    return torch.cat([top, recent.expand(n_heads, -1)], dim=-1)


def attend(q, k, v):
    """[Q, D] x [S, KV, D]: attention of one query of every query head."""
    return F.scaled_dot_product_attention(
        q[None, :, None], k.transpose(0, 1)[None], v.transpose(0, 1)[None],
        enable_gqa=True)


def compact(cache, keep):
    """Gathers the kept rows and copies them to the front: [S, KV, D] in place."""
    index = keep.t()[:, :, None].expand(-1, -1, cache.shape[-1])
    cache[: keep.shape[-1]].copy_(torch.gather(cache, 0, index))


class Model:
    """Keys, values and queries of all layers, and the steps of an eviction."""

    def __init__(self, shape, device, wrap, dtype=torch.bfloat16):
        s = self.shape = shape
        group = s.q_heads // s.kv_heads
        kind = {"device": device, "dtype": dtype}
        self.k = torch.randn(s.layers, s.tokens, s.kv_heads, s.dim, **kind)
        self.v = torch.randn_like(self.k)
        self.q = torch.randn(s.layers, s.kv_heads, group * s.window, s.dim, **kind)
        mask = torch.zeros(s.window, s.tokens, device=device)
        mask[:, s.tokens - s.window :] = torch.triu(
            torch.full((s.window, s.window), float("-inf"), device=device), 1)
        self.mask = mask.repeat(group, 1)
        self.score_one, self.select_one, self.compact_one, self.attend_one = map(
            wrap, (score, select, compact, attend))
        self.scores = self.keeps = None

    def steps(self):
        return (("score_window, pooled", self.score),
                ("select", self.select),
                ("compact", self.compact),
                ("attend, 1 query", self.attend))

    def score(self):
        self.scores = [self.score_one(q, k.transpose(0, 1), self.mask)
                       for q, k in zip(self.q, self.k)]

    def select(self):
        self.keeps = [self.select_one(scores, self.shape.window, self.shape.budget)
                      for scores in self.scores]

    def compact(self):
        for k, v, keep in zip(self.k, self.v, self.keeps):
            self.compact_one(k, keep)
            self.compact_one(v, keep)

    def attend(self):
        for q, k, v in zip(self.q, self.k, self.v):
            self.attend_one(q[:, :: self.shape.window].flatten(0, 1), k, v)

    def check(self):
        """An eviction leaves the rows of its keep lists, in their order."""
        self.score()
        self.select()
        before = self.v[-1].clone()
        self.compact()
        for head in range(self.shape.kv_heads):
            keep = self.keeps[-1][head]
            assert bool((keep.diff() > 0).all()), "a keep list does not ascend"
            rows = self.v[-1][: self.shape.budget, head]
            assert torch.equal(rows, before[keep, head]), "a row is not that of its token"


def last_rows_see(n_queries, n_tokens, device):
    """[Q, S]: query i of the last n_queries tokens sees the slots up to its own."""
    mask = torch.ones(n_queries, n_tokens, dtype=torch.bool, device=device)
    return mask.tril(n_tokens - n_queries)


def sdpa(backend):
    """Attention by one backend of scaled_dot_product_attention alone."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def run(q, k, v):
        n_queries, n_tokens = q.shape[2], k.shape[2]
        mask = None
        if n_queries > 1 and backend == "FLASH_ATTENTION":
            from torch.nn.attention.bias import causal_lower_right
            mask = causal_lower_right(n_queries, n_tokens)
        elif n_queries > 1:
            mask = last_rows_see(n_queries, n_tokens, q.device)
        with sdpa_kernel(getattr(SDPBackend, backend)):
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
    return run


def flex(compiled):
    """Compiled flex attention, which has a kernel for few queries."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention
    attend_flex = torch.compile(flex_attention, dynamic=False) if compiled else flex_attention
    masks = {}

    def run(q, k, v):
        n_queries, n_tokens = q.shape[2], k.shape[2]
        key = (n_queries, n_tokens)
        if n_queries > 1 and key not in masks:
            offset = n_tokens - n_queries
            masks[key] = create_block_mask(
                lambda b, h, i, j: j <= i + offset, None, None, n_queries, n_tokens,
                device=str(q.device))
        return attend_flex(q, k, v, block_mask=masks.get(key), enable_gqa=True)
    return run


def reference(q, k, v):
    """[1, H, Q, D] in f32, by the definition."""
    group = q.shape[1] // k.shape[1]
    k, v = (x.float().repeat_interleave(group, 1) for x in (k, v))
    logits = q.float() @ k.transpose(2, 3) * q.shape[-1] ** -0.5
    mask = last_rows_see(q.shape[2], k.shape[2], q.device)
    return torch.softmax(logits.masked_fill(~mask, float("-inf")), dim=-1) @ v


def attention_rows(backend, device, small, record):
    """A call for each layer in the stream's order, as a model decodes, as a graph. A
    backend that cannot do a shape says why."""
    if backend == "flex":
        run = flex(not small)
    else:
        run = sdpa({"flash": "FLASH_ATTENTION", "cuDNN": "CUDNN_ATTENTION"}.get(backend, "MATH"))
    kind = {"device": device, "dtype": torch.float32 if small else torch.bfloat16}
    for name, (layers, q_heads, kv_heads, dim) in MODELS.items():
        layers = 2 if small else layers
        for n_tokens in (128, 256) if small else (2048, 16384):
            # [S, KV, D], as kvevict's rows have it.
            k, v = (torch.randn(layers, 1, n_tokens, kv_heads, dim, **kind).transpose(2, 3)
                    for _ in range(2))
            for n_queries in (1, 4):
                q = torch.randn(layers, 1, q_heads, n_queries, dim, **kind)
                step = f"attend by layer: {name}, {n_tokens} slots, {n_queries} queries"
                try:
                    # Each shape is compiled by itself, not as one of many.
                    torch.compiler.reset()
                    worst = (run(q[0], k[0], v[0]).float() - reference(q[0], k[0], v[0])).abs()
                    assert worst.max().item() < 0.02, f"off by {worst.max().item()}"

                    def work():
                        for layer in range(layers):
                            run(q[layer], k[layer], v[layer])
                    record(backend, step, graph_of(work, device))
                except Exception as error:  # no kernel for the shape
                    text = str(error).strip() or type(error).__name__
                    print(f"torch {backend}: {step}: skipped, {text.splitlines()[0]}",
                          flush=True)


def graph_of(work, device):
    """The work's replay as a CUDA graph."""
    if device == "cpu":
        return work
    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


def machine_rates(device, small):
    """Bytes read and written by a copy, and bf16 FLOPs of a matrix product, per second."""
    n = 512 if small else 8192
    big = torch.empty(1 << (24 if small else 30), dtype=torch.uint8, device=device)
    other = torch.empty_like(big)
    copy_ms = milliseconds(lambda: other.copy_(big), device)["ms"]
    a = torch.randn(n, n, device=device, dtype=torch.bfloat16)
    matrix_ms = milliseconds(lambda: a @ a, device)["ms"]
    return {"copy_bytes_per_s": 2 * big.numel() / copy_ms * 1e3,
            "matrix_bf16_flops_per_s": 2 * n**3 / matrix_ms * 1e3}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", required=True)
    parser.add_argument("--rehearse", action="store_true")
    args = parser.parse_args()
    shape, device = (SMALL, "cpu") if args.rehearse else (FULL, "cuda")
    document = {
        "torch": torch.__version__,
        "gpu": "none" if args.rehearse else torch.cuda.get_device_name(),
        "shape": shape._asdict(),
        **machine_rates(device, args.rehearse),
        "rows": {},
    }

    def record(kind, step, work):
        """Times a step and writes the document, so that nothing is lost later."""
        document["rows"].setdefault(kind, {})[step] = milliseconds(work, device)
        print(f"torch {kind}: {step}: {document['rows'][kind][step]['ms']:.3f} ms", flush=True)
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(document, file, indent=1)

    def steps(kind, wrap, as_graph, dtype=torch.bfloat16):
        model = Model(shape, device, wrap, dtype)
        model.check()
        for step, work in model.steps():
            record(kind, step, graph_of(work, device) if as_graph else work)

    steps("eager", lambda f: f, False)
    if not args.rehearse:
        # The steps above include gaps between launches. A graph has none.
        steps("eager, as a graph", lambda f: f, True)
        steps("eager, as a graph, f32", lambda f: f, True, torch.float32)
    for backend in ("math",) if args.rehearse else ("flash", "cuDNN"):
        attention_rows(backend, device, args.rehearse, record)
    try:
        steps("compiled", torch.compile, False)
    except Exception as error:  # torch.compile wants a compiler on the machine
        print(f"torch compiled: skipped, {error}", flush=True)
    attention_rows("flex", device, args.rehearse, record)


if __name__ == "__main__":
    main()
