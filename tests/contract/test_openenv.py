"""The environment for OpenEnv, with its real server and client: its rewards are those of `evaluate`, state by state."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest
from chat_answers import ChatModel, is_cut

import selfplay_pipeline
from selfplay_pipeline.core.errors import UserError

pytestmark = pytest.mark.skipif(not find_spec("openenv"), reason="`pip install openenv-core` installs it")
TINY = "data/tiny_model"
STATES = int(os.environ.get("OPENENV_STATES", "6"))


@pytest.fixture(autouse=True)
def integration(monkeypatch) -> None:
    monkeypatch.syspath_prepend(str(Path("integrations/openenv").resolve()))


@asynccontextmanager
async def serving(config, partner: str, seat: int) -> AsyncIterator[str]:
    """Address of an environment server."""
    import uvicorn
    from selfplay_openenv import environment

    async with environment(config, partner, seat, sessions=4) as app:
        server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error"))
        running = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.01)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        server.should_exit = True
        await running


@pytest.mark.parametrize("seat", [0, 1])
def test_the_same_states_have_the_same_rewards_as_in_evaluate(tmp_path, seat):
    """`own-view` plans without what it hears, so that rewards differ."""
    from openenv.core.generic_client import GenericEnvClient

    config, partner = selfplay_pipeline.load_config("tiny", {"engine.kind": "transformers"}), "own-view"
    states = selfplay_pipeline.sample_held_out(config, STATES)
    selfplay_pipeline.evaluate_player(config, TINY, tmp_path, partner=partner, states=states, episodes=1)
    ours = selfplay_pipeline.episodes_frame(tmp_path / "greedy.jsonl").sort_values(["group_index", "episode"])
    holds = [names.split(", ")[seat] == "policy" for names in ours.players]

    async def play() -> list[float]:
        asked, rewards = ChatModel(TINY), []
        async with serving(config, partner, seat) as url, GenericEnvClient(base_url=url) as env:
            for number in range(STATES):
                result = await env.reset(seed=number, held_out=True)
                while not result.done:
                    assert result.reward is None
                    text, done = await asked.answer(result.observation["messages"])
                    result = await env.step({"text": text, "cut": is_cut(done)})
                rewards.append(result.reward)
            with pytest.raises(RuntimeError, match="reset the environment first"):
                await env.step({"text": "[accept]"})
        return rewards

    assert asyncio.run(play()) == ours[holds].normalized_reward.tolist()
    assert ours[holds].normalized_reward.nunique() > 1, "else any rewards would agree"


def test_sessions_are_apart_and_resets_without_a_number_play_new_states():
    from openenv.core.generic_client import GenericEnvClient

    async def play() -> list[str]:
        async with (
            serving(selfplay_pipeline.load_config("tiny", {}), "sharing", 0) as url,
            GenericEnvClient(base_url=url) as one,
            GenericEnvClient(base_url=url) as other,
        ):
            first, second = await one.reset(), await other.reset()
            again = await one.reset(seed=0)
            await other.step({"text": "[message] hello"})
            assert (await one.state())["step_count"] == 0 and (await other.state())["step_count"] == 1
            return [result.observation["text"] for result in (first, second, again)]

    first, second, again = asyncio.run(play())
    assert first == again != second


@pytest.mark.parametrize(
    ("partner", "seat", "said"), [("sharing", 2, "--seat 2: the game has the seats 0 to 1"), ("x", 0, "no scripted")]
)
def test_a_seat_or_a_partner_that_does_not_exist_is_refused(partner, seat, said):
    async def start() -> None:
        async with serving(selfplay_pipeline.load_config("tiny", {}), partner, seat):
            pass

    with pytest.raises(UserError, match=said):
        asyncio.run(start())
