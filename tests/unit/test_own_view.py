"""`bench.own_view`: how often proposals are the plan of the proposer's own view."""

from __future__ import annotations

import asyncio

import pytest

from bench.own_view import FIGURES, figures, main
from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.games.registry import make_game
from selfplay_pipeline.generate.records import read_episodes
from selfplay_pipeline.generate.stage import generate_episodes

BOARD = {"game.size": 2, "generate.num_episodes": 200, "generate.episodes_per_state": 2}
CONFIG = load_config("tiny_honest", BOARD)


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """A file of episodes of each player with itself."""
    files = {name: tmp_path_factory.mktemp("played") / f"{name}.jsonl" for name in ("own-view", "sharing", "random")}
    for name, file in files.items():
        asyncio.run(generate_episodes(CONFIG, file, seats=(name, name)))
    return files


@pytest.mark.parametrize(("player", "not_best"), [("own-view", 1), ("sharing", 0)])
def test_only_a_player_that_hears_leaves_its_own_view_where_that_is_not_best(played, player, not_best):
    found = figures(list(read_episodes(played[player])), make_game(CONFIG.game))
    assert found["own view where best"].value == 1
    assert found["own view where not best"].value == not_best
    assert found["reward of own view"].value < 1


def test_a_player_that_ignores_what_it_sees_proposes_each_plan_in_half_of_the_cases(played):
    found = figures(list(read_episodes(played["random"])), make_game(CONFIG.game))
    for name in ("own view where best", "own view where not best"):
        assert found[name].low < 0.5 < found[name].high


@pytest.fixture
def board(tmp_path):
    (file := tmp_path / "board.yaml").write_text("base: tiny_honest\ngame: {size: 2}\n")
    return str(file)


def test_each_file_gets_a_line(played, board, capsys):
    main([played["own-view"], played["sharing"]], config=board)
    header, _, *lines = capsys.readouterr().out.splitlines()
    assert header == "| file | episodes | " + " | ".join(FIGURES) + " |"
    assert [line.split("|")[2].strip() for line in lines] == ["200", "200"]
    assert lines[1].split("|")[3].strip() == "1.000 [1.000, 1.000]"


def test_episodes_of_other_rules_and_a_file_without_episodes_are_refused(played, tmp_path):
    with pytest.raises(UserError, match=r"own-view.jsonl was played with .*; give the --config of these episodes"):
        main([played["own-view"]], config="tiny_honest")
    (empty := tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(UserError, match=r"empty.jsonl: holds no episode"):
        main([empty], config="tiny_honest")


def test_a_board_whose_plans_are_too_many_to_compare_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"--config default: choose a board of matching with at most 5 papers"):
        main([tmp_path / "none.jsonl"], config="default")
