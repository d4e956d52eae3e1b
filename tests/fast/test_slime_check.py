"""What `selfplay slime check` says of a slime that is there, changed, or missing; and the files that launch it."""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from factories import BOARD
from omegaconf import OmegaConf
from pydantic import BaseModel
from slime_contract import OldSample, arguments
from test_cli import selfplay

from selfplay_pipeline.errors import UserError
from selfplay_pipeline.slime.check import (
    SAMPLE_FIELDS,
    SCRIPT,
    STATUSES,
    Item,
    Source,
    check_all,
    check_flags,
    options_of,
)
from selfplay_pipeline.slime.config import DEFAULT, RolloutConfig
from selfplay_pipeline.slime.data import DataJob, write_data

TYPES = """
class Sample:
    class Status:
        PENDING = COMPLETED = TRUNCATED = ABORTED = FAILED = "…"
""" + "\n".join(f"    {name}: object = None" for name in SAMPLE_FIELDS)
CALLS = """
custom_generate_func(args, sample, sampling_params, evaluation=evaluation)
self.custom_reward_post_process_func(self.args, samples)
custom_log_func(rollout_id, args, samples, rollout_extra_metrics, rollout_time)
custom_log_func(rollout_id, args, data, extra_metrics)
"""
STATE = """
class GenerateState(metaclass=SingletonMeta):
    def reset(self):
        self.aborted = False
"""
EVALUATION = """
class EvalDatasetConfig:
    name: str
    path: str
    n_samples_per_eval_prompt: int | None = None
    temperature: float | None = None
"""


@pytest.fixture
def slime(tmp_path) -> Path:
    """A folder of slime's, as far as the check reads it; its parser knows all options of the launch script."""
    root = tmp_path / "slime_source"
    (root / "slime" / "utils").mkdir(parents=True)
    (root / "setup.py").write_text('setup(version="0.3.1")')
    (root / "slime" / "utils" / "types.py").write_text(TYPES)
    (root / "slime" / "calls.py").write_text(CALLS)
    (root / "slime" / "rollout").mkdir()
    (root / "slime" / "rollout" / "sglang_rollout.py").write_text(STATE)
    (root / "slime" / "utils" / "misc.py").write_text("class SingletonMeta(type):\n    _instances = {}")
    (root / "slime" / "utils" / "eval_config.py").write_text(EVALUATION)
    (root / "slime" / "utils" / "logging_utils.py").write_text("def log(args, metrics, step_key: str): ...")
    (root / "slime" / "utils" / "metric_utils.py").write_text("def compute_rollout_step(args, rollout_id): ...")
    options = "\n".join(f'add_argument("{name}")' for name in sorted(options_of(SCRIPT.read_text())))
    (root / "slime" / "utils" / "arguments.py").write_text(options)
    return root


def change(path: Path, old: str, new: str) -> None:
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


def verdicts(slime: Path) -> dict[str, bool]:
    return {item.what: item.ok for item in check_all(slime, None)}


HOOKS = {"generate hook", "reward hook", "log hook", "log hook of evaluations"}
OF_SLIME = {
    "slime",
    "fields of Sample",
    "statuses of Sample",
    "Sample.append_response_tokens",
    "end of a step",
    "evaluation sets",
    "figures of evaluations",
    SCRIPT.name,
}
OF_SLIME |= HOOKS


def test_a_slime_as_it_should_be_is_fine(slime):
    found = verdicts(slime)
    assert {what for what in OF_SLIME if found[what]} == OF_SLIME
    assert found["our hooks"] and found["configuration"] and found["partner"]


@pytest.mark.parametrize(
    ("file", "old", "new", "what"),
    [
        ("slime/calls.py", ", evaluation=evaluation", "", "generate hook"),
        ("slime/calls.py", "self.args, samples", "samples", "reward hook"),
        ("slime/calls.py", ", rollout_time", "", "log hook"),
        ("slime/calls.py", "data, extra_metrics", "data", "log hook of evaluations"),
        ("slime/utils/types.py", "remove_sample: object", "removed: object", "fields of Sample"),
        ("slime/utils/types.py", "FAILED", "BROKEN", "statuses of Sample"),
        ("slime/rollout/sglang_rollout.py", "aborted", "stopped", "end of a step"),
        ("slime/utils/misc.py", "_instances", "_all", "end of a step"),
        ("slime/utils/eval_config.py", "temperature", "warmth", "evaluation sets"),
        ("slime/utils/logging_utils.py", "step_key", "step", "figures of evaluations"),
        ("slime/utils/metric_utils.py", "compute_rollout_step", "step_of", "figures of evaluations"),
        ("slime/utils/arguments.py", "--custom-generate-function-path", "--generate-function", SCRIPT.name),
    ],
)  # fmt: skip
def test_what_has_changed_in_slime_is_found(slime, file, old, new, what):
    change(slime / file, old, new)
    assert {name for name in OF_SLIME if not verdicts(slime)[name]} == {what}


