"""The checkpoint of a training: whole and finite, or the one before."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from selfplay_pipeline.core.checkpoints import check_checkpoint
from selfplay_pipeline.train.export import export
from selfplay_pipeline.train.stopped import TrainingStopped

TINY = Path("data/tiny_model")


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    (tmp_path / "saved").mkdir()
    return Path(shutil.copy(TINY / "model.safetensors", tmp_path / "saved")).parent


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_that_have_the_dtype_are_not_written_a_second_time(tmp_path, saved, dtype):
    """The checkpoint stays when the save is removed."""
    before = load_file(saved / "model.safetensors")
    (own,) = {str(tensor.dtype).removeprefix("torch.") for tensor in before.values()}
    export(str(saved), str(TINY), str(tmp_path / "checkpoint"), dtype)
    file = tmp_path / "checkpoint" / "model.safetensors"
    assert file.samefile(saved / "model.safetensors") == (dtype == own)
    shutil.rmtree(saved)
    after = load_file(file)
    assert after.keys() == before.keys()
    assert all(str(after[name].dtype) == f"torch.{dtype}" for name in after)
    assert all(after[name].equal(before[name].to(after[name].dtype)) for name in after)


@pytest.mark.parametrize("name", ["one.safetensors", "model-00001-of-00001.safetensors"])
def test_a_checkpoint_in_one_file_of_another_name_is_whole(tmp_path, saved, name):
    """The base of an adapter may be stored so; without an index nobody finds the file."""
    (saved / "model.safetensors").rename(saved / name)
    weights = dict.fromkeys(load_file(saved / name), name)
    (saved / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weights}))
    export(str(saved), str(TINY), str(tmp_path / "checkpoint"), "float32")
    check_checkpoint(str(tmp_path / "checkpoint"))


def test_other_weights_in_the_hubs_folder_of_a_base_are_left_out(tmp_path, saved):
    (saved / "consolidated.safetensors").write_bytes(b"other")
    export(str(saved), str(TINY), str(tmp_path / "checkpoint"), "float32")
    assert sorted(path.name for path in (tmp_path / "checkpoint").glob("*.safetensors")) == ["model.safetensors"]
    check_checkpoint(str(tmp_path / "checkpoint"))


@pytest.mark.parametrize("number", [float("nan"), float("inf"), 3.4e38])
def test_weights_that_are_not_finite_do_not_replace_the_checkpoint_before(tmp_path, saved, number):
    export(str(saved), str(TINY), str(tmp_path / "checkpoint"), "float32")
    check_checkpoint(str(tmp_path / "checkpoint"))
    before = contents(tmp_path / "checkpoint")
    tensors = load_file(saved / "model.safetensors")
    tensors["model.norm.weight"][3] = number  # the last of them is too large for bfloat16
    save_file(tensors, saved / "model.safetensors")
    with pytest.raises(TrainingStopped, match=r"weights are not finite \(model\.norm\.weight\)"):
        export(str(saved), str(TINY), str(tmp_path / "checkpoint"), "bfloat16")
    assert contents(tmp_path / "checkpoint") == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint", "saved"]


def test_a_full_disk_leaves_the_checkpoint_before_and_says_how_much_is_needed(small_disk, saved):
    disk = small_disk("6m")
    export(str(saved), str(TINY), str(disk / "checkpoint"), "float32")
    before = contents(disk / "checkpoint")
    with pytest.raises(TrainingStopped, match=r"No space left on device \(at most 4 MB are needed, 2 MB are free\)"):
        export(str(saved), str(TINY), str(disk / "checkpoint"), "float32")
    assert contents(disk / "checkpoint") == before
    assert [path.name for path in disk.iterdir()] == ["checkpoint"]
    subprocess.run(["mount", "-o", "remount,size=20m", disk], check=True)
    export(str(saved), str(TINY), str(disk / "checkpoint"), "float32")
    assert contents(disk / "checkpoint") == before


@pytest.mark.parametrize("prefix", ["model.", ""])
def test_of_an_adapter_it_is_the_base_with_the_adapter_added_which_lies_beside_it(tmp_path, prefix):
    """The factors are known: B @ A adds 2 × 3 × alpha / rank to one weight of one layer.

    Some models are stored without the prefix of the base model, which the adapter's names have.
    """
    import torch

    layer, model = "model.layers.0.self_attn.q_proj", tmp_path / "model"
    base = {
        name if prefix else name.removeprefix("model."): weight
        for name, weight in load_file(TINY / "model.safetensors").items()
    }
    changed = layer if prefix else layer.removeprefix("model.")
    shutil.copytree(TINY, model)
    save_file(base, model / "model.safetensors", metadata={"format": "pt"})
    outputs, inputs = base[f"{changed}.weight"].shape
    first, second = torch.zeros(2, inputs), torch.zeros(outputs, 2)
    first[1, 5], second[7, 1] = 2.0, 3.0
    adapter = tmp_path / "saved"
    adapter.mkdir()
    factors = {f"base_model.model.{layer}.{part}.weight": one for part, one in (("lora_A", first), ("lora_B", second))}
    save_file(factors, adapter / "adapter_model.safetensors")
    settings = {"r": 2, "lora_alpha": 8, "fan_in_fan_out": False}
    (adapter / "adapter_config.json").write_text(json.dumps(settings))
    export(str(adapter), str(model), str(tmp_path / "checkpoint"), "float32", base=str(model))
    merged = load_file(tmp_path / "checkpoint" / "model.safetensors")
    expected = {name: weight.float() for name, weight in base.items()}
    expected[f"{changed}.weight"][7, 5] += 2 * 3 * 8 / 2
    assert merged.keys() == base.keys()
    assert all(torch.equal(merged[name], expected[name]) for name in merged)
    assert contents(tmp_path / "adapter") == contents(adapter)
    check_checkpoint(str(tmp_path / "checkpoint"))


def test_an_adapter_to_another_model_gives_no_checkpoint(tmp_path):
    import torch

    adapter = tmp_path / "saved"
    adapter.mkdir()
    names = [f"base_model.model.h.0.attn.{part}.weight" for part in ("lora_A", "lora_B")]
    save_file({name: torch.ones(2, 2) for name in names}, adapter / "adapter_model.safetensors")
    (adapter / "adapter_config.json").write_text(json.dumps({"r": 2, "lora_alpha": 8, "fan_in_fan_out": False}))
    with pytest.raises(RuntimeError, match=r"has no weight h\.0\.attn\.weight, which the adapter changes"):
        export(str(adapter), str(TINY), str(tmp_path / "checkpoint"), "float32", base=str(TINY))
    assert not (tmp_path / "checkpoint").exists()
