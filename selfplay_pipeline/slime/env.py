"""An episode as one of slime's environments: takes the policy's turn, returns the observation before its next turn.

`rollout_interaction_env_path` names this module. `rollout.py` also plays through it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, TypeVar

from selfplay_pipeline.config.schema import SWITCHES
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.engines.types import EngineError, FinishReason
from selfplay_pipeline.games.base import Game, Status
from selfplay_pipeline.generate.chat_model import RequestCapError
from selfplay_pipeline.generate.episode import Episode, Player, Reply, Seat
from selfplay_pipeline.generate.records import PartnerUsage, Trajectory
from selfplay_pipeline.generate.text_player import TextSeat, text_player
from selfplay_pipeline.generate.trajectory import ChatTokenizer
from selfplay_pipeline.slime.config import RolloutConfig
from selfplay_pipeline.slime.data import game_of

T = TypeVar("T")
POLICY_SEAT = 0
EPISODE = "episode"
"""Key in a sample's metadata for {status, turns, usage, failure} of its episode; slime's own dumps contain it too."""
logger = logging.getLogger(__name__)


def build_env(sample: Any, args: Any) -> EpisodeEnv:
    """Returns the environment of one sample, whose metadata holds the game state.

    Raises:
        UserError: The state or the configuration is unusable.
    """
    return EpisodeEnv(sample, args)


class EpisodeEnv:
    """One episode against the configured partner.

    The environment keeps the sample's reward, metadata and `non_generation_time` up to date, so that slime needs no
    reward model. A failure of the partner ends the episode; the sample is then left out of training.
    """

    def __init__(self, sample: Any, args: Any) -> None:
        self.sample = sample
        self.args = args
        self.game, self.state = game_of(sample.metadata or {})
        self.config = RolloutConfig.of(args)
        self.partner_seconds = 0.0
        """Seconds that the partner has taken for its turns."""
        self.failure: str | None = None
        """Reason why the partner gave no answer, None if it has not failed."""
        self.episode: Episode
        """The current or finished episode; it exists after `start`."""

    @property
    def status(self) -> str | None:
        """Status of the finished episode, None before its end."""
        return self.episode.session.status

    @property
    def reward(self) -> float:
        """Reward of the policy's seat; 0 before the end."""
        return self.episode.session.outcome().rewards[POLICY_SEAT] if self.status is not None else 0.0

    async def start(self) -> tuple[str, dict[str, Any]]:
        """Start a new episode; returns the policy's first observation."""
        self.failure = None
        # Samples of one group differ in their index, so a partner that draws random numbers does not repeat itself.
        numbers = (getattr(self.args, "rollout_seed", 0), self.sample.group_index, self.sample.index)
        place = tuple(abs(int(number or 0)) for number in numbers)
        partner = _partner(self.config.model_dump_json(), type(self.game), asyncio.get_running_loop())
        guarded = Player(partner.record, lambda seat: _GuardedSeat(partner.sit(seat), self))
        players = [text_player(), *[guarded] * (len(self.game.roles) - 1)]
        episode_id = str(self.sample.metadata.get("state_id"))
        self.episode = Episode(self.game, self.state, players, episode_id, (place[0], place[1], place[2]))
        await self._partner_speaks()
        return self._observation(), {"status": None}

    async def answer(self, text: str, *, cut: bool = False) -> tuple[str, bool, dict[str, Any]]:
        """Take the policy's turn, then the partner's turns until it is the policy's turn again.

        Args:
            text: The policy's turn.
            cut: Whether a token limit ended the text.

        Returns:
            The policy's next observation ("" at the end), whether the episode is over, and `status`, `reward`,
            `action`, `error` of the policy's turn, `failure` of the partner.
        """
        before = len(self.episode.turns)
        self._seat.say(text)
        self.episode.take_turn(POLICY_SEAT, Reply(text, cut, FinishReason.LENGTH if cut else FinishReason.STOP))
        await self._partner_speaks()
        turn, over = self.episode.turns[before], self.status is not None
        about = {"status": self.status, "reward": self.reward, "action": turn.action, "error": turn.error}
        return "" if over else self._observation(), over, about | {"failure": self.failure}

    def end(self, status: Status) -> None:
        """End the episode for a reason outside the rules."""
        self.episode.session.abort(status)
        self._report()

    def reset(self) -> tuple[str, dict[str, Any]]:
        """Run `start` for callers that cannot await; returns its result."""
        return _wait_for(self.start())

    def step(self, text: str) -> tuple[str, bool, dict[str, Any]]:
        """Run `answer` for callers that cannot await; returns its result.

        A call blocks the caller's event loop while a remote partner thinks.
        """
        if not getattr(self.args, "hf_checkpoint", None):
            return _wait_for(self.answer(text))
        # The text that servers return holds thoughts and the end-of-turn token, which do not belong to the message.
        chat = chat_of(self.args, self.config.selfplay.thinking)
        said, whole = chat.said(text)
        observation, over, about = _wait_for(self.answer(chat.neutralise(said), cut=not whole))
        return chat.neutralise(observation), over, about

    def format_observation(self, observation: str) -> dict[str, str]:
        """Returns the observation as a message."""
        return {"role": "user", "content": observation}

    def close(self) -> None:
        """Do nothing: there is nothing to release."""

    async def _partner_speaks(self) -> None:
        waited = self.partner_seconds
        await self.episode.run(until=POLICY_SEAT)
        if self.episode.lost_to is not None:
            self.failure = str(self.episode.lost_to)
            self.sample.remove_sample = True
            logger.warning(
                "an episode of %s is lost to the partner: %s", self.sample.metadata.get("state_id"), self.failure
            )
        self.sample.non_generation_time += self.partner_seconds - waited
        self._report()

    @property
    def _seat(self) -> TextSeat:
        seat = self.episode.seats[POLICY_SEAT]
        assert isinstance(seat, TextSeat)
        return seat

    def _observation(self) -> str:
        return self._seat.context()[-1].content

    def _report(self) -> None:
        turns = [{"seat": t.seat, "text": t.text, "action": str(t.action)} for t in self.episode.turns]
        status = None if self.status is None else str(self.status)
        usages = [seat.usage for seat in self.episode.seats if seat.usage]
        usage = sum(usages, PartnerUsage()).model_dump() if usages else None
        self.sample.reward = self.reward
        episode = {"status": status, "turns": turns, "usage": usage, "failure": self.failure}
        self.sample.metadata = {**self.sample.metadata, EPISODE: episode}


