"""A folder that is no whole model is refused before anything is started, in one line that names the file."""

import json
import os
import pickle
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command import selfplay
from safetensors.torch import load_file, save_file

from selfplay_pipeline.core.checkpoints import check_checkpoint, vocabulary_of
from selfplay_pipeline.core.content_hash import content_hash
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.engines.transformers_engine import TransformersEngine

TINY = Path("data/tiny_model")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return Path(shutil.copytree(TINY, tmp_path / "model"))


def said(**settings: Any) -> Callable[[Path], None]:
    """Change config.json."""

    def change(model: Path) -> None:
        config = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps(config | settings))

    return change


def changed(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    """Change the weights."""

    def write(model: Path) -> None:
        tensors = load_file(model / "model.safetensors")
        change(tensors)
        save_file(tensors, model / "model.safetensors", metadata={"format": "pt"})

    return write


def written(name: str, content: str | bytes) -> Callable[[Path], None]:
    data = content.encode() if isinstance(content, str) else content
    return lambda model: (model / name).write_bytes(data) and None


def cut(size: int) -> Callable[[Path], None]:
    return lambda model: os.truncate(model / "model.safetensors", size)


def sharded(model: Path) -> None:
    (model / "model.safetensors").rename(model / "model-00001-of-00002.safetensors")
    names = {"lm_head.weight": "model-00002-of-00002.safetensors", "a": "model-00001-of-00002.safetensors"}
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))


def pickled(model: Path) -> None:
    (model / "model.safetensors").unlink()
    (model / "pytorch_model.bin").write_bytes(pickle.dumps({}))


def no_weights(model: Path) -> None:
    (model / "model.safetensors").unlink()


def split(model: Path, *, first: str = "model-00001-of-00002.safetensors") -> None:
    """Store the weights in two shards with an index."""
    tensors = load_file(model / "model.safetensors")
    (model / "model.safetensors").unlink()
    parts = {first: {HEAD}, "model-00002-of-00002.safetensors": tensors.keys() - {HEAD}}
    for file, names in parts.items():
        save_file({name: tensors[name] for name in names}, model / file, metadata={"format": "pt"})
    index(model, {name: file for file, names in parts.items() for name in names})


def index(model: Path, names: dict[str, str]) -> None:
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))


def after_split(change: Callable[[Path], Any], **options: str) -> Callable[[Path], None]:
    def damage(model: Path) -> None:
        split(model, **options)
        change(model)

    return damage


def copied(name: str) -> Callable[[Path], Any]:
    """Put another set of weights beside the model's own."""
    return lambda model: shutil.copy(TINY / "model.safetensors", model / name)


def renamed(model: Path) -> None:
    (model / "model.safetensors").rename(model / "model-00001-of-00001.safetensors")


def twice(model: Path) -> None:
    shard = model / "model-00002-of-00002.safetensors"
    save_file(load_file(shard) | load_file(model / "model-00001-of-00002.safetensors"), shard)


def differing(tensors: dict[str, Any]) -> None:
    tensors[HEAD] = tensors["model.embed_tokens.weight"].clone()
    tensors[HEAD][390, 5] += 1


def tied(tensors: dict[str, Any]) -> None:
    tensors[HEAD] = tensors["model.embed_tokens.weight"].clone()


def tied_with(change: Callable[[dict[str, Any]], Any], **settings: Any) -> Callable[[Path], None]:
    def damage(model: Path) -> None:
        changed(change)(model)
        said(tie_word_embeddings=True, **settings)(model)

    return damage


def shards_tied_with(model: Path) -> None:
    tied_with(differing)(model)
    split(model)


