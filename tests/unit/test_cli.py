"""The command line: one clear line and exit code 2 for a user's mistake, quick help, dry runs."""

import io
import os
import re
import shlex
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import requests
from command import selfplay
from factories import FINISHED, make_episodes, write_episodes

from selfplay_pipeline import __version__
from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.core import reporting, terminal
from selfplay_pipeline.core.terminal.progress import shown
from selfplay_pipeline.engines.sglang_server import ServerSpec, cpu_cache_tokens
from selfplay_pipeline.games.registry import make_game
from selfplay_pipeline.generate.read_records import read_episodes
from selfplay_pipeline.iterate.folder import RunDirectory, StageRecord
from selfplay_pipeline.warm_start.lesson import _untrained


def test_help_imports_nothing_heavy():
    probe = (
        "import sys; sys.argv = ['selfplay', '--help']\n"
        "from selfplay_pipeline.cli import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "print([m for m in ('torch', 'numpy', 'pydantic', 'pyarrow', 'verl', 'sglang') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True)
    assert done.stdout.rstrip().endswith("[]")


@pytest.mark.parametrize("trained", [True, False])
def test_a_model_that_reaches_no_agreement_is_sent_to_its_warm_start(tmp_path, trained):
    config, model, games = load_config("tiny", {}), "data/tiny_model", tmp_path / "games.jsonl"
    if not trained:
        model = str(_untrained(make_game(config.game).lessons["self-play"], 0, tmp_path / "model"))
    done = selfplay(
        "generate", "--config", "tiny", "--model", model, "--engine", "transformers", "--num-episodes", "2",
        "--episodes-per-state", "2", "--temperature", "0.1", "--set", "generate.max_new_tokens=48",
        "--output", str(games),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = done.stderr.splitlines()
    if trained:
        assert said[-1].startswith(f"next: selfplay convert {games}")
        return
    taught = tmp_path / "teacher.jsonl"
    assert "no episode ended in agreement" in said[-2] and said[-1].startswith(f"next: selfplay imitate {taught} ")
    (command,) = re.findall(r"`selfplay (generate --player teacher .*)`", said[-2])
    made = selfplay(*shlex.split(command), "--num-episodes", "2")
    assert made.returncode == 0 and taught.exists(), made.stderr


def test_a_model_that_the_limit_of_turns_kept_from_all_agreements_is_not_sent_to_a_warm_start(tmp_path):
    done = selfplay(
        "generate", "--config", "tiny", "--engine", "transformers", "--num-episodes", "2",
        "--episodes-per-state", "2", "--set", "game.max_length=1", "--output", str(tmp_path / "games.jsonl"),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "every episode ended at the game's limit of 1 turns" in done.stderr.splitlines()[-1]
    assert "warm start" not in done.stderr


MISTAKES = [
    ("generate --config nothing", "no built-in configuration or file 'nothing'"),
    ("generate --model /nowhere", "/nowhere: no Hugging Face model there"),
    ("generate --num-episodes 0", "--num-episodes"),
    ("generate --engine vllm", "option for engine.kind"),
    ("generate --player policy --player nobody", "no scripted player or checkpoint 'nobody'"),
    ("generate --player random --player random --player random", "--player: given 3 times, but the game has 2 seats"),
    ("generate --player random --player greedy", "no scripted player or checkpoint 'greedy'"),
    ("train /nowhere/train.parquet", "/nowhere/train.parquet: no such file"),
    ("train /nowhere/train.parquet +a=b ~trainer.balance_batch", "/nowhere/train.parquet: no such file"),
    ("train games.jsonl", "games.jsonl: training reads parquet; `selfplay convert games.jsonl` makes it"),
    ("train a.parquet b.parquet", "takes one path, but a.parquet and b.parquet are given"),
    ("train a.parquet --data b.parquet", "give a.parquet or --data b.parquet, not both"),
    ("train-online /nowhere", "/nowhere/test.parquet: "),
    ("train-online /nowhere --games /no", "give /nowhere or --games /no, not both"),
    ("train-online --model /nowhere", "/nowhere: no Hugging Face model there"),
    (
        "iterate --set train.method=filtered-bc --set train.best_of_group=0 --episodes-per-state 1",
        "play each state at least twice",
    ),
    *((f"{loop} --episodes-per-state 1", "play each state at least twice") for loop in ("train-online", "iterate")),
    ("train-online --temperature 0", "greedy episodes cannot be trained on"),
    ("iterate --set generate.temperature=0", "greedy episodes cannot be trained on"),
    ("iterate --no-such-option", "selfplay: no such option: --no-such-option; `"),
    ("iterate --num-iteration 2", "no such option: --num-iteration; did you mean --num-iterations (or --"),
    ("generate extra", "got unexpected extra argument(s) (extra); `"),
    ("listens", "selfplay: no such command 'listens'. Did you mean 'listen'? `"),
    ("evaluate /nowhere/checkpoint --num-states 2", "/nowhere/checkpoint: no Hugging Face model there"),
    (
        "evaluate random --partner nobody",
        "no scripted player or checkpoint 'nobody'; scripted players of the game match",
    ),
    ("evaluate random --states /nowhere.jsonl", "/nowhere.jsonl: No such file"),
    ("evaluate policy", "'policy' is not allowed here"),
    ("evaluate random --num-states 2 --compare /nowhere", "/nowhere: no finished evaluation"),
]


@pytest.mark.parametrize(("command", "words"), MISTAKES, ids=[command for command, _ in MISTAKES])
def test_a_mistake_is_one_clear_line_and_exit_code_2(tmp_path, command, words):
    done = selfplay(*command.split(), "--output", str(tmp_path / "out" / "x"))
    assert (done.returncode, "Traceback" in done.stderr) == (2, False) and words in done.stderr, done.stderr
    assert done.stderr.splitlines()[-1].startswith("selfplay: ")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("named", [(), ("rows.parquet",), ("--data", "rows.parquet", "--dry-run")])
def test_a_training_says_first_that_its_file_is_missing(tmp_path, monkeypatch, named):
    """Before it chooses a configuration, which it would announce."""
    monkeypatch.chdir(tmp_path)
    file = "rows.parquet" if named else "data/matching_game_selfplay/train.parquet"
    done = selfplay("train", *named)
    assert done.returncode == 2
    assert done.stderr.startswith(f"selfplay: {file}: no such file; `") and done.stderr.count("\n") == 1


@pytest.mark.parametrize("arguments", [("evaluate", "nobody"), ("crossplay", "random", "nobody")])
def test_a_wrong_player_is_refused_before_states_are_sampled(monkeypatch, arguments):
    monkeypatch.setattr("selfplay_pipeline.evaluate.states.held_out_states", lambda *_: pytest.fail("sampled states"))
    assert "no scripted player or checkpoint 'nobody'" in selfplay(*arguments).stderr


def test_one_scripted_player_holds_all_seats_and_needs_no_model(tmp_path):
    games = tmp_path / "games.jsonl"
    options = ("--player", "teacher", "--num-episodes", "16", "--output", str(games))
    assert selfplay("generate", *options).returncode == 0
    episodes = [*read_episodes(games)]
    assert len(episodes) == 16 and not any(episode.trajectories for episode in episodes)
    assert {turn.seat for episode in episodes for turn in episode.turns} == {0, 1}
    assert selfplay("show", str(games)).returncode == 0
    refused = selfplay("convert", str(games), "--output", str(tmp_path / "out"))
    assert refused.returncode == 2 and "the policy took no turn in any of the 16 episodes" in refused.stderr
    assert not (tmp_path / "out").exists()


def test_server_arguments_for_cpu_and_gpu():
    cpu = ServerSpec(model="data/tiny_model", device="cpu", log_path=Path("log"))
    gpu = ServerSpec(model="m", device="cuda", log_path=Path("log"), tensor_parallel=2, data_parallel=4)
    assert "--device=cpu" in cpu.command(1)
    assert cpu.environment()["SGLANG_USE_CPU_ENGINE"] == "1"
    assert {"--tp-size=2", "--dp-size=4", "--dtype=bfloat16"} <= set(gpu.command(1))
    assert "SGLANG_USE_CPU_ENGINE" not in gpu.environment()
    assert cpu_cache_tokens("data/tiny_model") > 10_000


@pytest.mark.parametrize(
    ("before", "after"),
    [("expandable_segments:True", ""), ("max_split_size_mb:512,expandable_segments:True", "max_split_size_mb:512")],
)
def test_a_server_that_releases_its_memory_has_no_expandable_segments(monkeypatch, caplog, before, after):
    """torch-memory-saver refuses to start with them."""
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", before)
    shared, alone = (
        ServerSpec(model="m", device="cuda", log_path=Path("log"), shares_gpu=shares) for shares in (True, False)
    )
    caplog.set_level("INFO")
    assert shared.environment()["PYTORCH_CUDA_ALLOC_CONF"] == after
    assert "starts without expandable_segments" in caplog.text
    assert "PYTORCH_CUDA_ALLOC_CONF" not in alone.environment()


def test_a_server_does_not_ask_itself_through_a_proxy(monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://proxy:3128")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.setenv("NO_PROXY", "example.org")
    spec = ServerSpec(model="data/tiny_model", device="cpu", log_path=Path("server.log"))
    for name, value in spec.environment().items():
        monkeypatch.setenv(name, value)
    assert requests.utils.should_bypass_proxies("http://127.0.0.1:20000/health", no_proxy=None)
    assert requests.utils.should_bypass_proxies("http://example.org", no_proxy=None)


BIN = Path(sys.executable).parent


@pytest.mark.parametrize(("folder", "program"), [(Path("/"), str(BIN)[1:]), (BIN.parent, BIN.name)])
@pytest.mark.long
def test_a_command_that_a_message_names_can_be_pasted_where_the_environment_is_not_active(folder, program):
    env = {**os.environ, "PATH": "/usr/bin:/bin", "PYTHONPATH": str(Path.cwd())}
    command = [f"{BIN}/selfplay", "convert", "/nowhere/games.jsonl"]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
    assert f"`{program}/selfplay generate` writes this file" in done.stderr
    assert (folder / program / "selfplay").samefile(BIN / "selfplay")


def test_a_dry_run_of_a_loop_says_what_is_left(tmp_path):
    run = RunDirectory(tmp_path / "run")
    run.open(load_config("tiny", {}))
    for number, stages in {0: ["evaluate"], 1: ["generate", "convert", "train", "evaluate"], 2: ["generate"]}.items():
        for stage in stages:
            run.finish(number, stage, StageRecord(seconds=1, figures=FINISHED[stage]))
    before = {path: path.read_bytes() for path in run.path.iterdir()}
    arguments = ("iterate", "--config", "tiny", "--num-iterations", "4", "--dry-run", "--output", str(run.path))
    lines = selfplay(*arguments).stdout.splitlines()
    assert lines[1:] == [
        "iteration 0: evaluate done",
        "iteration 1: generate, convert, train, evaluate done",
        "iteration 2: generate done; convert, train, evaluate left",
        "iterations 3 to 4: generate, convert, train, evaluate left",
    ]
    refused = selfplay(*arguments, "--seed", "7")
    assert refused.returncode == 2 and "begun with seed = 0, now it is 7" in refused.stderr
    assert {path: path.read_bytes() for path in run.path.iterdir()} == before


@pytest.mark.parametrize(
    ("wait", "text"),
    [
        (lambda: reporting.waiting("the server"), "the server"),
        (lambda: reporting.progress("training", "waiting for step 1"), "waiting for step 1"),
    ],
)
@pytest.mark.parametrize("drawn", [pytest.param(True, marks=pytest.mark.long), False])
def test_waiting_shows_that_time_passes(monkeypatch, wait, text, drawn):
    class Screen(io.StringIO):
        def write(self, text: str) -> int:
            if re.search(r" … \d+ s|0:00:0[1-9]", text):
                passed.set()
            return super().write(text)

    passed = threading.Event()
    monkeypatch.setattr(reporting, "LOG_EVERY_SECONDS", 0.02)
    monkeypatch.setattr(terminal, "console", terminal.Terminal(file=Screen(), force_terminal=drawn, width=120))
    with shown(), wait():
        assert passed.wait(60)
    assert text in terminal.console.file.getvalue()


@pytest.mark.long
def test_a_run_without_a_turn_fails_and_stops_a_loop(tmp_path):
    config = tmp_path / "run.yaml"
    config.write_text(
        "base: tiny\nengine: {kind: transformers, context_length: 95}\n"
        "generate: {num_episodes: 4, episodes_per_state: 2}\niterate: {evaluate_every: 0}\ntrain: {loggers: "
        "[console]}\n"
    )
    games = tmp_path / "games" / "games.jsonl"
    done = selfplay("generate", "--config", str(config), "--output", str(games))
    assert done.returncode == 1 and "context_length 4" in done.stderr and "game.prompts" in done.stderr
    assert len(games.read_text().splitlines()) == 4
    done = selfplay("iterate", "--config", str(config), "--output", str(tmp_path / "run"))
    assert done.returncode == 1 and "context_length 4" in done.stderr
    assert len((tmp_path / "run" / "iter_1" / "selfplay_games.jsonl").read_text().splitlines()) == 4
    assert not (tmp_path / "run" / "state.json").exists()


def test_a_name_that_is_not_utf8_is_refused_in_one_line(tmp_path):
    command = [sys.executable, "-m", "selfplay_pipeline", "report", os.fsencode(tmp_path) + b"/\xff"]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 2
    assert len(ended.stderr.splitlines()) == 1 and "holds a byte that is not UTF-8; rename the file" in ended.stderr


def test_the_version_is_printed_and_what_comes_next_is_said(tmp_path):
    assert selfplay("--version").stdout == f"selfplay-pipeline {__version__}\n"
    games = write_episodes(tmp_path / "games.jsonl", make_episodes(2, 2))
    assert selfplay("convert", str(games)).stderr.endswith(f"train {tmp_path / 'train.parquet'}\n")
    scripted = ("--player", "random", "--player", "random", "--num-episodes", "2", "--episodes-per-state", "1")
    done = selfplay("generate", *scripted, "--output", str(tmp_path / "new.jsonl"))
    assert done.stderr.endswith(f"show {tmp_path / 'new.jsonl'}\n")


@pytest.mark.long
@pytest.mark.parametrize("command", ["", "--version", "--help", "config", "doctor", "show games.jsonl"])
def test_a_deleted_working_directory_is_one_line(tmp_path, command):
    gone = tmp_path / "gone"
    gone.mkdir()
    script = f'cd "{gone}" && rmdir "{gone}" && exec "{BIN}/selfplay" {command}'
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True)
    says = "selfplay: the working directory: No such file or directory; change to a folder that exists (cd)\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", says)


WARNING = "import sys, warnings; warnings.warn('harmless'); print('went on')"


@pytest.mark.long
@pytest.mark.parametrize("value", ["error", "error::UserWarning", "default,error"])
def test_warnings_of_libraries_end_nothing_although_the_user_makes_them_errors(tmp_path, value):
    """SGLang and Ray warn where they are imported: in the command itself, in its children, and in theirs."""
    script = (
        "import contextlib, multiprocessing, subprocess, sys; from selfplay_pipeline.__main__ import main\n"
        "sys.argv = ['selfplay', '--version']\n"
        "with contextlib.suppress(SystemExit): main()\n"
        f"code = {WARNING!r}\nexec(code)\n"
        "subprocess.run([sys.executable, *subprocess._args_from_interpreter_flags(), '-c', code], check=True)\n"
    )
    env = {**os.environ, "PYTHONWARNINGS": value}
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.count("went on") == 2, done.stderr
