"""The stages called from Python: they return typed results, and print nothing unless somebody listens."""

import asyncio
import inspect
import json
import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from factories import make_episodes, write_episodes

import selfplay_pipeline
from selfplay_pipeline import load_config, simple
from selfplay_pipeline.cli import generate, loops, measure, stages
from selfplay_pipeline.core import reporting
from selfplay_pipeline.core.errors import UserError

CALLS = """
import asyncio, sys
from pathlib import Path
from selfplay_pipeline import (
    EvaluationJob, convert_episodes, generate_episodes, load_config, read_episodes, run_evaluate, sample_held_out,
)

folder = Path(sys.argv[1])
config = load_config("tiny", {"generate.num_episodes": 4, "generate.episodes_per_state": 2})
played = asyncio.run(generate_episodes(config, folder / "scripted.jsonl", seats=["sharing", "random"]))
assert played.episodes == 4 and len(list(read_episodes(folder / "scripted.jsonl"))) == 4
assert convert_episodes(config, folder / "games.jsonl", folder).train_rows == 11
job = EvaluationJob("random", sample_held_out(config, 3), folder / "evaluation", episodes=1)
assert asyncio.run(run_evaluate(config, job)).modes["scripted"].episodes == 3
"""


@pytest.mark.long
def test_stages_write_not_a_byte_to_the_terminal(tmp_path):
    write_episodes(tmp_path / "games.jsonl", make_episodes(3, 2))
    done = subprocess.run([sys.executable, "-c", CALLS, tmp_path], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_ones_own_handler_receives_the_lines(tmp_path, caplog, capfd):
    caplog.set_level(logging.INFO, "selfplay_pipeline")
    config = load_config("tiny", {"generate.num_episodes": 4, "generate.episodes_per_state": 2})
    asyncio.run(selfplay_pipeline.generate_episodes(config, tmp_path / "g.jsonl", seats=["sharing", "sharing"]))
    assert caplog.messages[0].startswith("playing g.jsonl: 0/4 ")
    assert caplog.messages[-1].startswith("playing g.jsonl: 4/4 ")
    reporting.logger.warning("Python itself prints warnings of a logger that has no handler")
    assert capfd.readouterr() == ("", "")


def test_a_reporter_is_told_how_far_the_work_is_and_only_within_its_block(tmp_path):
    class Seen(reporting.Reporter):
        statuses: list[str] = []

        def status(self, line: str) -> None:
            self.statuses.append(line)

    with reporting.use(Seen()):
        reporting.status("iteration 1")
    reporting.status("iteration 2")
    assert Seen.statuses == ["iteration 1"]


@pytest.mark.parametrize("name", selfplay_pipeline.__all__)
def test_the_face_has_what_it_promises_and_commands_call_the_same(name):
    found = getattr(selfplay_pipeline, name)
    assert inspect.getdoc(found) and found.__name__ == name
    commands = "".join(Path(module.__file__).read_text() for module in (generate, stages, measure, loops))
    if inspect.getmodule(found) is simple:  # a call that waits for what the commands call
        assert any(
            called in inspect.getsource(found)
            for called in ("generate_episodes", "train_policy", "run_evaluate", "find(name)")
        )
        return
    assert name in commands or name in ("load_config", "read_episodes") or name.endswith("_frame")


@pytest.mark.parametrize("looped", [False, True], ids=["in a script", "in a notebook's loop"])
def test_a_call_waits_for_its_result_with_and_without_a_running_loop(tmp_path, looped):
    config = load_config("tiny", {"generate.num_episodes": 4, "generate.episodes_per_state": 2})

    def calls():
        played = selfplay_pipeline.play_episodes(config, tmp_path / "g.jsonl", ["sharing"])
        states = selfplay_pipeline.sample_held_out(config, 3)
        found = selfplay_pipeline.evaluate_player(config, "random", tmp_path / "e", states=states, episodes=1)
        with pytest.raises(UserError, match="'nobody'"):
            selfplay_pipeline.play_episodes(config, tmp_path / "n.jsonl", ["nobody"])
        return played.groups, found.modes["scripted"].episodes

    async def within() -> tuple[int, int]:
        return calls()

    assert (asyncio.run(within()) if looped else calls()) == (2, 3)


@pytest.mark.long
def test_the_code_of_the_page_runs_as_printed(tmp_path):
    docs = Path(__file__).parents[2] / "docs"
    (tmp_path / "examples").symlink_to(docs.parent / "examples")
    (tmp_path / "my_reward.py").write_text("".join(printed_in(docs / "changing-the-reward.md")))
    code = "\n".join(printed_in(docs / "python.md"))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0 and "normalized_reward" in done.stdout and "trained_reward_0" in done.stdout, (
        done.stderr
    )


def printed_in(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(), re.S)


@pytest.mark.long
def test_ones_own_game_and_reward_are_taken_by_file(tmp_path):
    """In a process of its own, which knows neither before: played, framed and evaluated, with values that one can tell.

    The players always agree on the sum, after three messages at a cost of 0.1 each.
    """
    reward = (
        "def reward(state, turns, outcome):\n    return [one - 0.1 * outcome.num_messages for one in outcome.rewards]"
    )
    (tmp_path / "cheap.py").write_text(reward)
    (tmp_path / "sums.py").write_text(Path("examples/sums.py").read_text())
    play = """
import selfplay_pipeline as sp
config = sp.load_config("tiny", {"game": "sums.py", "reward.path": "cheap.py", "generate.num_episodes": 16})
assert sp.play_episodes(config, "games.jsonl", ["adding"]).mean_reward == 1
states = sp.sample_held_out(config, 10)
figures = sp.evaluate_player(config, "adding", "evaluation", states=states, episodes=1).modes["scripted"].figures
print(round(figures["trained_reward"].value, 6), figures["reward"].value)
"""
    frames = """
import selfplay_pipeline as sp
frame = sp.episodes_frame("games.jsonl", game="sums.py", reward="cheap.py")
print(frame[["reward_0", "trained_reward_0", "trained_reward_1"]].mean().round(6).tolist())
"""
    turns = 'import selfplay_pipeline as sp; print(len(sp.turns_frame("games.jsonl", game="sums.py")))'
    said = []
    for code in (play, frames, turns):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        said.append(done.stdout.strip())
    assert said == ["0.7 1.0", "[1.0, 0.7, 0.7]", "48"]


def test_files_may_be_given_as_text(tmp_path):
    games = str(write_episodes(tmp_path / "games.jsonl", make_episodes(3, 2)))
    config = load_config("tiny")
    assert selfplay_pipeline.convert_episodes(config, games, str(tmp_path / "rows")).train_rows == 11
    assert len(selfplay_pipeline.episodes_frame(games)) == 6
    assert len(selfplay_pipeline.turns_frame(games)) > 6
    assert len(selfplay_pipeline.rows_frame(str(tmp_path / "rows" / "train.parquet"))) == 11


@pytest.mark.long
def test_the_notebook_is_stored_with_the_outputs_that_it_gives(tmp_path):
    """Run from top to bottom in one process; what each cell prints, or shows as text, is what is stored."""
    codes = [cell for cell in notebook() if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in codes] == [*range(1, len(codes) + 1)]
    (tmp_path / "cells.json").write_text(json.dumps(["".join(cell["source"]) for cell in codes]))
    env = os.environ | {"MPLBACKEND": "Agg", "TMPDIR": str(tmp_path), "PYTHONPATH": str(Path.cwd())}
    done = subprocess.run([sys.executable, "-c", IN_CELLS], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    stored = [
        [text_of(output) for output in cell["outputs"] if "image/png" not in output.get("data", ())] for cell in codes
    ]
    assert json.loads(done.stdout) == stored and any(stored)
    assert (tmp_path / "curve.png").stat().st_size > 5000


IN_CELLS = """
import ast, contextlib, io, json, sys
given, names, seen = json.load(open("cells.json")), {}, []
for source in given:
    *body, last = ast.parse(source).body
    shown = isinstance(last, ast.Expr)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(ast.Module(body if shown else [*body, last], []), "cell", "exec"), names)
        value = eval(compile(ast.Expression(last.value), "cell", "eval"), names) if shown else None
    found = [printed.getvalue()] * bool(printed.getvalue())
    seen.append(found + [repr(value)] * (value is not None))
assert "torch" not in sys.modules
names["figure"].savefig("curve.png")
print(json.dumps(seen))
"""
"""Runs the cells as a notebook does, and prints what each of them printed and the text of its last expression."""


def notebook() -> list[dict]:
    return json.loads(Path("examples/first_look.ipynb").read_text())["cells"]


def text_of(output: dict) -> str:
    return "".join(output["text"] if output["output_type"] == "stream" else output["data"]["text/plain"])


def test_outputs_of_the_notebook_name_no_place_on_a_machine_and_no_time():
    outputs = json.dumps([cell["outputs"] for cell in notebook() if cell["cell_type"] == "code"])
    assert not re.search(r"/(tmp|home|root|work|usr)/|20\d\d-\d\d-\d\d", outputs)
    assert all(cell["metadata"] == {} for cell in notebook())
    assert any("image/png" in output.get("data", ()) for cell in notebook() for output in cell.get("outputs", ()))


def test_the_package_is_imported_at_once():
    slow = {"numpy", "pandas", "pydantic", "rich", "asyncio"}
    code = f"import sys, selfplay_pipeline; print(sorted({slow} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"
    with pytest.raises(AttributeError, match="no attribute 'play'"):
        selfplay_pipeline.play  # noqa: B018
