"""slime's other hooks: rewards of a group without its lost samples, and the log of dialogues."""

import ast
import logging
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from factories import BOARD, board_state
from hypothesis import given, settings
from hypothesis import strategies as st
from quick import examples
from slime_contract import NewSample, RealSample, arguments, sample_of

from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.games.base import Status
from selfplay_pipeline.slime.env import build_env
from selfplay_pipeline.slime.hooks import log_eval_rollout, log_rollout, post_process_rewards, records_of
from selfplay_pipeline.slime.questions.records import read_records

rewards = st.floats(0, 1)
sixteenths = st.integers(0, 16).map(lambda number: number / 16)
groups = st.lists(st.lists(st.tuples(rewards, st.booleans()), min_size=2, max_size=6), min_size=1, max_size=4).filter(
    lambda groups: not all(lost for members in groups for _, lost in members)
)


def samples_of(groups) -> list[NewSample]:
    return [
        NewSample(group_index=group, reward=reward, remove_sample=lost)
        for group, members in enumerate(groups)
        for reward, lost in members
    ]


@settings(deadline=None)
@given(groups, st.floats(0, 1))
def test_a_lost_sample_gets_nothing_and_changes_nothing_for_the_others(groups, other):
    samples = samples_of(groups)
    _, normalised = post_process_rewards(arguments(), samples)
    assert not any(value for value, sample in zip(normalised, samples, strict=True) if sample.remove_sample)
    played = [sample for sample in samples if not sample.remove_sample]
    alone = post_process_rewards(arguments(), played)[1]
    assert alone == [value for value, sample in zip(normalised, samples, strict=True) if not sample.remove_sample]
    for sample in samples:
        sample.reward = other if sample.remove_sample else sample.reward
    assert post_process_rewards(arguments(), samples)[1] == normalised


def test_a_step_without_a_single_game_stops_the_run_with_the_last_reason():
    samples = samples_of([[(0.0, True)] * 2] * 2)
    samples[1].metadata["episode"] = {"failure": "no answer within 60 s"}
    with pytest.raises(
        UserError, match=r"step's 4 episodes was played: the partner gave no .* reason: no answer within 60 s;"
    ):
        post_process_rewards(arguments(), samples)


@settings(deadline=None)
@given(groups)
def test_raw_rewards_are_those_played_and_keep_each_groups_mean_and_may_stay_as_they_are(groups):
    raw, _ = post_process_rewards(arguments(), samples_of(groups))
    left = iter(raw)
    for members in groups:
        here = [next(left) for _ in members]
        played = [reward for reward, lost in members if not lost]
        assert [value for value, (_, lost) in zip(here, members, strict=True) if not lost] == played
        assert np.mean(here) == pytest.approx(np.mean(played) if played else 0.0)
    raw, normalised = post_process_rewards(arguments(rewards_normalization=False), samples_of(groups))
    for value, same, sample in zip(raw, normalised, samples_of(groups), strict=True):
        assert same == (0.0 if sample.remove_sample else value)


@pytest.mark.skipif(RealSample is None, reason="slime is not installed")
@pytest.mark.parametrize("estimator", ["grpo", "gspo", "cispo", "reinforce_plus_plus_baseline", "ppo"])
@examples(30)
@given(table=st.lists(st.lists(sixteenths, min_size=4, max_size=4), min_size=2, max_size=4), std=st.booleans())
def test_without_lost_samples_it_is_slimes_own_normalisation(estimator, table, std):
    """`slime.ray.rollout` needs a GPU's packages to be imported, so its method is taken out of the source."""
    import torch

    source = Path(find_spec("slime").submodule_search_locations[0], "ray", "rollout.py").read_text()
    method = next(
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef) and node.name == "_post_process_rewards"
    )
    names = {"torch": torch, "Sample": RealSample}
    exec(compile(ast.Module([method], []), "rollout.py", "exec"), names)
    shape = {"n_samples_per_prompt": 4, "rollout_batch_size": len(table)}
    args = arguments(advantage_estimator=estimator, grpo_std_normalization=std, reward_key=None, **shape)
    samples = [RealSample(group_index=g, reward=reward) for g, row in enumerate(table) for reward in row]
    manager = SimpleNamespace(args=args, custom_reward_post_process_func=None)
    for ours, theirs in zip(
        post_process_rewards(args, samples), names["_post_process_rewards"](manager, samples), strict=True
    ):
        assert ours == pytest.approx(theirs, abs=1e-4)


WRONG = ("[accept]",) * BOARD.max_errors


def played(number: int, *words: str, lost: bool = False, **fields) -> NewSample:
    """A sample whose policy says these words to the shy partner."""
    sample = sample_of(NewSample, BOARD, number, **fields)
    env = build_env(sample, arguments(hf_checkpoint=None, selfplay={"partner": "shy"}))
    env.reset()
    for text in words:
        env.step(text)
    if lost:
        env.end(Status.ENGINE_FAILURE)
    sample.remove_sample = lost
    return sample


