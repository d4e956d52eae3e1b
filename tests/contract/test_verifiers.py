"""The environment for verifiers, with the real package: its rewards are those of `evaluate`, state by state."""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from chat_answers import ChatModel, is_cut

import selfplay_pipeline

pytestmark = pytest.mark.skipif(not find_spec("verifiers"), reason="`pip install verifiers` installs it")
TINY = "data/tiny_model"
STATES = int(os.environ.get("VERIFIERS_STATES", "6"))


@asynccontextmanager
async def chat_api(model: str):
    """An OpenAI-compatible endpoint that answers with a model's own text; yields its address."""
    asked = ChatModel(model)

    async def answer(request: web.Request) -> web.Response:
        sent = await request.json()
        messages = [{"role": one["role"], "content": one["content"]} for one in sent["messages"]]
        text, done = await asked.answer(messages, sent["temperature"], sent["max_tokens"])
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": text},
            "finish_reason": "length" if is_cut(done) else "stop",
        }
        usage = {"prompt_tokens": done.prompt_tokens, "completion_tokens": len(done.token_ids)}
        usage["total_tokens"] = sum(usage.values())
        named = {"id": "1", "object": "chat.completion", "created": 0, "model": sent["model"]}
        return web.json_response({**named, "choices": [choice], "usage": usage})

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()


async def rewards(url: str, players: list[str]) -> list[dict[str, float]]:
    """Play the states with verifiers; returns the reward of each agent, by state."""
    import verifiers.v1 as vf
    from selfplay_games import SelfplayEnvConfig
    from verifiers.v1.types import SamplingConfig
    from verifiers.v1.utils.loaders import load_environment

    taskset = {"id": "selfplay-games", "config": "tiny", "num_states": STATES}
    env = load_environment(SelfplayEnvConfig.model_validate({"taskset": taskset, "players": players}))
    sampling = SamplingConfig(temperature=0.0, max_tokens=64)
    context = vf.ModelContext(model=TINY, client=vf.EvalClientConfig(base_url=url), sampling=sampling)
    found: list[dict[str, float]] = []
    async with env.serving():
        for task in env.taskset:
            episode = await env.run_slot(env.slots(task)[0], context)
            assert episode.ok, episode.errors
            assert all(len(trace.metrics) > 5 for trace in episode.traces)
            found.append({trace.agent.name: trace.rewards["reward"].score for trace in episode.traces})
    return found


@pytest.mark.parametrize(("partner", "players"), [("self", ["agent", "agent"]), ("sharing", ["agent", "sharing"])])
def test_the_same_states_have_the_same_rewards_as_in_evaluate(tmp_path, monkeypatch, partner, players):
    monkeypatch.syspath_prepend(str(Path("integrations/verifiers").resolve()))
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    config = selfplay_pipeline.load_config("tiny", {"engine.kind": "transformers"})
    states = selfplay_pipeline.sample_held_out(config, STATES)
    selfplay_pipeline.evaluate_player(
        config, TINY, tmp_path, partner=partner, states=states, episodes=1, seat=None if partner == "self" else 0
    )
    ours = selfplay_pipeline.episodes_frame(tmp_path / "greedy.jsonl").sort_values("group_index")

    async def play() -> list[dict[str, float]]:
        async with chat_api(TINY) as url:
            return await rewards(url, players)

    theirs: list[Any] = asyncio.run(play())
    assert [len(set(one.values())) for one in theirs] == [1] * STATES, "both seats share the reward"
    assert [next(iter(one.values())) for one in theirs] == ours.normalized_reward.tolist()
    assert partner != "self" or ours.normalized_reward.nunique() > 1, "else any rewards would agree"
