"""The study of partners: figures from matrices, and the verdict by the written rule."""

from pathlib import Path

import numpy as np
import pytest
from test_crossplay_gaps import cell, matrix

import studies.partners.run as study
from selfplay_pipeline.iterate.results import Trained
from studies.partners.run import (
    ARMS,
    OTHER_PLAY,
    PAST,
    SELF_PLAY,
    STRANGERS,
    Results,
    Training,
    Trial,
    draw,
    figures,
    mean_rewards,
    tables,
    training_of,
    verdict,
)

SEEDS, STATES = 3, 60


def rewards(with_others: float, with_scripts: float, own: float = 0.9) -> np.ndarray:
    """Rewards of seeds and strangers by state; states are of unlike difficulty."""
    rng = np.random.default_rng(0)
    players = SEEDS + len(STRANGERS)
    means = np.full((players, players), with_others)
    means[SEEDS:, :] = means[:, SEEDS:] = with_scripts
    np.fill_diagonal(means, own)
    return means[:, :, None] + rng.normal(0, 0.2, STATES) + rng.normal(0, 0.02, (players, players, STATES))


def worth(of: float) -> list:
    rng = np.random.default_rng(1)
    return [[(1.0, cell(of + rng.normal(0, 0.02, STATES)))] for _ in range(SEEDS)]


TRAINING = Training(rows=60, updates=4, own_tokens=600)


def arm(of: float, *means: float, base=None):
    other = base and (worth(0.1), matrix(rewards(*base)))
    return figures(TRAINING, worth(of), matrix(rewards(*means)), cell(np.full(STATES, 0.8)), other)


CODE, PLAIN, BAD = (0.6, 0.5), (0.89, 0.88), (0.4, 0.4, 0.4)
"""Rewards with others, with scripts and with oneself; BAD is bad with everyone, so it has no gaps."""


@pytest.mark.long
def test_figures_are_those_of_the_matrix():
    found = arm(0.1, *PLAIN, base=CODE)
    assert found.seeds == 3
    for name, value in (
        ("own", 0.9), ("worth", 0.1), ("with_seeds", 0.89), ("with_scripts", 0.88), ("cross_seed", 0.01),
        ("partner", 0.02), ("over_silence", 0.1),
        ("own_minus", 0.0), ("worth_minus", 0.0), ("with_seeds_minus", 0.29), ("with_scripts_minus", 0.38),
    ):  # fmt: skip
        assert getattr(found, name).value == pytest.approx(value, abs=0.05), name


def test_mean_rewards_are_those_of_the_pairs():
    means = np.array(mean_rewards(matrix(rewards(*CODE))))
    assert means == pytest.approx(rewards(*CODE).mean(axis=2), abs=1e-4)


@pytest.mark.long
def test_the_verdict_follows_the_rule():
    arms = {SELF_PLAY: arm(0.1, *CODE), PAST: arm(0.1, *PLAIN, base=CODE), OTHER_PLAY: arm(-0.1, *PLAIN, base=CODE)}
    first, *others = said = verdict(arms)
    assert first.startswith("self-play has a positive cross-seed gap (+0.3")
    assert any(one.startswith("past does better with other trainings than self-play (+0.2") for one in others)
    assert any(one.startswith("past does better with the scripts than self-play (+0.3") for one in others)
    assert any(one.startswith("past costs nothing") for one in others)
    assert [one for one in said if one.startswith("other-play")] == [
        f"other-play is not shown to talk (worth of words {arms[OTHER_PLAY].worth:+}); nothing else is said of it."
    ]
    (silent,) = verdict({SELF_PLAY: arm(-0.1, *CODE)})
    assert silent.startswith("self-play is not shown to talk")
    assert verdict({SELF_PLAY: arm(0.1, 0.9, 0.9)})[0].startswith("self-play is not shown to have a positive cross")


@pytest.mark.long
def test_an_arm_that_is_bad_with_everyone_does_worse_though_its_gaps_are_smaller():
    arms = {SELF_PLAY: arm(0.1, *CODE), PAST: arm(0.1, *BAD, base=CODE)}
    assert arms[PAST].partner.high < arms[SELF_PLAY].partner.low
    said = verdict(arms)
    for whom in ("other trainings", "the scripts"):
        assert any(one.startswith(f"past does worse with {whom} than self-play (-0.") for one in said)
    assert any(one.startswith("past is not shown to cost nothing") for one in said)


def test_the_training_of_an_arm_is_the_mean_over_its_policies():
    made = {"checkpoint": "c", "steps": 2}
    trainings = [
        Trained(**made, carried=False, rows=40, updates=2, own_tokens=400),
        Trained(**made, carried=True),
        Trained(**made, carried=False, rows=20, updates=1, own_tokens=100),
    ]
    assert training_of(trainings, 2) == Training(rows=30, updates=1.5, own_tokens=250)


@pytest.mark.long
def test_further_seeds_play_only_the_new_pairs(tmp_path, monkeypatch):
    """Scripted players stand for the checkpoints of seeds, so that no server is needed."""

    async def no_evaluation(*_):
        pass

    monkeypatch.setattr(study, "run_evaluate", no_evaluation)
    monkeypatch.setattr(study, "rewards_of", lambda *_: None)
    monkeypatch.setattr(Trial, "checkpoint", lambda _, arm, seed: ("", "random", "silent", "own-view")[seed])
    trial = Trial(source="tiny_honest", model=None, iterations=1, states=20, work=tmp_path)
    found = []
    for seeds in ([1, 2], [1, 2, 3]):
        _, cells = trial.measure(SELF_PLAY, seeds)
        files = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in tmp_path.rglob("*.jsonl")}
        found.append((files, np.array([[cell.numerators for cell in row] for row in cells])))
    (few, first), (more, second) = found
    assert len(few) == 16 and len(more) == 25 and few.items() < more.items()
    assert (np.delete(np.delete(second, 2, 0), 2, 1) == first).all(), "the new seed stands after the others"
    assert second[1, 1].mean() > second[0, 0].mean(), "silent seeds do better than random ones"


@pytest.mark.long
def test_there_is_no_verdict_with_few_seeds_or_without_self_play():
    few = arm(0.1, *CODE).model_copy(update={"seeds": 2})
    assert verdict({SELF_PLAY: few})[0].startswith("No verdict: it needs 3 seeds")
    assert verdict({PAST: arm(0.1, *PLAIN)})[0].startswith("No verdict")


@pytest.mark.long
def test_the_table_has_a_column_for_each_arm():
    arms = {SELF_PLAY: arm(0.1, *CODE), PAST: arm(0.1, *PLAIN, base=CODE)}
    results = Results(
        command="c", revision=None, config={}, iterations=1, states=STATES, arms=arms, verdict=verdict(arms)
    )
    head, _, *rows = tables(results).splitlines()
    assert head == "|  | self-play | past |"
    assert [row.split(" | ")[0] for row in rows if row.startswith("|")][:5] == [
        "| seeds", "| rows trained on", "| updates", "| own tokens trained on", "| reward with itself",
    ]  # fmt: skip
    assert "| rows trained on | 60 | 60 |" in rows
    assert {SELF_PLAY, PAST, OTHER_PLAY} < {*ARMS}


def test_the_stored_picture_is_that_of_the_stored_results(tmp_path):
    folder = Path(study.__file__).parent / "results"
    draw(Results.model_validate_json((folder / "results.json").read_text()), tmp_path / "again.svg")
    assert (tmp_path / "again.svg").read_bytes() == (folder / "strangers.svg").read_bytes()
