"""Figures of a set of episodes, added up one episode at a time."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import asdict, dataclass, field
from typing import Any

from pydantic import BaseModel, ConfigDict

from selfplay_pipeline.games.base import INVALID, MESSAGE, Status
from selfplay_pipeline.games.registry import game_named
from selfplay_pipeline.generate.records import POLICY, EpisodeRecord, PartnerUsage
from selfplay_pipeline.metrics.signal import has_signal


class Played(BaseModel):
    """The figures of played episodes, as `generate` stores them. None is what an earlier version did not take."""

    model_config = ConfigDict(extra="allow", frozen=True, allow_inf_nan=False)

    episodes: int | None = None
    groups: int
    mean_reward: float
    reward_standard_error: float
    agreement_rate: float
    statuses: dict[str, int] = {}
    illegal_per_episode: float
    illegal_actions: int | None = None
    messages_per_episode: float
    turns_per_episode: float | None = None
    sampled_tokens: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    prefix_cache_hit_share: float | None = None
    token_entropy: float | None = None
    proposed_without_message: float | None = None
    repeated_messages: float | None = None
    distinct_messages: int | None = None
    questions_per_episode: float | None = None
    specific_questions: float | None = None
    learned_per_question: float | None = None
    leaks_per_message: float | None = None
    groups_without_signal: int
    seconds: float | None = None
    episodes_per_second: float | None = None
    sampled_tokens_per_second: float | None = None
    partner: PartnerUsage | None = None

    @property
    def share_without_signal(self) -> float:
        """Share of the groups whose episodes all scored alike."""
        return self.groups_without_signal / max(1, self.groups)


@dataclass
class Summary:
    """Add episodes, then read `result`. Engine failures are counted but are in no mean.

    `token_entropy` is the mean of -log-prob over the sampled tokens, in nats: an unbiased estimate of the entropy
    of the distributions that they were sampled from. `specific_questions` is the share of questions that ask for the
    fact of the state, `leaks_per_message` that of the messages to the policy with facts nobody asked for.
    """

    rewards: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    """Normalised rewards by group index."""
    seat_rewards: dict[int, dict[int, dict[int, float]]] = field(default_factory=lambda: defaultdict(dict))
    """Rewards of the seats by group index, of episodes in which these differ."""
    statuses: Counter[str] = field(default_factory=Counter)
    agreed: int = 0
    """Episodes that reached the game's goal."""
    illegal: int = 0
    messages: int = 0
    turns: int = 0
    proposed_untold: int = 0
    """Episodes whose first legal action was no message."""
    repeated: int = 0
    """Messages that repeat an earlier one of their episode word for word."""
    distinct: set[int] = field(default_factory=set)
    """Hashes of all messages."""
    surprise: float = 0.0
    """Sum of -log-prob of the sampled tokens …"""
    own_tokens: int = 0
    """… and how many these are, of episodes that the engine did not fail."""
    asked: Counter[str] = field(default_factory=Counter)
    """Questions of the policy (without one: of seat 0) and what came of them: sums of `Asking`."""
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
        self.sampled_tokens += sum(sum(t.response_mask) for t in record.trajectories)
        if record.outcome.status == Status.ENGINE_FAILURE:
            return
        own = record.seats_of(POLICY)
        rewards = self.rewards[record.group_index]
        if record.outcome.rewards is not None:
            of_seats = {seat: record.outcome.rewards[seat] for seat in own}
            self.seat_rewards[record.group_index][len(rewards)] = of_seats
        rewards.append(record.outcome.mean_reward_of(own))
        self.illegal += record.outcome.num_illegal
        self.messages += record.outcome.num_messages
        self.turns += record.outcome.num_turns
        self.own_tokens += sum(sum(t.response_mask) for t in record.trajectories)
        self.surprise -= sum(sum(t.response_logprobs) for t in record.trajectories)
        said = [turn.text.strip() for turn in record.turns if turn.action == MESSAGE]
        self.repeated += len(said) - len(set(said))
        self.distinct.update(map(hash, said))
        opened = next((turn.action for turn in record.turns if turn.action != INVALID), MESSAGE)
        self.proposed_untold += opened != MESSAGE
        game = game_named(record.game)
        self.agreed += record.outcome.status in game.goals
        state = game.load_state(record.state)
        for seat in own if POLICY in record.players else [0]:
            self.asked.update(asdict(game.asking(state, record.turns, seat)))

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
    def agreement_rate(self) -> float:
        return self.agreed / max(1, self.episodes - self.failures)

    @property
    def zero_signal_groups(self) -> int:
        """Groups whose episodes all scored alike: GRPO learns nothing from them."""
        return sum(not self.has_signal(group) for group in self.rewards)

    def has_signal(self, group: int) -> bool:
        """Whether the episodes of a group did not all score alike, for one of the policy's seats at least."""
        means, differing = self.rewards[group], self.seat_rewards.get(group)
        if not differing:
            return has_signal(means)
        episodes = [differing.get(number, mean) for number, mean in enumerate(means)]
        return any(
            has_signal([found if isinstance(found, float) else found[seat] for found in episodes])
            for seat in set.intersection(*(set(own) for own in differing.values()))
        )

    def result(self) -> Played:
        """The figures of all episodes so far."""
        played = max(1, self.episodes - self.failures)
        found = Played(
            episodes=self.episodes,
            groups=len(self.rewards),
            mean_reward=self.mean_reward,
            reward_standard_error=self.reward_error,
            agreement_rate=self.agreement_rate,
            statuses=dict(self.statuses),
            illegal_per_episode=self.illegal / played,
            illegal_actions=self.illegal,
            messages_per_episode=self.messages / played,
            turns_per_episode=self.turns / played,
            sampled_tokens=self.sampled_tokens,
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            prefix_cache_hit_share=self.cached_tokens / max(1, self.prompt_tokens),
            token_entropy=self.surprise / max(1, self.own_tokens),
            proposed_without_message=self.proposed_untold / played,
            repeated_messages=self.repeated / max(1, self.messages),
            distinct_messages=len(self.distinct),
            questions_per_episode=self.asked["questions"] / played,
            specific_questions=self.asked["specific"] / max(1, self.asked["questions"]),
            learned_per_question=self.asked["learned"] / max(1, self.asked["questions"]),
            leaks_per_message=self.asked["leaks"] / max(1, self.asked["partner_messages"]),
            groups_without_signal=self.zero_signal_groups,
            seconds=self.seconds,
            episodes_per_second=self._rate(self.episodes - self.episodes_before),
            sampled_tokens_per_second=self._rate(self.sampled_tokens - self.tokens_before),
        )
        if self.partner is None:
            return found
        return found.model_copy(update={"partner": PartnerUsage(**self.partner.model_dump())})

    def to_dict(self) -> dict[str, Any]:
        """The same as JSON holds it."""
        return self.result().model_dump(mode="json", exclude_unset=True)

    def _rate(self, count: int) -> float:
        return count / self.seconds if self.seconds else 0.0
