"""Conversion of JSONL to parquet: the rows of all episodes go to a temporary file, then to parquet by group."""

from __future__ import annotations

import math
import pickle
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from selfplay_pipeline.config.identity import check_same
from selfplay_pipeline.convert.placebo import permuted
from selfplay_pipeline.convert.result import Converted
from selfplay_pipeline.convert.reward import TrainedReward
from selfplay_pipeline.convert.rows import PARTNER, TRAINED, TURN, described, episode_to_rows, schema_with
from selfplay_pipeline.convert.selection import held_out
from selfplay_pipeline.core.checkpoints import vocabulary_of
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.files import locked, replacing, scratch_file, write_json, write_text
from selfplay_pipeline.core.folders import CONVERTED, own_folder
from selfplay_pipeline.core.reporting import Update, progress
from selfplay_pipeline.core.small_files import read_object
from selfplay_pipeline.generate.episode_wrappers import check_heard_as_said, is_altered
from selfplay_pipeline.generate.read_records import (
    GroupStates,
    NoEpisodeError,
    named_at,
    parse_episode,
    read_lines,
    size_of_lines,
    tell_left_out,
)
from selfplay_pipeline.generate.records import EpisodeRecord, PolicyRecord
from selfplay_pipeline.metrics.signal import Scored, Signal, check_compared, comparison_key, groups_of

EPISODES_PER_WRITE = 256
STREAM_CODES = {"prompt_ids": "i", "response_ids": "i", "response_mask": "b", "response_logprobs": "f"}
"""Array type codes of the token columns, with the number types of `SCHEMA`."""
_vocabulary = lru_cache(maxsize=64)(vocabulary_of)


@dataclass
class _Index:
    """Index of the episodes with rows: columns with one entry per episode, and a temporary file with all rows."""

    rows: IO[bytes]
    offsets: array[int] = field(default_factory=lambda: array("q"))
    """Offset of each episode's rows in the temporary file."""
    groups: array[int] = field(default_factory=lambda: array("q"))
    group_rows: Counter[int] = field(default_factory=Counter)
    """Number of rows of each group."""
    episodes: array[int] = field(default_factory=lambda: array("q"))
    first_seats: array[int] = field(default_factory=lambda: array("q"))
    """Index in `rewards` of each episode's first seat; games may have different numbers of seats."""
    rewards: array[float] = field(default_factory=lambda: array("d"))
    """Reward of each seat of each episode; NaN for a seat without a row."""
    trained: array[float] = field(default_factory=lambda: array("d"))
    """Rewards of all trained seats, also of those without a turn."""
    partners: array[int] = field(default_factory=lambda: array("q"))
    """Index in `known` of each episode's partner."""
    known: dict[str, int] = field(default_factory=dict)
    """Index of each partner, in order of first occurrence."""
    shared: dict[str, bool] = field(default_factory=dict)
    """Whether all seats of each episode of a game share one reward, by name of the game."""
    statuses: Counter[str] = field(default_factory=Counter)
    states: GroupStates = field(default_factory=GroupStates)
    policy: PolicyRecord | None = None
    """Checkpoint that sampled the first trajectory; None before the first one."""
    line: int = 0
    """Line number of the episode with the first trajectory."""

    def states_in_order(self) -> Iterator[list[tuple[int, Scored[int]]]]:
        """Yields the scored seats of each state by episode, each with its index in `rewards`."""
        ends, known = [*self.first_seats[1:], len(self.rewards)], [*self.known]
        order = np.lexsort((np.array(self.episodes), np.array(self.groups))).tolist()
        shared = all(self.shared.values())
        for state, positions in groupby(order, self.groups.__getitem__):
            yield [
                (place, Scored(state, self.episodes[at], seat, reward, not shared, known[self.partners[at]]))
                for at in positions
                for seat, place in enumerate(range(self.first_seats[at], ends[at]))
                if not math.isnan(reward := self.rewards[place])
            ]

    @property
    def separates_partners(self) -> bool:
        """Whether a state was played with different partners."""
        return len(set(zip(self.groups, self.partners, strict=True))) > len(set(self.groups))