def test_the_logger_is_found_where_it_lies_in_0_3_1_and_where_it_lies_since(slime):
    assert "slime.utils.logging_utils" in figures_of_evaluations(slime).found
    (slime / "slime" / "observability").mkdir()
    for name in ("logging_utils.py", "metric_utils.py"):
        (slime / "slime" / "utils" / name).rename(slime / "slime" / "observability" / name)
    assert "slime.observability.logging_utils" in figures_of_evaluations(slime).found
    (slime / "slime" / "observability" / "logging_utils.py").unlink()
    lost = figures_of_evaluations(slime)
    assert not lost.ok and "TensorBoard and wandb hold no figures" in lost.remedy


def figures_of_evaluations(slime: Path) -> Item:
    return next(item for item in check_all(slime, None) if item.what == "figures of evaluations")


def test_a_file_that_cannot_be_read_is_no_more_than_missing(slime):
    (slime / "slime" / "latin.py").write_bytes(b"# \xe9\n")
    (slime / "slime" / "broken.py").write_text("def (")
    assert {name for name in OF_SLIME if not verdicts(slime)[name]} == set()
    (slime / "slime" / "utils" / "types.py").write_text("class Sample(")
    found = verdicts(slime)
    assert not found["fields of Sample"] and not found["statuses of Sample"]


def test_a_method_that_appends_tokens_is_checked_where_there_is_one(slime):
    types = slime / "slime" / "utils" / "types.py"
    types.write_text(TYPES + "\n    def append_response_tokens(self, args, *, tokens, log_probs): ...\n")
    assert not verdicts(slime)["Sample.append_response_tokens"]


def test_a_missing_slime_is_one_of_the_things_to_mend(tmp_path):
    done = selfplay("slime", "check", "--slime", str(tmp_path))
    assert done.returncode == 2
    assert re.search(r"missing\s+slime\s+not found\s+→ install slime 0.3.1", done.stdout)
    assert "Traceback" not in done.stderr


def test_data_configuration_and_key_are_checked_too(slime, tmp_path, monkeypatch):
    data, config, cache = tmp_path / "games.jsonl", tmp_path / "config.yaml", tmp_path / "cache"
    config.write_text(f"max_turns: 10\nselfplay: {{partner: chat, chat: {{cache: {cache}}}}}")
    write_data(data, DataJob(BOARD, num_games=2, seed=0))
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    found = {item.what: item for item in check_all(slime, config, [data])}
    assert found["prompt data"].ok and "3×3" in found["prompt data"].found
    assert not found["partner"].ok and "OPENAI_API_KEY" in found["partner"].found
    monkeypatch.setenv("OPENAI_API_KEY", "sk-not-to-be-shown")
    monkeypatch.setitem(sys.modules, "openai", None)
    found = {item.what: item for item in check_all(slime, config)}
    assert not found["partner"].ok and "openai" in found["partner"].found
    monkeypatch.undo()
    monkeypatch.setenv("OPENAI_API_KEY", "sk-not-to-be-shown")
    data.write_text("{}")
    found = {item.what: item for item in check_all(slime, config, [data])}
    assert found["partner"].ok and not cache.exists()
    assert not found["prompt data"].ok and "games.jsonl:1" in found["prompt data"].found
    assert "sk-not-to-be-shown" not in str(found)


