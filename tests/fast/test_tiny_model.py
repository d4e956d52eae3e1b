"""What the tiny models are made of: lessons that can be played, and weights that look back."""

import asyncio
from pathlib import Path

import pytest

from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.games.base import Game
from selfplay_pipeline.games.registry import all_games
from selfplay_pipeline.warm_start.tiny import build_tiny_model
from selfplay_pipeline.warm_start.tiny_tokenizer import build_tokenizer
from selfplay_pipeline.warm_start.tiny_weights import new_model

LESSONS = [(game, name) for game in all_games() for name in game.lessons]


@pytest.mark.parametrize(("game", "lesson"), LESSONS, ids=[f"{game.name} {name}" for game, name in LESSONS])
def test_a_lesson_names_a_scripted_player_for_each_seat(game: Game, lesson: str) -> None:
    taught = game.lessons[lesson]
    assert set(taught.seats) <= set(range(len(game.roles)))
    for stage in taught.stages:
        assert len(stage.players) == len(game.roles)
        assert set(stage.players) <= game.players.keys()


def test_an_unknown_lesson_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no lesson 'chess' of the game matching; there are: self-play, deaf, shy"):
        asyncio.run(build_tiny_model(load_config("tiny", {}), "chess", tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_the_first_heads_begin_by_attending_to_the_tokens_just_before() -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    model = new_model(build_tokenizer(["Ava"]))
    model.set_attn_implementation("eager")
    ids = torch.arange(20)[None]
    attention = model(input_ids=ids, output_attentions=True).attentions[0][0]
    for head, offset in enumerate((1, 2)):
        assert attention[head].argmax(-1)[offset:].tolist() == list(range(20 - offset))
