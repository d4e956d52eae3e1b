"""The checkpoint of a training: whole and finite, or the one before."""

import os
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


def test_it_is_a_whole_model(tmp_path, saved):
    export(str(saved), str(TINY), str(tmp_path / "checkpoint"), "bfloat16")
    check_checkpoint(str(tmp_path / "checkpoint"))


@pytest.mark.parametrize("number", [float("nan"), float("inf"), 3.4e38])
def test_weights_that_are_not_finite_do_not_replace_the_checkpoint_before(tmp_path, saved, number):
    export(str(saved), str(TINY), str(tmp_path / "checkpoint"), "float32")
    before = contents(tmp_path / "checkpoint")
    tensors = load_file(saved / "model.safetensors")
    tensors["model.norm.weight"][3] = number  # the last of them is too large for bfloat16
    save_file(tensors, saved / "model.safetensors")
    with pytest.raises(TrainingStopped, match=r"weights are not finite \(model\.norm\.weight\)"):
        export(str(saved), str(TINY), str(tmp_path / "checkpoint"), "bfloat16")
    assert contents(tmp_path / "checkpoint") == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint", "saved"]


def test_a_full_disk_leaves_the_checkpoint_before_and_says_how_much_is_needed(tmp_path, saved):
    disk = tmp_path / "disk"
    disk.mkdir()
    if os.geteuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", disk]).returncode:
        pytest.skip("a small disk cannot be mounted here")
    try:
        export(str(saved), str(TINY), str(disk / "checkpoint"), "float32")
        before = contents(disk / "checkpoint")
        with pytest.raises(
            TrainingStopped, match=r"No space left on device \(at most 4 MB are needed, 2 MB are free\)"
        ):
            export(str(saved), str(TINY), str(disk / "checkpoint"), "float32")
        assert contents(disk / "checkpoint") == before
        assert [path.name for path in disk.iterdir()] == ["checkpoint"]
        subprocess.run(["mount", "-o", "remount,size=20m", disk], check=True)
        export(str(saved), str(TINY), str(disk / "checkpoint"), "float32")
        assert contents(disk / "checkpoint") == before
    finally:
        subprocess.run(["umount", disk], check=True)
