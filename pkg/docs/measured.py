#!/usr/bin/env python3
"""measured.py: prints docs/measured.md from the committed results of benchmarks."""

import json
import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
CPU = "tests/bench/results/zen4-2cpu.json"
GPU = "tests/gpu/results/h100"


def scaled(value):
    for factor, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:.3g} {unit}"
    return f"{value:.3g} "


def rows_of(document):
    print("| row | threads | ms, CPU time | per thread | compared with | ratio |")
    print("|---|---:|---:|---:|---|---:|")
    for row in document["rows"]:
        rate = row.get("rate_per_thread")
        per_thread = scaled(rate["median"]) + row["rate_unit"] if rate else ""
        comparisons = row["comparisons"] or [None]
        for i, c in enumerate(comparisons):
            name = [row["name"], row["n_threads"], f'{row["cpu_ms"]["median"]:.3g}', per_thread]
            cells = name if i == 0 else ["", "", "", ""]
            cells += [c["against"], f'{c["ratio"]["median"]:.2f}'] if c else ["", ""]
            print("| " + " | ".join(str(x).replace("|", "\\|") for x in cells) + " |")


def main():
    with open(os.path.join(ROOT, CPU), encoding="utf-8") as file:
        document = json.load(file)
    machine = document["machine"]
    print("# All measured rows\n")
    print("This page has every row of the committed results. `pkg/docs/measured.py` makes it;")
    print("[performance](performance.md) and [CUDA](cuda.md#on-a-gpu) explain the rows.\n")
    print("## CPU\n")
    print(f"`./run bench --json` printed [these results](../{CPU}) on {machine['n_cpus']} cores of an")
    print(f"{machine['cpu']}, target {machine['targets'][0]}. Figures are medians over repetitions.\n")
    print("| limit of the machine | threads | per thread |")
    print("|---|---:|---:|")
    for limit in document["limits"]:
        name, _, unit = limit["name"].rpartition(", ")
        print(f'| {name} | {limit["n_threads"]} | {scaled(limit["per_thread"]["median"])}{unit} |')
    print()
    rows_of(document)
    print("\n## GPU\n")
    print(f"`tests/gpu/run.sh` wrote [these results](../{GPU}/timings.json). Times are medians; the last")
    print("column is the same work in PyTorch.\n")
    sys.stdout.flush()
    table = [sys.executable, os.path.join(ROOT, "tests/gpu/table.py"), os.path.join(ROOT, GPU)]
    subprocess.run(table, check=True)


if __name__ == "__main__":
    main()
