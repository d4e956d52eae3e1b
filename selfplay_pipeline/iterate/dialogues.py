"""Dialogues on the held-out states of a run, which written rules choose: for the loggers, and for the end of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median_low

from selfplay_pipeline.config.schema import SELF, Config
from selfplay_pipeline.core.terminal.harmless import shorten
from selfplay_pipeline.games.base import SAME_SCORE
from selfplay_pipeline.games.registry import make_game
from selfplay_pipeline.generate.read_records import read_episodes
from selfplay_pipeline.generate.records import EpisodeRecord, TurnRecord
from selfplay_pipeline.train.loggers import Row

RULE = (
    "Of the held-out states, played greedily: the first with the lowest, the (lower) median and the highest reward "
    "before training, which stay the same in all evaluations; and the first with the (lower) median change of the "
    "reward since then, among those that changed."
)
"""Rule that chooses the dialogues of an evaluation for the loggers; TensorBoard shows it above them."""
LOWEST, MEDIAN, HIGHEST, CHANGE = "lowest before", "median before", "highest before", "median change"
"""Names of the chosen states."""
LONGEST_TEXT = 2_000
"""Largest number of characters of a turn; the remainder is counted."""


@dataclass(frozen=True)
class Choice:
    """The state to show, and the number of states among which it was chosen.

    Attributes:
        state: Number of the state; None if no reward changed.
        states: Number of states that were played both times.
        rose: Number of states whose reward rose.
        fell: Number of states whose reward fell.
    """

    state: int | None
    states: int
    rose: int
    fell: int

    def in_words(self) -> str:
        """Returns the rule and its result in one line."""
        played = f"{self.states} held-out states, played greedily (always the likeliest token) before and after"
        if self.state is None:
            return f"No dialogue to show: the reward changed on none of {played}."
        return (
            f"One dialogue as an example, chosen by a rule: of {played}, the reward rose on {self.rose} and fell on "
            f"{self.fell}; of these {self.rose + self.fell}, state {self.state} is the first with the (lower) "
            "median change."
        )


def choose_state(before: Mapping[int, float], after: Mapping[int, float]) -> Choice:
    """Returns the first state with the median change, among the states whose reward changed. Pure.

    Of two changes in the middle, the lower one is the median. Rewards that differ by less than `SAME_SCORE` are
    equal, and a state that only one side has does not count.

    Args:
        before: Earlier rewards by number of the state.
        after: Later rewards by number of the state.
    """
    both = sorted(before.keys() & after.keys())
    changes = {state: after[state] - before[state] for state in both}
    changes = {state: change for state, change in changes.items() if abs(change) >= SAME_SCORE}
    chosen = _first_with(median_low(changes.values()), changes) if changes else None
    rose = sum(change > 0 for change in changes.values())
    return Choice(chosen, len(both), rose, len(changes) - rose)


def choose_states(before: Mapping[int, float], now: Mapping[int, float]) -> dict[int, str]:
    """Returns the states that the rule of the loggers chooses, each with the names of its choice. Pure.

    Args:
        before: Rewards in the first evaluation by number of the state.
        now: Rewards in the evaluation to show; the same as `before` for the first one.
    """
    before = dict(sorted(before.items()))
    values = before.values()
    wanted = {LOWEST: min(values), MEDIAN: median_low(values), HIGHEST: max(values)} if before else {}
    chosen = {name: _first_with(value, before) for name, value in wanted.items()}
    if (changed := choose_state(before, now).state) is not None:
        chosen[CHANGE] = changed
    return {
        state: ", ".join(name for name, one in chosen.items() if one == state)
        for state in dict.fromkeys(chosen.values())
        if state in now
    }


def _first_with(value: float, values: Mapping[int, float]) -> int:
    """Returns the first state with a value."""
    return next(state for state, one in values.items() if abs(one - value) < SAME_SCORE)


@dataclass
class Dialogues:
    """The chosen dialogues of a run's evaluations, as rows of a table."""

    config: Config
    run: Path
    _first: dict[int, EpisodeRecord] = field(default_factory=dict)
    """Episodes of the first evaluation by state, without tokens."""

    def rows(self, number: int) -> list[Row]:
        """Returns a row for each chosen state; none if the iteration was not evaluated, or its episodes are gone.

        Raises:
            UserError: A file of episodes is damaged.
        """
        now = greedy_episodes(self.run / f"iter_{number}" / "evaluation" / "greedy.jsonl")
        self._first = self._first or now
        before, after = ({state: self._reward(one) for state, one in two.items()} for two in (self._first, now))
        found: list[Row] = []
        for state, chosen in choose_states(before, after).items():
            cells: Row = {"iteration": number, "state": state, "chosen": chosen}
            found.append(
                cells | {"reward": round(after[state], 3), "before": round(before[state], 3)} | self._read(now[state])
            )
        return found

    def _reward(self, record: EpisodeRecord) -> float:
        """Returns the mean reward of the policy's seats."""
        options = self.config.iterate
        seats = range(len(record.seats)) if options.partner == SELF else [options.seat]
        return record.outcome.mean_reward_of(seats)

    def _read(self, record: EpisodeRecord) -> Row:
        """Returns the cells with the private view of each seat, its reward if the seats have different ones, and the
        dialogue.
        """
        game, seats = make_game(self.config.game).of_state(record.state), range(len(record.seats))
        session = game.start(game.state_from_json(record.state))
        found: Row = {}
        if not game.shared_reward:
            found |= {f"reward of seat {seat}": round(record.outcome.reward_of(seat), 3) for seat in seats}
        found |= {f"seat {seat} saw": session.opening(seat).observation.strip() for seat in seats}
        return found | {"dialogue": "\n".join([*map(_in_a_line, record.turns), record.outcome.status])}


def greedy_episodes(file: Path) -> dict[int, EpisodeRecord]:
    """Returns the episodes of a file by state, without their tokens, to save memory; none if there is no file."""
    records = read_episodes(file) if file.exists() else ()
    return {record.group_index: record.model_copy(update={"trajectories": []}) for record in records}


def _in_a_line(turn: TurnRecord) -> str:
    return f"seat {turn.seat}: {shorten(turn.text.strip(), LONGEST_TEXT)}" + (
        f" (illegal: {turn.error})" if turn.error else ""
    )