def test_a_line_a_dialogue_and_means_beside_slimes_own_figures(tmp_path):
    state = board_state(0, 0)
    question = f"[message] {state.reviewers[0]} {state.papers[0].split(':')[0]}?"
    samples = [
        played(0, question, question, *WRONG, group_index=5),
        played(1, "[message] hello", *WRONG),
        played(2, question, lost=True),
        played(3, question),  # aborted in its middle
    ]
    args, metrics = arguments(selfplay={"log_dir": str(tmp_path)}), {"rollout/dynamic_filter/drop": 1}
    assert log_rollout(7, args, samples, metrics, 1.0) is False
    records = list(read_records(tmp_path / "questions.jsonl"))
    assert [(r.step, r.status, r.questions, r.repeated, r.episode_id) for r in records] == [
        (7, "error_limit", 2, 1, samples[0].metadata["state_id"]),
        (7, "error_limit", 0, 0, samples[1].metadata["state_id"]),
    ]
    figures = {name.removeprefix("rollout/episode/"): value for name, value in metrics.items()}
    assert (figures["questions"], figures["repeated"], figures["leaks"], figures["agreed"]) == (1.0, 0.5, 0.0, 0.0)
    assert (figures["lost"], metrics["rollout/dynamic_filter/drop"]) == (0.25, 1)


def test_a_step_that_is_played_again_takes_the_place_of_its_former_lines(tmp_path):
    args = arguments(selfplay={"log_dir": str(tmp_path)})
    for step in (0, 1, 2, 3):
        log_rollout(step, args, [played(step, *WRONG)], {}, 1.0)
    with (tmp_path / "questions.jsonl").open("a") as file:
        file.write('{"step": 3, "torn')
    log_rollout(2, args, [played(9, *WRONG)], None, 1.0)
    for number in (8, 9):
        log_rollout(3, args, [played(number, *WRONG)], None, 1.0)
    records = list(read_records(tmp_path / "questions.jsonl"))
    assert [(record.step, int(record.episode_id[-6:])) for record in records] == [(0, 0), (1, 1), (2, 9), (3, 9)]


def test_dialogues_on_one_state_are_one_group_whenever_slime_comes_to_it():
    samples = [played(number, *WRONG, group_index=group) for number, group in ((0, 0), (1, 1), (0, 1000), (2, 7))]
    del samples[-1].metadata["state_id"]
    first, other, later, nameless = records_of(samples, 0)
    assert first.group == later.group != other.group
    assert nameless.episode_id == "7", "slime's group, where a state has no name"


def evaluation(*samples: NewSample) -> dict[str, dict]:
    """What slime hands over."""
    rewards = [sample.reward for sample in samples]
    return {"held_out": {"rewards": rewards, "truncated": [False] * len(samples), "samples": list(samples)}}


def test_evaluations_have_a_folder_each_and_count_the_updates_before_them(tmp_path, caplog):
    args = arguments(selfplay={"log_dir": str(tmp_path)})

    def evaluate(rollout_id: int, metrics: dict | None = None) -> list[int]:
        assert log_eval_rollout(rollout_id, args, evaluation(played(0, *WRONG)), metrics) is False
        return [record.step for record in read_records(tmp_path / "eval-held_out" / "questions.jsonl")]

    assert evaluate(0) == [0]
    assert not (tmp_path / "questions.jsonl").exists()
    log_rollout(0, args, [played(0, *WRONG)], {}, 1.0)
    assert evaluate(0) == [0, 1]
    assert evaluate(4, metrics := {}) == [0, 1, 5]
    assert metrics["eval/held_out/episode/length"] == BOARD.max_errors
    with caplog.at_level(logging.INFO):
        evaluate(5, None)  # as slime does
    assert "'eval/held_out/episode/length'" in caplog.text


@pytest.mark.skipif(RealSample is None, reason="slime is not installed")
def test_figures_of_evaluations_stand_beside_slimes_own_on_tensorboard(tmp_path, monkeypatch):
    from slime.utils.misc import SingletonMeta
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.setenv("TENSORBOARD_DIR", str(tmp_path / "tensorboard"))
    monkeypatch.setattr(SingletonMeta, "_instances", kept := {})
    tracked = {"use_tensorboard": True, "tb_project_name": "selfplay", "tb_experiment_name": "test"}
    args = arguments(selfplay={"log_dir": str(tmp_path)}, **tracked)
    log_eval_rollout(4, args, evaluation(played(0, *WRONG)), None)
    for adapter in kept.values():
        adapter.finish()
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    (turns,) = events.Scalars("eval/held_out/episode/length")
    assert (turns.step, turns.value) == (4, BOARD.max_errors)


def test_lost_samples_are_no_part_of_slimes_own_means_of_an_evaluation(tmp_path):
    args, metrics = arguments(selfplay={"log_dir": str(tmp_path)}), {}
    kept, lost = played(0, *WRONG), played(1, lost=True)
    log_eval_rollout(4, args, data := evaluation(lost, kept), metrics)
    assert data == evaluation(kept)
    assert metrics["eval/held_out/episode/lost"] == 0.5
    log_eval_rollout(4, args, data := evaluation(lost), metrics)
    assert data == evaluation(lost)


def test_the_log_lies_beside_slimes_checkpoints_and_a_dump_of_another_run_leaves_it_alone(tmp_path):
    args = arguments(selfplay={"log_dir": str(tmp_path)}, load_debug_rollout_data="dump.pt")
    log_rollout(0, args, [played(0, *WRONG)], {}, 1.0)
    log_eval_rollout(0, args, evaluation(played(0, *WRONG)), {})
    assert list(tmp_path.iterdir()) == []
    log_rollout(0, arguments(save=str(tmp_path)), [played(0, *WRONG)], {}, 1.0)
    assert (tmp_path / "logs" / "questions.jsonl").exists()
