"""One episode in readable form, the same for the page and the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from pydantic import BaseModel

from selfplay_pipeline.core.terminal.harmless import shorten
from selfplay_pipeline.games.base import Game
from selfplay_pipeline.games.drawing import EpisodeDrawing, StateDrawing
from selfplay_pipeline.games.measured import heard_of
from selfplay_pipeline.games.registry import game_named, game_of
from selfplay_pipeline.generate.records import EpisodeRecord, Trajectory, TurnRecord

LONGEST_TEXT, MOST_TOKENS = 8_000, 6_000
"""Limits on the characters of a turn and the tokens of a trajectory; the remainder is counted."""
NO_TOKENS = "No tokens: the policy's seat left no trajectory, or its tokenizer is not on this machine."


class Drawn(BaseModel):
    """Drawing of one game state, which all its episodes share.

    Attributes:
        best: The best score that can be reached.
    """

    group: int
    best: float
    drawing: StateDrawing


class Turn(BaseModel):
    seat: int
    action: str
    text: str
    error: str | None = None
    cut: bool = False
    note: str = ""


class Run(BaseModel):
    """Consecutive tokens that were all sampled or all observed.

    Attributes:
        texts: One text per sampled token; one text for all observed tokens.
        log_probs: Log-prob of each sampled text, in nats; empty if observed.
        tokens: Number of tokens.
    """

    texts: list[str]
    log_probs: list[float] = []
    tokens: int


class TrajectoryText(BaseModel):
    """One player's trajectory. `runs` begin with the prompt; observed and sampled runs alternate."""

    seat: int
    runs: list[Run]
    left_out: int = 0
    """Number of tokens that are not shown: the first ones of a single turn, the last ones of several."""


class Reading(BaseModel):
    """One episode.

    Attributes:
        seats: Name of each seat, with its role if it has one.
        finished: Whether the episode reached its game's goal.
        reward: The mean over the seats.
        rewards: Reward of each seat, empty if the seats share one reward.
        streams: The trajectories, empty if they could not be decoded.
    """

    id: str
    file: int = 0
    """Number of the file that contains the episode."""
    episode: int
    seats: list[str]
    players: list[str]
    status: str
    finished: bool
    reward: float
    rewards: list[float] = []
    score: float
    illegal: int
    turns: list[Turn]
    drawing: EpisodeDrawing
    streams: list[TrajectoryText] = []


class Decoder(Protocol):
    """The part of a transformers tokenizer that is needed here."""

    def decode(self, ids: list[int]) -> str: ...


def read_state(record: EpisodeRecord) -> Drawn:
    """Returns the drawing of an episode's state, with its best score."""
    game = game_of(record.game, record.state)
    state = game.state_from_json(record.state)
    return Drawn(group=record.group_index, best=game.best(state), drawing=game.draw_state(state))


def read_episode(record: EpisodeRecord, decoder: Decoder | None = None, game: Game | None = None) -> Reading:
    """Returns an episode in readable form, without its state.

    Args:
        record: The episode.
        decoder: Tokenizer for the trajectories; None leaves these out.
        game: The game with the rules under which it was played, if known.
    """
    game = (game or game_named(record.game)).of_state(record.state)
    drawing = game.draw_episode(game.state_from_json(record.state), record.turns, record.outcome.proposal)
    return Reading(
        id=record.episode_id,
        episode=record.episode,
        seats=[f"seat {seat}, {role}" if role else f"seat {seat}" for seat, role in enumerate(game.roles)],
        players=[seat.name for seat in record.seats],
        status=record.outcome.status,
        finished=record.outcome.status in game.goals,
        reward=record.outcome.normalized_reward,
        rewards=record.outcome.rewards or [],
        score=record.outcome.score,
        illegal=record.outcome.num_illegal,
        turns=[
            Turn(
                seat=turn.seat,
                action=turn.action,
                text=shorten(turn.text, LONGEST_TEXT),
                error=turn.error and shorten(turn.error, LONGEST_TEXT),
                cut=turn.finish_reason == "length",
                note="; ".join(filter(None, (note, *_heard(turn)))),
            )
            for turn, note in zip(record.turns, drawing.notes or [""] * len(record.turns), strict=True)
        ],
        drawing=drawing.model_copy(update={"notes": []}),
        streams=[read_stream(trajectory, decoder) for trajectory in record.trajectories] if decoder else [],
    )


