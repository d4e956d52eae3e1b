"""The text of an episode becomes the tokens that the model would have sampled, and only own legal turns are learned."""

from functools import cache

import numpy as np
import pytest
from chat_templates import shaped_tokenizer
from factories import BOARD, byte_chat, episode_records, make_episode
from hypothesis import given
from quick import examples

from selfplay_pipeline.convert.replay import replay
from selfplay_pipeline.games.bargaining.game import BargainingGame
from selfplay_pipeline.games.base import state_rng
from selfplay_pipeline.games.matching.game import MatchingGame
from selfplay_pipeline.generate.episode import Episode
from selfplay_pipeline.generate.players import script_player
from selfplay_pipeline.generate.records import EpisodeRecord, PolicyRecord
from selfplay_pipeline.generate.trajectory import ChatTokenizer

FAMILIES = ("qwen2.5", "qwen3", "llama-3", "smollm2")
GAME = MatchingGame(BOARD)
SCRIPTED = PolicyRecord(checkpoint="none", weights="", iteration=0, engine="none", temperature=1.0, max_new_tokens=64)


@cache
def chat(family: str) -> ChatTokenizer:
    return ChatTokenizer(shaped_tokenizer(family))


def scripted(game, player: str, seed: int = 0) -> EpisodeRecord:
    """An episode of scripted players, which leaves no tokens."""
    seated = Episode(game, game.sample_state(state_rng(seed, 0)), [script_player(player)] * 2, "s", (seed, 0, 0))
    seated.play_out()
    return seated.record(SCRIPTED)


@examples(80)
@given(record=episode_records())
def test_the_text_of_a_policys_own_episode_gives_the_tokens_that_it_sampled(record):
    for played, again in zip(record.trajectories, replay(record, GAME, byte_chat()), strict=True):
        learned = len(again.response_ids)
        assert again.response_ids == played.response_ids[:learned]
        if learned:
            assert (again.prompt_ids, again.messages) == (played.prompt_ids, played.messages)
        own = [turn for turn in record.turns if turn.seat == played.seat]
        legal = sum(len(turn.text.encode()) + 1 for turn in own if turn.error is None)
        assert sum(again.response_mask) == legal
        if all(turn.error is None for turn in own):
            assert again.response_mask == played.response_mask


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("game", [GAME, BargainingGame()], ids=["matching", "bargaining"])
def test_the_tokens_are_those_that_the_models_own_template_gives_the_conversation(game, family):
    record = scripted(game, "sharing")
    for side in replay(record, game, chat(family)):
        messages = [message.model_dump() for message in side.messages]
        while messages[-1]["role"] != "assistant":
            messages.pop()
        whole = chat(family).tokenizer.apply_chat_template(messages[:-1], add_generation_prompt=True, tokenize=False)
        if family == "qwen3":  # its template takes the empty thoughts out of earlier turns, which each prompt had
            whole = whole.replace("<|im_start|>assistant\n", EMPTY_THOUGHT).replace(EMPTY_THOUGHT * 2, EMPTY_THOUGHT)
        expected = chat(family).tokenizer.encode(whole + messages[-1]["content"], add_special_tokens=False)
        assert side.prompt_ids + side.response_ids == [*expected, chat(family).end_of_turn]


EMPTY_THOUGHT = "<|im_start|>assistant\n<think>\n\n</think>\n\n"


@pytest.mark.parametrize("family", FAMILIES)
def test_exactly_the_seats_own_turns_and_their_ends_are_learned(family):
    record = scripted(GAME, "sharing")
    for side in replay(record, GAME, chat(family)):
        own = [turn.text for turn in record.turns if turn.seat == side.seat]
        ids, mask = side.prompt_ids + side.response_ids, [0] * len(side.prompt_ids) + side.response_mask
        assert said_where(chat(family), ids, mask) == own
        for shift in (-1, 1):
            assert said_where(chat(family), ids, np.roll(mask, shift)) != own


def said_where(tokenizer: ChatTokenizer, ids, mask) -> list[str]:
    """The texts of unmasked tokens, each of which must end with the end of a turn."""
    text = tokenizer.tokenizer.decode([token for token, own in zip(ids, mask, strict=True) if own])
    *said, rest = text.split(tokenizer.tokenizer.decode([tokenizer.end_of_turn]))
    return said if rest == "" else [*said, rest]


def test_an_illegal_turn_is_read_and_not_learned():
    record = next(
        record
        for group in range(100)
        if (record := make_episode(group)).turns[0].error and any(turn.error is None for turn in record.turns[:3])
    )
    first = record.turns[0]
    side = replay(record, GAME, byte_chat())[first.seat]
    length = len(first.text.encode())
    assert side.response_ids[:length] == list(first.text.encode())
    assert not any(side.response_mask[: length + 1])


def test_a_text_that_spells_control_tokens_stays_text():
    record = scripted(GAME, "sharing")
    forged = record.turns[0].model_copy(update={"text": record.turns[0].text + "<|im_end|>"})
    record = record.model_copy(update={"turns": [forged, *record.turns[1:]]})
    side = replay(record, GAME, byte_chat())[forged.seat]
    ends = [token for token in side.response_ids if token == byte_chat().end_of_turn]
    assert len(ends) == sum(turn.seat == forged.seat for turn in record.turns) * 2 - 1


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda turns: turns[:1] + turns[:1] + turns[1:], "field 'turns.1': it is another seat's turn"),
        (
            lambda turns: [turns[0].model_copy(update={"action": "accept"}), *turns[1:]],
            "recorded as accept, but the replay gives",
        ),
        (lambda turns: turns + turns[-1:], "the episode has ended \\(agreed\\)"),
        (lambda turns: turns[:-1], "field 'outcome.status': recorded as agreed, but the replay gives None"),
    ],
)
def test_an_episode_that_goes_otherwise_under_this_configuration_is_refused(change, problem):
    record = scripted(GAME, "sharing")
    with pytest.raises(ValueError, match=problem):
        replay(record.model_copy(update={"turns": change(list(record.turns))}), GAME, byte_chat())
    larger = scripted(MatchingGame(BOARD.model_copy(update={"size": 4})), "sharing")
    with pytest.raises(ValueError, match=r"field 'state': .*give the configuration"):
        replay(larger, GAME, byte_chat())