def test_rows_that_promise_more_turns_than_a_dialogue_gets_are_named(slime, tmp_path):
    config = tmp_path / "config.yaml"
    files = [tmp_path / "games.jsonl", tmp_path / "games_eval.jsonl"]
    for path, length in zip(files, (10, 12), strict=True):
        write_data(path, DataJob(BOARD.model_copy(update={"max_length": length}), num_games=1, seed=0))
    for turns, promising in ((6, []), (5, files[1:]), (4, files)):
        config.write_text(f"max_turns: {turns}")
        found = [item for item in check_all(slime, config, files) if item.what == "turns"]
        assert [item.found.split(":")[0] for item in found] == list(map(str, promising))
        assert not any(item.ok for item in found)


@pytest.mark.skipif(find_spec("slime") is None, reason="slime is not installed")
def test_slimes_own_source_is_fine():
    assert {what for what, ok in verdicts(None).items() if not ok} <= {"megatron", "GPU", "sglang", "ray"}
    source = Source.find(None)
    assert check_flags(source).ok
    # Options of slime's own are in its parser, not only in scripts of an older day.
    custom = {
        name for name in options_of(SCRIPT.read_text()) if re.match(r"--(custom|rollout|eval|n-samples|save)-", name)
    }
    assert custom - {"--save-interval"} <= source.options()


def test_the_stand_in_has_what_the_check_looks_for():
    assert set(SAMPLE_FIELDS) == set(OldSample.__dataclass_fields__)
    assert list(STATUSES) == [status.name for status in OldSample.Status]


def test_the_launch_script_is_sound():
    assert subprocess.run(["bash", "-n", str(SCRIPT)]).returncode == 0
    text = SCRIPT.read_text()
    for path in re.findall(r"selfplay_pipeline\.slime\.(\w+\.\w+)", text):
        module, name = path.split(".")
        assert callable(getattr(__import__(f"selfplay_pipeline.slime.{module}", fromlist=[name]), name))
    arrays = re.findall(r"^(\w*ARGS)=\($", text, re.MULTILINE)
    assert all(f'"${{{name}[@]}}"' in text for name in [*arrays, "MODEL_ARGS"])


def evaluation_sets() -> list[dict]:
    """What the launch script has slime evaluate, as slime reads it."""
    config = OmegaConf.load(SCRIPT.parents[1] / re.search(r'--eval-config "\$PROJECT/(\S+)"', SCRIPT.read_text())[1])
    return OmegaConf.to_container(config, resolve=True)["eval"]["datasets"]


def test_evaluations_are_played_sampled_as_in_training_and_greedily(monkeypatch):
    monkeypatch.setenv("GAMES_EVAL", "/run/games_eval.jsonl")
    options = SCRIPT.read_text()
    trained_at = float(re.search(r"--rollout-temperature (\S+)", options)[1])
    sets = evaluation_sets()
    assert {data["temperature"] for data in sets} == {trained_at, 0.0}
    assert {data["path"] for data in sets} == {"/run/games_eval.jsonl"}
    assert len({data["name"] for data in sets}) == len(sets)
    assert '\\"GAMES_EVAL\\": \\"$OUT/games_eval.jsonl\\"' in options, "Ray's workers are told the file"


def test_every_token_weighs_the_same_in_the_loss():
    assert "--calculate-per-token-loss" in options_of(SCRIPT.read_text())


@pytest.mark.skipif(find_spec("slime") is None, reason="slime is not installed")
def test_slime_evaluates_both_and_takes_the_rest_from_its_arguments(monkeypatch):
    from slime.utils.eval_config import build_eval_dataset_configs, ensure_dataset_list

    monkeypatch.setenv("GAMES_EVAL", "/run/games_eval.jsonl")
    args = arguments(
        n_samples_per_eval_prompt=3, eval_max_response_len=8192, eval_temperature=None, rollout_temperature=1.0,
        input_key="prompt", metadata_key="metadata", apply_chat_template=True,
    )  # fmt: skip
    sampled, greedy = build_eval_dataset_configs(args, ensure_dataset_list(evaluation_sets()), {})
    assert (sampled.temperature, sampled.n_samples_per_eval_prompt) == (1.0, 3)
    assert (greedy.temperature, greedy.n_samples_per_eval_prompt) == (0.0, 1)
    for data in (sampled, greedy):
        assert (data.max_response_len, data.input_key, data.metadata_key) == (8192, "prompt", "metadata")


