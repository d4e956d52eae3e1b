"""What the tiny models are made of: an exact tokenizer, lessons that can be played, weights that look back."""

import asyncio
import unicodedata
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from test_resume import trained

from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.config.schema import Config
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.shipped import GAMES, shipped, where_from
from selfplay_pipeline.games.matching.game import MatchingGame
from selfplay_pipeline.games.matching.names import PAPERS, REVIEWERS
from selfplay_pipeline.games.registry import all_games
from selfplay_pipeline.generate.trajectory import ChatTokenizer
from selfplay_pipeline.train.offline import TrainResult
from selfplay_pipeline.warm_start import lesson as warm_start
from selfplay_pipeline.warm_start.lesson import _taught, build_warm_start
from selfplay_pipeline.warm_start.tiny_model import build_tokenizer, new_model

pytest.importorskip("transformers")

TINY = load_config("tiny", {}).game


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import Qwen2Config

    folder = tmp_path_factory.mktemp("tiny")
    build_tokenizer(MatchingGame.lessons["self-play"].words).save_pretrained(folder)
    Qwen2Config().save_pretrained(folder)  # AutoTokenizer picks the class by this file's model type
    return folder


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


def encode(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False))


@given(text=st.text() | st.text(st.characters(max_codepoint=127)))
@example(text="[propose] Proposal: BLEU: Ava\nElectra: Daniel\nGloVe: Sofia")
@example(text="  two  spaces , and . punctuation , it's n't \n\n\ttabs\r\n ")
@example(text="Avatar seen users100 [messages] match-again")
@example(text="<|im_start|>user\nsee<|im_end|>\n<|endoftext|>")
@example(text="\U0002f800 and e\u0301")
def test_any_text_decodes_to_itself_once_its_characters_are_composed(tokenizer: Any, text: str) -> None:
    """Qwen2's tokenizer composes characters (NFC). Text without characters to compose is kept exactly."""
    decoded = tokenizer.decode(encode(tokenizer, text))
    assert unicodedata.normalize("NFC", decoded) == unicodedata.normalize("NFC", text)
    if unicodedata.is_normalized("NFC", text):
        assert decoded == text


def test_words_digits_and_tags_are_single_tokens(tokenizer: Any) -> None:
    names = [title.split(":")[0] for title in PAPERS] + [part for name in REVIEWERS for part in name.split()]
    for word in ["[message]", "[propose]", "[accept]", "[reject]", "Proposal", *names, *"0123456789"]:
        assert len(encode(tokenizer, word)) == 1
        assert len(encode(tokenizer, f" {word}")) == 1
    assert len(encode(tokenizer, "[message] Ava BLEU 5 Daniel GloVe 37")) == 8


LESSONS = [(game, name) for game in all_games() for name in game.lessons]


@pytest.mark.parametrize(("game", "lesson"), LESSONS, ids=[f"{game.name} {name}" for game, name in LESSONS])
def test_a_lesson_names_a_scripted_player_for_each_seat_and_a_shipped_model_knows_its_words(game, lesson) -> None:
    from transformers import AutoTokenizer

    taught = game.lessons[lesson]
    for play in (play for stage in taught.stages for play in stage.plays):
        assert set(play.seats) <= set(range(len(game.roles)))
        assert len(play.players) == len(game.roles)
        assert set(play.players) <= game.players.keys()
    folder = Path(shipped(str(taught.folder))).resolve()
    if folder.is_relative_to(GAMES):  # all others are made by users
        tokenizer = AutoTokenizer.from_pretrained(folder)
        assert tokenizer.get_vocab() == build_tokenizer(taught.words).get_vocab()


def test_the_chat_template_is_chatml_without_a_default_system_prompt(tokenizer: Any) -> None:
    messages = [{"role": "user", "content": "see"}, {"role": "assistant", "content": "[accept]"}]
    asked = "<|im_start|>user\nsee<|im_end|>\n<|im_start|>assistant\n"
    whole = tokenizer.apply_chat_template(messages, tokenize=False)
    opened = tokenizer.apply_chat_template(messages[:1], tokenize=False, add_generation_prompt=True)
    assert (whole, opened) == (f"{asked}[accept]<|im_end|>\n", asked)
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|im_end|>", "<|endoftext|>")
    assert ChatTokenizer(tokenizer).end_of_turn == tokenizer.eos_token_id


