"""The chat partner with a real model: our SGLang server's own /v1/chat/completions, which the policy plays on too."""

import json

from command import selfplay

from selfplay_pipeline.core.shipped import built_in
from selfplay_pipeline.generate.read_records import read_episodes


def test_games_with_a_chat_model_become_one_row_each(sglang_server, tmp_path, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    (tmp_path / "as_policy.j2").write_text("{{ rules }}")
    tiny = built_in()["tiny"].read_text()
    partner = {"base_url": f"{sglang_server.url}/v1", "model": "tiny", "prompt": str(tmp_path / "as_policy.j2")}
    (tmp_path / "run.yaml").write_text(f"{tiny}\npartner: {json.dumps(partner)}\n")
    games = tmp_path / "games.jsonl"
    done = selfplay(
        "generate", "--config", str(tmp_path / "run.yaml"), "--player", "policy", "--player", "chat",
        "--num-episodes", "64", "--server-url", sglang_server.url, "--output", str(games),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    records = list(read_episodes(games))
    assert len(records) == 64
    for record in records:
        assert record.players == ["policy", "chat"]
        assert [trajectory.seat for trajectory in record.trajectories] == [0]
        own = [turn for turn in record.turns if turn.seat == 1]
        assert {turn.finish_reason for turn in own} <= {"stop", "length"}
        # The policy may end an episode before the partner is asked anything.
        assert (record.partner is None) == (not own)
        if record.partner is not None:
            assert record.partner.requests - record.partner.retries == len(own)
            assert record.partner.prompt_tokens > record.partner.completion_tokens > 0
        sent = [turn for turn in record.turns if turn.seat == 0]
        assert len(record.trajectories[0].prompt_ids) * len(sent) <= record.prompt_tokens
    # As good as the model with itself, 0.83 with a standard error of 0.03 here: the partner reads what a policy reads.
    assert sum(record.outcome.normalized_reward for record in records) / 64 > 0.65
    assert json.loads((tmp_path / "games.summary.json").read_text())["partner"]["requests"] > 0
    done = selfplay("convert", str(games), "--val-fraction", "0")
    assert "train                       64 rows of 8 groups" in done.stdout
    done = selfplay("convert", "--check", str(tmp_path / "train.parquet"))
    assert done.returncode == 0, done.stderr