def run_convert(
    games: Path,
    out_dir: Path,
    *,
    val_fraction: float = 0.0,
    seed: int = 0,
    placebo: bool = False,
    reward: TrainedReward | None = None,
    skip_bad: bool = False,
    decided: Mapping[str, Any] | None = None,
) -> Converted:
    """Write `train.parquet`, `val.parquet` if it has rows, and `convert_report.txt`; returns their counts.

    Memory grows by about 0.3 kB per episode. The rows of all episodes are stored in a temporary file in `out_dir`
    until their order is known.

    Args:
        games: The file of episodes.
        out_dir: Folder of the written files.
        val_fraction: Share of groups for val.parquet: at least one group if it is above 0, and never all.
        seed: Seed of the split by group and of the placebo.
        placebo: Whether to permute the rewards within each group, as a control.
        reward: Reward to train on; None for the game's own. Each seat is then compared with the same seat.
        skip_bad: Whether to skip and report invalid lines instead of stopping at the first.
        decided: All settings that decide the rows; stored with them, so that another conversion is rejected.

    Raises:
        UserError: A line or an episode is invalid or repeated, no state has two episodes to compare, the sampling is
            unsuitable for training, two checkpoints sampled the episodes, or the policy took no turn.
    """
    report = Converted(placebo=placebo)
    with scratch_file(out_dir / "train.parquet") as aside:
        index = _Index(aside)
        with progress(f"reading {games.name}") as shown:
            _read(games, index, report, skip_bad, reward, shown)
        order, val_groups = _plan(games, index, report, val_fraction, seed)
        if placebo:
            _permute_rewards(index, seed)
        with locked(out_dir / ".convert.lock", f"folder {out_dir}"):
            own_folder(out_dir, "convert")
            if decided is not None and not check_claim(out_dir, decided):
                # Before the rows, so that an interrupted conversion is not continued with other settings.
                write_json(out_dir / CONVERTED, decided)
            with progress("writing train.parquet") as shown:
                _write(out_dir, index, order, val_groups, report, shown)
            write_text(out_dir / "convert_report.txt", report.to_text())
    return report


def check_claim(out_dir: Path, decided: Mapping[str, Any]) -> bool:
    """Whether the same conversion has already begun in a folder.

    Raises:
        UserError: Another conversion has begun in the folder.
    """
    record = out_dir / CONVERTED
    if not record.exists():
        return False
    check_same(out_dir, read_object(record, "selfplay convert"), decided)
    return True


def _read(
    games: Path,
    index: _Index,
    report: Converted,
    skip_bad: bool,
    reward: TrainedReward | None,
    shown: Update,
) -> None:
    size = size_of_lines(games)
    done = altered = 0
    for number, line in read_lines(games):
        done += len(line)
        shown(done, size, lambda: "bytes")
        if not line.strip():
            continue
        try:
            record = parse_episode(line)
            if is_altered(record):
                altered += 1
                continue
            check_heard_as_said(record)
            _check_vocabulary(record)
        except ValueError as error:
            where = f"{games}:{number}: {error}{named_at(games, error)}"
            if isinstance(error, NoEpisodeError) and not skip_bad and not report.episodes:
                raise UserError(where) from None
            if not skip_bad:
                raise UserError(f"{where}; fix the line, or leave such lines out with --skip-bad") from None
            report.bad_lines.append(where)
            continue
        report.episodes += 1
        for trajectory in record.trajectories:
            _check_sampler(f"{games}:{number}", number, record.sampler_of(trajectory), index)
        try:
            index.states.check(record)
        except ValueError as error:
            raise UserError(f"{games}:{number}: {error}") from None
        index.statuses[record.outcome.status] += 1
        rows = episode_to_rows(record)
        rewards = reward.of(record) if reward else [*map(record.outcome.reward_of, range(len(record.seats)))]
        if reward:
            rows = [row | {TRAINED: rewards[row["extra_info"]["seat"]]} for row in rows]
        index.trained.extend(rewards[seat] for seat in record.trained_seats)
        if not rows:
            report.without_turn += 1  # nothing of it is trained on, so that nothing is compared with it
            continue
        index.offsets.append(index.rows.tell())
        pickle.dump([_packed(row) for row in rows], index.rows, pickle.HIGHEST_PROTOCOL)
        index.groups.append(record.group_index)
        index.group_rows[record.group_index] += len(rows)
        index.episodes.append(record.episode)
        share = record.outcome.rewards is None and reward is None
        index.shared[record.game] = index.shared.get(record.game, True) and share
        own = {row["extra_info"]["seat"] for row in rows}
        index.first_seats.append(len(index.rewards))
        index.rewards.extend(value if seat in own else math.nan for seat, value in enumerate(rewards))
        index.partners.append(index.known.setdefault(record.partners, len(index.known)))
    if len({*index.shared.values()}) > 1:
        one, other = (next(name for name, share in index.shared.items() if share is wanted) for wanted in (True, False))
        raise UserError(
            f"{games}: in an episode of {one} all seats share one reward, and in one of {other} each has its own; put "
            "the episodes of each into a file of its own, and convert one at a time"
        )
    tell_left_out(games, altered)
    report.temperature = index.policy.temperature if index.policy else 0.0
    if reward and index.trained:
        report.trained_reward = float(np.mean(index.trained))


