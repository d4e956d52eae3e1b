"""Exports verl's saved weights as a Hugging Face folder, in the dtype that its config.json names."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from selfplay_pipeline.core.checkpoints import INDEX, SINGLE, WEIGHTS, weight_files
from selfplay_pipeline.core.files import replacing_folder
from selfplay_pipeline.train.adapter import Adapter
from selfplay_pipeline.train.saves import ADAPTER
from selfplay_pipeline.train.stopped import TrainingStopped, no_space

NOT_COPIED = (*WEIGHTS, "*.index.json")
"""Patterns of files of the original weights, which are not copied."""

STORED = {"float32": "F32", "bfloat16": "BF16"}
"""Names of types in a safetensors header."""


def export(saved: str, model: str, checkpoint: str, dtype: str, base: str | None = None) -> None:
    """Write the folder `checkpoint` completely or not at all, and a LoRA adapter into a folder next to it.

    Args:
        saved: As for `write_checkpoint`, like `model`, `dtype` and `base`.
        checkpoint: The folder to write; an older one is replaced.

    Raises:
        TrainingStopped: The disk is full, or the weights are not finite; an older checkpoint is kept.
    """
    target = Path(checkpoint)
    try:
        if base is not None:
            with replacing_folder(target.parent / ADAPTER) as new:
                shutil.copytree(saved, new, dirs_exist_ok=True)
        with replacing_folder(target) as new:
            write_checkpoint(saved, model, new, dtype, base)
    except Exception as error:
        if not no_space(error):
            raise
        needed = sum(path.stat().st_size for path in weight_files(_weights(saved, base), alone=False))
        raise TrainingStopped(
            f"{target}: the checkpoint cannot be written: No space left on device (at most {needed / 1e6:.0f} MB are "
            f"needed, {shutil.disk_usage(target.parent).free / 1e6:.0f} MB are free); make room and give the same "
            "command again"
        ) from error


def write_checkpoint(saved: str, model: str, new: Path, dtype: str, base: str | None = None) -> None:
    """Fill an empty folder with a checkpoint.

    Weights come from `saved` (verl's `huggingface/` folder). A file of them that has the wanted dtype is not written a
    second time: it gets a second name. All other files (configuration, tokenizer, chat template, generation
    configuration) are copied unchanged from `model`, the policy that training began with.

    Args:
        saved: verl's folder with safetensors, which training may write no more, or a LoRA adapter of `base`.
        model: Folder or hub name of the policy.
        new: The folder to fill.
        dtype: float32 or bfloat16, for the weights and in config.json.
        base: Folder or hub name of the model that the adapter is merged into; None without an adapter.

    Raises:
        TrainingStopped: The weights are not finite.
    """
    import torch
    from safetensors import safe_open
    from safetensors.torch import save_file

    ignored = shutil.ignore_patterns(*NOT_COPIED, ".*", "*.md", "warm_start.json")
    shutil.copytree(_folder(model), new, ignore=ignored, dirs_exist_ok=True)
    adapter = None if base is None else Adapter(Path(saved))
    weight_map: dict[str, str] = {}
    size = 0
    for shard in weight_files(_weights(saved, base), alone=False):
        with safe_open(shard, framework="pt") as file:
            names = list(file.keys())
            if adapter is None and all(file.get_slice(name).get_dtype() == STORED[dtype] for name in names):
                _link(shard, new / shard.name)  # the trainer checked these weights when it saved them
            else:
                tensors = {}
                for name in names:
                    weight = file.get_tensor(name) if adapter is None else adapter.added(name, file.get_tensor(name))
                    tensors[name] = weight.to(getattr(torch, dtype))
                    if not torch.isfinite(tensors[name]).all():
                        raise TrainingStopped(
                            f"{shard}: the trained weights are not finite ({name}); no checkpoint was written"
                        )
                save_file(tensors, new / shard.name, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(names, shard.name)
        size += (new / shard.name).stat().st_size
    if adapter is not None and (missing := adapter.weights - {*map(adapter.name_of, weight_map)}):
        raise RuntimeError(f"{base}: has no weight {min(missing)}, which the adapter changes")
    if {*weight_map.values()} != {SINGLE}:  # readers find files of other names by the index alone
        index = {"metadata": {"total_size": size}, "weight_map": weight_map}
        (new / INDEX).write_text(json.dumps(index, indent=2), "utf-8")
    config = json.loads((new / "config.json").read_text("utf-8"))
    config.pop("torch_dtype", None)
    (new / "config.json").write_text(json.dumps(config | {"dtype": dtype}, indent=2) + "\n", "utf-8")


def _link(file: Path, new: Path) -> None:
    """Give a file a second name, or copy it on a file system without hard links."""
    try:
        os.link(file, new)
    except OSError:
        shutil.copyfile(file, new)


def _weights(saved: str, base: str | None) -> Path:
    """Returns the folder with the weights to write, or with the base weights that an adapter is merged into."""
    if base is None or Path(base).is_dir():
        return Path(base or saved)
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(base, allow_patterns=["*.safetensors", INDEX]))


def _folder(model: str) -> Path:
    if Path(model).is_dir():
        return Path(model)
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(model, ignore_patterns=list(NOT_COPIED)))
