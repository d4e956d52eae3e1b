"""`selfplay crossplay`: each player in seat 0 with each player in all other seats."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from selfplay_pipeline.config.schema import Config
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.files import write_text
from selfplay_pipeline.core.folders import check_folder, own_folder
from selfplay_pipeline.evaluate.crossplay_gaps import BestResponse, Gaps, best_response, gaps_of
from selfplay_pipeline.evaluate.figures_by_state import Seating, Tally
from selfplay_pipeline.evaluate.pairing import Pairing, check_begun, check_meeting, check_names, play_pairing
from selfplay_pipeline.evaluate.states import StateSet
from selfplay_pipeline.games.registry import make_game
from selfplay_pipeline.generate.read_records import read_episodes
from selfplay_pipeline.generate.seats import Backends, Servers, checkpoints_among, is_checkpoint, weights_of
from selfplay_pipeline.generate.stage import check_models
from selfplay_pipeline.metrics.bootstrap import Interval, Totals
from selfplay_pipeline.metrics.figures import REWARD, measure_reward


class CrossPlay(BaseModel):
    """Content of `crossplay.json`: `rewards[i][j]` is the mean reward with player i in seat 0 and j in all others.

    It is the mean over all seats in self-play (i = j) or if the seats share one reward; otherwise, it is the mean of
    seat 0.

    Attributes:
        arms: Name of each player's arm; empty for a player without one.
        gaps: Gaps of each arm.
        best_responses: Gaps of the players that were trained with another one.
        lost: Number of missing episodes that failed because of the engine or a chat model.
    """

    model_config = ConfigDict(extra="forbid")

    players: list[str]
    arms: list[str] = []
    states: str
    episodes: int
    temperature: float
    rewards: list[list[Interval]]
    gaps: dict[str, Gaps] = {}
    best_responses: list[BestResponse] = Field(default=[], exclude_if=lambda found: not found)
    lost: int = 0


@dataclass(frozen=True)
class Cell:
    """Rewards of one pair.

    Attributes:
        reward: Reward of the player in seat 0, as `CrossPlay` says.
        of_all: Rewards by state, the mean over all seats.
        lost: Number of lost episodes.
    """

    reward: Interval
    of_all: Totals
    lost: int


async def run_crossplay(
    config: Config,
    names: Sequence[str],
    states: StateSet,
    episodes: int,
    output: Path,
    arms: Sequence[str] = (),
    responders: Mapping[int, tuple[str, int]] = {},
) -> CrossPlay:
    """Play the missing episodes, write `crossplay.json`, and return its content.

    Args:
        config: The configuration.
        names: The players.
        states: The states that each pair plays.
        episodes: Number of episodes of each state and pair.
        output: The output folder.
        arms: Name of each player's arm, empty for a player without one; by default, no player has one.
        responders: By the number of a player, the content hash of its partner in training and its own seat there.

    Raises:
        UserError: Fewer than two players are given, a player is given twice, or a checkpoint is unusable.
    """
    _check(config, names, states, episodes, output)
    async with Servers(Backends.of(config), output, at_once=_at_once(config, names)) as servers:
        own_folder(output, "crossplay")
        cells = [
            [await _cell(config, names, pair, states, episodes, output, servers) for pair in row]
            for row in _pairs(names)
        ]
    of_all = [[cell.of_all for cell in row] for row in cells]
    result = CrossPlay(
        players=list(names),
        states=states.name,
        episodes=episodes,
        temperature=config.generate.temperature,
        arms=list(arms),
        rewards=[[cell.reward for cell in row] for row in cells],
        gaps=gaps_of(of_all, arms) if arms else {},
        best_responses=[best_response(of_all, *found) for found in _responses(config, names, responders)],
        lost=sum(cell.lost for row in cells for cell in row),
    )
    write_text(output / "crossplay.json", result.model_dump_json(indent=2) + "\n")
    return result


def _responses(
    config: Config, names: Sequence[str], responders: Mapping[int, tuple[str, int]]
) -> Iterator[tuple[int, int, int]]:
    """Yields responder, frozen player and seat of each pair that was trained together, if the matrix has its seats."""
    game = make_game(config.game)
    hashes = {weights_of(config.engine, name): number for number, name in enumerate(names) if is_checkpoint(game, name)}
    for responder, (partner, seat) in responders.items():
        if partner in hashes and (seat == 0 or len(game.roles) == 2):
            yield responder, hashes[partner], seat


def _check(config: Config, names: Sequence[str], states: StateSet, episodes: int, output: Path) -> None:
    check_crossplay(config, names)
    check_folder(output, "crossplay")
    models = checkpoints_among(make_game(config.game), names)
    check_models(config, models, states.states, at_once=_at_once(config, names))
    for pair in (pair for row in _pairs(names) for pair in row):
        check_begun(config, _pairing(names, pair, states, episodes, output))


def _at_once(config: Config, names: Sequence[str]) -> int:
    """Returns the largest number of checkpoints that play at the same time: 2, or fewer if fewer are named."""
    return min(2, len(checkpoints_among(make_game(config.game), names)))


def check_crossplay(config: Config, names: Sequence[str]) -> None:
    """Raises UserError unless the names are two or more different players."""
    if len(names) < 2 or len(set(names)) < len(names):
        raise UserError("crossplay: name two or more different players (checkpoints or scripted players)")
    check_meeting(config, "crossplay")
    check_names(config, names)


def _pairs(names: Sequence[str]) -> list[list[tuple[int, int]]]:
    return [[(row, column) for column in range(len(names))] for row in range(len(names))]


def _pairing(names: Sequence[str], pair: tuple[int, int], states: StateSet, episodes: int, output: Path) -> Pairing:
    first, second = pair
    return Pairing(names[first], names[second], states, output / f"{first}-{second}.jsonl", episodes)


async def _cell(
    config: Config, names: Sequence[str], pair: tuple[int, int], states: StateSet, episodes: int, output: Path,
    servers: Servers,
) -> Cell:  # fmt: skip
    first, second = names[pair[0]], names[pair[1]]
    pairing = _pairing(names, pair, states, episodes, output)
    lost = await play_pairing(config, pairing, servers)
    game = make_game(config.game)
    seating = Seating.BOTH if game.shared_reward or first == second else Seating.ONE
    tallies = {seats: Tally(game, len(states), seats, measure_reward) for seats in {seating, Seating.BOTH}}
    for record in read_episodes(pairing.file):
        for tally in tallies.values():
            tally.add([record])
    totals = {seats: tally.totals() for seats, tally in tallies.items()}
    return Cell(totals[seating].intervals()[REWARD.name], totals[Seating.BOTH], lost)
