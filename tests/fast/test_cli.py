"""The command line: one clear line and exit code 2 for a user's mistake, quick help, dry runs."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner

from selfplay_pipeline.cli import app
from selfplay_pipeline.engines.sglang_server import ServerSpec, SGLangServer, cpu_cache_tokens
from selfplay_pipeline.engines.types import EngineError


@dataclass
class Done:
    returncode: int
    stdout: str
    stderr: str


def selfplay(*arguments: str) -> Done:
    """The command in this process, which is quicker; the next test shows that one of its own does the same."""
    result = CliRunner().invoke(app, arguments, prog_name="selfplay")
    return Done(result.exit_code, result.stdout, result.stderr)


def test_the_command_exits_as_a_process():
    command = [sys.executable, "-m", "selfplay_pipeline.cli", "convert", "/nowhere/games.jsonl"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert (
        done.stderr
        == "selfplay: /nowhere/games.jsonl: No such file or directory; `selfplay generate` writes this file\n"
    )


def test_help_imports_nothing_heavy():
    probe = (
        "import sys; sys.argv = ['selfplay', '--help']\n"
        "from selfplay_pipeline.cli import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "print([m for m in ('torch', 'numpy', 'pydantic', 'pyarrow', 'verl', 'sglang') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True)
    assert done.stdout.rstrip().endswith("[]")


@pytest.mark.parametrize(
    "command", ["generate", "convert", "train", "games", "train-online", "iterate", "evaluate", "crossplay", "config"]
)
def test_every_command_explains_its_options(command):
    done = selfplay(command, "--help")
    assert done.returncode == 0
    assert "--config" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("convert", "/nowhere/games.jsonl"), "/nowhere/games.jsonl: No such file"),
        (("generate", "--config", "nothing"), "no built-in configuration or file 'nothing'"),
        (("generate", "--model", "/nowhere"), "/nowhere: no Hugging Face model there"),
        (("generate", "--num-games", "0"), "--num-games"),
        (("generate", "--engine", "vllm"), "option for engine.kind"),
        (("train", "--data", "/nowhere/train.parquet"), "/nowhere/train.parquet"),
        (("train-online", "--games", "/nowhere"), "/nowhere/test.parquet: "),
        (("train-online", "--plays-per-state", "1"), "play each state at least twice"),
        (("train-online", "--temperature", "0"), "greedy games cannot be trained on"),
        (("train-online", "--model", "/nowhere"), "/nowhere: no Hugging Face model there"),
        (("iterate", "--no-such-option"), "--no-such-option"),
        (("evaluate", "/nowhere/checkpoint"), "/nowhere/checkpoint: no Hugging Face model there"),
        (
            ("evaluate", "random", "--opponent", "nobody"),
            "no scripted partner or checkpoint 'nobody'; scripted partners: random",
        ),
        (("evaluate", "random", "--states", "/nowhere.jsonl"), "/nowhere.jsonl: No such file"),
        (("evaluate", "data/tiny_modle"), "data/tiny_modle: no Hugging Face model there"),
        (("evaluate", "policy"), "'policy' is no player here"),
        (("evaluate", "random", "--compare", "/nowhere"), "/nowhere: no finished evaluation"),
        (("crossplay", "random"), "name two or more different players"),
        (("generate", "--player1", "nobody"), "no scripted partner or checkpoint 'nobody'"),
    ],
)
def test_a_mistake_is_one_clear_line_and_exit_code_2(tmp_path, arguments, words):
    output = () if arguments[0] == "convert" else ("--output", str(tmp_path / "out" / "x"))
    done = selfplay(*arguments, *output)
    assert done.returncode == 2, done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_a_dry_run_says_what_would_be_done_and_writes_nothing(tmp_path):
    done = selfplay("generate", "--num-games", "100", "--dry-run", "--output", str(tmp_path / "x" / "games.jsonl"))
    assert "plays 104 games (13 states × 8 plays" in done.stdout
    assert not (tmp_path / "x").exists()
    done = selfplay("evaluate", "own-view", "--opponent", "random", "--num-states", "20", "--plays", "3", "--dry-run")
    assert "own-view with random on 20 held-out states (seed 0): 120 scripted plays" in done.stdout


def test_a_server_that_cannot_start_shows_the_end_of_its_log(tmp_path):
    import asyncio

    spec = ServerSpec(
        model=str(tmp_path / "nothing"), device="cuda", log_path=tmp_path / "log", extra_args=("--no-such",)
    )
    with pytest.raises(EngineError, match="ended with code"):
        asyncio.run(SGLangServer(spec).start())


def test_server_arguments_for_cpu_and_gpu():
    cpu = ServerSpec(model="data/tiny_model", device="cpu", log_path=Path("log"))
    gpu = ServerSpec(model="m", device="cuda", log_path=Path("log"), tensor_parallel=2, data_parallel=4)
    assert "--device=cpu" in cpu.command(1)
    assert cpu.environment()["SGLANG_USE_CPU_ENGINE"] == "1"
    assert {"--tp-size=2", "--dp-size=4", "--dtype=bfloat16"} <= set(gpu.command(1))
    assert "SGLANG_USE_CPU_ENGINE" not in gpu.environment()
    assert cpu_cache_tokens("data/tiny_model") > 10_000
