"""Partner of each group of training episodes. Pure: the same configuration and numbers give the same partners."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from selfplay_pipeline.config.schema import MEMBERS, PAST, SELF, Config, PartnerShare
from selfplay_pipeline.core.shipped import as_listed
from selfplay_pipeline.games.registry import make_game
from selfplay_pipeline.generate.records import POLICY
from selfplay_pipeline.generate.seats import is_checkpoint, self_play

MEMBER = re.compile(r"member_[1-9][0-9]*")
"""Pattern of the names of a population's members, which are also the names of their run folders."""


@dataclass(frozen=True)
class Group:
    """Players of a group of episodes.

    Attributes:
        partner: Partner as the configuration names it.
        players: Name of the player of each seat.
    """

    partner: str
    players: tuple[str, ...]


def groups_of_iteration(
    config: Config, number: int, past: Sequence[str], members: Mapping[str, str] = {}
) -> list[Group]:
    """Returns the players of each group of an iteration, in the order of its game states.

    A partner holds all seats but one, which the policy holds; the policy's seat changes from one of the partner's
    groups to the next, over the whole run. The partner `past` draws one of the newest earlier checkpoints per group.

    Args:
        config: The configuration.
        number: Number of the iteration, counted from 1.
        past: Checkpoints that `past` draws from, newest first; not empty.
        members: Checkpoints of the other members of a population, by name.
    """
    partners, everyone = config.iterate.partners, self_play(make_game(config.game))
    count = config.generate.num_groups
    first = (number - 1) * count
    groups = []
    for at, (index, before) in enumerate(islice(partners_in_turn(partners), first, first + count), start=first):
        partner = partners[index]
        groups.append(
            Group(
                as_listed(partner.player),
                seated(
                    everyone,
                    members.get(partner.player) or _player(config, partner, at, past),
                    before % len(everyone),
                ),
            )
        )
    return groups


def seated(everyone: Sequence[str], partner: str, seat: int) -> tuple[str, ...]:
    """Returns the player of each seat: the policy holds `seat`, or all seats in self-play."""
    return tuple(name if partner == SELF or at == seat else partner for at, name in enumerate(everyone))


def seats_of(config: Config) -> tuple[str, ...]:
    """Returns the player of each seat in the training episodes of a policy with one partner."""
    return seated(self_play(make_game(config.game)), config.iterate.partner, config.iterate.seat)


def partners_in_turn(partners: Sequence[PartnerShare]) -> Iterator[tuple[int, int]]:
    """Yields for each group of a run the index of its partner, and the number of earlier groups of this partner.

    After n groups, the number of groups of each partner differs from share x n by less than 1, for every n (the
    chairman assignment of Tijdeman, 1980).
    """
    shares, taken = [one.share for one in partners], [0] * len(partners)
    slack = 1 / max(1, 2 * len(shares) - 2)
    n = 0
    while True:
        n += 1
        owed = [share * n - had for share, had in zip(shares, taken, strict=True)]
        waiting = [at for at, groups in enumerate(owed) if groups >= slack - 1e-9] or [owed.index(max(owed))]
        chosen = min(waiting, key=lambda at: (1 - slack - owed[at]) / shares[at])
        yield chosen, taken[chosen]
        taken[chosen] += 1


def _player(config: Config, partner: PartnerShare, group: int, past: Sequence[str]) -> str:
    if partner.player != PAST:
        return partner.player
    newest = past[: partner.last]
    return newest[int(np.random.default_rng([config.seed, group, len(newest)]).integers(len(newest)))]


def earlier_checkpoints(checkpoints: Sequence[str]) -> list[str]:
    """Returns the checkpoints that `past` may draw from, newest first.

    Args:
        checkpoints: Checkpoints of a run up to the one that plays, oldest first. The starting model, with which the
            first iteration plays, has no earlier one; it is then its own past.
    """
    *earlier, policy = checkpoints
    return [name for name in dict.fromkeys(reversed(earlier)) if name != policy] or [policy]


def named_partners(config: Config) -> list[str]:
    """Returns the names of the partners in training except `self`, `past` and members of the population."""
    options = config.iterate
    if not options.partners:
        return [] if options.partner == SELF else [options.partner]
    names = [one.player for one in options.partners]
    return [name for name in names if name not in (SELF, PAST, MEMBERS) and not MEMBER.fullmatch(name)]


def named_members(config: Config) -> list[str]:
    """Returns the names of the other members of a population that are partners."""
    return [one.player for one in config.iterate.partners if MEMBER.fullmatch(one.player)]


def other_players(config: Config) -> list[str]:
    """Returns the names of the partners in training and of the foreign player of evaluations."""
    return [*named_partners(config), *([config.iterate.foreign] if config.iterate.foreign else [])]


def at_once(config: Config) -> int:
    """Returns the number of checkpoints served at the same time: the policy, and one checkpoint as partner."""
    has_past = any(one.player == PAST for one in config.iterate.partners)
    game = make_game(config.game)
    others = has_past or named_members(config) or any(is_checkpoint(game, name) for name in other_players(config))
    return 2 if others else 1


def trained_seats(config: Config) -> float:
    """Returns the mean number of seats of a training episode that the policy holds."""
    seats = len(make_game(config.game).roles)
    shares = config.iterate.partners or [PartnerShare(player=config.iterate.partner, share=1.0)]
    return sum(one.share * (seats if one.player == SELF else 1) for one in shares)


def partners_in_words(partners: Iterable[PartnerShare]) -> str:
    """Returns the partners with their shares in one line."""
    return ", ".join(
        f"{one.player} {one.share:.0%}" + f" (of the {one.last} newest earlier checkpoints)" * (one.player == PAST)
        for one in partners
    )


def everyone_named(config: Config) -> list[str]:
    """Returns the names of the policy and of all other players."""
    return [POLICY, *other_players(config)]