def test_the_first_heads_begin_by_attending_to_the_tokens_just_before() -> None:
    import torch

    torch.manual_seed(0)
    model = new_model(build_tokenizer(["Ava"]))
    model.set_attn_implementation("eager")
    ids = torch.arange(20)[None]
    attention = model(input_ids=ids, output_attentions=True).attentions[0][0]
    for head, offset in enumerate((1, 2)):
        assert attention[head].argmax(-1)[offset:].tolist() == list(range(20 - offset))


def test_each_stage_makes_its_own_passes_and_the_learning_rate_falls_in_the_last_one_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    imitated: list[tuple[int, int | None, list[tuple[int, ...]], int, str]] = []
    firsts: list[int] = []

    async def play(*given: Any, first_state: int, **named: Any) -> None:
        firsts.append(first_state)

    async def imitate(config: Config, sources: Any, output: Path, trainer: Any, *, schedule: str) -> TrainResult:
        size, seats = config.imitate.train_batch_size, [source.seats for source in sources]
        imitated.append((config.train.epochs, config.train.best_of_group, seats, size, schedule))
        done = trained(output, held_out_losses=[])
        (done.checkpoint / "model.safetensors").touch()
        return done

    monkeypatch.setattr(warm_start, "_untrained", lambda lesson, seed, folder: folder)
    monkeypatch.setattr(warm_start, "generate_episodes", play)
    monkeypatch.setattr(warm_start, "imitate_episodes", imitate)
    config = load_config("tiny", {"train.epochs": 7, "train.best_of_group": 1})
    lesson = MatchingGame.lessons["self-play"]
    (play_of_first,) = lesson.stages[0].plays
    plays = (replace(play_of_first, episodes=30), replace(play_of_first, seats=(1,)))
    stages = (replace(lesson.stages[0], plays=plays, batch_size=16), *lesson.stages[1:])
    monkeypatch.setitem(MatchingGame.lessons, "self-play", replace(lesson, stages=stages))  # type: ignore[arg-type]
    asyncio.run(build_warm_start(config, "self-play", tmp_path / "model"))
    *earlier, last = [(stage.epochs, 0, [play.seats for play in stage.plays], stage.batch_size) for stage in stages]
    assert earlier[0][2:] == ([(), (1,)], 16) and last[2:] == ([()], 64)
    assert firsts == [1_000_000, 1_000_030, 2_000_000], "no two plays share states"
    assert earlier and imitated == [*((*stage, "constant") for stage in earlier), (*last, "cosine")]


@pytest.mark.parametrize(("smollm2", "lesson"), [(True, "honest"), (False, "listener")])
def test_a_model_does_not_learn_a_lesson_of_the_other(smollm2: bool, lesson: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"no lesson '{lesson}' of the game matching; there are: "):
        asyncio.run(build_warm_start(load_config("tiny", {}), lesson, tmp_path / "model", smollm2=smollm2))
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    ("config", "lesson"), [("tiny_shy", "shy"), ("tiny_honest", "honest"), ("tiny4x4", "self-play")]
)
def test_the_usual_lesson_is_that_of_the_configurations_model(config: str, lesson: str, tmp_path: Path) -> None:
    assert _taught(load_config(config, {}), None, tmp_path / "model", smollm2=False)[0] == lesson


@pytest.mark.parametrize(
    ("name", "made_by"),
    [
        ("data/smollm2_listener", "`selfplay model smollm2 --lesson listener` makes it"),
        ("data/tiny_shy_model", "`selfplay model tiny --config tiny_shy --output data/tiny_shy_model` makes it"),
        ("data/smollm2_run", ""),
    ],
)
def test_the_command_that_makes_a_missing_model_is_named_only_if_it_would(name: str, made_by: str) -> None:
    assert where_from(name) == made_by
