"""An episode as an environment of slime's: the policy's turn in, what it hears until its next turn out.

`rollout_interaction_env_path` names this module. `rollout.py` plays through it too.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, TypeVar

from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.engines.types import EngineError, FinishReason
from selfplay_pipeline.games.base import Game, Status
from selfplay_pipeline.generate.chat import ChatPlayer, SeatedChat
from selfplay_pipeline.generate.episode import Episode, Reply, SeatedPlayer
from selfplay_pipeline.generate.players import Player, Seat
from selfplay_pipeline.generate.records import PartnerUsage
from selfplay_pipeline.generate.run import Sitting
from selfplay_pipeline.generate.trajectory import ChatTokenizer
from selfplay_pipeline.partners.client import RequestCapError
from selfplay_pipeline.slime.config import RolloutConfig
from selfplay_pipeline.slime.data import game_of, state_id_of

T = TypeVar("T")
POLICY_SEAT = 0
EPISODE = "episode"
"""Key of a sample's metadata under which its episode is kept: {status, turns, usage, failure}; slime's own dumps hold
it too."""
logger = logging.getLogger(__name__)


def build_env(sample: Any, args: Any) -> EpisodeEnv:
    """The environment of one sample, whose metadata holds the game state.

    Raises:
        UserError: the state or the configuration is unusable.
    """
    return EpisodeEnv(sample, args)


class EpisodeEnv:
    """One episode against the configured partner.

    It keeps the sample's reward, metadata and `non_generation_time` up to date, so that slime needs no reward model.
    A partner that fails ends the episode; the sample is then left out of training.
    """

    def __init__(self, sample: Any, args: Any) -> None:
        self.sample = sample
        self.args = args
        self.game, self.state = game_of(sample.metadata or {})
        self.config = RolloutConfig.of(args)
        self.partner_seconds = 0.0
        """How long the partner has thought."""
        self.failure: str | None = None
        """Why the partner gave no answer."""
        self.episode: Episode
        """The episode in progress, or ended; there is one after `start`."""

    @property
    def status(self) -> str | None:
        """How the episode ended, None before."""
        return self.episode.session.status

    @property
    def reward(self) -> float:
        """The reward of the policy's seat; 0 before the end."""
        return self.episode.session.outcome().rewards[POLICY_SEAT] if self.status is not None else 0.0

    async def start(self) -> tuple[str, dict[str, Any]]:
        """Begin anew; returns what the policy reads first."""
        self.failure = None
        # Two samples of one group differ in their index, so a partner that draws lots does not repeat itself.
        numbers = (getattr(self.args, "rollout_seed", 0), self.sample.group_index, self.sample.index)
        place = tuple(abs(int(number or 0)) for number in numbers)
        partner = _partner(self.config.model_dump_json(), type(self.game), asyncio.get_running_loop())
        players: list[Player] = [ChatPlayer(), *[_Guarded(partner, self)] * (len(self.game.roles) - 1)]
        episode_id = str(state_id_of(self.sample.metadata))
        self.episode = Sitting(self.game, self.state, players, episode_id, (place[0], place[1], place[2])).episode
        await self._partner_speaks()
        return self._observation(), {"status": None}

    async def answer(self, text: str, *, cut: bool = False) -> tuple[str, bool, dict[str, Any]]:
        """Take the policy's turn, then the partner's until the policy must speak again.

        Args:
            cut: a token limit ended the text.

        Returns:
            What the policy hears ("" at the end), whether the episode is over, and `status`, `reward`, `action`,
            `error` of the policy's turn, `failure` of the partner.
        """
        before = len(self.episode.turns)
        self._seat.say(text)
        self.episode.take_turn(POLICY_SEAT, Reply(text, cut, FinishReason.LENGTH if cut else FinishReason.STOP))
        await self._partner_speaks()
        turn, over = self.episode.turns[before], self.status is not None
        about = {"status": self.status, "reward": self.reward, "action": turn.action, "error": turn.error}
        return "" if over else self._observation(), over, about | {"failure": self.failure}

    def end(self, status: Status) -> None:
        """Break the episode off for a cause outside the rules."""
        self.episode.session.abort(status)
        self._report()

    def reset(self) -> tuple[str, dict[str, Any]]:
        """`start` for callers that cannot await."""
        return _wait_for(self.start())

    def step(self, text: str) -> tuple[str, bool, dict[str, Any]]:
        """`answer` for callers that cannot await. It blocks their event loop while a remote partner thinks."""
        checkpoint = getattr(self.args, "hf_checkpoint", None)
        if not checkpoint:
            return _wait_for(self.answer(text))
        # The text that servers return holds thoughts and the end-of-turn token, which are no part of what was said.
        chat = chat_of(checkpoint, self.config.selfplay.thinking)
        said, whole = chat.said(text)
        observation, over, about = _wait_for(self.answer(chat.neutralise(said), cut=not whole))
        return chat.neutralise(observation), over, about

    def format_observation(self, observation: str) -> dict[str, str]:
        """What the policy hears, as a message."""
        return {"role": "user", "content": observation}

    def close(self) -> None:
        """Nothing to release: the episode goes with this object."""

    async def _partner_speaks(self) -> None:
        waited = self.partner_seconds
        await self.episode.run(until=POLICY_SEAT)
        if self.episode.lost_to is not None:
            self.failure = str(self.episode.lost_to)
            self.sample.remove_sample = True
            logger.warning(
                "an episode of %s is lost to the partner: %s", state_id_of(self.sample.metadata), self.failure
            )
        self.sample.non_generation_time += self.partner_seconds - waited
        self._report()

    @property
    def _seat(self) -> SeatedChat:
        seated = self.episode.seats[POLICY_SEAT]
        assert isinstance(seated, SeatedChat)
        return seated

    def _observation(self) -> str:
        return self._seat.context()[-1].content

    def _report(self) -> None:
        turns = [{"seat": t.seat, "text": t.text, "action": str(t.action)} for t in self.episode.turns]
        status = None if self.status is None else str(self.status)
        usages = [seat.usage for seat in self.episode.seats if isinstance(seat, _SeatedGuarded) and seat.usage]
        usage = sum(usages, PartnerUsage()).model_dump() if usages else None
        self.sample.reward = self.reward
        episode = {"status": status, "turns": turns, "usage": usage, "failure": self.failure}
        self.sample.metadata = {**self.sample.metadata, EPISODE: episode}