HEAD, NORM = "lm_head.weight", "model.norm.weight"
CUT, NO_MAP = r"model\.safetensors: damaged or cut off", r"index\.json: damaged"
LLAMA, LAYERS = {"model_type": "llama"}, "full_attention"
DAMAGES = {
    "weights cut off": (cut(1_000_000), CUT),
    "header cut off": (cut(100), CUT),
    "empty weights": (cut(0), CUT),
    "noise": (written("model.safetensors", b"\xff" * 5000), CUT),
    "no weights": (no_weights, "no weights there"),
    "weights are pickles": (pickled, r"its weights are pickles \(pytorch_model\.bin\)"),
    "a tensor missing": (changed(lambda found: found.pop(NORM)), r"model\.norm\.weight of Qwen2"),
    "a tensor too many": (changed(lambda found: found.update({"model.layers.4.x": found[NORM].clone()})),
                          r"its weights hold model\.layers\.4\.x, unknown to"),
    "another shape": (changed(lambda found: found.update({HEAD: found[HEAD][:90].clone()})),
                      r"lm_head\.weight has shape \[90, 128\], Qwen2ForCausalLM expects \[391, 128\]"),
    "whole numbers": (changed(lambda found: found.update({HEAD: found[HEAD].int()})), r"lm_head\.weight stored as I32"),
    "a shard missing": (sharded, r"model-00002-of-00002\.safetensors: no such file, but .*index\.json names it"),
    "single file beside shards": (after_split(copied("model.safetensors")),
                                  r"holds model\.safetensors beside the weights of model\.safetensors\.index\.json"),
    "a shard that the index does not name": (after_split(copied("model-00003-of-00003.safetensors")),
                                             r"holds model-00003-of-00003\.safetensors beside"),
    "two sets more": (after_split(lambda model: (copied("a.safetensors")(model), copied("pytorch_model.bin")(model))),
                      r"holds a\.safetensors and 1 more beside"),
    "index names the single file and a shard": (after_split(lambda _: None, first="model.safetensors"),
                                                r"index\.json: names model\.safetensors and other files"),
    "index names a file elsewhere": (lambda model: index(model, {HEAD: "../model.safetensors"}),
                                     r"names '\.\./model\.safetensors', which is no"),
    "index names a pickle": (lambda model: (pickled(model), index(model, {HEAD: "pytorch_model.bin"})),
                             r"names 'pytorch_model\.bin', which is no \*\.safetensors"),
    "index of nothing": (lambda model: index(model, {}), NO_MAP),
    "a weight in two shards": (after_split(twice), r"holds lm_head\.weight, as model-00001-of-00002\.safetensors does"),
    "a shard without index": (renamed, r"holds model-00001-of-00001\.safetensors, but neither model\.safetensors nor"),
    **{f"{name} beside": (copied(name), rf"holds {re.escape(name)} beside the weights") for name in (
        "pytorch_model.bin", "pytorch_model-00001-of-00002.bin", "consolidated.00.pth", "consolidated.safetensors",
        "model.fp16.safetensors", "adapter_model.safetensors", "adapter_model.bin", "model.pt", "model.ckpt",
        "model-q4.gguf", "tf_model.h5", "flax_model.msgpack",
    )},
    "tied, another head stored": (tied_with(differing), r"lm_head\.weight differs from model\.embed_tokens"),
    "tied, another head in another shard": (shards_tied_with, r"lm_head\.weight differs from model\.embed_tokens"),
    "tied and quantised": (tied_with(differing, quantization_config={"quant_method": "fp8"}), r"lm_head\.weight diff"),
    "index without map": (written("model.safetensors.index.json", "{}"), NO_MAP),
    "index is no JSON": (written("model.safetensors.index.json", "{"), r"index\.json:1: not JSON"),
    "says llama": (said(**LLAMA), r"architectures is \['Qwen2ForCausalLM'\], model_type llama is that of"),
    "is said to be llama": (said(**LLAMA, architectures=["LlamaForCausalLM"]), "unknown to LlamaForCausal"),
    "says gpt2": (said(model_type="gpt2", architectures=["GPT2LMHeadModel"]), "more of GPT2LMHeadModel"),
    "says another class": (said(architectures=["LlamaForCausalLM"]), r"architectures is \['LlamaForCausalLM'\]"),
    "writes no text": (said(model_type="vit", architectures=["ViTModel"]), "no model that writes text"),
    "unknown type": (said(model_type="nonsense"), r"model_type 'nonsense' is not known"),
    "no type": (said(model_type=None), "model_type None is not known"),
    "code of its own": (said(model_type="own", auto_map={"AutoModelForCausalLM": "evil.Model"}),
                        r"models with code of their own \(auto_map\) are not loaded"),
    "config is no JSON": (written("config.json", "{"), r"config\.json:1: not JSON"),
    "config is a list": (written("config.json", "[]"), r"config\.json: not a JSON object"),
    "config is not text": (written("config.json", b"\xff\xfe"), r"config\.json:1: not UTF-8"),
    "huge": (said(hidden_size=10**9), r"config\.json: hidden_size is 1000000000"),
    "endless": (said(num_hidden_layers=10**9), r"config\.json: num_hidden_layers is 1000000000"),
    "negative": (said(intermediate_size=-3), r"config\.json: intermediate_size is -3"),
    "a word for a number": (said(vocab_size="many"), r"config\.json: vocab_size is 'many'"),
    "fewer layers": (said(num_hidden_layers=3, layer_types=[LAYERS] * 3), "unknown to"),
    "more layers": (said(num_hidden_layers=9, layer_types=[LAYERS] * 9), "its weights lack"),
    "heads that do not divide": (said(num_attention_heads=7), "no model can be built|has shape|cannot be read"),
    "not a number": (lambda model: written("config.json", (model / "config.json").read_text().replace("1e-06", "NaN"))(
        model), "NaN is not a number"),
    "small vocabulary": (said(vocab_size=100), r"its tokenizer has ids up to 258, the model has 100"),
    "tokenizer is no JSON": (written("tokenizer.json", "{"), r"tokenizer\.json: not a tokenizer"),
    "tokenizer is empty": (written("tokenizer.json", "{}"), r"tokenizer\.json: not a tokenizer"),
    "tokenizer's settings": (written("tokenizer_config.json", "[1"), r"tokenizer_config\.json:1: not JSON"),
    "generation's settings": (written("generation_config.json", "3"), r"generation_config\.json: not a JSON object"),
}  # fmt: skip


