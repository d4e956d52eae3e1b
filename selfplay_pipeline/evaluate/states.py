"""States of an evaluation: held out from training by a separate seed space, or read from a file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

from selfplay_pipeline.config.identity import CONTENTS
from selfplay_pipeline.config.schema import Config
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.reporting import progress
from selfplay_pipeline.core.small_files import parse_json
from selfplay_pipeline.games.base import HELD_OUT, Game, State, state_rng
from selfplay_pipeline.games.registry import make_game
from selfplay_pipeline.games.silence import LineName
from selfplay_pipeline.generate.read_records import read_lines
from selfplay_pipeline.metrics.bootstrap import Interval, Totals

Z95 = 1.96
"""Half the width of a 95 % interval, in standard errors."""

NUM_STATES = 500
"""Number of held-out states, unless the user gives another."""


@dataclass(frozen=True)
class StateSet:
    """States in a fixed order.

    Attributes:
        name: Description of the source for output.
        states: The states.
        human: Normalised reward of a human pair on each state; None if it is unknown.
        seed: `evaluate.state_seed` of held-out states; None for states from a file.
        fingerprint: Hash of the states' JSON.
    """

    name: str
    states: tuple[State, ...]
    human: tuple[float | None, ...] = ()
    seed: int | None = None
    fingerprint: str = ""

    def __len__(self) -> int:
        return len(self.states)

    @property
    def identity(self) -> dict[str, Any]:
        """Source and number of the states, and their fingerprint."""
        source: dict[str, Any] = {"states": "a file"}
        if self.seed is not None:
            source = {"states": "held out", "evaluate.state_seed": self.seed}
        return source | {"num_states": len(self), f"{CONTENTS}states": self.fingerprint}


def held_out_states(game: Game, count: int, seed: int = 0, space: int = HELD_OUT) -> StateSet:
    """Returns the first `count` states of a held-out seed space, which no training uses with any seed."""
    states = []
    with progress("sampling held-out states", brief=True) as report:
        for number in range(count):
            states.append(game.sample_state(state_rng(seed, number, space)))
            report(number + 1, count)
    return StateSet(
        f"{count} held-out states (seed {seed})", tuple(states), seed=seed, fingerprint=_fingerprint(game, states)
    )


def sample_held_out(config: Config, count: int, space: int = HELD_OUT) -> StateSet:
    """Returns held-out states of the configured game."""
    return held_out_states(make_game(config.game), count, config.evaluate.state_seed, space)


def read_states(path: Path, game: Game) -> StateSet:
    """Returns the states of a file with one JSON object per line, in the game's format.

    Raises:
        UserError: The file is missing or empty, or a line is invalid; the message names file, line and field.
    """
    states, human = [], []
    for number, line in read_lines(path, "give a file of game states, one JSON object a line"):
        if not line.strip():
            continue
        try:
            data = parse_json(line)
            if not isinstance(data, dict):
                raise UserError("expected a JSON object")
            state = game.state_from_json(data)
            states.append(state)
            human.append(game.known_reward(state, data))
        except json.JSONDecodeError as error:
            raise UserError(f"{path}:{number}: not JSON: {error.msg}") from None
        except (UserError, TypeError, ValueError, OverflowError) as error:
            raise UserError(f"{path}:{number}: {error}; fix the line or remove it") from None
        try:
            game.check_fits(state)
        except UserError as error:
            raise UserError(f"{path}:{number}: {error}") from None
    if not states:
        raise UserError(f"{path}: holds no game state; expected one JSON object a line")
    return StateSet(
        f"{len(states)} states of {path}", tuple(states), tuple(human), fingerprint=_fingerprint(game, states)
    )


def first_of(game: Game, states: StateSet, count: int) -> StateSet:
    """Returns the first `count` of the states."""
    if count >= len(states):
        return states
    few = states.states[:count]
    return replace(
        states,
        name=f"the first {count} of {states.name}",
        states=few,
        human=states.human[:count],
        fingerprint=_fingerprint(game, few),
    )


def _fingerprint(game: Game, states: Iterable[State]) -> str:
    """Returns the hash of the states as one JSON list, which is made a state at a time to save memory."""
    digest = hashlib.sha256(b"[")
    for number, state in enumerate(states):
        digest.update((", " * bool(number) + json.dumps(game.state_to_json(state))).encode())
    digest.update(b"]")
    return digest.hexdigest()


def key_of(game: Game, state: dict[str, Any]) -> str:
    """Returns a hash that is equal for states that pose the same problem."""
    return hashlib.sha256(json.dumps(game.problem_of(state)).encode()).hexdigest()


def states_in(game: Game, games: Path) -> set[str]:
    """Returns the keys (`key_of`) of all states in a file of episodes."""
    return {key_of(game, json.loads(line)["state"]) for _, line in read_lines(games) if line.strip()}


def count_shared(game: Game, states: StateSet, played: Iterable[str]) -> int:
    """Returns the number of states whose keys are in `played`."""
    return len({key_of(game, game.state_to_json(state)) for state in states.states} & set(played))


def references(game: Game, states: StateSet) -> dict[str, Interval]:
    """Returns mean normalised rewards of other players, by name, for comparison.

    The game's own references and the recorded `human` rewards are measured on these states. Strategies without words,
    such as `silence`, are measured on other states of the same configuration.
    """
    lines: dict[str, Sequence[float | None]] = {**game.references(states.states)}
    if any(value is not None for value in states.human):
        lines["human"] = states.human
    totals = {
        name: ([0.0 if value is None else value for value in values], [float(value is not None) for value in values])
        for name, values in lines.items()
    }
    found = Totals.of(totals).intervals() if totals else {}
    for name, line in game.wordless.items():
        low, high = (line.value + sign * Z95 * line.standard_error for sign in (-1, 1))
        found[name] = Interval(value=line.value, low=low, high=high)
    return found


def references_in_words(references: Mapping[str, Interval]) -> str:
    """Returns the reference rewards in one line: first those on the evaluated states, then those on other states."""
    said = {name: f"{name.replace('_', ' ')} {interval}" for name, interval in references.items()}
    wordless = [said.pop(name) for name in get_args(LineName) if name in said]
    elsewhere = f"; on other states of the same configuration: {', '.join(wordless)}" if wordless else ""
    return f"rewards on the same states: {', '.join(said.values())}{elsewhere}"
