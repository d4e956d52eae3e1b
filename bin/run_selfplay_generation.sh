#!/usr/bin/env bash
# Play episodes of a policy against itself.
#   MODEL_NAME    folder or hub name (default: Qwen/Qwen2.5-7B-Instruct with a GPU, else data/tiny_honest_model)
#   NUM_GAMES     episodes, rounded up to whole groups of 8 (100 become 104); an episode gives two rows
#   MAX_LENGTH    turns per episode      TEMPERATURE  sampling temperature      EXP_NAME  name of the output folder
# CUDA_VISIBLE_DEVICES is respected. Further arguments go to `selfplay generate`.
set -euo pipefail
cd "$(dirname "$0")/.."
make --silent setup >/dev/null # hides its advice on the next command
exec .venv/bin/selfplay generate \
  ${MODEL_NAME:+--model "$MODEL_NAME"} \
  --num-episodes "${NUM_GAMES:-100}" \
  --set "game.max_length=${MAX_LENGTH:-100}" \
  --temperature "${TEMPERATURE:-0.7}" \
  --output "data/${EXP_NAME:-selfplay_gen}/selfplay_games.jsonl" "$@"
