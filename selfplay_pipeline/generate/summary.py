"""Figures of a set of episodes, accumulated one episode at a time."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from selfplay_pipeline.games.base import CUT, Game, Status
from selfplay_pipeline.games.figures import Figure
from selfplay_pipeline.games.measured import Measured
from selfplay_pipeline.games.registry import game_of
from selfplay_pipeline.generate.records import EpisodeRecord, PartnerUsage
from selfplay_pipeline.metrics.figures import REWARD, summarised
from selfplay_pipeline.metrics.signal import Scored, Signal, groups_of


class WithPartner(BaseModel):
    """Figures of the episodes with one partner; groups are defined by `metrics.signal`."""

    model_config = ConfigDict(extra="allow", frozen=True, allow_inf_nan=False)

    share: float
    """Share of the game states."""
    mean_reward: float
    """Mean over episodes of the policy's reward."""
    groups: int
    groups_without_signal: int


class Played(BaseModel):
    """Figures of played episodes, as `generate` stores them; None if a figure was not measured.

    Figures that no code accesses by name are extra fields with the key `games.figures.Figure.summary`.
    """

    model_config = ConfigDict(extra="allow", frozen=True, allow_inf_nan=False)

    episodes: int | None = None
    states: int | None = None
    groups: int
    """Number of groups, as defined by `metrics.signal`."""
    mean_reward: float
    reward_standard_error: float
    best_reward: float | None = None
    """Mean over states of the reward of the best episode."""
    agreement_rate: float
    statuses: dict[str, int] = {}
    illegal_per_episode: float
    illegal_actions: int | None = None
    messages_per_episode: float
    sampled_tokens: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    prefix_cache_hit_share: float | None = None
    token_entropy: float | None = None
    proposed_without_message: float | None = None
    repeated_messages: float | None = None
    distinct_messages: int | None = None
    questions_per_episode: float | None = None
    groups_without_signal: int
    seconds: float | None = None
    episodes_per_second: float | None = None
    sampled_tokens_per_second: float | None = None
    partner: PartnerUsage | None = None
    partners: dict[str, WithPartner] = Field(default={}, exclude_if=lambda partners: not partners)
    """Figures by partner; empty unless the policy had several."""


ALWAYS = [key for key in summarised() if key in Played.model_fields and Played.model_fields[key].is_required()]
"""Required figures of `Played`."""


