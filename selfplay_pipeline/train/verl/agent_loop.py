"""verl's agent loop for self-play: one call plays one episode and returns the trajectories of every player."""

from __future__ import annotations

import json
import time
import uuid
from functools import lru_cache
from typing import Any

from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput, register

from selfplay_pipeline.convert.rows import AGENT_NAME
from selfplay_pipeline.engines.types import EngineError
from selfplay_pipeline.games.base import Game
from selfplay_pipeline.games.registry import find, make_game, parse_game_config
from selfplay_pipeline.generate.episode import Episode
from selfplay_pipeline.generate.players import policy_player
from selfplay_pipeline.generate.records import EpisodeRecord, PolicyRecord, Trajectory
from selfplay_pipeline.generate.trajectory import ChatTokenizer
from selfplay_pipeline.train.online_figures import figures_of
from selfplay_pipeline.train.verl.rollout_engine import VerlEngine, check_sampling


@register(AGENT_NAME)
class SelfPlayLoop(AgentLoopBase):  # type: ignore[misc]
    """Agent loop with the same rules, seats and token streams as `selfplay generate`; only the engine is verl's.

    It reads `selfplay.max_new_tokens` (of a turn) and what the chat template is given from verl's configuration, and
    all settings of the game from the row. A trajectory has at most `rollout.prompt_length + rollout.response_length`
    tokens: an episode that might exceed this ends with the status `context_length`; nothing is truncated.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        rollout = self.rollout_config
        longest = rollout.prompt_length + rollout.response_length
        # verl's SGLang server keeps one token of the context free.
        self.context_length = min(longest, (rollout.max_model_len or longest + 1) - 1)
        self.max_new_tokens = int(self.config.selfplay.max_new_tokens)
        given = self.config.selfplay
        self.template = json.dumps(
            {
                "thinking": bool(given.thinking),
                "template_args": json.loads(given.template_args),
                "date": str(given.date),
            }
        )
        if self.config.selfplay.game is not None:
            find(self.config.selfplay.game)  # so that rows may name it
        self.chat = chat_of(self.tokenizer, self.template)

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> list[AgentLoopOutput]:
        """Play the row's state once.

        Returns:
            Outputs of the players that took a turn, by seat, each with its seat's reward; only the outputs of `seat` if
            the row's perspective is `one`. All outputs carry the same figures of the episode.

        Raises:
            UserError: The sampling parameters change log-probs in a way that servers do not report.
            EngineError: The episode was lost; verl reports it and keeps the other episodes of the group.
        """
        check_sampling(sampling_params)
        began = time.monotonic()
        info = row["extra_info"]
        game = game_of(info["rules"])
        policy = PolicyRecord(
            checkpoint=str(self.config.actor_rollout_ref.model.path),
            weights="",  # the weights of the step are in no folder
            iteration=int(row.get("global_steps", 0)),
            engine="verl",
            temperature=sampling_params["temperature"],
            max_new_tokens=self.max_new_tokens,
            history=self.config.selfplay.history,
            **json.loads(self.template),
        )
        engines = [VerlEngine(self.server_manager, sampling_params) for _ in game.roles]
        players = [policy_player(engine, self.chat, policy, self.context_length) for engine in engines]
        place = (int(info["seed"]), int(info["index"]), int(row.get("session_id", 0)))
        # verl draws a uid for each row of each batch; with the session it names the episode, and with the seat a
        # player's requests, which verl then sends to one server.
        episode_id = f"{row.get('uid', uuid.uuid4().hex)}-{place[2]}"
        episode = Episode(game, game.state_from_json(json.loads(row["game_state"])), players, episode_id, place)
        await episode.run()
        if episode.lost_to is not None:
            raise EngineError(f"episode {place[2]} of {row['state_id']} was lost") from episode.lost_to
        record = episode.record(policy)
        return outputs_of(
            record,
            figures_of(record, game),
            versions=[engine.versions for engine in engines],
            seconds=time.monotonic() - began,
            only=int(row["seat"]) if info["perspectives"] == "one" else None,
        )


def outputs_of(
    record: EpisodeRecord,
    figures: dict[str, float],
    *,
    versions: list[list[int]],
    seconds: float,
    only: int | None = None,
) -> list[AgentLoopOutput]:
    """Returns an episode as verl's outputs: one for each player that took a turn, or one for each turn.

    Args:
        record: The episode.
        figures: Figures that validation averages.
        versions: By seat, the weight versions that answered its requests.
        seconds: Duration of the episode.
        only: The one seat whose trajectory is wanted; None for all.
    """
    spoke = [side for side in record.trajectories if side.response_ids and only in (None, side.seat)]
    return [_output(record, side, figures, versions[side.seat], seconds) for side in spoke]


def _output(
    record: EpisodeRecord, side: Trajectory, figures: dict[str, float], versions: list[int], seconds: float
) -> AgentLoopOutput:
    # verl copies the extra information of the last output to all others, so each output has it. It drops fields that
    # are not set here, such as `num_turns`.
    return AgentLoopOutput(
        prompt_ids=side.prompt_ids,
        response_ids=side.response_ids,
        response_mask=side.response_mask,
        response_logprobs=side.response_logprobs,
        reward_score=record.outcome.reward_of(side.seat),
        num_turns=record.outcome.num_turns,
        metrics=AgentLoopMetrics(generate_sequences=seconds),
        extra_fields={
            "reward_extra_info": dict(figures),
            "min_global_steps": min(versions, default=0),
            "max_global_steps": max(versions, default=0),
            "state": record.group_index,
            "seat": side.seat,
            "reward": record.outcome.normalized_reward,
        },
    )


@lru_cache(maxsize=8)
def game_of(rules: str) -> Game:
    """Returns the game of a row; rows of a run share one object."""
    return make_game(parse_game_config(rules))


@lru_cache(maxsize=2)
def chat_of(tokenizer: Any, template: str) -> ChatTokenizer:
    """Returns the chat tokenizer; cached, because verl creates a loop for every episode.

    Args:
        tokenizer: Tokenizer of transformers.
        template: What the chat template is given beside messages, as JSON.
    """
    return ChatTokenizer(tokenizer, **json.loads(template))
