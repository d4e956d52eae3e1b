#!/usr/bin/env bash
# Play and train in one process: verl plays the policy against itself with its newest weights in every step.
#   MODEL_NAME  folder or hub name (default: Qwen/Qwen2.5-7B-Instruct with a GPU, else data/tiny_honest_model)
#   STEPS       training steps (50)      TEMPERATURE  of sampling      EXP_NAME  folder below data/ (selfplay_online)
# CUDA_VISIBLE_DEVICES is respected. Further arguments go to `selfplay train-online`.
set -euo pipefail
cd "$(dirname "$0")/.."
make --silent setup >/dev/null # hides its advice on the next command
exec .venv/bin/selfplay train-online \
  ${MODEL_NAME:+--model "$MODEL_NAME"} \
  ${STEPS:+--steps "$STEPS"} \
  ${TEMPERATURE:+--temperature "$TEMPERATURE"} \
  --output "data/${EXP_NAME:-selfplay_online}" "$@"
