"""`selfplay evaluate` and partners with the real server: who plays whom, and clear refusals."""

import asyncio
import json
import shutil
from pathlib import Path

from command import selfplay

from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.evaluate.crossplay import run_crossplay
from selfplay_pipeline.evaluate.listen import Listening
from selfplay_pipeline.evaluate.run import Evaluation, EvaluationJob, run_evaluate
from selfplay_pipeline.evaluate.states import held_out_states
from selfplay_pipeline.games.measured import heard_of
from selfplay_pipeline.games.registry import make_game
from selfplay_pipeline.generate.read_records import read_episodes

TINY = "data/tiny_model"


def evaluate(server, output: Path, *arguments: str, checkpoint: str = TINY) -> Evaluation:
    done = selfplay("evaluate", checkpoint, "--server-url", server.url, "--output", str(output), *arguments)
    assert done.returncode == 0, done.stderr
    return Evaluation.model_validate_json((output / "evaluation.json").read_text())


def copy_of_the_model(folder: Path) -> Path:
    shutil.copytree(TINY, folder)
    return folder


def test_a_checkpoint_plays_itself_sampled_and_greedily(sglang_server, tmp_path):
    evaluation = evaluate(sglang_server, tmp_path, "--num-states", "300", "--episodes", "1")
    sampled, greedy = evaluation.modes["sampled"].figures, evaluation.modes["greedy"].figures
    assert sampled["agreed"].value > 0.95
    assert 0.75 < sampled["reward"].value < greedy["reward"].value < 0.95
    assert evaluation.references["own_view"].value < greedy["reward"].low
    assert sampled["told"].value > 0.2
    assert sampled["messages"].value > 0.9


def test_a_scripted_partner_sits_on_both_sides_and_mute_costs_reward(sglang_server, tmp_path):
    options = ("--partner", "sharing", "--num-states", "60", "--episodes", "1")
    loud = evaluate(sglang_server, tmp_path / "loud", *options)
    for mode in ("sampled", "greedy"):
        games = list(read_episodes(tmp_path / "loud" / f"{mode}.jsonl"))
        assert {tuple(game.players) for game in games} == {("policy", "sharing"), ("sharing", "policy")}
        assert all(len(game.trajectories) == 1 for game in games)
    assert loud.modes["greedy"].figures["reward"].value > 0.85
    muted = evaluate(sglang_server, tmp_path / "muted", *options, "--set", "game.mute=true")
    assert muted.modes["greedy"].figures["reward"].value < loud.modes["greedy"].figures["reward"].low


def test_a_checkpoint_decides_again_after_altered_messages(sglang_server, tmp_path):
    """The warm start for honest states never planned with what it was told: other messages move its plans, if at all,
    by chance."""
    options = ("--config", "tiny_honest", "--server-url", sglang_server.url, "--output", str(tmp_path))
    done = selfplay("listen", "data/tiny_honest_model", "--num-states", "60", *options)
    assert done.returncode == 0, done.stderr
    found = Listening.model_validate_json((tmp_path / "listening.json").read_text())
    for kind in found.kinds.values():
        assert kind.tested > 20
        assert kind.follows.value < 0.2


