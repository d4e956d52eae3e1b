"""What a stopped online training keeps of a step that was saved, but not logged yet."""

import json
from pathlib import Path
from typing import Any

import pytest

from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.config.online import OnlineConfig
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.files import write_json
from selfplay_pipeline.train.online import SET_BY_TRAINER, _absorb, _absorb_save, _lacks_validation
from selfplay_pipeline.train.online_overrides import held_out_path
from selfplay_pipeline.train.online_stage import online_job
from selfplay_pipeline.train.saves import METRICS, WHOLE, go_back_to_last_logged_save, read_lines
from selfplay_pipeline.train.verl_overrides import check_not_set_by, metrics_path, state_dir


@pytest.fixture
def job(tmp_path: Path) -> OnlineConfig:
    """A training of three steps, of which two are logged."""
    config = load_config("tiny", {"online.steps": 3, "online.validate_every": 2})
    job = online_job(config, tmp_path)
    state_dir(job).mkdir(parents=True)
    lines = [{"step": 0, "held_out/reward": 0.1}, {"step": 1}, {"step": 2, "held_out/reward": 0.2}]
    metrics_path(job).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return job


def save(job: OnlineConfig, step: int, content: dict[str, Any]) -> None:
    folder = state_dir(job) / f"global_step_{step}"
    (folder / "actor").mkdir(parents=True)
    write_json(folder / WHOLE, content)


def test_a_step_that_was_saved_is_kept_although_its_validation_was_broken_off(job):
    save(job, 3, {"step": 3, METRICS: {"selfplay/episodes": 4.0, "selfplay/told": 2.0, "selfplay/per_told": 4.0}})
    _absorb_save(job)
    last = read_lines(metrics_path(job))[-1]
    assert last == {"step": 3, "selfplay/episodes": 4.0, "selfplay/told": 0.5}
    assert go_back_to_last_logged_save(state_dir(job), metrics_path(job)) == 3
    assert _lacks_validation(job, last), "it is validated, and not trained again"


def test_the_figures_of_a_validation_that_is_made_up_for_join_the_line_of_its_step(job):
    save(job, 3, {"step": 3, METRICS: {"selfplay/episodes": 4.0}})
    _absorb_save(job)
    held_out_path(job).write_text(
        json.dumps({"step": 3, "figures": {"reward": 0.6, "told": 1.0, "per_told": 4.0}}) + "\n"
    )
    added = _absorb(job, [{"step": 3, "data": {"val-core/reward": 0.6}}])
    assert added == [{"step": 3, "selfplay/episodes": 4.0, "held_out/reward": 0.6, "held_out/told": 0.25}]
    lines = read_lines(metrics_path(job))
    assert [line["step"] for line in lines] == [0, 1, 2, 3] and lines[-1] == added[0]
    assert not _lacks_validation(job, lines[-1])
    assert _absorb(job, [{"step": 3, "data": {"val-core/reward": 0.6}}]) == [], "a validation counts once"


def test_a_validation_that_was_not_due_or_is_known_is_left_out(job):
    held_out_path(job).write_text(json.dumps({"step": 2, "figures": {"reward": 0.9}}) + "\n")
    assert _absorb(job, [{"step": 2, "data": {}}]) == []
    assert read_lines(metrics_path(job))[-1] == {"step": 2, "held_out/reward": 0.2}
    assert not _lacks_validation(job, {"step": 1})


@pytest.mark.parametrize(("step", "content"), [(3, {"step": 3}), (2, {"step": 2, METRICS: {}}), (4, {METRICS: {}})])
def test_a_save_without_metrics_or_of_another_step_adds_no_line(job, step, content):
    save(job, step, content)
    _absorb_save(job)
    assert [line["step"] for line in read_lines(metrics_path(job))] == [0, 1, 2]


@pytest.mark.parametrize(
    "override",
    [
        "trainer.logger=[console]",
        "trainer.val_before_train=false",
        "trainer.resume_mode=disable",
        "trainer.val_only=true",
        "data.val_batch_size=50",
    ],
)
def test_verls_keys_that_would_lose_steps_or_figures_are_refused(override):
    with pytest.raises(UserError, match="the trainer sets this key itself"):
        check_not_set_by(SET_BY_TRAINER, [override])
