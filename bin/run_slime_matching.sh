#!/usr/bin/env bash
# Train Qwen2.5-7B-Instruct with slime's GRPO in seat 0 against a fixed shy partner. Run it in slime's image, with this
# project installed there (pip install --no-deps -e .).
#   SLIME, MEGATRON  folders of slime and Megatron-LM (/root/slime, /root/Megatron-LM)
#   HF_CHECKPOINT    Hugging Face folder of the policy (/root/Qwen2.5-7B-Instruct)
#   REF_LOAD         the same, converted by slime's tools/convert_hf_to_torch_dist.py (HF_CHECKPOINT + _torch_dist)
#   GAMES, GAMES_EVAL  files of `selfplay slime data` to train on and to evaluate on; by default DialOp's matching states,
#                    which are written below data/EXP_NAME
#   CONFIG           partner and limits (selfplay_pipeline/slime/matching_config.yaml)
#   NUM_GPUS         GPUs of this machine (8)      EXP_NAME  folder below data/ for checkpoints and logs (slime_matching)
#   RAY_ADDRESS      dashboard of a Ray cluster of your own; by default one is started, and ends with this script
# OPENAI_API_KEY, for the partner `chat`, is inherited by Ray's workers and never put into a job's description, so a Ray
# cluster that you bring must have been started with the key in its environment.
# Further arguments go to slime's train.py, which runs in the project's folder: give absolute paths.
set -euo pipefail
PROJECT=$(realpath "$(dirname "$0")/..")
SLIME=$(realpath -m "${SLIME:-/root/slime}")
MEGATRON=$(realpath -m "${MEGATRON:-/root/Megatron-LM}")
HF_CHECKPOINT=$(realpath -m "${HF_CHECKPOINT:-/root/Qwen2.5-7B-Instruct}")
REF_LOAD=$(realpath -m "${REF_LOAD:-${HF_CHECKPOINT}_torch_dist}")
GAMES=${GAMES:+$(realpath "$GAMES")}
GAMES_EVAL=${GAMES_EVAL:+$(realpath "$GAMES_EVAL")}
CONFIG=$(realpath -m "${CONFIG:-$PROJECT/selfplay_pipeline/slime/matching_config.yaml}")
cd "$PROJECT"
NUM_GPUS=${NUM_GPUS:-8}
OUT=$PWD/data/${EXP_NAME:-slime_matching}
export PYTHONPATH=$PWD:$SLIME:$MEGATRON${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1 CUDA_DEVICE_MAX_CONNECTIONS=1

selfplay() { python3 -m selfplay_pipeline.cli "$@"; }
if [ -z "$GAMES" ]; then
  GAMES=$OUT/games.jsonl
  [ -f "$GAMES" ] || selfplay slime data --num-states 1000 --output "$GAMES"
fi
if [ -z "$GAMES_EVAL" ]; then
  GAMES_EVAL=$OUT/games_eval.jsonl
  [ -f "$GAMES_EVAL" ] || selfplay slime data --held-out --num-states 100 --output "$GAMES_EVAL"
fi
echo "training on $GAMES, evaluations on $GAMES_EVAL"
selfplay slime check --slime "$SLIME" --custom-config "$CONFIG" --data "$GAMES" --data "$GAMES_EVAL"

# shellcheck source=/dev/null
source "$SLIME/scripts/models/qwen2.5-7B.sh" # MODEL_ARGS

CKPT_ARGS=(
  --hf-checkpoint "$HF_CHECKPOINT"
  --ref-load "$REF_LOAD"
  --load "$OUT/checkpoints"
  --save "$OUT/checkpoints"
  --save-interval 50 # rollouts; a save is about 120 GB with Adam's state and the Hugging Face copy, and all are kept
  --save-hf "$OUT/hf/{rollout_id}"
)
CUSTOM_ARGS=(
  --custom-generate-function-path selfplay_pipeline.slime.rollout.generate
  --custom-reward-post-process-path selfplay_pipeline.slime.hooks.post_process_rewards
  --custom-rollout-log-function-path selfplay_pipeline.slime.hooks.log_rollout
  --custom-eval-rollout-log-function-path selfplay_pipeline.slime.hooks.log_eval_rollout
  --custom-config-path "$CONFIG"
)
ROLLOUT_ARGS=(
  --prompt-data "$GAMES"
  --input-key prompt
  --metadata-key metadata
  --apply-chat-template
  --apply-chat-template-kwargs '{"enable_thinking": false}' # as `thinking` in CONFIG; other templates ignore it
  --rollout-shuffle
  --num-rollout 200
  --rollout-batch-size 32
  --n-samples-per-prompt 8
  --rollout-max-response-len 8192 # of an episode: 20 turns of at most 256 tokens, and the observations between them
  --rollout-max-context-len 10240 # and the prompt
  --rollout-temperature 1 # and no top-p or top-k, so that log-probs are those of the policy
  --global-batch-size 256
  --balance-data
)
EVAL_ARGS=(
  --eval-interval 20
  --eval-config "$PROJECT/selfplay_pipeline/slime/eval_config.yaml" # sampled and greedy play, of GAMES_EVAL below
  --n-samples-per-eval-prompt 1
  --eval-max-response-len 8192
)
GRPO_ARGS=(
  --advantage-estimator grpo
  --use-kl-loss
  --kl-loss-coef 0.001
  --kl-loss-type low_var_kl
  --entropy-coef 0.00
  --eps-clip 0.2
  --eps-clip-high 0.28
  --calculate-per-token-loss # slime's mean within samples would punish each token of a long failed dialogue less
)
OPTIMIZER_ARGS=(
  --optimizer adam
  --lr 1e-6
  --lr-decay-style constant
  --weight-decay 0.1
  --adam-beta1 0.9
  --adam-beta2 0.98
)
PERF_ARGS=(
  --tensor-model-parallel-size 2
  --sequence-parallel
  --pipeline-model-parallel-size 1
  --context-parallel-size 1
  --recompute-granularity full
  --recompute-method uniform
  --recompute-num-layers 1
  --use-dynamic-batch-size
  --max-tokens-per-gpu 10240 # not below the longest sequence
  --attention-dropout 0.0
  --hidden-dropout 0.0
  --accumulate-allreduce-grads-in-fp32
  --attention-softmax-in-fp32
  --attention-backend flash
)
TRACKING_ARGS=(
  --use-tensorboard
  --tb-project-name selfplay # the folder is TENSORBOARD_DIR, below
  --tb-experiment-name "${EXP_NAME:-slime_matching}"
)
SGLANG_ARGS=(
  --rollout-num-gpus-per-engine 2
  --sglang-mem-fraction-static 0.7
)
CLUSTER_ARGS=(
  --actor-num-nodes 1
  --actor-num-gpus-per-node "$NUM_GPUS"
  --num-gpus-per-node "$NUM_GPUS"
  --colocate
)

# A running cluster is used as it is; a cluster started here ends with this script.
if [ -z "${RAY_ADDRESS:-}" ]; then
  ray start --head --node-ip-address 127.0.0.1 --num-gpus "$NUM_GPUS" --disable-usage-stats
  trap 'ray stop' EXIT # only after a successful start: it fails if another cluster runs, which is not ours to stop
fi
ray job submit --address "${RAY_ADDRESS:-http://127.0.0.1:8265}" \
  --runtime-env-json "{\"env_vars\": {\"PYTHONPATH\": \"$PYTHONPATH\", \"CUDA_DEVICE_MAX_CONNECTIONS\": \"1\",
    \"TENSORBOARD_DIR\": \"$OUT/tensorboard\", \"GAMES_EVAL\": \"$GAMES_EVAL\"}}" \
  -- python3 "$SLIME/train.py" "${MODEL_ARGS[@]}" "${CKPT_ARGS[@]}" "${CUSTOM_ARGS[@]}" "${ROLLOUT_ARGS[@]}" \
  "${EVAL_ARGS[@]}" "${GRPO_ARGS[@]}" "${OPTIMIZER_ARGS[@]}" "${PERF_ARGS[@]}" "${TRACKING_ARGS[@]}" "${SGLANG_ARGS[@]}" \
  "${CLUSTER_ARGS[@]}" "$@"