def test_a_checkpoint_hears_swapped_messages_token_by_token(sglang_server, tmp_path):
    """In the fixed protocol the proposer's tokens have what it heard; greedy episodes are the same after a kill."""
    config = tmp_path / "fixed.yaml"
    config.write_text("base: tiny_honest\ngame:\n  protocol: fixed\n")
    few = ("--num-states", "8", "--episodes", "1", "--set", "generate.max_concurrency=1")
    options = ("--config", str(config), *few, "--swap-messages")
    whole = evaluate(sglang_server, tmp_path / "whole", *options, checkpoint="data/tiny_honest_model")
    for mode in ("sampled", "greedy"):
        assert whole.modes[mode].words.worth.value is not None and whole.modes[mode].words.heard >= 4
        for game in read_episodes(tmp_path / "whole" / f"{mode}_swapped.jsonl"):
            for turn in game.turns:
                for seat, heard in heard_of(turn).items():
                    (stream,) = (one for one in game.trajectories if one.seat == seat)
                    read = "\n".join(message.content for message in stream.messages if message.role == "user")
                    assert heard.partition("[message]")[2].strip() in read
    greedy, again = (tmp_path / name / "greedy_swapped.jsonl" for name in ("whole", "again"))
    shutil.copytree(tmp_path / "whole", tmp_path / "again")
    again.with_suffix(".summary.json").unlink()
    again.write_bytes(b"".join(greedy.read_bytes().splitlines(keepends=True)[:5]) + b'{"schema')
    evaluate(sglang_server, tmp_path / "again", *options, checkpoint="data/tiny_honest_model")
    before, after = (
        {game.episode_id: [(turn.text, heard_of(turn)) for turn in game.turns] for game in read_episodes(file)}
        for file in (greedy, again)
    )
    assert before == after


def test_two_checkpoints_play_each_other(tmp_path):
    """The second one is a copy, so that both see what they would see in self-play; each has an engine of its own."""
    copy, output = copy_of_the_model(tmp_path / "copy"), tmp_path / "crossplay"
    few = ("--engine", "transformers", "--num-states", "6", "--temperature", "0", "--output", str(output))
    done = selfplay("crossplay", TINY, str(copy), *few)
    assert done.returncode == 0, done.stderr
    rewards = [cell["value"] for row in json.loads((output / "crossplay.json").read_text())["rewards"] for cell in row]
    assert max(rewards) - min(rewards) < 1e-6, "one policy in four pairings"
    assert {tuple(game.players) for game in read_episodes(output / "0-1.jsonl")} == {("policy", str(copy))}


def test_one_server_is_enough_where_one_checkpoint_plays_in_either_seat(sglang_server, tmp_path):
    config = load_config("tiny", {"engine.server_url": [sglang_server.url], "generate.temperature": 0.0})
    states = held_out_states(make_game(config.game), 40)
    result = asyncio.run(run_crossplay(config, [TINY, "sharing"], states, 1, tmp_path / "crossplay"))
    assert result.rewards[1][1].value == 1
    assert all(result.rewards[row][column].value > 0.75 for row, column in ((0, 0), (0, 1), (1, 0)))
    job = EvaluationJob("sharing", states, tmp_path / "sharing", partner=TINY, episodes=1)
    evaluation = asyncio.run(run_evaluate(config, job))
    played = {game.policy.temperature for game in read_episodes(job.file("scripted"))}
    assert played == {evaluation.temperature} == {0.0}


def test_games_with_a_partner_become_one_row_each(sglang_server, tmp_path):
    games = tmp_path / "games.jsonl"
    players = ("--player", "policy", "--player", "sharing", "--config", "tiny", "--num-episodes", "32")
    done = selfplay("generate", *players, "--server-url", sglang_server.url, "--output", str(games))
    assert done.returncode == 0, done.stderr
    assert all(len(game.trajectories) == 1 for game in read_episodes(games))
    done = selfplay("convert", str(games), "--val-fraction", "0")
    assert "train                       32 rows of 4 groups" in done.stdout
    done = selfplay("convert", "--check", str(tmp_path / "train.parquet"))
    assert done.returncode == 0, done.stderr


def test_a_tokenizer_of_another_model_is_one_clear_line(sglang_server, tmp_path):
    other = copy_of_the_model(tmp_path / "other")
    vocabulary = json.loads((other / "tokenizer.json").read_text())
    token = vocabulary["added_tokens"][-1]
    vocabulary["added_tokens"].append({**token, "id": 391, "content": "Zoe"})
    (other / "tokenizer.json").write_text(json.dumps(vocabulary))
    served = ("--server-url", sglang_server.url, "--output", str(tmp_path / "out"), "--num-states", "2")
    done = selfplay("evaluate", str(other), *served)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "the tokenizer belongs to another model" in done.stderr.splitlines()[-1]
