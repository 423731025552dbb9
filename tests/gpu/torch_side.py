"""The work of a SnapKV eviction in PyTorch, on the shapes of kvevict_gpu_test.

Times by events, fresh random data, inputs larger than the L2 cache; eager and
torch.compile. Also the machine's copy and matrix rates as PyTorch reaches them.
"""
import argparse
import json
import statistics

import torch
import torch.nn.functional as F

LAYERS, Q_HEADS, KV_HEADS, DIM, TOKENS, WINDOW, BUDGET = 36, 32, 8, 128, 16384, 64, 2048


def milliseconds(work, runs=11):
    """Median, least and most over runs, after two warm-up calls."""
    work()
    work()
    times = []
    for _ in range(runs):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return {"ms": statistics.median(times), "ms_least": min(times), "ms_most": max(times)}


def score(q, k, mask):
    """[KV, group * W, D] x [KV, S, D] -> [KV, S]: what kvevict's scorer computes."""
    logits = torch.matmul(q, k.transpose(1, 2)).float() * DIM**-0.5 + mask
    weights = torch.softmax(logits, dim=-1)
    scores = weights.mean(dim=1)
    return F.avg_pool1d(scores[:, None], 7, 1, 3)[:, 0]


def select(scores):
    past = scores[:, : TOKENS - WINDOW]
    top = past.topk(BUDGET - WINDOW, dim=-1).indices.sort(dim=-1).values
    recent = torch.arange(TOKENS - WINDOW, TOKENS, device=scores.device)
    return torch.cat([top, recent.expand(KV_HEADS, -1)], dim=-1)


def compact(cache, keep):
    """Gathers the kept rows and copies them to the front: [S, KV, D] in place."""
    index = keep.t()[:, :, None].expand(-1, -1, DIM)
    cache[:BUDGET].copy_(torch.gather(cache, 0, index))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", required=True)
    args = parser.parse_args()
    device = "cuda"
    group = Q_HEADS // KV_HEADS
    k = torch.randn(LAYERS, TOKENS, KV_HEADS, DIM, device=device, dtype=torch.bfloat16)
    v = torch.randn_like(k)
    q = torch.randn(LAYERS, KV_HEADS, group * WINDOW, DIM, device=device, dtype=torch.bfloat16)
    mask = torch.zeros(WINDOW, TOKENS, device=device)
    mask[:, TOKENS - WINDOW :] = torch.triu(
        torch.full((WINDOW, WINDOW), float("-inf"), device=device), 1)
    mask = mask.repeat(group, 1)

    big = torch.empty(1 << 30, dtype=torch.uint8, device=device)
    other = torch.empty_like(big)
    copy_ms = milliseconds(lambda: other.copy_(big))["ms"]
    a = torch.randn(8192, 8192, device=device, dtype=torch.bfloat16)
    matrix_ms = milliseconds(lambda: a @ a)["ms"]
    document = {
        "torch": torch.__version__,
        "gpu": torch.cuda.get_device_name(),
        "copy_bytes_per_s": 2 * big.numel() / copy_ms * 1e3,
        "matrix_bf16_flops_per_s": 2 * 8192**3 / matrix_ms * 1e3,
        "rows": {},
    }
    del big, other, a

    def record(kind, step, work):
        """Times a step and writes the document, so that nothing is lost later."""
        document["rows"].setdefault(kind, {})[step] = milliseconds(work)
        print(f"torch {kind}: {step}: {document['rows'][kind][step]['ms']:.3f} ms", flush=True)
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(document, file, indent=1)

    for kind, wrap in (("eager", lambda f: f), ("compiled", torch.compile)):
        score_f, select_f, compact_f = wrap(score), wrap(select), wrap(compact)
        scores, keeps = [None] * LAYERS, [None] * LAYERS

        def score_all():
            for layer in range(LAYERS):
                scores[layer] = score_f(q[layer], k[layer].transpose(0, 1), mask)

        def select_all():
            for layer in range(LAYERS):
                keeps[layer] = select_f(scores[layer])

        def compact_all():
            for layer in range(LAYERS):
                compact_f(k[layer], keeps[layer])
                compact_f(v[layer], keeps[layer])

        try:
            record(kind, "score_window, pooled", score_all)
            record(kind, "select", select_all)
            record(kind, "compact", compact_all)
        except Exception as error:  # torch.compile wants a compiler on the machine
            print(f"torch {kind}: {error}", flush=True)
            if kind == "eager":
                raise
    # The steps above include the gaps between launches; a graph has none.
    def eager_scores():
        return [score(q[layer], k[layer].transpose(0, 1), mask) for layer in range(LAYERS)]

    def eager_compact():
        for layer in range(LAYERS):
            compact(k[layer], keeps[layer])
            compact(v[layer], keeps[layer])

    scores = eager_scores()
    keeps = [select(of_layer) for of_layer in scores]
    for step, work in (
        ("score_window, pooled", eager_scores),
        ("select", lambda: [select(of_layer) for of_layer in scores]),
        ("compact", eager_compact),
    ):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()
        record("eager, as a graph", step, graph.replay)


if __name__ == "__main__":
    main()
