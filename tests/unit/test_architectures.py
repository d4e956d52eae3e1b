"""Models of other kinds than Qwen2's: what is counted, what is said not to be, and adapters beside experts."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from command import selfplay
from factories import TINY
from peft import LoraConfig, get_peft_model
from transformers import (
    AutoModelForCausalLM,
    DeepseekV3Config,
    Gemma3TextConfig,
    Gemma4TextConfig,
    GraniteMoeConfig,
    Lfm2Config,
    LlamaConfig,
    MixtralConfig,
    Qwen2MoeConfig,
    Qwen3Config,
    Qwen3MoeConfig,
    Qwen3NextConfig,
)

from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.model_sizes import sizes_of
from selfplay_pipeline.engines.sglang_server import override_arguments
from selfplay_pipeline.generate.preflight import check_layers
from selfplay_pipeline.train.export import write_checkpoint
from selfplay_pipeline.train.imitation import training_of as imitating
from selfplay_pipeline.train.memory import layer_activations
from selfplay_pipeline.train.offline_stage import training_of
from selfplay_pipeline.train.verl_overrides import adapted_layers, policy_settings

BASE: dict[str, Any] = {
    "vocab_size": 391, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 2048, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
EXPERTS = {"moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2}
GEMMA4: dict[str, Any] = {"head_dim": 16, "global_head_dim": 32, "vocab_size_per_layer_input": 391}
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
CONFIGS = {
    "llama": LlamaConfig(**BASE),
    "qwen3": Qwen3Config(**BASE, head_dim=32),
    "gemma3": Gemma3TextConfig(**BASE, head_dim=16),
    "qwen3_moe": Qwen3MoeConfig(**BASE, **EXPERTS, head_dim=16),
    "qwen2_moe": Qwen2MoeConfig(**BASE, **EXPERTS, shared_expert_intermediate_size=32),
    "mixtral": MixtralConfig(**BASE, num_local_experts=4, num_experts_per_tok=2),
    "lfm2": Lfm2Config(**BASE, layer_types=["conv", "full_attention"]),
    "qwen3_next": Qwen3NextConfig(**BASE, **EXPERTS, layer_types=["linear_attention", "full_attention"]),
    "gemma4": Gemma4TextConfig(**BASE, **GEMMA4),
    "gemma4_moe": Gemma4TextConfig(
        **BASE, **GEMMA4, enable_moe_block=True, num_experts=4, top_k_experts=2, moe_intermediate_size=32
    ),
    "granite_moe": GraniteMoeConfig(**BASE, num_local_experts=4, num_experts_per_tok=2),
    "mla": DeepseekV3Config(**BASE | {"num_key_value_heads": 4}, n_routed_experts=8, moe_intermediate_size=32),
}


def folder_of(path: Path, kind: str) -> str:
    CONFIGS[kind].save_pretrained(path)
    return str(path)


def model_of(kind: str) -> Any:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(CONFIGS[kind], dtype=torch.float32)


def kept_by_a_layer(kind: str, tokens: int) -> float:
    """Bytes of a token that the last layer keeps for its backward pass, without weights."""
    kept: dict[int, torch.UntypedStorage] = {}
    weights: set[int] = set()

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage
        return tensor

    def total(layers: int) -> int:
        model = model_of(kind)
        model.model.layers = model.model.layers[-layers:]
        kept.clear()
        weights.clear()
        weights.update(parameter.untyped_storage().data_ptr() for parameter in model.parameters())
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            model.model(torch.zeros(1, tokens, dtype=torch.long), use_cache=False)
        return sum(storage.nbytes() for storage in kept.values())

    return (total(2) - total(1)) / tokens


@pytest.mark.parametrize("kind", ["llama", "qwen3", "qwen3_moe", "qwen2_moe", "mixtral"])
def test_a_layer_keeps_no_more_for_its_backward_pass_than_is_counted(tmp_path, kind):
    sizes = sizes_of(folder_of(tmp_path, kind))
    counted = layer_activations(sizes, 4)
    assert sizes.uncounted == ()
    assert 0.75 * counted < kept_by_a_layer(kind, 256) < 1.05 * counted


@pytest.mark.parametrize(
    ("kind", "uncounted"),
    [
        ("gemma3", ()),
        ("gemma4", ("heads of two sizes", "inputs of each layer")),
        ("lfm2", ("Conv1d", "conv")),
        ("qwen3_next", ("Conv1d", "linear_attention")),
        ("mla", ("compressed keys and values",)),
    ],
)
def test_what_is_not_counted_is_named(tmp_path, kind, uncounted):
    assert sizes_of(folder_of(tmp_path, kind)).uncounted == uncounted


@pytest.mark.parametrize("kind", ["lfm2", "mla", "qwen3_moe"])
def test_doctor_does_not_say_that_it_fits_if_something_is_not_counted(tmp_path, kind):
    model = folder_of(tmp_path / "model", kind)
    done = selfplay("doctor", "--model", model, "--gpus", "8", "--json")
    found = json.loads(done.stdout)
    known = kind == "qwen3_moe"
    assert found["fits"] is known and done.returncode == (0 if known else 2)
    assert any(line.startswith("not counted: ") for line in found["verdict"]) is not known
    assert found["parameters"] == sum(weight.numel() for weight in model_of(kind).parameters())


# Adapters


@pytest.mark.parametrize(
    ("kind", "targets"),
    [
        ("llama", "all-linear"),
        ("qwen3_moe", ATTENTION),
        ("mixtral", ATTENTION),
        ("qwen2_moe", ATTENTION),
        ("gemma4_moe", ATTENTION),
        ("granite_moe", ATTENTION),
    ],
)
def test_experts_get_no_adapter_and_its_size_is_counted(tmp_path, kind, targets):
    model = folder_of(tmp_path, kind)
    assert adapted_layers(model) == targets
    adapted = get_peft_model(model_of(kind), LoraConfig(r=1, target_modules=targets, task_type="CAUSAL_LM"))
    trained = sum(weight.numel() for weight in adapted.parameters() if weight.requires_grad)
    assert sizes_of(model).adapter == trained


def test_a_model_with_experts_that_cannot_be_counted_gets_no_adapter(tmp_path):
    """An adapter of its experts could be trained, but not exported."""
    model = folder_of(tmp_path, "qwen3_moe")
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"num_attention_heads": 0}))
    with pytest.raises(UserError, match="would change its experts, and could not be exported"):
        adapted_layers(model)


def test_trainings_of_all_kinds_name_the_layers(tmp_path):
    model, key = folder_of(tmp_path, "qwen3_moe"), "actor_rollout_ref.model.target_modules"
    config = load_config("tiny", {"model": model, "train.lora_rank": 4, "device": "cpu"})
    for one in (training_of(config, tmp_path, tmp_path), imitating(config, tmp_path)):
        assert policy_settings(one, "cpu")[key] == ATTENTION
    dense = config.model_copy(update={"model": TINY})
    assert policy_settings(training_of(dense, tmp_path, tmp_path), "cpu")[key] == "all-linear"


def adapted_and_exported(folder: Path, targets: Any) -> Path:
    """A checkpoint of a random mixture of experts with a random adapter merged in; logits are compared."""
    base, saved, new = folder / "base", folder / "saved", folder / "new"
    model = model_of("qwen3_moe")
    model.save_pretrained(base)
    adapted = get_peft_model(model, LoraConfig(r=4, lora_alpha=8, target_modules=targets, task_type="CAUSAL_LM"))
    for name, weight in adapted.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(weight, std=0.2)
    adapted.save_pretrained(saved)
    new.mkdir()
    write_checkpoint(str(saved), str(base), new, "float32", base=str(base))
    ids = torch.arange(40)[None]
    again = AutoModelForCausalLM.from_pretrained(new, dtype=torch.float32)
    with torch.no_grad():
        logits, expected = again(ids).logits, adapted(ids).logits
        plain = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)(ids).logits
    assert (logits - expected).abs().max() < 1e-4 < 1e-2 < (plain - expected).abs().max()
    return new


def test_an_adapter_beside_experts_is_merged_and_the_checkpoint_has_its_logits(tmp_path):
    model = folder_of(tmp_path / "sizes", "qwen3_moe")
    adapted_and_exported(tmp_path, adapted_layers(model))


def test_an_adapter_to_all_that_peft_calls_linear_cannot_be_merged(tmp_path):
    with pytest.raises(RuntimeError, match=r"has no weight .*mlp\.experts\.base_layer\.weight"):
        adapted_and_exported(tmp_path, "all-linear")


@pytest.mark.parametrize(
    ("kind", "context", "refusal"),
    [
        ("mla", 512, "no layers of the kind latent_attention on a CPU"),
        ("lfm2", 512, "no layers of the kind conv on a CPU"),
        ("qwen3_next", 512, "no layers of the kind linear_attention on a CPU"),
        ("gemma3", 4097, "window of 4096 tokens; set engine.context_length to 4096 or less"),
        ("gemma3", 4096, None),
        ("qwen3", 10**6, None),
        ("mixtral", 10**6, None),
    ],
)
def test_a_cpu_refuses_layers_that_sglang_cannot_compute_there_or_computes_differently(
    tmp_path, kind, context, refusal
):
    model = folder_of(tmp_path, kind)
    if refusal is None:
        check_layers(model, context)
        return
    with pytest.raises(UserError, match=refusal):
        check_layers(model, context)


def test_a_gemma_3_without_a_factor_of_positions_gets_1(tmp_path):
    """SGLang ends without it; the models with 4 billion weights and more have one."""
    model = folder_of(tmp_path / "small", "gemma3")
    name, _, given = override_arguments(model)[0].partition("=")
    parameters = json.loads(given)["rope_parameters"]
    assert (name, parameters["full_attention"]["factor"]) == ("--json-model-override-args", 1.0)
    assert parameters["full_attention"]["rope_theta"] != parameters["sliding_attention"]["rope_theta"]
    scaled = json.loads((tmp_path / "small" / "config.json").read_text())
    scaled["rope_parameters"]["full_attention"] |= {"rope_type": "linear", "factor": 8.0}
    (tmp_path / "small" / "config.json").write_text(json.dumps(scaled))
    assert override_arguments(model) == [] == override_arguments(folder_of(tmp_path / "other", "qwen3"))


def test_sglang_learns_which_heads_of_a_gemma_4_have_a_window(tmp_path):
    """Its own names are those of the layers that attend to all tokens."""
    (argument,) = override_arguments(folder_of(tmp_path, "gemma4"))
    given = json.loads(argument.partition("=")[2])
    assert (given["swa_head_dim"], given["head_dim"]) == (16, 32)
    assert (given["swa_num_key_value_heads"], given["num_key_value_heads"]) == (2, 2)
    assert given["moe_intermediate_size"] == 0, "SGLang divides it on a CPU"
    (argument,) = override_arguments(folder_of(tmp_path / "experts", "gemma4_moe"))
    assert json.loads(argument.partition("=")[2])["moe_intermediate_size"] == 32
