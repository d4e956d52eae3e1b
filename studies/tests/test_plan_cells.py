"""`studies.people.plan_cells`: which cells plans are made of."""

from __future__ import annotations

import asyncio

import pytest

from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.games.registry import make_game
from selfplay_pipeline.generate.read_records import read_episodes
from selfplay_pipeline.generate.stage import generate_episodes
from studies.people.plan_cells import FIGURES, PLANS, figures, main

CONFIG = load_config("tiny_honest", {"generate.num_episodes": 100, "generate.episodes_per_state": 1})
OWN, OWN_SCORE, PARTNERS, PARTNERS_SCORE = FIGURES


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """A file of episodes of each player with itself."""
    files = {name: tmp_path_factory.mktemp("played") / f"{name}.jsonl" for name in ("own-view", "sharing")}
    for name, file in files.items():
        asyncio.run(generate_episodes(CONFIG, file, seats=(name, name)))
    return files


@pytest.mark.parametrize(("player", "plan"), [("own-view", "best by the own view"), ("sharing", "best by both views")])
def test_a_players_plans_are_made_of_the_cells_that_it_knows(played, player, plan):
    found = figures(list(read_episodes(played[player])), make_game(CONFIG.game))
    assert [*found] == [*PLANS]
    for name in FIGURES:
        assert found["played"][name].value == pytest.approx(found[plan][name].value, abs=0.15), name
    other = ({*PLANS[1:]} - {plan}).pop()
    assert abs(found["played"][PARTNERS_SCORE].value - found[other][PARTNERS_SCORE].value) > 1


def test_each_cell_of_an_honest_board_is_of_one_view(played):
    found = figures(list(read_episodes(played["sharing"])), make_game(CONFIG.game))
    for plan in PLANS:
        assert found[plan][OWN].value + found[plan][PARTNERS].value == pytest.approx(3)


def test_each_file_gets_a_line_for_each_plan_and_episodes_without_an_agreement_are_refused(played, tmp_path, capsys):
    main([played["own-view"], played["sharing"]], config="tiny_honest")
    header, _, *lines = capsys.readouterr().out.splitlines()
    assert header == "| file | plan | " + " | ".join(FIGURES) + " |" and len(lines) == 2 * len(PLANS)
    (empty := tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(UserError, match=r"empty\.jsonl: no episode in it ends with an agreement"):
        main([empty], config="tiny_honest")
