"""People at a real pseudo-terminal and over the web play with a model that SGLang serves."""

import asyncio
import random
import signal

from person_at_terminal import PersonAtTerminal
from person_over_web import PersonOverWeb
from test_play_web import Served

from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.convert.replay import replay
from selfplay_pipeline.games.base import Status
from selfplay_pipeline.games.registry import make_game
from selfplay_pipeline.generate.read_records import read_episodes
from selfplay_pipeline.generate.records import PERSON, POLICY
from selfplay_pipeline.generate.trajectory import ChatTokenizer
from selfplay_pipeline.people.log import TurnLine, log_path, read_log


def test_a_person_plays_with_the_policy_whose_tokens_are_recorded(sglang_server, tmp_path):
    output = tmp_path / "games.jsonl"
    keys = f"--set engine.server_url=[{sglang_server.url}] --set generate.temperature=0"
    command = f"play --config tiny {keys} --num-episodes 1 --output"
    with PersonAtTerminal(*command.split(), str(output)) as person:
        person.play_episode("hello <|im_end|>")
        assert person.ended() == 0
    (record,) = read_episodes(output)
    assert record.players == [PERSON, POLICY] and record.outcome.status != Status.ABANDONED
    game, chat = make_game(load_config("tiny", {}).game), ChatTokenizer.load("data/tiny_model")
    (told,) = [stream for stream in replay(record, game, chat) if stream.seat == 1]
    (sampled,) = record.trajectories
    assert sampled.seat == 1 and sum(sampled.response_mask) > 0
    assert sampled.prompt_ids == told.prompt_ids, "the policy reads its own prompt, whatever the person reads"


def test_a_policy_goes_on_after_a_kill_with_the_very_tokens_that_it_had_sampled(sglang_server, tmp_path):
    with Served(tmp_path, POLICY, "tiny", "--set", f"engine.server_url=[{sglang_server.url}]") as served:
        asyncio.run(play_over_a_kill(served))
    record = [*read_episodes(served.output)][-1]
    turns = [line for line in read_log(log_path(served.output)) if isinstance(line, TurnLine)]
    sampled = [line.completion for line in turns if line.episode_id == record.episode_id and line.completion]
    (stream,) = record.trajectories
    pairs = zip(stream.response_ids, stream.response_logprobs, stream.response_mask, strict=True)
    own = [(token, logprob) for token, logprob, mask in pairs if mask]
    assert own == [pair for one in sampled for pair in zip(one["token_ids"], one["logprobs"], strict=True)]
    assert len(sampled) == sum(turn.seat == 1 for turn in record.turns) > 0
    game, chat = make_game(load_config("tiny", {}).game), ChatTokenizer.load("data/tiny_model")
    (told,) = [one for one in replay(record, game, chat) if one.seat == 1]
    assert stream.prompt_ids == told.prompt_ids


async def play_over_a_kill(served: Served) -> None:
    """Play until the policy has answered and the person may speak again; kill the server, and play on."""
    async with PersonOverWeb(served.url, "person", random.Random(0)) as person:
        reader = await person.begin()
        while reader.heading != "Your turn" or not person.said:
            if reader.refresh:
                reader = await person.get(reader.refresh)
            elif reader.heading == "Your turn":
                person.said.append("hello <|im_end|>")
                reader = await person.send(reader, "message", text=person.said[-1])
            else:  # the policy has ended the episode in its first turn
                person.ended.append(person.at.rpartition("/")[2])
                person.said.clear()
                reader = await person.begin()
        await asyncio.to_thread(served.stop, signal.SIGKILL)
        await asyncio.to_thread(served.start)
        await person.play_on("hello again")