def _heard(turn: TurnRecord) -> Iterator[str]:
    """Yields a text for each seat that heard a replacement of the turn's message."""
    for seat, text in heard_of(turn).items():
        yield f"seat {seat} heard: {shorten(text, LONGEST_TEXT) or 'a message without content'}"


def read_stream(trajectory: Trajectory, decoder: Decoder) -> TrajectoryText:
    """Returns a trajectory as texts."""
    ids = trajectory.prompt_ids + trajectory.response_ids
    mask = [0] * len(trajectory.prompt_ids) + list(trajectory.response_mask)
    log_probs = [0.0] * len(trajectory.prompt_ids) + trajectory.response_logprobs
    left_out = max(0, len(ids) - MOST_TOKENS)
    if all(trajectory.response_mask):  # a single turn, which stands after the conversation so far
        skipped = min(left_out, len(trajectory.prompt_ids))
        ids, mask, log_probs = ids[skipped:], mask[skipped:], log_probs[skipped:]
    runs = []
    for start, end in _runs(mask[:MOST_TOKENS]):
        if mask[start]:
            pieces = [
                (text, sum(log_probs[start + first : start + last]))
                for text, first, last in _pieces(ids[start:end], decoder)
            ]
            texts, values = [text for text, _ in pieces], [round(value, 4) for _, value in pieces]
            runs.append(Run(texts=texts, log_probs=values, tokens=end - start))
        else:
            runs.append(Run(texts=[decoder.decode(ids[start:end])], tokens=end - start))
    return TrajectoryText(seat=trajectory.seat, runs=runs, left_out=left_out)


def _runs(mask: Sequence[int]) -> Iterator[tuple[int, int]]:
    start = 0
    for end in range(1, len(mask) + 1):
        if end == len(mask) or mask[end] != mask[start]:
            yield start, end
            start = end


def _pieces(ids: Sequence[int], decoder: Decoder) -> Iterator[tuple[str, int, int]]:
    """Yields the text of each token with its start and end; tokens that share a character are one piece."""
    start = 0
    for end in range(1, len(ids) + 1):
        text = decoder.decode(list(ids[start:end]))
        if "�" not in text or end == len(ids) or end - start == 4:
            yield text, start, end
            start = end


class CheckpointDecoder:
    """A checkpoint's tokenizer with a cache of the texts of single tokens, special ones included."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._known: dict[int, str] = {}

    def decode(self, ids: list[int]) -> str:
        if len(ids) != 1:
            return self._decode(ids)
        if ids[0] not in self._known:
            self._known[ids[0]] = self._decode(ids)
        return self._known[ids[0]]

    def _decode(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, clean_up_tokenization_spaces=False))


def find_decoder(checkpoints: Iterable[str | None]) -> CheckpointDecoder | None:
    """Returns the tokenizer of the first checkpoint that is on this machine; fetches nothing from a hub.

    The checkpoints of a run share a tokenizer, so any of them decodes all episodes of the run.
    """
    found = (_load(name) for name in dict.fromkeys(checkpoints) if name is not None)
    return next((decoder for decoder in found if decoder is not None), None)


def nearby_checkpoints(path: Path) -> Iterator[str]:
    """Yields the checkpoints of the run around a path, for episodes whose own checkpoint was moved."""
    for folder in (path, *path.resolve().parents[:3]):
        for checkpoint in (folder / "checkpoint", *sorted(folder.glob("iter_*/checkpoint"))):
            if checkpoint.is_dir():
                yield str(checkpoint)


@cache
def _load(name: str) -> CheckpointDecoder | None:
    try:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(name, local_files_only=True, clean_up_tokenization_spaces=False)
        return CheckpointDecoder(tokenizer)
    except (ImportError, OSError, ValueError):
        return None
