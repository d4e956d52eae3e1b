"""Selects the groups to train on and orders them into steps. Imports no torch, so that it loads quickly."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from selfplay_pipeline.convert.parquet import read_rows
from selfplay_pipeline.convert.selection import best_episodes
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.metrics.signal import (
    Key,
    Scored,
    Signal,
    check_compared,
    comparison_key,
    groups_of,
    has_signal,
)


class NoSignalError(UserError):
    """No group holds episodes with different rewards, so that GRPO has nothing to learn from."""


@dataclass(frozen=True)
class Group:
    """Rows that are compared with each other, a group in the sense of `metrics.signal`."""

    key: Key[tuple[int, int]]
    """Comparison key, in which a state is (number of its file, `extra_info.index`)."""
    rows: tuple[int, ...]
    """Numbers of the group's rows, counted through all files in their order."""
    rewards: tuple[float, ...]
    """Normalised reward of each episode."""
    episodes: tuple[int, ...] = ()
    """Episode of each row. Their order of first occurrence is the order of `rewards`."""

    @property
    def file(self) -> int:
        """Position in the list of files."""
        return self.key.state[0]

    @property
    def index(self) -> int:
        """`extra_info.index`, unique within the file."""
        return self.key.state[1]

    @property
    def has_signal(self) -> bool:
        """Whether group-relative advantages differ from 0."""
        return has_signal(self.rewards)

    def best_rows(self, best: int) -> list[Group]:
        """Returns each row of the best episodes as a group of its own; `best` 0 means all episodes."""
        rewards = dict(zip(dict.fromkeys(self.episodes), self.rewards, strict=True))
        chosen = best_episodes(rewards, best)
        return [
            replace(self, rows=(row,), rewards=(rewards[episode],), episodes=(episode,))
            for row, episode in zip(self.rows, self.episodes, strict=True)
            if episode in chosen
        ]


@dataclass(frozen=True)
class TrainData:
    """The groups of the files."""

    groups: list[Group]
    """Groups with two episodes or more, or with one if single episodes are allowed, ordered by file and index."""
    signal: Signal
    """Counts over all groups, including those left with one episode, for example after engine failures."""
    temperature: float
    episodes_per_state: int
    num_rows: int
    max_prompt_tokens: int
    max_response_tokens: int
    rows_per_seat: float = 1.0
    """Mean number of rows of a seat's part of an episode: 1 unless each turn is a row."""
    seats_per_episode: int = 2
    """Number of trained seats of an episode. A batch counts a seat's part of an episode once, in however many rows."""

    def to_train(self, keep_zero_signal: bool, imitated: int | None = None) -> list[Group]:
        """Returns the groups to train on.

        Args:
            keep_zero_signal: Whether to keep groups without a signal.
            imitated: Number of episodes of each group to imitate, 0 for all episodes, also those of groups without a
                signal; None if episodes are compared. Each imitated row is a group of its own, since it is not compared
                with others.

        Raises:
            NoSignalError: No group is left.
        """
        if imitated is not None:
            groups = self.to_train(keep_zero_signal) if imitated else self.groups
            return [row for group in groups for row in group.best_rows(imitated)]
        kept = [group for group in self.groups if keep_zero_signal or group.has_signal]
        if not kept:
            raise NoSignalError(
                f"none of {len(self.groups)} groups carries a signal: within each, all episodes scored alike, so that "
                "there is nothing to compare; play more episodes or at a higher temperature (keep_zero_signal trains "
                "regardless)"
            )
        return kept


