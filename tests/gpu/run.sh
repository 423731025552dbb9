#!/usr/bin/env bash
# Runs the GPU tests on a machine with a GPU, in one go of a few minutes:
#
#   ./run build --gpu-test     where kvevict is built: makes the folder dist/gpu-test
#   dist/gpu-test/run.sh       where the GPU is: needs the driver and libnvrtc alone
#
# run.sh [OUT]: results go to OUT (default: results/ beside this script). Exits
# with 0 if every check has passed. PyTorch, compute-sanitizer: used if there.
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out=${1:-$here/results}
mkdir -p "$out"
program=$here/kvevict_gpu_test
cache=$(mktemp -d)
trap 'rm -rf "$cache"' EXIT
failed=()

say() { printf '== %s\n' "$*"; }

nvidia-smi --query-gpu=name,driver_version,clocks.max.sm,memory.total \
  --format=csv,noheader || true

say "checks at full size, and timings"
"$program" --kernel-cache "$cache" --json "$out/gpu.json" || failed+=(checks)

sanitizer=$(command -v compute-sanitizer ||
  ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)
if [[ -n $sanitizer ]]; then
  for tool in memcheck racecheck; do
    say "compute-sanitizer $tool, small shapes"
    timeout 120 "$sanitizer" --tool "$tool" --error-exitcode 9 \
      "$program" --small --no-timings --kernel-cache "$cache" \
      >"$out/$tool.txt" 2>&1 || failed+=("$tool")
    tail -n 3 "$out/$tool.txt"
  done
else
  say "no compute-sanitizer here"
fi

python=$(command -v python3)
if [[ -n $python ]] && "$python" -c 'import torch' 2>/dev/null; then
  say "the same work in PyTorch"
  timeout 150 "$python" "$here/torch_side.py" --json "$out/torch.json" ||
    failed+=(torch)
else
  say "no PyTorch here"
fi

if [[ ${#failed[@]} -gt 0 ]]; then
  say "FAILED: ${failed[*]}"
  exit 1
fi
say "passed; results in $out"
