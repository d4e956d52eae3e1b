"""Models that think: by default they do not; what they think is trained on, recorded, and read by nobody else."""

from __future__ import annotations

import asyncio
from functools import cache

import pytest
from chat_templates import shaped_tokenizer
from factories import BOARD
from scripted_server import played

from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.engines.types import Completion, FinishReason
from selfplay_pipeline.games.base import state_rng
from selfplay_pipeline.games.matching.game import MatchingGame
from selfplay_pipeline.games.registry import make_game
from selfplay_pipeline.generate.episode import Episode, Reply
from selfplay_pipeline.generate.preflight import check_context, training_states
from selfplay_pipeline.generate.records import ChatMessage, EpisodeRecord
from selfplay_pipeline.generate.stage import policy_record
from selfplay_pipeline.generate.text_player import text_player
from selfplay_pipeline.generate.trajectory import ChatTokenizer, TrajectoryBuilder
from selfplay_pipeline.slime.rollout import first_prompt

NO_THOUGHT = "<|im_start|>assistant\n<think>\n\n</think>\n\n"
THOUGHT = "<think>\nAva is best for BLEU, secretly\n</think>\n\n"


@cache
def chat(thinking: bool, special: bool = False) -> ChatTokenizer:
    tokenizer = shaped_tokenizer("qwen3-special" if special else "qwen3")
    return ChatTokenizer(tokenizer, thinking=True) if thinking else ChatTokenizer(tokenizer)


def tokens(text: str) -> list[int]:
    return shaped_tokenizer("qwen3").encode(text, add_special_tokens=False)


@pytest.mark.parametrize("thinking", [False, True])
def test_the_first_prompt_is_the_templates_own_and_without_thinking_every_turn_begins_with_an_empty_thought(thinking):
    messages = [ChatMessage(role="system", content="rules"), ChatMessage(role="user", content="table")]
    whole = shaped_tokenizer("qwen3").apply_chat_template(
        [message.model_dump() for message in messages],
        add_generation_prompt=True, tokenize=False, enable_thinking=thinking,
    )  # fmt: skip
    assert chat(thinking).rendered_prompt(messages) == tokens(whole)
    stream = TrajectoryBuilder(chat(thinking), 0, "rules", ["table"])
    for _ in range(3):
        prompt, none = stream.prompt(), tokens(NO_THOUGHT)
        assert (prompt[-len(none) :] == none) is not thinking
        stream.reply(completion(tokens("[message] hi<|im_end|>")))
        stream.observe("hi")


def completion(ids: list[int]) -> Completion:
    return Completion(ids, [-0.5] * len(ids), FinishReason.STOP, 0, 0)


def play(texts: list[str], *, thinking: bool = False, limit: int = 400, special: bool = False) -> EpisodeRecord:
    """A game in which both seats are held by a policy that says this; then it is broken off."""
    config = BOARD.model_copy(update={"max_length": len(texts)})
    return played(chat(thinking, special), [tokens(text + "<|im_end|>") for text in texts], config, limit)


@pytest.mark.parametrize("special", [False, True], ids=["tags-as-in-qwen3", "tags-flagged-special"])
@pytest.mark.parametrize("thinking", [False, True], ids=["unasked", "asked"])
def test_the_action_is_read_after_the_thought_which_the_speaker_alone_keeps(thinking, special):
    texts = [f"{THOUGHT}[message] hi", "[message] hello", f"{THOUGHT}[message] bye"]
    record = play(texts, thinking=thinking, special=special)
    assert [turn.text for turn in record.turns] == ["[message] hi", "[message] hello", "[message] bye"]
    assert {turn.action for turn in record.turns} == {"message"}
    me, partner = record.trajectories
    own = [token for token, mask in zip(me.response_ids, me.response_mask, strict=True) if mask]
    assert own == tokens(f"{texts[0]}<|im_end|>{texts[2]}<|im_end|>")
    assert me.messages[2].content == texts[0]
    read = shaped_tokenizer("qwen3").decode(partner.prompt_ids + partner.response_ids)
    assert "hi" in read and "secretly" not in read
    assert all("secretly" not in message.content for message in partner.messages)


@pytest.mark.parametrize(
    ("text", "limit"),
    [("<think>\nsecretly [accept]", 400), (f"{THOUGHT}[message] hi <think> secretly", 400), (THOUGHT, 20)],
    ids=["never-ended", "begun-again", "over-the-limit"],
)
def test_an_unfinished_thought_is_a_cut_turn_that_says_nothing(text, limit):
    record = play([text, "[message] hello"], limit=limit)
    assert (record.turns[0].error_kind, record.turns[0].text) == ("cut", "")
    read = shaped_tokenizer("qwen3").decode(record.trajectories[1].prompt_ids)
    assert "secretly" not in read


def test_slimes_rendered_prompt_must_agree_with_the_configuration():
    prompt = shaped_tokenizer("qwen3").apply_chat_template(
        [{"role": "user", "content": "table"}], add_generation_prompt=True, tokenize=False
    )
    assert first_prompt(chat(True), prompt) == tokens(prompt)
    with pytest.raises(UserError, match="--apply-chat-template-kwargs"):
        first_prompt(chat(False), prompt)


def test_a_chat_models_thought_is_no_part_of_what_it_says(monkeypatch):
    async def thinker(messages: list[dict[str, str]]) -> Reply:
        return Reply(f"{THOUGHT}[message] hi", False, "stop")

    async def endless(messages: list[dict[str, str]]) -> str:
        return "<think> [message] secretly"

    game = MatchingGame(BOARD.model_copy(update={"max_length": 2}))
    players = [text_player(ask=thinker), text_player(ask=endless)]
    seated = Episode(game, game.sample_state(state_rng(0, 0)), players, "g", (0, 0, 0))
    asyncio.run(seated.run())
    assert [(turn.text, turn.error_kind) for turn in seated.turns] == [("[message] hi", None), ("", "cut")]
    assert all("secretly" not in message.content for seat in seated.seats for message in seat.context())


def test_a_model_whose_template_knows_no_thoughts_is_refused():
    def check(model: str, **options: bool) -> None:
        config = load_config("tiny_honest", {f"generate.{key}": value for key, value in options.items()})
        game, policy = make_game(config.game), policy_record(config, str(config.model), "")
        check_context(game, config.engine, policy, model, training_states(game, 0))

    with pytest.raises(UserError, match=r"generate.thinking: the chat template of data/tiny_honest_model knows no"):
        check("data/tiny_honest_model", thinking=True)
    check("data/tiny_honest_model")
    check("data/tiny_model", thinking=True)  # a partner need not think
