"""Figures of a set of episodes, added up one episode at a time."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, ConfigDict

from selfplay_pipeline.games.base import Status
from selfplay_pipeline.games.figures import Figure
from selfplay_pipeline.games.measured import Measured
from selfplay_pipeline.games.registry import game_named
from selfplay_pipeline.generate.records import EpisodeRecord, PartnerUsage
from selfplay_pipeline.metrics.figures import REWARD, summarised
from selfplay_pipeline.metrics.signal import Scored, Signal, groups_of


class Played(BaseModel):
    """The figures of played episodes, as `generate` stores them. None is what nothing was measured for.

    Figures that no code asks for by name are extra fields: `games.figures.Figure.summary` is the key of each.
    """

    model_config = ConfigDict(extra="allow", frozen=True, allow_inf_nan=False)

    episodes: int | None = None
    states: int | None = None
    groups: int
    """Groups as `metrics.signal` counts them."""
    mean_reward: float
    reward_standard_error: float
    best_reward: float | None = None
    """Mean over states of the best episode's reward."""
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

    @property
    def share_without_signal(self) -> float:
        """Share of the groups whose episodes all scored alike."""
        return self.groups_without_signal / max(1, self.groups)


ALWAYS = [key for key in summarised() if key in Played.model_fields and Played.model_fields[key].is_required()]
"""The figures that `Played` cannot be without."""


@dataclass
class Summary:
    """Add episodes, then read `result`. Engine failures are counted but are in no mean.

    Figures are of the trained seats, or of all where they say so. Where no seat is trained, the reward is that of all
    seats, and other figures are of seat 0.
    """

    rewards: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    """Normalised rewards by group index."""
    scored: list[Scored[int]] = field(default_factory=list)
    """The rewards of the single seats."""
    shared: bool = True
    """Whether in each episode all seats have one reward."""
    statuses: Counter[str] = field(default_factory=Counter)
    games: set[str] = field(default_factory=set)
    """The names of the games of the episodes."""
    sums: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Numerator and denominator of figures, by their keys in `Played`."""
    distinct: set[int] = field(default_factory=set)
    """Hashes of all messages."""
    sampled_tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    partner: PartnerUsage | None = None
    """What a chat model was asked, in all episodes of the file and in those that this process lost. Episodes that were
    cut with their process are not counted."""
    seconds: float = 0.0
    """How long this process has played."""
    episodes_before: int = 0
    tokens_before: int = 0
    """What the file held before this process began; rates leave it out."""

    def start(self) -> None:
        """Say that what was added so far was played by an earlier process, so that rates leave it out."""
        self.episodes_before, self.tokens_before = self.episodes, self.sampled_tokens

    def add(self, record: EpisodeRecord) -> None:
        self.statuses[record.outcome.status] += 1
        self.prompt_tokens += record.prompt_tokens
        self.cached_tokens += record.cached_tokens
        if record.partner is not None:
            self.partner = (self.partner or PartnerUsage()) + record.partner
        game = game_named(record.game)
        self.games.add(record.game)
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
        played = self.result()
        return (
            f"{played.episodes_per_second:.1f} episodes/s, {played.sampled_tokens_per_second:.0f} tokens/s, "
            f"reward {played.mean_reward:.3f}, agreed {played.agreement_rate:.0%}"
        )

    @property
    def episodes(self) -> int:
        return self.statuses.total()

    @property
    def failures(self) -> int:
        return self.statuses[Status.ENGINE_FAILURE.value]

    @property
    def mean_reward(self) -> float:
        """Mean over episodes, of the seats that the policy held; of all seats where it held none."""
        rewards = [reward for group in self.rewards.values() for reward in group]
        return sum(rewards) / len(rewards) if rewards else 0.0

    @property
    def reward_error(self) -> float:
        """Standard error of the mean, with groups as the independent units (episodes of a state are not)."""
        means = [sum(group) / len(group) for group in self.rewards.values()]
        if len(means) < 2:
            return 0.0
        centre = sum(means) / len(means)
        return math.sqrt(sum((mean - centre) ** 2 for mean in means) / (len(means) - 1) / len(means))

    @property
    def best_reward(self) -> float:
        """Mean over states of the reward of the best episode: what is reached with luck."""
        return sum(map(max, self.rewards.values())) / max(1, len(self.rewards))

    @property
    def figures(self) -> dict[str, float]:
        """Figures of the episodes' games by their keys in `Played`; none where there was nothing to measure.

        What every summary has is 0 before the first episode.
        """
        means = {key: above / below for key, (above, below) in self.sums.items() if below}
        return dict.fromkeys(ALWAYS, 0.0) | {REWARD.summary: self.mean_reward} | means

    @property
    def shown(self) -> list[tuple[Figure, float]]:
        """The figures that have a value, in the order in which they are shown."""
        known, figures = self.figures, summarised(*map(game_named, sorted(self.games)))
        return [(figure, known[key]) for key, figure in figures.items() if key in known]

    @property
    def signal(self) -> Signal:
        """How many groups there are, and how many of them GRPO learns nothing from."""
        groups = groups_of(row._replace(by_seat=not self.shared) for row in self.scored)
        return Signal.of(group.values() for group in groups.values())

    def result(self) -> Played:
        """What is known of all episodes so far."""
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
            episodes_per_second=self._rate(self.episodes - self.episodes_before),
            sampled_tokens_per_second=self._rate(self.sampled_tokens - self.tokens_before),
            **self.figures,
        )
        if self.partner is None:
            return found
        return found.model_copy(update={"partner": PartnerUsage(**self.partner.model_dump())})

    def to_dict(self) -> dict[str, Any]:
        """The same as JSON holds it."""
        return self.result().model_dump(mode="json", exclude_unset=True)

    def _rate(self, count: int) -> float:
        return count / self.seconds if self.seconds else 0.0
