"""The study of partners: figures from matrices, and the verdict by the written rule."""

import numpy as np
import pytest
from test_gaps import cell, matrix

from bench.partners import ARMS, OTHER_PLAY, PAST, SELF_PLAY, STRANGERS, Results, figures, tables, verdict

SEEDS, STATES = 3, 200


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


def arm(of: float, *means: float, base=None):
    return figures(worth(of), matrix(rewards(*means)), base and matrix(rewards(*base)))


CODE, PLAIN, DEAR = (0.6, 0.5), (0.89, 0.88), (0.59, 0.58, 0.6)


def test_figures_are_those_of_the_matrix():
    found = arm(0.1, *PLAIN, base=CODE)
    assert found.seeds == 3
    for name, value in (
        ("own", 0.9), ("worth", 0.1), ("cross_seed", 0.01), ("partner", 0.02), ("own_minus", 0.0),
        ("cross_seed_minus", -0.29), ("partner_minus", -0.38),
    ):  # fmt: skip
        assert getattr(found, name).value == pytest.approx(value, abs=0.05), name


def test_the_verdict_follows_the_rule():
    arms = {SELF_PLAY: arm(0.1, *CODE), PAST: arm(0.1, *PLAIN, base=CODE), OTHER_PLAY: arm(-0.1, *PLAIN, base=CODE)}
    first, *others = said = verdict(arms)
    assert first.startswith("Self-play has a private code")
    assert any(one.startswith("past is better understood by other trainings than self-play (-0.2") for one in others)
    assert any(one.startswith("past is better understood by the scripts than self-play (-0.3") for one in others)
    assert any(one.startswith("past costs nothing") for one in others)
    assert [one for one in said if one.startswith("other-play")] == [
        f"other-play is not shown to talk (worth of words {arms[OTHER_PLAY].worth:+}); its gaps say nothing."
    ]
    dear = verdict({SELF_PLAY: arm(0.1, *PLAIN), PAST: arm(0.1, *DEAR, base=PLAIN)})
    assert any(one.startswith("past is not shown to cost nothing") for one in dear)
    worse = verdict({SELF_PLAY: arm(0.1, *PLAIN), PAST: arm(0.1, *CODE, base=PLAIN)})
    assert any(one.startswith("past is worse understood by the scripts") for one in worse)


def test_there_is_no_verdict_with_few_seeds_or_without_self_play():
    few = arm(0.1, *CODE).model_copy(update={"seeds": 2})
    assert verdict({SELF_PLAY: few})[0].startswith("No verdict: it needs 3 seeds")
    assert verdict({PAST: arm(0.1, *PLAIN)})[0].startswith("No verdict")


def test_the_table_has_a_column_for_each_arm():
    arms = {SELF_PLAY: arm(0.1, *CODE), PAST: arm(0.1, *PLAIN, base=CODE)}
    results = Results(
        command="c", revision=None, config={}, iterations=1, states=STATES, arms=arms, verdict=verdict(arms)
    )
    head, _, *rows = tables(results).splitlines()
    assert head == "|  | self-play | past |"
    assert [row.split(" | ")[0] for row in rows if row.startswith("|")][:3] == [
        "| seeds", "| reward with itself", "| worth of words",
    ]  # fmt: skip
    assert {SELF_PLAY, PAST, OTHER_PLAY} < {*ARMS}