def _check_vocabulary(record: EpisodeRecord) -> None:
    """Raises ValueError, which names the field, if a token id is outside the vocabulary of its checkpoint.

    A checkpoint that is not on this machine is not checked.
    """
    for number, seat in enumerate(record.trajectories):
        checkpoint = record.sampler_of(seat).checkpoint
        vocabulary = _vocabulary(checkpoint)
        if vocabulary and max(map(max, filter(None, (seat.prompt_ids, seat.response_ids))), default=0) >= vocabulary:
            fault = seat.fault(vocabulary)
            assert fault is not None
            raise ValueError(f"field 'trajectories.{number}.{fault.field}': {fault.what} ({checkpoint})")


def _check_sampler(where: str, number: int, policy: PolicyRecord, index: _Index) -> None:
    """Raises UserError unless one training can use the tokens of this episode and of the earlier episodes."""
    if (policy.top_p, policy.top_k, policy.repetition_penalty) != (1.0, -1, 1.0):
        raise UserError(
            f"{where}: field 'policy': sampled with top_p, top_k or a penalty, which the log-probs do not include; "
            "play with temperature alone"
        )
    if policy.temperature == 0:
        raise UserError(f"{where}: field 'policy.temperature': greedy play cannot be trained on; sample")
    if index.policy is None:
        index.policy, index.line = policy, number
    first = index.policy
    if policy.temperature != first.temperature:
        raise UserError(
            f"{where}: field 'policy.temperature': {policy.temperature}, but {first.temperature} before; "
            "convert episodes of one temperature at a time"
        )
    if policy.history != first.history:
        raise UserError(
            f"{where}: field 'policy.history': {policy.history}, but {first.history} before; put the episodes of each "
            "into a file of its own, and convert one at a time"
        )
    if policy.template != first.template:
        key = next(key for key, value in policy.template.items() if value != first.template[key])
        raise UserError(
            f"{where}: field 'policy.{key}': {policy.template[key]}, but {first.template[key]} before; put the "
            "episodes of each into a file of its own, and convert one at a time"
        )
    if (policy.weights or policy.checkpoint) != (first.weights or first.checkpoint):
        raise UserError(
            f"{where}: field 'policy.weights': sampled by {policy.checkpoint} with the content hash "
            f"{policy.weights or 'unknown'}, but line {index.line} by {first.checkpoint} with "
            f"{first.weights or 'unknown'}; put the episodes of each into a file of its own, and convert one at a time"
        )


def _plan(games: Path, index: _Index, report: Converted, val_fraction: float, seed: int) -> tuple[list[int], set[int]]:
    groups, episodes = np.array(index.groups, dtype=np.int64), np.array(index.episodes, dtype=np.int64)
    if not index.statuses:
        if skipped := report.bad_lines:
            raise UserError(f"{games}: --skip-bad left out all {len(skipped)} episodes; the first is {skipped[0]}")
        raise UserError(f"{games}: holds no finished episode; `selfplay generate` writes them")
    if not len(groups):
        statuses = ", ".join(f"{name} {count}" for name, count in sorted(index.statuses.items()))
        raise UserError(
            f"{games}: there is nothing to train on, because the policy took no turn in any of the "
            f"{report.without_turn} episodes ({statuses}); generate episodes with `policy` in a seat, and with a "
            "context that holds its turns"
        )
    # Lines are in the order in which episodes ended, so the lines of a group may stand far apart.
    order = np.lexsort((episodes, groups))
    groups, episodes = groups[order], episodes[order]
    repeated = np.flatnonzero((groups[1:] == groups[:-1]) & (episodes[1:] == episodes[:-1]))
    if len(repeated):
        at = repeated[0]
        raise UserError(f"{games}: group {groups[at]} episode {episodes[at]} occurs twice; remove one of its lines")
    names, counts = np.unique(groups, return_counts=True)
    compared = [
        [*group.values()] for state in index.states_in_order() for group in groups_of(row for _, row in state).values()
    ]
    check_compared(str(games), compared, counts.max())
    signal = Signal.of(compared)
    report.groups, report.groups_without_signal = signal.groups, signal.without
    report.single_episode_groups_dropped = sum(len(group) == 1 for group in compared)
    report.partners = len(index.known) if index.separates_partners else 0
    kept = names[counts > 1]
    report.episodes_per_state = int(episodes.max()) + 1
    val = held_out(kept, val_fraction, seed)
    report.val_groups, report.train_groups = len(val), len(kept) - len(val)
    in_kept = np.isin(groups, kept)
    return order[in_kept].tolist(), val