@dataclass
class _GuardedSeat:
    """Seat of the partner; measures its time, and limits any failure of it to one episode."""

    seat: Seat
    env: EpisodeEnv
    prompt_tokens: int = 0
    cached_tokens: int = 0

    @property
    def usage(self) -> PartnerUsage | None:
        """Usage of a chat model so far, None for other partners."""
        return self.seat.usage

    def observe(self, text: str) -> None:
        self.seat.observe(text)

    def say(self, text: str) -> None:
        self.seat.say(text)

    async def act(self) -> Reply:
        began = time.monotonic()
        try:
            return await self.seat.act()
        except RequestCapError as error:
            # slime's file has the keys in another section.
            limit = error.limit.replace("partner.max_", "selfplay.chat.max_")
            raise UserError(
                f"{limit}; training stops here, and the same command with another limit, which each process keeps by "
                "itself, continues from the last save"
            ) from None
        except (EngineError, UserError, ImportError):
            raise  # a missing module is missing for every episode
        except Exception as error:
            # Without the error's text: a client's message may hold the request, headers included.
            raise EngineError(f"the partner raised {type(error).__name__}") from error
        finally:
            self.env.partner_seconds += time.monotonic() - began

    def finish(self) -> list[Trajectory]:
        return []


@lru_cache(maxsize=8)
def _partner(config: str, game: type[Game], loop: asyncio.AbstractEventLoop) -> Player:
    """Returns the partner, shared by all samples of a process in one event loop, with its connections, request cap and
    cache.
    """
    return RolloutConfig.model_validate_json(config).player(game())


def chat_of(args: Any, thinking: bool) -> ChatTokenizer:
    """Returns the policy's tokenizer, shared by all samples of a run; slime's arguments have those of the template."""
    given = dict(getattr(args, "apply_chat_template_kwargs", None) or {})
    others = {name: value for name, value in given.items() if name not in SWITCHES}
    return _chat_of(args.hf_checkpoint, thinking, json.dumps(others, sort_keys=True))


@lru_cache(maxsize=2)
def _chat_of(checkpoint: str, thinking: bool, template_args: str) -> ChatTokenizer:
    return ChatTokenizer.load(checkpoint, thinking=thinking, template_args=json.loads(template_args))


@cache
def _background_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="selfplay-partner", daemon=True).start()
    return loop


def _wait_for(task: Coroutine[Any, Any, T]) -> T:
    return asyncio.run_coroutine_threadsafe(task, _background_loop()).result()
