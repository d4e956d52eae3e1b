"""Conversion of episodes of any players to rows for imitation learning."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from selfplay_pipeline.config.schema import History, ImitateConfig
from selfplay_pipeline.convert.replay import Recorded, recorded_episodes, replay
from selfplay_pipeline.convert.rows import TURN, WEIGHT, described, episode_to_rows, schema_with
from selfplay_pipeline.convert.run import STREAM_CODES
from selfplay_pipeline.convert.selection import best_of_groups, held_out
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.files import replacing
from selfplay_pipeline.core.reporting import progress
from selfplay_pipeline.games.base import Game, GameSettings
from selfplay_pipeline.games.registry import make_game
from selfplay_pipeline.generate.records import (
    POLICY,
    PolicyRecord,
    SeatRecord,
)
from selfplay_pipeline.generate.trajectory import ChatTokenizer
from selfplay_pipeline.metrics.signal import Scored

TRAIN, HELD_OUT = "train.parquet", "held_out.parquet"
EPISODES = "episodes.jsonl"
"""File of episodes in a dataset folder that `selfplay export` wrote."""
LEARNER = SeatRecord.named(
    POLICY, PolicyRecord(checkpoint="", iteration=0, engine="", temperature=1.0, max_new_tokens=1), {}
)
"""Record of the imitating model, which replaces the players of all seats."""


class Source(NamedTuple):
    """A file of episodes, and what is imitated of it.

    Attributes:
        weight: Loss weight of its tokens.
        seats: Seats whose turns are imitated; empty for those of `imitate.seats`.
        first_tokens: Number of tokens at the beginning of each turn that are imitated; 0 for whole turns.
        mute: Whether its episodes were played with messages muted, whatever the game's configuration says.
    """

    path: Path
    weight: float = 1.0
    seats: tuple[int, ...] = ()
    first_tokens: int = 0
    mute: bool = False

    def to_json(self) -> list[Any]:
        """Returns the file and its weight, and the rest if it is not usual, for the record of a training folder."""
        rest = [[*self.seats], self.first_tokens, self.mute]
        return [str(self.path.resolve()), self.weight, *(rest if any(rest) else [])]

    @classmethod
    def of(cls, text: str) -> Source:
        """Returns the source that an argument FILE or FILE=WEIGHT names; FILE may be a folder of `selfplay export`.

        Raises:
            UserError: The weight is not a finite number above 0.
        """
        name, sign, weight = text.rpartition("=")
        if not sign or "/" in weight or Path(text).exists():
            return cls(_episodes_at(Path(text)))
        try:
            value = float(weight)
        except ValueError:
            value = 0.0
        if not 0 < value < float("inf"):
            raise UserError(f"{text}: {weight!r} is not a weight; write FILE or FILE=NUMBER, with a number above 0")
        return cls(_episodes_at(Path(name)), value)


def muted(rules: GameSettings) -> GameSettings:
    """Returns a game's configuration with its messages muted."""
    return rules.model_copy(update={"mute": True})


def _episodes_at(path: Path) -> Path:
    """Returns the file of episodes in a dataset folder, or the path of a file itself."""
    return path / EPISODES if (path / EPISODES).is_file() else path


@dataclass
class Imitated:
    """Counts of the rows to imitate in files of episodes; a row is one seat's part of an episode, or one turn of it."""

    episodes: int = 0
    train_rows: int = 0
    held_out_rows: int = 0
    trained_tokens: int = 0
    """Number of tokens to imitate in the training rows."""
    left_out: Counter[str] = field(default_factory=Counter)
    """Number of skipped rows, by reason."""

    def to_text(self) -> str:
        """Returns one line with the counts, and one line per reason for skipping."""
        rows = self.train_rows + self.held_out_rows
        lines = [
            f"{rows} rows of {self.episodes} episodes: {self.train_rows} with {self.trained_tokens} own tokens to "
            f"imitate, {self.held_out_rows} held out",
            *(f"left out: {count} rows, {reason}" for reason, count in sorted(self.left_out.items())),
        ]
        return "\n".join(lines)


@dataclass(frozen=True)
class ImitationRows:
    """Rows to imitate, and their counts.

    Attributes:
        parts: Rows of each file by its name.
    """

    parts: dict[str, list[dict[str, Any]]]
    schema: pa.Schema
    counts: Imitated

    def write(self, output: Path) -> None:
        """Write train.parquet, and held_out.parquet if a share of the states is held out, into a folder."""
        for name, part in self.parts.items():
            (output / name).unlink(missing_ok=True)  # an earlier, interrupted call may have held out other states
            if part:
                with replacing(output / name) as new:
                    pq.write_table(pa.Table.from_pylist(part, schema=self.schema), new)