@dataclass
class Summary:
    """Accumulator: add episodes, then call `result`. Engine failures are counted, but do not enter any mean.

    A figure measures the trained seats, or all seats if `Figure.everyone` is set. Without a trained seat, the reward is
    measured on all seats and other figures on seat 0.
    """

    rewards: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    """Normalised rewards by group index."""
    scored: list[Scored[int]] = field(default_factory=list)
    """Rewards of single seats."""
    shared: bool = True
    """Whether all seats of each episode have the same reward."""
    statuses: Counter[str] = field(default_factory=Counter)
    games: dict[tuple[str, int], Game] = field(default_factory=dict)
    """Games of the episodes by name and number of seats, which may depend on the state."""
    sums: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Numerator and denominator of figures, by their keys in `Played`."""
    distinct: set[int] = field(default_factory=set)
    """Hashes of all messages."""
    sampled_tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    partner: PartnerUsage | None = None
    """Usage of a chat model in all episodes of the file and in the episodes that failed in this process. Episodes that
    were interrupted together with their process are not counted."""
    seconds: float = 0.0
    """Playing time of this process in seconds."""
    episodes_before: int = 0
    tokens_before: int = 0
    """Number of sampled tokens that the file had before this process began; rates exclude them."""

    def start(self) -> None:
        """Exclude the episodes added so far from rates, because an earlier process played them."""
        self.episodes_before, self.tokens_before = self.episodes, self.sampled_tokens

    def add(self, record: EpisodeRecord) -> None:
        self.statuses[record.outcome.status] += 1
        self.prompt_tokens += record.prompt_tokens
        self.cached_tokens += record.cached_tokens
        if record.partner is not None:
            self.partner = (self.partner or PartnerUsage()) + record.partner
        game = game_of(record.game, record.state)
        self.games.setdefault((record.game, len(game.roles)), game)
        everyone = Measured(game, record, range(len(record.seats)))
        self.sampled_tokens += everyone.sampled_tokens
        if record.outcome.status == Status.ENGINE_FAILURE:
            return
        seats = record.seats_of()
        policy = Measured(game, record, seats)
        self.rewards[record.group_index].append(policy.reward)
        self.scored += record.scored(seats)
        self.shared = self.shared and record.outcome.rewards is None
        asking = policy if record.trained_seats else Measured(game, record, [0])
        for key, figure in summarised(game).items():
            if figure is not REWARD:
                above, below = figure.parts(everyone if figure.everyone else asking)
                summed = self.sums.get(key, (0, 0))
                self.sums[key] = (summed[0] + above, summed[1] + below)
        self.distinct.update(hash(text.strip()) for text in everyone.said)

    def line(self) -> str:
        """Returns the figures so far in one line."""
        return (
            f"{self._episodes_per_second:.1f} episodes/s, {self._tokens_per_second:.0f} tokens/s, "
            f"reward {self.mean_reward:.3f}, agreed {self.figures['agreement_rate']:.0%}"
        )

    @property
    def episodes(self) -> int:
        return self.statuses.total()

    @property
    def failures(self) -> int:
        return self.statuses[Status.ENGINE_FAILURE.value]

    @property
    def mean_reward(self) -> float:
        """Mean over episodes of the reward of the trained seats, or of all seats if none is trained."""
        rewards = [reward for group in self.rewards.values() for reward in group]
        return sum(rewards) / len(rewards) if rewards else 0.0

    @property
    def reward_error(self) -> float:
        """Standard error of the mean over groups, since episodes of one state are not independent."""
        means = [sum(group) / len(group) for group in self.rewards.values()]
        if len(means) < 2:
            return 0.0
        centre = sum(means) / len(means)
        return math.sqrt(sum((mean - centre) ** 2 for mean in means) / (len(means) - 1) / len(means))

    @property
    def best_reward(self) -> float:
        """Mean over states of the reward of the best episode."""
        return sum(map(max, self.rewards.values())) / max(1, len(self.rewards))

    @property
    def figures(self) -> dict[str, float]:
        """Values of the figures by their keys in `Played`; figures that were not measured are left out.

        The required figures are 0 before the first episode.
        """
        means = {key: above / below for key, (above, below) in self.sums.items() if below}
        return dict.fromkeys(ALWAYS, 0.0) | {REWARD.summary: self.mean_reward} | means

    @property
    def shown(self) -> list[tuple[Figure, float]]:
        """Figures that have a value, in display order."""
        known, figures = self.figures, summarised(*(self.games[key] for key in sorted(self.games)))
        return [(figure, known[key]) for key, figure in figures.items() if key in known]

    @property
    def signal(self) -> Signal:
        """Number of groups, and number of groups without a GRPO training signal."""
        return self._signal(self.scored)

    def _signal(self, rows: Iterable[Scored[int]]) -> Signal:
        groups = groups_of(row._replace(by_seat=not self.shared) for row in rows)
        return Signal.of(group.values() for group in groups.values())

    def by_partner(self, partners: Mapping[int, str]) -> dict[str, WithPartner]:
        """Returns the figures by partner.

        Args:
            partners: Partner of each game state.
        """
        rows = defaultdict[str, list[Scored[int]]](list)
        for row in self.scored:
            rows[partners[row.state]].append(row)
        signals = {partner: self._signal(own) for partner, own in rows.items()}
        states = Counter(partners[state] for state in self.rewards)
        return {
            partner: WithPartner(
                share=states[partner] / states.total(),
                mean_reward=fmean(row.reward for row in own),
                groups=signals[partner].groups,
                groups_without_signal=signals[partner].without,
            )
            for partner, own in sorted(rows.items())
        }

    def result(self) -> Played:
        """Returns the figures of all episodes so far."""
        signal = self.signal
        found = Played(
            episodes=self.episodes,
            states=len(self.rewards),
            groups=signal.groups,
            reward_standard_error=self.reward_error,
            best_reward=self.best_reward,
            statuses=dict(self.statuses),
            illegal_actions=int(self.sums.get("illegal_per_episode", (0, 0))[0]),
            sampled_tokens=self.sampled_tokens,
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            prefix_cache_hit_share=self.cached_tokens / max(1, self.prompt_tokens),
            distinct_messages=len(self.distinct),
            groups_without_signal=signal.without,
            seconds=self.seconds,
            episodes_per_second=self._episodes_per_second,
            sampled_tokens_per_second=self._tokens_per_second,
            **self.figures,
        )
        return found if self.partner is None else found.model_copy(update={"partner": self.partner})

    def to_dict(self) -> dict[str, Any]:
        """Returns the figures as JSON values."""
        return self.result().model_dump(mode="json", exclude_unset=True)

    @property
    def _episodes_per_second(self) -> float:
        return self._rate(self.episodes - self.episodes_before)

    @property
    def _tokens_per_second(self) -> float:
        return self._rate(self.sampled_tokens - self.tokens_before)

    def _rate(self, count: int) -> float:
        return count / self.seconds if self.seconds else 0.0


def line_of(summaries: Mapping[str, Summary], seconds: float) -> str:
    """Returns the figures so far of sets of episodes that are played together, in one line.

    Args:
        summaries: Figures of each set, by its name.
        seconds: Playing time so far.
    """
    if len(summaries) == 1:
        return next(iter(summaries.values())).line()
    every = summaries.values()
    episodes = sum(one.episodes - one.episodes_before for one in every) / seconds
    tokens = sum(one.sampled_tokens - one.tokens_before for one in every) / seconds
    rewards = ", ".join(f"{name} {one.mean_reward:.3f}" for name, one in summaries.items() if one.rewards)
    return f"{episodes:.1f} episodes/s, {tokens:.0f} tokens/s, reward: {rewards or 'none yet'}"


WARM_START = "needs a warm start"
"""End of a reason that training on recorded episodes removes."""


def why_unsuccessful(records: Iterable[EpisodeRecord], max_new_tokens: int) -> str | None:
    """Returns why no episode of the policy could reach the game's goal, and what to do; None if that has no one reason.

    Args:
        records: The episodes.
        max_new_tokens: Maximum number of tokens of a turn (`generate.max_new_tokens`).
    """
    statuses, kinds, longest = set[str](), set[str | None](), 0
    for record in records:
        if record.outcome.status == Status.ENGINE_FAILURE:
            continue
        statuses.add(record.outcome.status)
        kinds |= {turn.error_kind for turn in record.turns if turn.seat in record.trained_seats}
        longest = max(longest, len(record.turns))
        if len(statuses) > 1 and None in kinds:
            return None
    illegal = None
    if kinds == {CUT}:
        illegal = (
            f"every turn was cut at {max_new_tokens} tokens; raise generate.max_new_tokens, or the model {WARM_START}"
        )
    elif kinds and None not in kinds:
        illegal = f"no turn of the model was legal: it does not write what the game reads, and {WARM_START}"
    if statuses == {Status.TURN_LIMIT}:
        limit = f"every episode ended at the game's limit of {longest} turns"
        if illegal is not None:  # either cause alone would have been enough
            return f"{limit} (`game.max_length` sets it), and {illegal}"
        return f"{limit}, before its goal; raise `game.max_length`, or take a model that has learned to end the game"
    return illegal
