#!/usr/bin/env bash
# torch_side_test.sh TORCH_SIDE.PY: its rehearsal leaves figures of all steps.
set -euo pipefail
if ! python3 -c 'import torch' 2>/dev/null; then
  echo "skipped: python3 has no PyTorch here"
  exit 77
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 "$1" --rehearse --json "$folder/torch.json"
python3 -c '
import json, sys
rows = json.load(open(sys.argv[1]))["rows"]
steps = ["score_window, pooled", "select", "compact", "attend, 1 query"]
assert list(rows["eager"]) == steps, rows
for backend in ("math", "flex"):  # three models, two lengths, 1 and 4 queries
    assert len(rows[backend]) == 12, rows[backend]
assert all(row["ms"] > 0 for kind in rows.values() for row in kind.values()), rows
' "$folder/torch.json"
