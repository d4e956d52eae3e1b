"""One iteration of models of other kinds: random weights of each class, played by SGLang, trained and exported by verl.

Each model is small and gets the tiny model's tokenizer. Of a vision model the language model is taken, as `selfplay
model text` does. What a model says is no legal action, so a reward of one's own by file rewards long turns, which gives
groups a signal. Reported are the log-prob gap of SGLang and verl after the exported checkpoint has played again, or the
line with which the model was refused.

    OMP_NUM_THREADS=1 python -m bench.architectures --output data/architectures
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from bench import command
from selfplay_pipeline.core.shipped import shipped
from selfplay_pipeline.core.terminal import say
from selfplay_pipeline.warm_start.text_model import write_text_model

BASE: dict[str, Any] = {
    "vocab_size": 391, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 2048, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
EXPERTS = {"moe_intermediate_size": 64, "num_experts": 4, "num_experts_per_tok": 2}
LINEAR = {
    "linear_num_key_heads": 4, "linear_num_value_heads": 4, "linear_key_head_dim": 32, "linear_value_head_dim": 32,
}  # fmt: skip
HYBRID = ["linear_attention", "full_attention"] * 2
MLA = {
    "num_key_value_heads": 4, "kv_lora_rank": 32, "q_lora_rank": 48, "qk_rope_head_dim": 16, "qk_nope_head_dim": 16,
    "v_head_dim": 32, "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "n_group": 2,
    "topk_group": 1, "first_k_dense_replace": 1, "moe_layer_freq": 1, "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "rope_parameters": {"rope_type": "yarn", "factor": 2.0, "rope_theta": 1e4, "mscale": 1.0, "mscale_all_dim": 1.0,
                        "original_max_position_embeddings": 1024, "beta_fast": 32, "beta_slow": 1},
}  # fmt: skip
GEMMA4 = {
    "head_dim": 32, "global_head_dim": 32, "sliding_window": 2048, "num_hidden_layers": 6,
    "vocab_size_per_layer_input": 391, "hidden_size_per_layer_input": 16,
}  # fmt: skip
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {}),
    "qwen3": ("Qwen3Config", {"head_dim": 32}),
    "gemma3": ("Gemma3TextConfig", {"head_dim": 32, "sliding_window": 2048, "num_hidden_layers": 6}),
    "gemma3, window of 16": ("Gemma3TextConfig", {"head_dim": 32, "sliding_window": 16, "num_hidden_layers": 6}),
    "gemma4": ("Gemma4TextConfig", GEMMA4 | {"hidden_size_per_layer_input": 0}),
    "qwen3_moe": ("Qwen3MoeConfig", EXPERTS | {"head_dim": 32}),
    "mixtral": ("MixtralConfig", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "lfm2": ("Lfm2Config", {"layer_types": ["conv", "full_attention"] * 2}),
    "qwen3_next": ("Qwen3NextConfig", EXPERTS | LINEAR | {"layer_types": HYBRID, "head_dim": 32}),
    "mla": ("DeepseekV3Config", MLA),
}
SEEING = {"depth": 2, "num_heads": 2, "hidden_size": 64, "intermediate_size": 128, "out_hidden_size": 128}
PIXELS = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 56,
    "patch_size": 14,
}  # fmt: skip
IN_THREE_DIRECTIONS = {"rope_type": "default", "mrope_section": [4, 6, 6], "rope_theta": 1e4}
IMAGES = {"image_token_id": 300, "video_token_id": 301, "vision_start_token_id": 302, "vision_end_token_id": 303}
VISION: dict[str, tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "gemma3 with vision": (
        "Gemma3Config", {"head_dim": 32, "sliding_window": 2048, "num_hidden_layers": 6}, PIXELS,
        {"image_token_index": 300, "mm_tokens_per_image": 4},
    ),
    "gemma4 with vision": (
        "Gemma4Config", GEMMA4, PIXELS | {"head_dim": 32, "num_key_value_heads": 2}, {"image_token_id": 300},
    ),
    "qwen2_5_vl": (
        "Qwen2_5_VLConfig", {"rope_parameters": IN_THREE_DIRECTIONS}, SEEING | {"fullatt_block_indexes": [1]}, IMAGES,
    ),
    "qwen3_vl": (
        "Qwen3VLConfig", {"rope_parameters": IN_THREE_DIRECTIONS, "head_dim": 32},
        SEEING | {"deepstack_visual_indexes": [0]}, IMAGES,
    ),
    "mistral3": (
        "Mistral3Config", {"model_type": "mistral", "sliding_window": None, "head_dim": 32},
        PIXELS | {"model_type": "pixtral"}, {"image_token_index": 300},
    ),
    "qwen3_5": ("Qwen3_5Config", LINEAR | {"layer_types": HYBRID, "head_dim": 32}, SEEING, IMAGES),
}  # fmt: skip
"""Class of each vision model's configuration, with the changes of its language model, its vision part and the whole."""
ALL = [*KINDS, *VISION]
REWARD = '''\
"""Rewards what cannot be learned from the game: the number of characters that were said."""


def reward(state, turns, outcome):
    return [min(1.0, sum(len(turn.text) for turn in turns) / 400)] * len(outcome.rewards)
'''