@pytest.mark.skipif(find_spec("slime") is None, reason="slime is not installed")
@pytest.mark.parametrize(("per_token", "equal"), [(True, True), (False, False)])
def test_slimes_flag_decides_whether_tokens_of_long_dialogues_weigh_less(per_token, equal):
    """`slime.backends.megatron_utils` needs Megatron to be imported, so the reducer is taken out of its source."""
    import torch

    source = Path(find_spec("slime").submodule_search_locations[0], "backends", "megatron_utils", "cp_utils.py")
    reducer = next(
        node
        for node in ast.walk(ast.parse(source.read_text()))
        if isinstance(node, ast.FunctionDef) and node.name == "get_sum_of_sample_mean"
    )
    alone = SimpleNamespace(get_context_parallel_world_size=lambda: 1)
    names = {"torch": torch, "Callable": Callable, "mpu": alone}
    exec(compile(ast.Module([reducer], []), str(source), "exec"), names)
    losses = torch.ones(2 + 6, requires_grad=True)
    masks = [torch.ones(2), torch.ones(6)]
    reduce = names["get_sum_of_sample_mean"]([3, 9], [2, 6], masks, calculate_per_token_loss=per_token)
    reduce(losses).backward()
    short, long = losses.grad[0], losses.grad[-1]
    assert (short == long) == equal
    assert equal or short == 3 * long


@pytest.mark.parametrize("starts", [True, False])
def test_the_script_stops_only_a_cluster_that_it_started_and_takes_paths_from_where_it_is_called(tmp_path, starts):
    tools, models = tmp_path / "tools", tmp_path / "slime" / "scripts" / "models"
    tools.mkdir()
    models.mkdir(parents=True)
    (models / "qwen2.5-7B.sh").write_text("MODEL_ARGS=()")
    for name, text in (
        ("python3", ""),
        ("ray", f'echo "$@" >> {tmp_path}/log; [ "$1" != start ] || {str(starts).lower()}'),
    ):
        (tools / name).write_text(f"#!/bin/sh\n{text}\n")
        (tools / name).chmod(0o755)
    env = {"PATH": f"{tools}:{os.environ['PATH']}", "SLIME": "slime", "HF_CHECKPOINT": "hf"}
    done = subprocess.run(["bash", str(SCRIPT)], cwd=tmp_path, env=env, capture_output=True, check=False)
    called = (tmp_path / "log").read_text()
    assert [line.split()[0] for line in called.splitlines() if line[0] != " "] == (
        ["start", "job", "stop"] if starts else ["start"]
    )
    assert (done.returncode == 0) == starts
    assert not starts or f"--hf-checkpoint {tmp_path}/hf --ref-load {tmp_path}/hf_torch_dist" in called


def test_the_shipped_configuration_says_what_the_defaults_are_and_explains_every_key():
    assert RolloutConfig.read(DEFAULT).model_dump(exclude={"selfplay": {"chat": {"max_concurrency"}}}) == (
        RolloutConfig().model_dump(exclude={"selfplay": {"chat": {"max_concurrency"}}})
    )
    lines = DEFAULT.read_text().splitlines()
    assert yaml.safe_load(DEFAULT.read_text())["max_turns"] == 20
    for number, line in enumerate(lines):
        if re.match(r"\s*\w+:", line):
            assert lines[number - 1].lstrip().startswith("#"), line


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("max_turn: 3", "field 'max_turn'"),
        ("selfplay: {partners: shy}", "field 'selfplay.partners'"),
        ("selfplay: {chat: {modle: x}}", "field 'selfplay.chat.modle'"),
        ("max_turns: 0", "field 'max_turns'"),
        ("[1]", "expected keys and values, found list"),
        ("max_turns: 2026-13-45", "field 'max_turns'"),
        ("{", "1: not YAML"),
        ("\nmax_turns: 1\nmax_turns: 2", "3: key 'max_turns' is given in line 2 already"),
    ],
)
def test_a_wrong_configuration_is_one_clear_line(tmp_path, text, words):
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=rf"{re.escape(str(path))}: ?{re.escape(words)}"):
        RolloutConfig.read(path)


def test_the_configuration_is_read_back_from_slimes_arguments():
    """slime puts the file's top-level keys into its arguments, and nothing else of ours is there."""
    args = arguments(**yaml.safe_load(DEFAULT.read_text()))
    config = RolloutConfig.of(args)
    assert isinstance(config, BaseModel) and config == RolloutConfig.read(DEFAULT)
