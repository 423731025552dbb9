#!/usr/bin/env python3
"""Prints what run.sh measured as a table; docs/cuda.md has its most important rows.

table.py RESULTS: a folder with timings.json, rows.json or both and, where PyTorch was
there, torch.json.
"""
import json
import os
import sys

# The rows of both sides: kvevict's names after the workload, and PyTorch's.
TORCH = {
    "score_window": "score_window, pooled",
    "pool and select": "select",
    "compact": "compact",
    "attend, 1 query": "attend, 1 query",
}
KINDS = {
    "36 layers, bf16, W=64": ("compiled", "eager, as a graph"),
    "36 layers, bf16": ("compiled", "eager, as a graph"),
    "36 layers, f32, W=64": ("eager, as a graph, f32",),
    "36 layers, f32": ("eager, as a graph, f32",),
}
# The same work among --rows.
MODEL = "36 layers of 128, group 4"
ROWS = {
    f"score: {MODEL}, bf16 keys, bf16 queries": ("36 layers, bf16", "score_window"),
    f"score: {MODEL}, f32 keys, f32 queries": ("36 layers, f32", "score_window"),
    f"compact bf16, 16384 to 2048: {MODEL}": ("36 layers, bf16", "compact"),
    f"compact f32, 16384 to 2048: {MODEL}": ("36 layers, f32", "compact"),
}


def load(folder, name):
    path = os.path.join(folder, name)
    if not os.path.exists(path):
        return {"rows": {}}
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def fastest(torch, workload, step):
    """PyTorch's least median of a step, or None."""
    times = [torch["rows"].get(kind, {}).get(TORCH.get(step), {}).get("ms")
             for kind in KINDS.get(workload, ())]
    times = [ms for ms in times if ms is not None]
    return min(times) if times else None


def number(value, form=".3g"):
    return "" if value is None else format(value, form)


def print_rows(document, torch):
    """The table of --rows, with PyTorch's backends beside attention in bf16, and its
    faster form beside scores and compaction."""
    backends = ("flash", "cuDNN", "flex")
    print(f"\n{document['gpu']}: rows"
          + (f", against {document['rows']['against']}" if document["rows"]["against"] else "")
          + ".\n")
    print("| group | row | ms | TB/s | TFLOP/s | host, us | of the other's time | "
          + " | ".join(backends) + " | PyTorch |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for row in document["rows"]["rows"]:
        cells = [row["group"], row["name"]]
        if "ms" not in row:
            why = "skipped" if "skipped" in row else "failed"
            cells += [f"{why}: {row[why]}"] + [""] * 8
        else:
            ratio = row.get("ratio")
            same = row["name"].replace(", bf16", "")
            cells += [number(row["ms"]),
                      number(row["bytes_per_s"] * 1e-12 if row["bytes"] else None, ".2f"),
                      number(row["flops_per_s"] * 1e-12 if row["flops"] else None, ".1f"),
                      number(row["host_us"], ".1f"),
                      f"{ratio['median']:.3f} ({ratio['least']:.3f} to {ratio['most']:.3f})"
                      if ratio else ""]
            cells += [number(torch["rows"].get(b, {}).get(same, {}).get("ms"))
                      if ", bf16" in row["name"] else "" for b in backends]
            cells += [number(fastest(torch, *ROWS.get(row["name"], ("", ""))))]
        print("| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |")


def print_timings(document, torch):
    timings = document["timings"]
    print(f"{document['gpu']}, driver {document['driver'] // 1000}."
          f"{document['driver'] % 1000 // 10}: the driver's copy "
          f"{timings['copy_bytes_per_s'] * 1e-12:.2f} TB/s, read and written, mma.sync "
          f"{timings['matrix_flops_per_s'] * 1e-12:.0f} TFLOP/s.\n")
    print("| workload | step | ms | TB/s | TFLOP/s | PyTorch, ms |")
    print("|---|---|---|---|---|---|")
    for row in timings["rows"]:
        workload, _, step = row["name"].partition(": ")
        if not step:
            continue
        rate = f"{row['bytes_per_s'] * 1e-12:.2f}" if row["bytes"] else ""
        flops = f"{row['flops_per_s'] * 1e-12:.1f}" if row["flops"] else ""
        other = fastest(torch, workload, step)
        print(f"| {workload} | {step} | {row['ms']:.3g} | {rate} | {flops} | "
              f"{'' if other is None else format(other, '.3g')} |")


def main():
    folder = sys.argv[1]
    torch = load(folder, "torch.json")
    for name, show in (("timings", print_timings), ("rows", print_rows)):
        document = load(folder, name + ".json")
        if name in document and "rows" in document[name]:
            show(document, torch)


if __name__ == "__main__":
    main()
