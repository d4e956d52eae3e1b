"""Gaps of cross-play: how much a player's reward falls with strangers, and rises with a best responder. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict

from selfplay_pipeline.metrics.bootstrap import Interval, Totals, contrast, contrast_over_seeds
from selfplay_pipeline.metrics.figures import REWARD

Matrix = Sequence[Sequence[Totals]]
"""Rewards by game state, the mean over all seats, with player i in seat 0 and player j in all others."""
Terms = list[tuple[float, Totals]]


class Gaps(BaseModel):
    """Gaps of one arm, whose players are independent trainings of one kind (`seeds`).

    R_ij is the mean reward of all seats with player i in seat 0 and player j in all others, and
    M_ij = (R_ij + R_ji) / 2. Both gaps are means over the players of the arm. Their intervals cover states and, with
    several players, further trainings; `pair_terms` says how.

    Attributes:
        seeds: Number of players of the arm.
        cross_seed: R_ii minus the mean of M_ij over the other players j of the arm; None with one player.
        partner: R_ii minus the mean of M_ij over the players j without an arm; None without such players.
    """

    model_config = ConfigDict(extra="forbid")

    seeds: int
    cross_seed: Interval | None = None
    partner: Interval | None = None

    def in_words(self) -> str:
        """Returns the known gaps in one line."""
        found = {"cross-seed gap": self.cross_seed, "partner gap": self.partner}
        return ", ".join(f"{label} {interval:+}" for label, interval in found.items() if interval)


class BestResponse(BaseModel):
    """Best-response gap: what a policy gains that was trained with a frozen player, over this player with itself.

    The gap is the mean reward of all seats with the responder in the seat in which it was trained and the frozen player
    in all others, minus that of the frozen player with itself, paired by state. It is a lower bound of what the best
    response gains, since a training with a fixed budget need not find it.

    Attributes:
        responder: Number of the responder among the players.
        partner: Number of the frozen player.
        seat: Seat of the responder.
        gap: The gap.
    """

    model_config = ConfigDict(extra="forbid")

    responder: int
    partner: int
    seat: int
    gap: Interval


def best_response(rewards: Matrix, responder: int, partner: int, seat: int) -> BestResponse:
    """Returns the best-response gap of a player.

    Args:
        rewards: The matrix; all cells have the same states.
        responder: Number of the responder.
        partner: Number of the frozen player.
        seat: Seat of the responder: 0, or 1 in a game of two seats.
    """
    together = rewards[partner][responder] if seat else rewards[responder][partner]
    gap = contrast([(1, together), (-1, rewards[partner][partner])])[REWARD.name]
    return BestResponse(responder=responder, partner=partner, seat=seat, gap=gap)


def gaps_of(rewards: Matrix, arms: Sequence[str]) -> dict[str, Gaps]:
    """Returns the gaps of each arm that has any.

    Args:
        rewards: The matrix; all cells have the same states.
        arms: Name of each player's arm; empty for a player without one.
    """
    strangers = [player for player, arm in enumerate(arms) if not arm]
    found = {}
    for arm in dict.fromkeys(filter(None, arms)):
        players = [player for player, of in enumerate(arms) if of == arm]
        gaps = Gaps(
            seeds=len(players),
            cross_seed=_mean([cross_seed_terms(rewards, player, players) for player in players])
            if len(players) > 1
            else None,
            partner=_mean([gap_terms(rewards, player, strangers) for player in players]) if strangers else None,
        )
        if gaps.cross_seed or gaps.partner:
            found[arm] = gaps
    return found


def cross_seed_terms(rewards: Matrix, player: int, players: Sequence[int]) -> Terms:
    """Returns a player's contribution to the cross-seed gap of its arm, as weighted terms."""
    return [(1.0, rewards[player][player]), *minus(pair_terms(rewards, player, players))]


def pair_terms(rewards: Matrix, player: int, players: Sequence[int]) -> Terms:
    """Returns a player's contribution to U, the mean of M_ij over all pairs of the arm's players, as weighted terms.

    The contribution is the jackknife's pseudo-value n U - (n - 1) U', where U' is the mean over the pairs without this
    player. Its mean over the players is U (Arvesen, "Jackknifing U-Statistics", Annals of Mathematical Statistics 40,
    1969). A player's own mean over the others, half of which are the others' doing, would spread too little: by a
    factor of four, if there are three players and a pair reaches the mean of its players' skills. For what is peculiar
    to a pair, the jackknife of few players spreads too much. Two players have one pair, which tells no spread.
    """
    others = [other for other in players if other != player]
    if len(others) == 1:
        return stranger_terms(rewards, player, others)
    whole = _pairs(rewards, players, len(players))
    return whole + _pairs(rewards, others, -len(others))


def _pairs(rewards: Matrix, players: Sequence[int], weight: float) -> Terms:
    """Returns the mean of M_ij over the pairs of these players times a weight, as weighted terms."""
    cells = [rewards[one][other] for one in players for other in players if one != other]
    return [(weight / len(cells), cell) for cell in cells]


def gap_terms(rewards: Matrix, player: int, others: Sequence[int]) -> Terms:
    """Returns R_ii minus the mean of M_ij over others, as weighted terms."""
    return [(1.0, rewards[player][player]), *minus(stranger_terms(rewards, player, others))]


def stranger_terms(rewards: Matrix, player: int, others: Sequence[int]) -> Terms:
    """Returns the mean of M_ij over others, as weighted terms."""
    weight = 0.5 / len(others)
    return [(weight, cell) for other in others for cell in (rewards[player][other], rewards[other][player])]


def minus(terms: Terms) -> Terms:
    """Returns the negative of a weighted sum."""
    return [(-weight, totals) for weight, totals in terms]


def _mean(gaps: Sequence[Terms]) -> Interval:
    return contrast_over_seeds(gaps, same_states=True, bounded=(REWARD.name,))[REWARD.name]