@dataclass(frozen=True)
class _Guarded:
    """A partner whose time is taken, and whose failures, whatever they are, cost one episode."""

    player: Player
    env: EpisodeEnv

    @property
    def name(self) -> str:
        return self.player.name

    def sit(self, seat: Seat) -> _SeatedGuarded:
        return _SeatedGuarded(self.player.sit(seat), self.env)


@dataclass
class _SeatedGuarded:
    seated: SeatedPlayer
    env: EpisodeEnv
    prompt_tokens: int = 0
    cached_tokens: int = 0

    @property
    def usage(self) -> PartnerUsage | None:
        """What a chat model's answers cost so far."""
        return self.seated.usage if isinstance(self.seated, SeatedChat) else None

    def observe(self, text: str) -> None:
        self.seated.observe(text)

    async def act(self) -> Reply:
        began = time.monotonic()
        try:
            return await self.seated.act()
        except RequestCapError:
            cap = self.env.config.selfplay.chat.max_requests
            raise UserError(
                f"partner: all {cap} requests of selfplay.chat.max_requests are sent by this process; training stops "
                "here, and the same command with a higher number continues from the last save"
            ) from None
        except (EngineError, UserError, ImportError):
            raise  # a module that is missing is missing to every episode
        except Exception as error:
            # Not its text: a client's message may hold what was sent, headers included.
            raise EngineError(f"the partner raised {type(error).__name__}") from error
        finally:
            self.env.partner_seconds += time.monotonic() - began

    def finish(self) -> None:
        return None


@lru_cache(maxsize=8)
def _partner(config: str, game: type[Game], loop: asyncio.AbstractEventLoop) -> Player:
    """One partner for all samples of a process, so that they share its connections, cap and cache; these belong to one
    event loop."""
    return RolloutConfig.model_validate_json(config).player(game())


@lru_cache(maxsize=2)
def chat_of(checkpoint: str, thinking: bool) -> ChatTokenizer:
    """The policy's tokenizer; samples of a run share one."""
    return ChatTokenizer.load(checkpoint, thinking=thinking)


@cache
def _background_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="selfplay-partner", daemon=True).start()
    return loop


def _wait_for(task: Coroutine[Any, Any, T]) -> T:
    return asyncio.run_coroutine_threadsafe(task, _background_loop()).result()
