"""Makes the table of DialOp's games: scripted players on new states, people on theirs, and policies on tiny states.

Run `python -m bench.dialop`. Each `--policy CONFIG=CHECKPOINT` adds a checkpoint that plays itself, beside the scripted
players on the same held-out states of that configuration. Words are those of messages, without the tag and the room.
A stopped run plays only the missing episodes of the policies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer

from bench import command
from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.config.schema import Config
from selfplay_pipeline.core import stopping
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.files import write_text
from selfplay_pipeline.evaluate.run import EvaluationJob, run_evaluate
from selfplay_pipeline.evaluate.states import held_out_states
from selfplay_pipeline.games.abilities import HumanEpisodes, ability
from selfplay_pipeline.games.base import HELD_OUT, MESSAGE, Game, state_rng
from selfplay_pipeline.games.registry import make_game, parse_game_config
from selfplay_pipeline.games.tags import untagged
from selfplay_pipeline.generate.episode import Episode
from selfplay_pipeline.generate.people import replayed
from selfplay_pipeline.generate.players import SeatedScript
from selfplay_pipeline.generate.records import TurnRecord, read_episodes

GAMES = ("matching", "mediation", "planning")
SCRIPTED = ("random", "silent", "sharing", "speaking")
"""Scripted players that hold all seats."""
HEAD = "| game | players | reward | agreed | turns | words | episodes |\n|---|---|---|---|---|---|---|"
WIDTH = 1.96
"""Half width of a 95 % interval in standard errors."""


class Played(NamedTuple):
    """Figures of one episode."""

    reward: float
    agreed: bool
    turns: int
    words: int


def main(
    states: Annotated[int, typer.Option(min=2, help="Number of states for each scripted player.")] = 1000,
    policy: Annotated[
        list[str] | None, typer.Option(help="CONFIG=CHECKPOINT: a built-in configuration and who plays it. Repeatable.")
    ] = None,
    policy_states: Annotated[int, typer.Option(min=2, help="Number of states for each --policy.")] = 200,
    work: Annotated[Path, typer.Option(help="Folder for the episodes of the policies.")] = Path("data/dialop_policies"),
    output: Annotated[Path | None, typer.Option(help="Folder for table.md; by default, it is only printed.")] = None,
) -> None:
    """Print the table of DialOp's games."""
    lines = list[str]()
    for line in _lines(states, _policies(policy or ()), policy_states, work):
        print(line, flush=True)
        lines.append(line)
    if output is not None:
        write_text(output / "table.md", "\n".join(lines) + "\n")


def _policies(given: Iterable[str]) -> dict[str, tuple[Config, Path]]:
    """Returns configuration and checkpoint of each `--policy`, by the configuration's name."""
    found = dict[str, tuple[Config, Path]]()
    for name, checkpoint in map(_pair, given):
        if name in found:
            raise UserError(f"--policy: {name} is given twice; give one checkpoint for each configuration")
        found[name] = load_config(name, {}), checkpoint
    return found


def _pair(given: str) -> tuple[str, Path]:
    """Returns configuration and checkpoint of one `--policy`."""
    config, _, checkpoint = given.partition("=")
    if not checkpoint:
        raise UserError(f"--policy {given}: give CONFIG=CHECKPOINT, such as tiny_planning=data/planning_model")
    if not (Path(checkpoint) / "config.json").exists():
        raise UserError(f"--policy {given}: {checkpoint} holds no checkpoint; `selfplay iterate` writes one")
    return config, Path(checkpoint)


def _lines(states: int, policies: Mapping[str, tuple[Config, Path]], policy_states: int, work: Path) -> Iterator[str]:
    yield HEAD
    for name in GAMES:
        game = make_game(parse_game_config({"name": name}))
        yield from _without_a_model(name, game, SCRIPTED, states)
        yield _row(name, "people", [*_people(game)])
    for name, (config, checkpoint) in policies.items():
        yield from _without_a_model(f"`{name}`", make_game(config.game), SCRIPTED[:-1], policy_states)
        for mode, played in _of_policy(config, checkpoint, policy_states, work / name).items():
            yield _row(f"`{name}`", f"self-played policy, {mode}", played)


def _without_a_model(label: str, game: Game, players: Iterable[str], states: int) -> Iterator[str]:
    """Yields the rows of scripted players, and of the silence line if it is known."""
    for player in players:
        yield _row(label, player, [*_scripted(game, player, states)])
    if (line := game.silence) is not None:
        half = WIDTH * line.standard_error
        yield f"| {label} | *silence* (line) | {line.value:.3f} ± {half:.3f} | | | | {line.states:,} |"


def _scripted(game: Game, player: str, states: int) -> Iterator[Played]:
    for number in range(states):
        session = game.start(game.sample_state(state_rng(0, number, HELD_OUT)))
        view: Callable[[int], Any] = partial(game.view, session)
        seats = [
            SeatedScript(game.players[player], partial(view, seat), np.random.default_rng([number, seat]))
            for seat, _ in enumerate(game.roles)
        ]
        episode = Episode(session, [*seats])
        episode.play_out()
        outcome = session.outcome()
        yield _played(float(np.mean(outcome.rewards)), outcome.status in game.goals, episode.turns)


def _of_policy(config: Config, checkpoint: Path, states: int, folder: Path) -> dict[str, list[Played]]:
    """Returns the episodes of a checkpoint with itself, by mode: one on each held-out state."""
    game = make_game(config.game)
    job = EvaluationJob(str(checkpoint), held_out_states(game, states), folder, episodes=1)
    stopping.run(run_evaluate(config, job))
    return {
        mode: [
            _played(record.outcome.normalized_reward, record.outcome.status in game.goals, record.turns)
            for record in read_episodes(job.file(mode))
        ]
        for mode in job.modes(config)
    }


def _people(game: Game) -> Iterator[Played]:
    """Yields the recorded episodes: rewards and messages as recorded, turns as our rules count them."""
    for number, episode in enumerate(ability(game, HumanEpisodes, "bench").human_episodes()):
        turns = len(replayed(game, number, episode).turns) if episode.legal else episode.num_turns
        yield Played(episode.reward, True, turns, sum(len(said.text.split()) for said in episode.turns))


def _played(reward: float, agreed: bool, turns: Sequence[TurnRecord]) -> Played:
    words = sum(len(untagged(turn.text).split()) for turn in turns if turn.action == MESSAGE)
    return Played(reward, agreed, len(turns), words)


def _row(label: str, players: str, played: list[Played]) -> str:
    rewards, agreed, turns, words = (np.array(column, np.float64) for column in zip(*played, strict=True))
    error = WIDTH * rewards.std(ddof=1) / len(rewards) ** 0.5
    return (
        f"| {label} | {players} | {rewards.mean():.3f} ± {error:.3f} | {agreed.mean():.0%} | {turns.mean():.1f} | "
        f"{words.mean():.0f} | {len(rewards):,} |"
    )


if __name__ == "__main__":
    command.run(main)
