"""The suite of `selfplay benchmark`: its boards, which are configurations of games with fixed states.

The states are drawn from `SEED` in the held-out space, or come with the package. Their hashes are published here and
checked before play. Whoever changes a board or a hash raises `VERSION`, because lines of two versions do not compare.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.shipped import shipped
from selfplay_pipeline.evaluate.states import StateSet, first_of, held_out_states, read_states
from selfplay_pipeline.games.base import GameSettings
from selfplay_pipeline.games.registry import make_game, parse_game_config

SUITE, VERSION = "selfplay-benchmark", 1
Protocol = Literal["fixed", "free"]
SEED = 48
"""Seed of the drawn states; evaluations and trainings use 0 by default."""
HONEST = {"size": 3, "max_score": 9, "score_power": 3, "visibility": "complementary", "scale_max": 1, "hard_factor": 0}
"""Matching in which each cell of the table is visible to exactly one player."""
SMALL_MEDIATION = {"flights": 5, "days": 1, "p_event": 0.9, "p_shared": 0}
SMALL_PLANNING = {
    "places": 5, "features": ["touristy", "good for kids", "good for groups"], "features_per_place": 3,
    "preferences": 3, "max_searches": 1,
}  # fmt: skip


SHA256 = {
    "matching-3x3": "247e4979ac1623096435645d5fcedf9692ae63f0c5a5556402d7ddb5fb27d7dc",
    "matching-people": "f9624140b647ccf30d8f62cfe3f02e3032fe2847ddb538dd3c677f2e3c7bc77f",
    "matching-8x8": "862403f61036b5f76a44ed7d152cae3a17033ef777a291ac227820b0e3af7a57",
    "bargaining": "14164f5fbe4d4d1a57a5c31746256502167a01300d3aa157d591d1cf4980b1fb",
    "mediation-small": "474517ae1bf42aff9de7459deea3ba7fef7d55d5441e9dedd5a0bb93c1241b22",
    "mediation-dialop": "eb1e1eef0c14ad9b34b0fe8d40d851618a9651f27d3cf54816aa943e21ee5a85",
    "planning-small": "4d05e9ea1bebd3ab0d76c1c5b2001ce29cb16b7cb36cefa4743af37b4c7b20f6",
    "planning-dialop": "a221dc046db0370f30fc8e8d0808bdd3b7782cbba5b9ea74fdf3d8a512600cd0",
}
"""Hash of the states of each set (`StateSet.fingerprint`)."""
PROTOCOLS: tuple[Protocol, ...] = ("fixed", "free")


@dataclass(frozen=True)
class Board:
    """One configuration of a game with its states.

    Attributes:
        of: Name of the set of states.
        game: Name of the game.
        count: Number of states.
        protocol: Rule of turns.
        settings: Further settings of the game; all others have their defaults.
        file: File of the states; "" for drawn states.
    """

    of: str
    game: str
    count: int
    protocol: Protocol
    settings: Mapping[str, Any] = field(default_factory=dict)
    file: str = ""

    @property
    def name(self) -> str:
        return f"{self.of}-{self.protocol}"

    def config(self, prompts: str = "default") -> GameSettings:
        """Returns the configuration of the game, with these prompts, which are the player's own affair."""
        return parse_game_config({**self.settings, "name": self.game, "protocol": self.protocol, "prompts": prompts})

    def states(self, most: int | None = None) -> StateSet:
        """Returns the states, or the first `most` of them.

        Raises:
            UserError: This installation draws other states than the published ones.
        """
        game, count = make_game(self.config()), min(self.count, most or self.count)
        found = read_states(Path(shipped(self.file)), game) if self.file else held_out_states(game, count, SEED)
        if len(found) == self.count and found.fingerprint != SHA256[self.of]:
            raise UserError(
                f"benchmark: the states of {self.name} are not those of version {VERSION} (SHA-256 "
                f"{found.fingerprint[:12]}…, published {SHA256[self.of][:12]}…); install the package and numpy anew"
            )
        return first_of(game, found, count)


BOARDS = (
    *(Board("matching-3x3", "matching", 200, protocol, HONEST) for protocol in PROTOCOLS),
    Board("matching-people", "matching", 134, "free", {"max_length": 100}, "data/dialop/optimization_human.jsonl"),
    Board("matching-8x8", "matching", 100, "free", {"max_length": 100}),
    *(Board("bargaining", "bargaining", 200, protocol) for protocol in PROTOCOLS),
    *(Board("mediation-small", "mediation", 200, protocol, SMALL_MEDIATION) for protocol in PROTOCOLS),
    Board("mediation-dialop", "mediation", 100, "free"),
    *(Board("planning-small", "planning", 200, protocol, SMALL_PLANNING) for protocol in PROTOCOLS),
    Board("planning-dialop", "planning", 100, "free"),
)


def chosen(player: str, names: Sequence[str] = ()) -> list[Board]:
    """Returns the boards that a player plays; a scripted player plays only games that have it.

    Args:
        player: The player.
        names: Names of games and boards; empty for all.

    Raises:
        UserError: There is no such game or board, or no chosen game has the scripted player.
    """
    known = dict.fromkeys(name for board in BOARDS for name in (board.game, board.name))
    if unknown := [name for name in names if name not in known]:
        raise UserError(f"--games: no game or board {unknown[0]!r}; choose among {', '.join(known)}")
    asked = [board for board in BOARDS if not names or {board.game, board.name} & {*names}]
    scripted = {board.name for board in BOARDS if player in make_game(board.config()).players}
    found = [board for board in asked if board.name in scripted or not scripted]
    if not found:
        raise UserError(f"--games: the scripted player {player} plays only {', '.join(sorted(scripted))}")
    return found