def _permute_rewards(index: _Index, seed: int) -> None:
    """Permute the rewards of each group, independently of the order of the lines."""
    for state in index.states_in_order():
        groups = groups_of(row for _, row in state)
        exchanged = {key: permuted(rewards, seed, key.state) for key, rewards in groups.items()}
        for place, row in state:
            index.rewards[place] = exchanged[comparison_key(row)][row.episode]


def _packed(row: dict[str, Any]) -> dict[str, Any]:
    """Returns the row with its tokens as bytes, which are pickled faster than arrays."""
    return row | {name: array(code, row[name]).tobytes() for name, code in STREAM_CODES.items()}


def _unpacked(row: dict[str, Any]) -> dict[str, Any]:
    """Returns the row with its tokens as numpy arrays, which pyarrow converts several times faster than lists."""
    return row | {name: np.frombuffer(row[name], code) for name, code in STREAM_CODES.items()}


def _write(
    out_dir: Path,
    index: _Index,
    order: list[int],
    val_groups: set[int],
    report: Converted,
    shown: Update,
) -> None:
    assert index.policy is not None, "_plan refuses episodes without a policy"
    changed = report.trained_reward is not None
    further = [TRAINED] * changed + [PARTNER] * bool(report.partners) + [TURN] * (index.policy.history == "rendered")
    partners = [*index.known]
    schema = described(
        schema_with(*further),
        game=[*index.shared][-1],
        shared=all(index.shared.values()),
        temperature=report.temperature,
        episodes_per_state=report.episodes_per_state,
        checkpoint=index.policy.checkpoint,
        weights=index.policy.weights,
        template=index.policy.template,
        **({"placebo": True} if report.placebo else {}),
    )
    buffers: dict[str, list[dict[str, Any]]] = {"train": [], "val": []}
    with (
        replacing(out_dir / "val.parquet") as new_val,
        replacing(out_dir / "train.parquet") as new_train,
        pq.ParquetWriter(new_train, schema) as train,
        pq.ParquetWriter(new_val, schema) as val,
    ):
        writers = {"train": train, "val": val}

        def flush(name: str) -> None:
            if buffers[name]:
                writers[name].write_table(pa.Table.from_pylist(buffers[name], schema=schema))
                buffers[name] = []

        for done, position in enumerate(order, start=1):
            index.rows.seek(index.offsets[position])
            rows = [_unpacked(row) for row in pickle.load(index.rows)]
            shown(done, len(order), lambda: "episodes")
            name = "val" if index.groups[position] in val_groups else "train"
            for row in rows:
                row["extra_info"]["episodes_per_state"] = report.episodes_per_state
                row["extra_info"]["group_rows"] = index.group_rows[index.groups[position]]
                if report.placebo:
                    place = row if changed else row["reward_model"]
                    seat = row["extra_info"]["seat"]
                    place[TRAINED if changed else "normalized_reward"] = index.rewards[
                        index.first_seats[position] + seat
                    ]
                if report.partners:
                    row[PARTNER] = partners[index.partners[position]]
                report.tokens += len(row["prompt_ids"]) + len(row["response_ids"])
                report.trained_tokens += int(row["response_mask"].sum())
            buffers[name] += rows
            if name == "train":
                report.train_rows += len(rows)
            else:
                report.val_rows += len(rows)
            if len(buffers[name]) >= 2 * EPISODES_PER_WRITE:
                flush(name)
        flush("train")
        flush("val")
        if not report.val_rows:
            new_val.unlink()
    if not report.val_rows:  # verl cannot load an empty file, and an older one would not match train.parquet
        (out_dir / "val.parquet").unlink(missing_ok=True)