def build(kind: str, folder: Path) -> None:
    """Writes a model of random weights with the tiny model's tokenizer."""
    import torch
    import transformers

    torch.manual_seed(0)
    if kind in VISION:
        name, text, vision, changes = VISION[kind]
        config = getattr(transformers, name)(text_config=BASE | text, vision_config=vision, **changes)
        model = transformers.AutoModelForImageTextToText.from_config(config, dtype=torch.float32)
    else:
        name, changes = KINDS[kind]
        config = getattr(transformers, name)(**BASE | changes)
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(shipped("data/tiny_model")).save_pretrained(folder)


def iterated(folder: Path, changes: list[str]) -> dict[str, Any]:
    """Returns what an iteration gives, or the last line of its failure."""
    rewarded = ["num_iterations=1", "evaluate_every=1"]
    settings = [
        *(f"iterate.{one}" for one in rewarded), "generate.num_episodes=32", "generate.episodes_per_state=4",
        "generate.max_new_tokens=24", "game.max_length=4", "evaluate.monitor_states=4", "train.mini_batches=1",
        f"reward.path={folder.parent / 'reward.py'}", *changes,
    ]  # fmt: skip
    given = [part for one in settings for part in ("--set", one)]
    told = [sys.executable, "-m", "selfplay_pipeline", "iterate", "--config", "tiny", "--model", str(folder)]
    output = folder / ("run_" + "_".join(one.partition("=")[2] for one in changes))
    done = subprocess.run([*told, "--output", str(output), *given], capture_output=True, text=True)
    (folder / f"{output.name}.log").write_text(done.stdout + done.stderr)
    if done.returncode:
        return {"refused": done.returncode == 2, "failed": (done.stderr or done.stdout).strip().splitlines()[-1]}
    line = json.loads((output / "metrics.jsonl").read_text().splitlines()[-1])
    return {"gap": line.get("log_prob_gap"), "held out": line.get("held_out_reward")}


def main(
    output: Annotated[Path, typer.Option(help="Gets models, runs and results.json.")] = Path("data/architectures"),
    kind: Annotated[list[str], typer.Option(help=f"Kinds: {', '.join(ALL)}.")] = ALL,
) -> None:
    """Run one iteration of each kind, with all weights and with LoRA."""
    output.mkdir(parents=True, exist_ok=True)
    (output / "reward.py").write_text(REWARD)
    found = dict[str, Any]()
    for name in kind:
        build(name, folder := output / name)
        if name in VISION:
            write_text_model(str(folder), folder := output / f"{name}, text")
        for changes in ([], ["train.lora_rank=4"]):
            found[" ".join([name, *changes])] = iterated(folder, changes)
            say(f"{name} {' '.join(changes)}: {found[' '.join([name, *changes])]}")
    (output / "results.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    command.run(main)