def make_rows(
    sources: Sequence[Source],
    game: Game,
    chat: ChatTokenizer,
    choice: ImitateConfig,
    *,
    history: History = "appended",
    best_of_group: int = 0,
    context_length: int,
    seed: int,
) -> ImitationRows:
    """Returns the rows to imitate of the episodes in all files.

    Args:
        sources: Files of episodes of any players; all episodes of one state form one group, across files.
        game: Game with the configuration that the episodes were played with.
        chat: Tokenizer of the imitating model.
        choice: Section `imitate` of the configuration.
        history: Value of `generate.history`.
        best_of_group: Number of episodes per state to imitate, those with the highest reward; 0 imitates all.
        context_length: Largest number of tokens of a row; longer rows are skipped and counted.
        seed: Seed of the choice of held-out states.

    Raises:
        UserError: A line is invalid, an episode has another game or configuration, or no rows remain.
    """
    strange = [seat for seat in choice.seats if seat >= len(game.roles)]
    if strange:
        raise UserError(
            f"imitate.seats: {strange[0]}, but {game.name} has {len(game.roles)} seats, numbered from 0; "
            "give other seats"
        )
    done = Imitated()
    with progress("replaying episodes", brief=True) as shown:
        found = recorded_episodes([source.path for source in sources], game, shown)
        rows = [*_rows(sources, found, game, chat, choice, history, context_length, done)]
    best = best_of_groups([_scored(row, not game.shared_reward) for row in rows], best_of_group)
    done.left_out["not among the best of its state"] += best.count(False)
    done.left_out = +done.left_out
    rows = [row for row, chosen in zip(rows, best, strict=True) if chosen]
    if not rows:
        names = ", ".join(str(source.path) for source in sources)
        why = "; ".join(f"{count} rows, {reason}" for reason, count in sorted(done.left_out.items()))
        hint = f"({why}); choose less strictly" if why else "(no episodes)"
        raise UserError(f"{names}: nothing is left to imitate {hint}")
    away = held_out((row["extra_info"]["index"] for row in rows), choice.held_out, seed)
    parts: dict[str, list[dict[str, Any]]] = {TRAIN: [], HELD_OUT: []}
    for row in rows:
        parts[HELD_OUT if row["extra_info"]["index"] in away else TRAIN].append(row)
    most = 1 + max(row["extra_info"]["episode"] for row in rows)
    schema = described(
        schema_with(WEIGHT, *([TURN] if history == "rendered" else [])),
        game=game.name,
        shared=game.shared_reward,
        temperature=1.0,
        episodes_per_state=most,
        template=chat.template,
    )
    mean = _mean_weight(parts[TRAIN])
    group_rows = Counter(row["extra_info"]["index"] for row in rows)
    for row in rows:
        row["extra_info"] |= {"episodes_per_state": most, "group_rows": group_rows[row["extra_info"]["index"]]}
        # Weights compare rows; with an average of 1 they leave the size of the loss, and so the learning rate, alone.
        row[WEIGHT] /= mean
    done.train_rows, done.held_out_rows = len(parts[TRAIN]), len(parts[HELD_OUT])
    done.trained_tokens = sum(int(row["response_mask"].sum()) for row in parts[TRAIN])
    return ImitationRows(parts, schema, done)


def _rows(
    sources: Sequence[Source],
    found: Iterable[Recorded],
    game: Game,
    chat: ChatTokenizer,
    choice: ImitateConfig,
    history: History,
    context_length: int,
    done: Imitated,
) -> Iterator[dict[str, Any]]:
    """Yields the rows whose seat, reward and length suit `choice` and the context; counts all other rows in `done`."""
    states: dict[str, int] = {}
    episodes: Counter[int] = Counter()
    silent = make_game(muted(game.config)) if any(source.mute for source in sources) else game
    for file, where, _, record in found:
        done.episodes += 1
        seats = sorted(set(sources[file].seats or choice.seats)) or [*range(len(game.roles))]
        chosen = [seat for seat in seats if record.outcome.reward_of(seat) >= choice.min_reward]
        done.left_out[f"reward below {choice.min_reward:g}"] += len(seats) - len(chosen)
        if not chosen:
            continue
        try:
            sides = replay(record, silent if sources[file].mute else game, chat, history)
        except ValueError as error:
            raise UserError(f"{where}: {error}") from None
        state = states.setdefault(json.dumps(record.state, sort_keys=True), len(states))
        own = {
            "trajectories": [side for side in sides if side.seat in chosen],
            "all_seats": [LEARNER] * len(game.roles),
            "group_index": state,
            "episode": episodes[state],
        }
        episodes[state] += 1
        rows = episode_to_rows(record.model_copy(update=own))
        done.left_out["the seat took no legal turn"] += len(chosen) - len({row["extra_info"]["seat"] for row in rows})
        for row in rows:
            streams = {name: np.array(row[name], code) for name, code in STREAM_CODES.items()}
            if first := sources[file].first_tokens:
                streams = _beginnings(streams, first)
            if len(streams["prompt_ids"]) + len(streams["response_ids"]) > context_length:
                done.left_out[f"longer than the {context_length} tokens of the context (engine.context_length)"] += 1
            else:
                yield row | streams | {WEIGHT: sources[file].weight}


def _beginnings(streams: dict[str, NDArray[Any]], first: int) -> dict[str, NDArray[Any]]:
    """Returns the streams of a row in which only the first tokens of each turn are imitated; the row ends with the last
    of these.
    """
    own = streams["response_mask"].astype(bool)
    places = np.arange(len(own))
    begins = own & ~np.concatenate([[False], own[:-1]])
    kept = own & (places - np.maximum.accumulate(np.where(begins, places, 0)) < first)
    end = np.flatnonzero(kept)[-1] + 1
    streams = streams | {"response_mask": kept.astype(streams["response_mask"].dtype)}
    return {name: stream if name == "prompt_ids" else stream[:end] for name, stream in streams.items()}


def _mean_weight(rows: Sequence[dict[str, Any]]) -> float:
    """Returns the mean weight per imitated token; dividing weights by this mean leaves the effective learning rate
    unchanged.
    """
    tokens = [int(row["response_mask"].sum()) for row in rows]
    return float(np.average([row[WEIGHT] for row in rows], weights=tokens))


def _scored(row: dict[str, Any], by_seat: bool) -> Scored[int]:
    """Returns the reward and group key of a row, ignoring its partner, for the choice of the best rows."""
    info = row["extra_info"]
    return Scored(info["index"], info["episode"], info["seat"], row["reward_model"]["normalized_reward"], by_seat)