@pytest.mark.parametrize(("damage", "message"), DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_model_is_refused(model, damage, message):
    damage(model)
    with pytest.raises(UserError, match=message) as refused:
        check_checkpoint(str(model))
    assert "\n" not in str(refused.value) and str(model) in str(refused.value)


@pytest.mark.parametrize(("more", "fits"), [(-1, False), (0, False), (1, True), (2, True)])
def test_a_vocabulary_holds_the_highest_id_of_the_tokenizer(model, more, fits):
    from tokenizers import Tokenizer

    highest = max(Tokenizer.from_file(str(TINY / "tokenizer.json")).get_vocab(with_added_tokens=False).values())
    said(vocab_size=highest + more)(model)
    with pytest.raises(UserError) as refused:  # if not for its tokenizer, then for the shape of its weights
        check_checkpoint(str(model))
    assert (f"its tokenizer has ids up to {highest}" in str(refused.value)) == (not fits)
    assert ("has shape" in str(refused.value)) == fits


@pytest.mark.parametrize(
    ("config", "size"),
    [
        ('{"vocab_size": 391}', 391), ('{"vocab_size": 1}', 1),
        ('{"text_config": {"vocab_size": 391}}', 391),
        ('{"vocab_size": null, "text_config": {"vocab_size": 391}}', 391),
        ('{"vocab_size": 391, "text_config": {"vocab_size": 7}}', 391),
        *((text, None) for text in (
            "{}", '{"vocab_size": 0}', '{"vocab_size": -1}', '{"vocab_size": "391"}', '{"text_config": null}',
            '{"text_config": {}}', "[391]", "{", "\xff\xfe", None)),
    ],
)  # fmt: skip
def test_the_size_of_a_vocabulary_is_what_the_configuration_says_if_it_can_be_read(tmp_path, config, size):
    if config is not None:
        (tmp_path / "config.json").write_bytes(config.encode("latin-1"))
    assert vocabulary_of(str(tmp_path)) == size


def test_whole_models_are_taken(model):
    check_checkpoint(str(model))
    check_checkpoint("data/tiny_honest_model")
    check_checkpoint("Qwen/Qwen2.5-7B-Instruct")
    changed(lambda tensors: tensors.pop("lm_head.weight"))(model)
    said(tie_word_embeddings=True)(model)
    check_checkpoint(str(model))


UNREAD = (
    "training_args.bin", "optimizer.pt", "optimizer.bin", "scheduler.pt", "scaler.pt", "rng_state.pth",
    "rng_state_0.pth", "random_states_0.pt", "sampler.bin", "dl_state_dict.bin", "trainer_state.json",
    "tokenizer.model", "._x.safetensors",
)  # fmt: skip
"""What people have beside a model's weights."""


@pytest.mark.parametrize(
    "change",
    [
        tied_with(tied), changed(differing), split,
        lambda model: (renamed(model), index(model, {HEAD: "model-00001-of-00001.safetensors"})),
        lambda model: index(model, {HEAD: "model.safetensors"}),
    ],
    ids=["tied, the same head stored", "not tied", "shards", "one shard", "single file with an index"],
)  # fmt: skip
def test_one_set_of_weights_is_taken_beside_what_no_engine_reads(model, change):
    change(model)
    for name in UNREAD:
        (model / name).write_bytes(b"{}")
    for folder in ("original", "onnx", "global_step5"):
        (model / folder).mkdir()
        copied(f"{folder}/consolidated.00.pth")(model)
        copied(f"{folder}/model.safetensors")(model)
    check_checkpoint(str(model))
    assert content_hash(str(model))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_are_refused_where_they_are_read(model, value):
    changed(lambda tensors: tensors["lm_head.weight"].view(-1)[0].fill_(value))(model)
    with pytest.raises(UserError, match=f"{model}: lm_head.weight holds NaN or infinite weights"):
        TransformersEngine(str(model))


def test_code_beside_a_known_model_is_not_run(model):
    said(auto_map={"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"})(model)
    (model / "evil.py").write_text(f"import os\nos.mkdir({str(model / 'ran')!r})\n")
    check_checkpoint(str(model))
    assert not (model / "ran").exists()


@pytest.mark.parametrize("whole", [True, False])
def test_an_adapter_is_refused_because_not_all_would_apply_it(model, whole):
    if not whole:
        (model / "config.json").unlink()
    (model / "adapter_config.json").write_text("{}")
    (model / "adapter_model.bin").write_bytes(pickle.dumps({}))
    with pytest.raises(UserError, match=r"holds an adapter .* merge it into its base model"):
        check_checkpoint(str(model))


@pytest.mark.parametrize("inside", [False, True], ids=["elsewhere", "where other models are"])
@pytest.mark.parametrize("command", ["generate", "doctor"])
@pytest.mark.parametrize("config", ["tiny_bargaining", "tiny_mediation", "tiny_planning", "tiny4x4"])
def test_a_model_of_a_built_in_configuration_that_is_made_first_is_named_with_its_command(
    tmp_path, monkeypatch, command, config, inside
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", lambda *_, **__: pytest.fail("asked the hub"))
    if inside:
        (tmp_path / "data").mkdir()
    done = selfplay(command, "--config", config)
    model = "data/tiny4x4" if config == "tiny4x4" else f"data/{config}_model"
    assert done.returncode == 2, done.stderr
    assert f"{model}: no such model; `" in done.stdout + done.stderr
    assert f"model tiny --config {config} --output {model}` makes it" in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("made", "given", "advice"),
    [
        (
            ["iter_2", "iter_10"],
            "",
            "give the checkpoint in it, {}/iter_10/checkpoint, or another of its 2",
        ),
        (["iter_2", "iter_10"], "iter_2", "give the checkpoint in it, {}/iter_2/checkpoint"),
        (["training"], "", "give the checkpoint in it, {}/training/checkpoint"),
        ([], "", "no Hugging Face model there (config.json is missing)"),
    ],
)
def test_a_run_in_place_of_a_checkpoint_is_told_which_folder_to_give(tmp_path, made, given, advice):
    for name in made:
        shutil.copytree(TINY, tmp_path / name / "checkpoint")
    done = selfplay("evaluate", str(tmp_path / given), "--output", str(tmp_path / "out"))
    assert done.returncode == 2 and done.stderr.endswith(advice.format(tmp_path) + "\n"), done.stderr


@pytest.mark.long
@pytest.mark.parametrize("damage", ["single file beside shards", "tied, another head stored", "weights cut off"])
@pytest.mark.parametrize("command", ["doctor", "generate", "generate --engine transformers", "evaluate", "iterate"])
def test_each_command_refuses_what_would_be_another_model_elsewhere(model, tmp_path, monkeypatch, command, damage):
    change, message = DAMAGES[damage]
    change(model)
    monkeypatch.chdir(tmp_path)
    target = [str(model)] if command == "evaluate" else ["--model", str(model)]
    done = selfplay(*command.split(), *target, "--config", "tiny")
    lines = done.stderr.splitlines()
    assert done.returncode == 2 and re.search(f"^selfplay: .*{message}", lines[-1]), done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
