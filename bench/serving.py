"""Measures whether self-play keeps the server fully busy, and whether the server computes anything twice.

One server, two measurements that alternate: our own self-play, and a thin client that repeats the recorded requests as
fast as the server answers, with the same number of concurrent episodes. An episode's next request is its last one, the
server's new completion (as many tokens as were recorded), and the recorded observation: lengths and cache are the same.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp

from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.config.schema import Config
from selfplay_pipeline.engines.pool import open_engine
from selfplay_pipeline.engines.sglang_engine import SGLangEngine
from selfplay_pipeline.engines.types import Completion, Engine, SamplingParams
from selfplay_pipeline.engines.watchdog import Server
from selfplay_pipeline.generate.seats import Backends, Servers
from selfplay_pipeline.generate.stage import generate_episodes

ROUNDS = 3


@dataclass
class Call:
    """One request of one player and its completion."""

    prompt: list[int]
    completion: Completion

    @property
    def end(self) -> int:
        return len(self.prompt) + len(self.completion.token_ids)


@dataclass
class RecordingEngine:
    """Engine that passes requests on to a server and keeps them, by episode."""

    engine: Engine
    episodes: dict[str, list[tuple[str, Call]]] = field(default_factory=dict)

    async def generate(self, prompt_ids: Sequence[int], params: SamplingParams, *, session: str = "") -> Completion:
        completion = await self.engine.generate(prompt_ids, params, session=session)
        episode = session.rpartition("-")[0]
        self.episodes.setdefault(episode, []).append((session, Call(list(prompt_ids), completion)))
        return completion


class Recorded(Servers):
    """Servers whose only engine is a recorder."""

    def __init__(self, config: Config, folder: Path, recorder: RecordingEngine) -> None:
        super().__init__(Backends.of(config), folder)
        self._recorder = recorder

    async def serving(self, checkpoint: str, *, keep: Collection[str] = ()) -> Engine:
        return self._recorder


def run() -> dict[str, Any]:
    config = load_config("tiny", {"generate.num_episodes": 768})
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(_measure(config, Path(folder)))


async def _measure(config: Config, folder: Path) -> dict[str, Any]:
    selfplay, replay, recorded = [0.0, 0.0], [0.0, 0.0], []
    async with open_engine(config.engine, "cpu", str(config.model), folder / "server.log") as engine:
        assert isinstance(engine, SGLangEngine)
        await _selfplay(config, engine, folder / "warm_up.jsonl")
        for number in range(ROUNDS):
            await flush(engine)
            recorder, seconds = await _selfplay(config, engine, folder / f"games_{number}.jsonl")
            calls = list(recorder.episodes.values())
            recorded += calls
            tokens = sum(len(call.completion.token_ids) for episode in calls for _, call in episode)
            selfplay[0], selfplay[1] = selfplay[0] + tokens, selfplay[1] + seconds
            await flush(engine)
            seconds = await repeat(config, engine.clients[0].server, calls)
            replay[0], replay[1] = replay[0] + tokens, replay[1] + seconds
    own, thin = selfplay[0] / selfplay[1], replay[0] / replay[1]
    return {
        "selfplay_tokens_per_second": round(own),
        "replay_tokens_per_second": round(thin),
        "selfplay_over_replay": round(own / thin, 3),
        "episodes": len(recorded),
        "max_concurrency": config.generate.max_concurrency,
        **_prefill(recorded),
    }


async def _selfplay(config: Config, engine: SGLangEngine, output: Path) -> tuple[RecordingEngine, float]:
    recorder = RecordingEngine(engine)
    summary = await generate_episodes(config, output, servers=Recorded(config, output.parent, recorder))
    return recorder, summary.seconds


async def flush(engine: SGLangEngine) -> None:
    """Empty the cache of prompts of the only server."""
    await engine.clients[0].call("/flush_cache?timeout=60", {})


async def repeat(config: Config, server: Server, episodes: Sequence[Sequence[tuple[str, Call]]]) -> float:
    """Returns the seconds in which a server answers the recorded requests of episodes."""
    waiting = iter(episodes)

    async def worker(http: aiohttp.ClientSession) -> None:
        for episode in waiting:
            streams: dict[str, tuple[list[int], int]] = {}
            for player, call in episode:
                tokens, end = streams.get(player, ([], 0))
                prompt = tokens + call.prompt[end:]
                sampling = {
                    "temperature": config.generate.temperature,
                    "max_new_tokens": len(call.completion.token_ids),
                    "ignore_eos": True,
                }
                body = {"input_ids": prompt, "sampling_params": sampling, "return_logprob": True}
                async with http.post(f"{server.url}/generate", json=body) as response:
                    answer = await response.json()
                streams[player] = (prompt + answer["output_ids"], call.end)

    started = time.monotonic()
    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        headers={"Authorization": f"Bearer {server.key}"},
        raise_for_status=True,
    )
    async with session as http, asyncio.TaskGroup() as tasks:
        for _ in range(config.generate.max_concurrency):
            tasks.create_task(worker(http))
    return time.monotonic() - started


def _prefill(episodes: list[list[tuple[str, Call]]]) -> dict[str, Any]:
    """Returns the prompt tokens that the server computed, divided by the number that it needed to compute.

    Needed are a trajectory's first prompt and, for each later request, the tokens after the last request and its
    completion, and the completion's last token, which was sampled but never run through the model. Episodes of one
    state share their first prompts, and later ones if the same was said, so both ratios can be below 1.
    """
    computed = needed = later_computed = later_needed = 0
    for episode in episodes:
        for player in {player for player, _ in episode}:
            calls = [call for owner, call in episode if owner == player]
            first, *later = (call.completion.prompt_tokens - call.completion.cached_tokens for call in calls)
            due = sum(len(call.prompt) - last.end + 1 for last, call in pairwise(calls))
            computed, needed = computed + first + sum(later), needed + len(calls[0].prompt) + due
            later_computed, later_needed = later_computed + sum(later), later_needed + due
    return {
        "prompt_tokens_computed_over_needed": round(computed / needed, 3),
        "of_later_turns": round(later_computed / later_needed, 3),
    }
