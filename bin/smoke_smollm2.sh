#!/usr/bin/env bash
# A real language model through the whole pipeline on a CPU: SmolLM2-135M-Instruct plays 4 states × 2 episodes on 2×2
# boards, and is trained one step with the KL term on. Further arguments go to `selfplay iterate`.
set -euo pipefail
cd "$(dirname "$0")/.."
out=data/smoke_smollm2
model=$out/model
[ -f "$model/config.json" ] || .venv/bin/selfplay model smollm2 --output "$model"
time .venv/bin/selfplay iterate --config bin/smoke_smollm2.yaml --model "$model" --output "$out/run" "$@"
.venv/bin/python - "$model" "$out/run/iter_1" <<'PY'
import json, sys
from safetensors.torch import load_file
before, after = (load_file(f"{folder}/model.safetensors") for folder in (sys.argv[1], sys.argv[2] + "/checkpoint"))
changed = sum(not before[name].equal(after[name]) for name in before)
figures = json.load(open(sys.argv[2] + "/selfplay_games.summary.json"))
turns, illegal = figures["turns_per_episode"] * figures["episodes"], figures["illegal_actions"]
print(f"weights changed: {changed} of {len(before)} tensors; legal actions: {1 - illegal / turns:.1%} of {turns:.0f}")
assert changed, "training changed no weight"
PY
