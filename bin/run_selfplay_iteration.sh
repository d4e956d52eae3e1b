#!/usr/bin/env bash
# Play, convert, train, repeatedly; after a kill at any point the same command continues.
#   INITIAL_MODEL    folder or hub name (default: Qwen/Qwen2.5-7B-Instruct with a GPU, else data/tiny_honest_model)
#   NUM_ITERATIONS   iterations (3)      GAMES_PER_ITER  episodes per iteration, rounded up to whole groups (100)
#   EPOCHS_PER_ITER  passes over the data (2)
# CUDA_VISIBLE_DEVICES is respected. Further arguments go to `selfplay iterate`.
set -euo pipefail
cd "$(dirname "$0")/.."
make --silent setup >/dev/null # hides its advice on the next command
exec .venv/bin/selfplay iterate \
  ${INITIAL_MODEL:+--model "$INITIAL_MODEL"} \
  --num-iterations "${NUM_ITERATIONS:-3}" \
  --num-episodes "${GAMES_PER_ITER:-100}" \
  --epochs "${EPOCHS_PER_ITER:-2}" "$@"
