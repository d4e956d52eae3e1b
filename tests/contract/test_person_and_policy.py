"""A person at a real pseudo-terminal plays with a model that SGLang serves."""

from person_at_terminal import PersonAtTerminal

from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.convert.replay import replay
from selfplay_pipeline.games.base import Status
from selfplay_pipeline.games.registry import make_game
from selfplay_pipeline.generate.records import PERSON, POLICY, read_episodes
from selfplay_pipeline.generate.trajectory import ChatTokenizer


def test_a_person_plays_with_the_policy_whose_tokens_are_recorded(sglang_server, tmp_path):
    output = tmp_path / "games.jsonl"
    options = ("--server-url", sglang_server.url, "--temperature", "0", "--num-episodes", "1", "--output", str(output))
    with PersonAtTerminal("play", "--config", "tiny", *options) as person:
        person.play_episode("hello <|im_end|>")
        assert person.ended() == 0
    (record,) = read_episodes(output)
    assert record.players == [PERSON, POLICY] and record.outcome.status != Status.ABANDONED
    game, chat = make_game(load_config("tiny", {}).game), ChatTokenizer.load("data/tiny_model")
    (told,) = [stream for stream in replay(record, game, chat) if stream.seat == 1]
    (sampled,) = record.trajectories
    assert sampled.seat == 1 and sum(sampled.response_mask) > 0
    assert sampled.prompt_ids == told.prompt_ids, "the policy reads its own prompt, whatever the person reads"
