#!/usr/bin/env bash
# Convert the games of EXP_NAME and train on them.
#   MODEL_NAME        the policy that played, if it was moved      EXP_NAME  folder of the games (selfplay_gen)
#   TRAIN_BATCH_SIZE  rows per batch, rounded to whole groups (64)
#   MICRO_BATCH_SIZE  rows per forward and backward pass (8)
# CUDA_VISIBLE_DEVICES is respected. Further arguments go to `selfplay train`.
set -euo pipefail
cd "$(dirname "$0")/.."
make --silent setup >/dev/null # hides its advice on the next command
folder="data/${EXP_NAME:-selfplay_gen}"
.venv/bin/selfplay convert "$folder/selfplay_games.jsonl" --output "$folder"
exec .venv/bin/selfplay train \
  ${MODEL_NAME:+--model "$MODEL_NAME"} \
  --data "$folder/train.parquet" \
  --train-batch-size "${TRAIN_BATCH_SIZE:-64}" \
  --micro-batch-size "${MICRO_BATCH_SIZE:-8}" \
  --output "$folder/training" "$@"