def read_data(files: Sequence[Path], vocabulary: int | None = None, *, alone: bool = False) -> TrainData:
    """Returns the groups in parquet files, with their rewards and lengths, after a check of every row.

    Args:
        files: Parquet files, all sampled at one temperature.
        vocabulary: Number of the model's token ids, if known.
        alone: Whether groups of one episode are allowed, because nothing is compared.

    Raises:
        UserError: A file is missing, is not from `convert`, has no rows or an impossible row, mixes temperatures, or
            has no two episodes to compare although `alone` is false.
    """
    rows: list[Scored[tuple[int, int]]] = []
    temperatures: set[float] = set()
    episodes_per_state, longest_prompt, longest_response = 0, 0, 0
    for number, path in enumerate(files):
        for batch in read_rows(path, vocabulary):
            episodes_per_state = max(episodes_per_state, int(batch.episodes_per_state.max()))
            temperatures.update(batch.sampling_temperature.tolist())
            longest_prompt = max(longest_prompt, int(batch.streams.prompt_ids.lengths.max()))
            longest_response = max(longest_response, int(batch.streams.response_ids.lengths.max()))
            rows += batch.scored(number)
    names = ", ".join(str(path) for path in files)
    if not rows:
        raise UserError(f"{names}: no rows; play episodes and convert them first")
    if len(temperatures) > 1:
        raise UserError(f"{names}: mixed sampling temperatures {sorted(temperatures)}; train on one at a time")
    temperature = temperatures.pop()
    if temperature <= 0:
        raise UserError(f"{names}: sampled greedily (temperature {temperature}); play with a temperature above 0")
    rewards, numbers = groups_of(rows), defaultdict[Key[tuple[int, int]], list[int]](list)
    parts = defaultdict[Key[tuple[int, int]], set[tuple[int, int]]](set)
    for number, row in enumerate(rows):
        numbers[comparison_key(row)].append(number)
        parts[comparison_key(row)].add((row.episode, row.seat))
    if not alone:
        check_compared(names, rewards.values(), episodes_per_state)
    groups = [
        Group(key, tuple(own), tuple(rewards[key].values()), tuple(rows[number].episode for number in own))
        for key, own in sorted(numbers.items())
    ]
    return TrainData(
        groups=[group for group in groups if alone or len(group.rewards) > 1],
        signal=Signal.of(group.rewards for group in groups),
        temperature=temperature,
        episodes_per_state=episodes_per_state,
        num_rows=len(rows),
        max_prompt_tokens=longest_prompt,
        max_response_tokens=longest_response,
        rows_per_seat=len(rows) / sum(map(len, parts.values())),
        seats_per_episode=max(-(-len(parts[group.key]) // len(group.rewards)) for group in groups),
    )


def plan_steps(num_groups: int, groups_per_step: int, epochs: int, seed: int) -> list[list[int]]:
    """Returns the positions of the groups of each step.

    Every epoch is a new random order, cut into steps of nearly equal size with at most `groups_per_step` groups, so
    that no group is left over. The result depends only on the arguments, so a resumed training continues in the same
    order.
    """
    steps = -(-num_groups // groups_per_step)
    rng = np.random.default_rng(seed)
    return [part.tolist() for _ in range(epochs) for part in np.array_split(rng.permutation(num_groups), steps)]


def updates_of(groups: int, groups_per_update: float) -> int:
    """Returns the number of updates of a batch of `groups` groups, at least one and at most one per group."""
    return max(1, min(groups, round(groups / groups_per_update)))


def split_rows(rows: int, updates: int, processes: int, micro_batch_size: int) -> tuple[int, int]:
    """Cut a step's rows into equal updates, and an update into equal passes on each process.

    If the numbers do not divide evenly, verl adds padding rows without a loss; equal passes keep these few.

    Returns:
        Rows of one update over all processes, and rows of one pass on one process (`micro_batch_size` at most).
    """
    per_process = -(-rows // (updates * processes))
    passes = -(-per_process // micro_batch_size)
    even = -(-per_process // passes)
    return passes * even * processes, even


def mixed(rows: int, processes: int, seed: Sequence[int]) -> list[int]:
    """Returns a random order of a batch's rows, so that each update has rows of all groups.

    Returns:
        Positions of the rows; each row stays in its process's part.
    """
    rng = np.random.default_rng(seed)
    return [int(row) for part in np.split(np.arange(rows), processes) for row in rng.permutation(part)]


def by_length(lengths: Sequence[int], block: int) -> list[int]:
    """Returns an order that puts rows of similar length together, so that a pass needs little padding.

    Args:
        lengths: Tokens of each row; their number is a multiple of `block`.
        block: Number of rows that must stay together: the rows of one update on one process.

    Returns:
        Positions of the rows; each row stays in its block.
    """
    order = np.argsort(np.array(lengths).reshape(-1, block), axis=1, kind="stable")
    return (order + block * np.arange(len(order))[:, None]).ravel().tolist()


def to_groups(rows: int, rows_per_group: int) -> int:
    """Returns the number of whole groups nearest to a number of rows, at least one."""
    return max(1, round(rows / rows_per_group))
