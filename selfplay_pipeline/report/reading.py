"""One play as people read it. Pure; the page and the terminal show the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from pydantic import BaseModel

from selfplay_pipeline.games.matching.rules import Matching, MatchingGame, MatchingState, best_matching
from selfplay_pipeline.generate.records import PlayRecord, Trajectory

LONGEST_TEXT, MOST_TOKENS = 8_000, 6_000
"""Characters of a turn and tokens of a trajectory that are shown; what is left out is counted."""


class Board(BaseModel):
    """What all plays of one game state have in common.

    Attributes:
        views: per player the scores as shown to it, None where it sees nothing; shape (players, reviewers, papers).
    """

    group: int
    papers: list[str]
    reviewers: list[str]
    table: list[list[int]]
    views: list[list[list[int | None]]]
    scales: list[float]
    best: int


class Turn(BaseModel):
    player: int
    action: str
    text: str
    error: str | None = None
    cut: bool = False


class Run(BaseModel):
    """Tokens in a row that were all sampled or all observed.

    Attributes:
        texts: of sampled tokens each one's, of observed ones all in one.
        log_probs: of each sampled text, in nats; empty if observed.
        tokens: how many.
    """

    texts: list[str]
    log_probs: list[float] = []
    tokens: int


class Stream(BaseModel):
    """One player's trajectory. `runs` begin with the prompt, and observed and sampled ones take turns."""

    player: int
    runs: list[Run]
    left_out: int = 0
    """Tokens after the last one shown."""


class Reading(BaseModel):
    """One play.

    Attributes:
        proposal: the last legal proposal as the reviewer of each paper, None if there was none.
        agreed: whether it was accepted.
        optimum: the reviewers of a best matching; of several, one that has most in common with the proposal.
        streams: the trajectories, empty if they could not be decoded.
    """

    id: str
    file: int = 0
    """Number of the file that it is from."""
    play: int
    players: list[str]
    status: str
    reward: float
    score: float
    agreed: bool
    illegal: int
    turns: list[Turn]
    proposal: list[int] | None
    optimum: list[int]
    streams: list[Stream] = []


@dataclass(frozen=True)
class Cell:
    """What a paper's reviewer brings, in the proposal and in the optimum."""

    paper: int
    proposed: int
    proposed_score: int
    best: int
    best_score: int

    @property
    def gain(self) -> int:
        """Of the proposal over the optimum; negative is a loss."""
        return self.proposed_score - self.best_score


class Decoder(Protocol):
    """Of transformers' tokenizers, what is needed here."""

    def decode(self, ids: list[int]) -> str: ...


def read_board(record: PlayRecord) -> Board:
    """The state of a play."""
    state = _state(record)
    return Board(
        group=record.group_index,
        papers=list(state.papers),
        reviewers=list(state.reviewers),
        table=state.table.tolist(),
        views=[state.view(player) for player in (0, 1)],
        scales=list(state.scales),
        best=state.best,
    )


def read_play(record: PlayRecord, decoder: Decoder | None = None) -> Reading:
    """A play without its board."""
    proposals = [turn.proposal for turn in record.turns if turn.proposal]
    final = record.outcome.proposal or (proposals[-1] if proposals else None)
    return Reading(
        id=record.game_id,
        play=record.play,
        players=record.players,
        status=record.outcome.status.value,
        reward=record.outcome.normalized_reward,
        score=record.outcome.score,
        agreed=record.outcome.proposal is not None,
        illegal=record.outcome.num_illegal,
        turns=[
            Turn(
                player=turn.player,
                action=turn.action.value,
                text=shorten(turn.text),
                error=turn.error and shorten(turn.error),
                cut=turn.finish_reason == "length",
            )
            for turn in record.turns
        ],
        proposal=_by_paper(final) if final else None,
        optimum=_by_paper(_nearest_optimum(_state(record), final or ())),
        streams=[read_stream(trajectory, decoder) for trajectory in record.trajectories] if decoder else [],
    )


def gains(board: Board, play: Reading) -> list[Cell]:
    """The proposal beside the optimum, paper by paper; the gains add up to the proposal's score minus the best."""
    if play.proposal is None:
        return []
    return [
        Cell(paper, mine, board.table[mine][paper], best, board.table[best][paper])
        for paper, (mine, best) in enumerate(zip(play.proposal, play.optimum, strict=True))
    ]


def read_stream(trajectory: Trajectory, decoder: Decoder) -> Stream:
    """A trajectory in texts."""
    ids = trajectory.prompt_ids + trajectory.response_ids
    mask = [0] * len(trajectory.prompt_ids) + list(trajectory.response_mask)
    log_probs = [0.0] * len(trajectory.prompt_ids) + trajectory.response_logprobs
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
    return Stream(player=trajectory.player_index, runs=runs, left_out=max(0, len(ids) - MOST_TOKENS))


def shorten(text: str) -> str:
    """At most `LONGEST_TEXT` characters, with a count of what was left out."""
    more = len(text) - LONGEST_TEXT
    return text if more <= 0 else f"{text[:LONGEST_TEXT]} … ({more} more characters)"


def _state(record: PlayRecord) -> MatchingState:
    return MatchingGame().load_state(record.state)


def _nearest_optimum(state: MatchingState, proposal: Sequence[tuple[int, int]]) -> Matching:
    """Scores count first, cells in common with the proposal second: n of these weigh less than one point."""
    weights = state.table * (state.size + 1)
    for pair in proposal:
        weights[pair] += 1
    return best_matching(weights)[0]


def _by_paper(pairs: Sequence[tuple[int, int]]) -> list[int]:
    return [reviewer for reviewer, _ in sorted(pairs, key=lambda pair: pair[1])]


def _runs(mask: Sequence[int]) -> Iterator[tuple[int, int]]:
    start = 0
    for end in range(1, len(mask) + 1):
        if end == len(mask) or mask[end] != mask[start]:
            yield start, end
            start = end


def _pieces(ids: Sequence[int], decoder: Decoder) -> Iterator[tuple[str, int, int]]:
    """Texts of single tokens with their places; tokens that share a character are one piece."""
    start = 0
    for end in range(1, len(ids) + 1):
        text = decoder.decode(list(ids[start:end]))
        if "�" not in text or end == len(ids) or end - start == 4:
            yield text, start, end
            start = end
