"""The content hash of a model tells folders apart by what they hold, not by where they lie."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from selfplay_pipeline.core import content_hash as module
from selfplay_pipeline.core.content_hash import content_hash
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.reporting import Reporter, Update, use

TINY = Path("data/tiny_model")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


def indexed(model: Path, *files: str) -> None:
    names = {f"weight {number}": file for number, file in enumerate(files)}
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_other_content_of_the_same_size_and_time_has_another_hash(model: Path, name: str) -> None:
    before, file = content_hash(str(model)), model / name
    times = file.stat()
    file.write_bytes(b"x" * times.st_size)
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert content_hash(str(model)) != before


def test_the_names_and_contents_of_what_is_read_decide_wherever_the_folder_lies(model: Path, tmp_path: Path) -> None:
    before = content_hash(str(model))
    assert content_hash(str(shutil.copytree(model, tmp_path / "copy"))) == before
    for name in (".lock", "README.md"):
        (model / name).write_text("text")
    assert content_hash(str(model)) == before, "nothing reads them"
    (model / "model.safetensors").rename(model / "other.safetensors")
    indexed(model, "other.safetensors")
    assert content_hash(str(model)) != before


def test_the_order_in_which_a_disk_lists_files_makes_no_difference(model: Path, monkeypatch) -> None:
    (model / "model.safetensors").rename(model / "z.safetensors")
    indexed(model, "z.safetensors", "a.safetensors")
    (model / "a.safetensors").write_bytes(b"more")
    glob, found = Path.glob, []
    for step in (1, -1):
        monkeypatch.setattr(Path, "glob", lambda path, pattern, step=step: sorted(glob(path, pattern))[::step])
        found.append(content_hash(str(model)))
    assert found[0] == found[1]


def test_a_model_that_is_nowhere_is_a_clear_error() -> None:
    with pytest.raises(UserError, match="no such folder"):
        content_hash("nobody/nothing")


def test_a_folder_with_a_second_set_of_weights_has_no_hash(model: Path) -> None:
    """It would be that of one set, while another engine or the trainer loads the other."""
    (model / "pytorch_model.bin").write_bytes(b"other")
    with pytest.raises(UserError, match=r"holds pytorch_model\.bin beside the weights of model\.safetensors"):
        content_hash(str(model))


def test_a_file_that_cannot_be_read_is_a_clear_error(model: Path) -> None:
    (model / "config.json").unlink()
    (model / "config.json").symlink_to("/proc/self/mem")
    with pytest.raises(UserError, match=rf"model {model}: cannot be read \(Input/output error\)"):
        content_hash(str(model))


@pytest.fixture
def snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of the hub model some/model in a cache, without a network."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    stored = tmp_path / "cache" / "models--some--model"
    (stored / "snapshots" / "0").mkdir(parents=True)
    (stored / "refs").mkdir()
    (stored / "refs" / "main").write_text("0")
    return stored / "snapshots" / "0"


def test_a_hub_model_with_a_single_file_beside_its_shards_is_refused(snapshot: Path) -> None:
    """SGLang loads the shards, and transformers the single file."""
    tensors = load_file(TINY / "model.safetensors")
    save_file(tensors, snapshot / "one.safetensors")
    indexed(snapshot, "one.safetensors")
    shutil.copy(TINY / "config.json", snapshot)
    content_hash("some/model")
    shutil.copy(TINY / "model.safetensors", snapshot)
    with pytest.raises(UserError, match=r"holds model\.safetensors beside the weights of model\.safetensors\.index"):
        content_hash("some/model")


def test_a_hub_model_whose_head_differs_from_its_tied_embedding_is_refused(snapshot: Path) -> None:
    tensors = load_file(TINY / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"] + 1
    save_file(tensors, snapshot / "model.safetensors")
    settings = json.loads((TINY / "config.json").read_text())
    (snapshot / "config.json").write_text(json.dumps(settings | {"tie_word_embeddings": True}))
    with pytest.raises(UserError, match=r"lm_head\.weight differs from model\.embed_tokens"):
        content_hash("some/model")


def test_a_hub_model_is_hashed_once_its_weights_are_in_the_cache(snapshot: Path) -> None:
    """A cache that holds the configuration alone, as after a look at the tokenizer, must not be taken for the model."""
    shutil.copy(TINY / "config.json", snapshot)
    with pytest.raises(UserError, match=r"model some/model: its weights are not in the local cache"):
        content_hash("some/model")
    shutil.copy(TINY / "model.safetensors", snapshot)
    for name in ("pytorch_model.bin", "consolidated.safetensors"):  # a hub model often has them, and nobody loads them
        (snapshot / name).write_bytes(b"other")
    assert content_hash("some/model") == content_hash(str(TINY))


def test_a_large_models_hash_reports_each_file(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (model / "model.safetensors").rename(model / "one.safetensors")
    (model / "two.safetensors").write_bytes(b"weights")
    indexed(model, "one.safetensors", "two.safetensors")
    said = []

    class Told(Reporter):
        @contextmanager
        def progress(self, title: str, begin: str = "", *, brief: bool = False) -> Iterator[Update]:
            assert brief

            def update(done: int, total: int, figures: Callable[[], str] = str) -> None:
                said.append((title, done, total))

            yield update

    with use(Told()):
        content_hash(str(model))
        assert not said, "it is small"
        monkeypatch.setattr(module, "LARGE", 1)
        content_hash(str(model))
    assert said == [(f"reading the weights of {model} for their hash", number, 3) for number in (1, 2, 3)]
