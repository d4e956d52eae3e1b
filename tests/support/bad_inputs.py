"""Bad inputs, one for each check of the package: how good files are spoiled, and what the one line must say.

`tests/unit/test_bad_inputs.py` runs each command in a folder with the files that `GOOD` names. A regular expression
says what the line names: the file with its line or row, the key or field, and the advice where it decides.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

NAN, INFINITE = float("nan"), float("inf")
Spoil = str | bytes | Callable[[Path], None]
"""New content of a file, or a function that spoils it."""

GOOD = {
    "data/tiny_model": "the tiny model",
    "model": "a copy of it",
    "games.jsonl": "two groups of two episodes of the tiny model",
    "train.parquet": "their eight rows",
    "states.jsonl": "two states",
    "played/games.jsonl": "eight scripted episodes, with their arguments",
    "evaluation": "of the player `random` on two states",
    "states": "states for online training",
    "run": "a run of `iterate` with one finished iteration",
    "training": "a training that has begun",
    "log/questions.jsonl": "what slime's log hook wrote of the games",
    "prompts": "a copy of the prompts `compact`",
    "prompts.yaml": "a configuration with these prompts",
    "chat.yaml": "a configuration with a chat partner behind a closed port",
    "answers.sqlite3": "the chat partner's cache",
}
"""The good files in each folder, and what they are."""

CONFIG = "config --config run.yaml"
CONVERT = "convert games.jsonl --output out"
TRAIN = "train train.parquet --config tiny --set device=cpu --output out"
RESUME = "train train.parquet --config tiny --set device=cpu --set train.keep_zero_signal=true --output training"
CHECK = "convert --check train.parquet"
PLAY = "generate --player random --player random --num-episodes 8 --output played/games.jsonl"
EVALUATE = "evaluate random --num-states 2 --episodes 1 --output out"
STATES = "evaluate random --config tiny --states states.jsonl --output out"
ITERATE = "iterate --config tiny --dry-run --output run"
NEW_RUN = "iterate --config tiny --dry-run --output new"
ONLINE = "train-online states --config tiny --output out"
MODEL = "generate --config tiny --model ./model --output out.jsonl"
LOAD = "evaluate ./model --set engine.kind=transformers --num-states 2 --episodes 1 --output out"
NEW_STATES = "game states --num-train 2 --num-test 2 --output"
PROMPTS = f"{NEW_STATES} out --config prompts.yaml"
CHAT = "generate --config chat.yaml --player random --player chat --num-episodes 2 --output out.jsonl"
QUESTIONS = "slime questions log --output out"
IMITATE = "imitate games.jsonl --config tiny --output"
PAGES = "play --web --config tiny_honest --player person --player sharing --output out.jsonl"
SCRIPTED = "generate --player random --num-episodes 8 --output"
TO_FILES = ("game humans --output", "report games.jsonl --output", "game silence --num-states 9 --output",
            "slime data --num-states 5 --output")  # fmt: skip
TO_TRAININGS = ("train train.parquet --config tiny --set device=cpu --output", IMITATE,
                "train-online --config tiny --output", "train-online --config tiny --dry-run --output")  # fmt: skip
TO_FOLDERS = (*TO_TRAININGS, "convert games.jsonl --output", NEW_STATES, "slime questions log --output",
              "crossplay random sharing --num-states 2 --output", "evaluate random --num-states 2 --output",
              "iterate --config tiny --dry-run --output", "listen sharing --num-states 2 --output",
              "benchmark random --games bargaining --states-per-task 2 --output",
              "model tiny --output")  # fmt: skip


@dataclass(frozen=True)
class Bad:
    """One bad input.

    Attributes:
        name: Its name.
        command: Arguments of `selfplay`; each of several commands must print the same line.
        says: Regular expression that the line must match.
        files: Spoiled files.
    """

    name: str
    command: str | tuple[str, ...]
    says: str
    files: Mapping[str, Spoil] = field(default_factory=dict)

    @property
    def commands(self) -> tuple[str, ...]:
        """All its commands."""
        return (self.command,) if isinstance(self.command, str) else self.command


# Spoils.


def put(data: Any, path: str, value: Any) -> Any:
    """Set the value at a dotted path; `...` removes the key, a function changes the value. Returns the data."""
    if not path:
        return value(data) if callable(value) else value
    *outer, last = path.split(".")
    holder = data
    for part in outer:
        holder = holder[int(part) if isinstance(holder, list) else part]
    last = int(last) if isinstance(holder, list) else last
    if value is ...:
        del holder[last]
    else:
        holder[last] = value(holder[last]) if callable(value) else value
    return data


def in_line(number: int, path: str, value: Any) -> Spoil:
    """Change a value in one line of a JSONL file."""

    def spoil(file: Path) -> None:
        lines = file.read_text().splitlines()
        lines[number - 1] = json.dumps(put(json.loads(lines[number - 1]), path, value))
        file.write_text("".join(line + "\n" for line in lines))

    return spoil


def line(number: int, new: bytes | Callable[[bytes], bytes]) -> Spoil:
    """Replace or change the bytes of one line."""

    def spoil(file: Path) -> None:
        lines = file.read_bytes().splitlines()
        lines[number - 1] = new(lines[number - 1]) if callable(new) else new
        file.write_bytes(b"".join(line + b"\n" for line in lines))

    return spoil


def in_json(path: str, value: Any) -> Spoil:
    """Change a value in a JSON file."""
    return lambda file: file.write_text(json.dumps(put(json.loads(file.read_text()), path, value)))


def in_row(number: int, path: str, value: Any) -> Spoil:
    """Change a value in one row of a parquet file."""
    return in_rows(lambda rows: put(rows, f"{number}.{path}" if path else str(number), value))


def in_rows(change: Callable[[list[Any]], Any]) -> Spoil:
    """Change the rows of a parquet file."""

    def changed(table: pa.Table) -> pa.Table:
        rows = table.to_pylist()
        change(rows)
        return pa.Table.from_pylist(rows, table.schema)

    return in_table(changed)


def in_table(change: Callable[[pa.Table], pa.Table]) -> Spoil:
    """Change the table of a parquet file."""
    return lambda file: pq.write_table(change(pq.read_table(file)), file)


def about(facts: bytes) -> Spoil:
    """Replace the metadata of a parquet file."""
    return in_table(lambda table: table.replace_schema_metadata({"selfplay": facts}))


def of_text(name: str) -> Spoil:
    """Replace a column of a parquet file by text."""
    return in_table(
        lambda table: table.set_column(table.schema.get_field_index(name), name, pa.array(["x"] * table.num_rows))
    )


def cut(share: float) -> Spoil:
    """Keep only the beginning of a file."""
    return lambda file: file.write_bytes(file.read_bytes()[: int(share * file.stat().st_size)])


def gone(file: Path) -> None:
    file.unlink()


def folder(file: Path) -> None:
    file.unlink(missing_ok=True)
    file.mkdir()


def loop(file: Path) -> None:
    file.unlink(missing_ok=True)
    file.symlink_to(file.name)


def foreign(file: Path) -> None:
    """Put a model in the place of a checkpoint."""
    good = next(folder / "data" for folder in file.parents if (folder / "data").is_dir())
    shutil.copytree(good / "tiny_model", file)


def pipe(file: Path) -> None:
    file.unlink(missing_ok=True)
    os.mkfifo(file)


def device(file: Path) -> None:
    file.unlink(missing_ok=True)
    file.symlink_to("/dev/zero")


# Configurations: `config` reads them as each command does.

BOMB = "a: &a [x, x]\n" + "".join(f"{new}: &{new} [*{old}, *{old}]\n" for old, new in zip("abcd", "bcde", strict=True))
TEXTS: list[tuple[str, str | bytes, str]] = [
    ("bomb of aliases", BOMB, r":1: anchors and aliases \(a\)"),
    ("deep nesting", "[" * 50_000, r":1: nested deeper than 20"),
    ("10,000 values", "a: [" + "1," * 20_000 + "]", r":1: more than 10,000 values"),
    ("large file", "# " + "x" * 200_000, r": larger than 100,000 bytes"),
    ("key twice", "seed: 1\ngame:\n  size: 4\n  size: 3", r":4: key 'size' is given in line 3 already"),
    ("merge", "<<: {seed: 1}", r":1: .*a key must be a name"),
    ("two documents", "seed: 1\n---\nseed: 2", r":2: a second document begins"),
    ("Python object", "model: !!python/object/apply:os.system [ls]", r":1: tags \(.*os.system\)"),
    ("list", "- 1", r": expected keys and values, found list"),
    ("no YAML", "a:\n\tb: 1", r":2: not YAML"),
    ("not UTF-8", b"seed: 1\nmodel: \xff\xfe", r":2: not UTF-8 text"),
    ("control character", "seed: 1\nmodel: \x00x", r":2: holds the control character U\+0000"),
    ("escaped control character", '\nengine: {server_url: ["a\\r"]}', r":2: key 'engine.server_url': .* U\+000D"),
    ("unknown key", "game:\n  colour: red", r":2: .*colour"),
    ("unknown key at the top", "temperatur: 1", r":1: key 'temperatur': there is no such key; `selfplay config`"),
    ("misspelt key", "generate: {num_episode: 8}", r":1: .* there is no such key; did you mean `num_episodes`\?"),
    ("of sections", "max_concurrency: 1", r":1: .*mean `generate\.max_concurrency` or `partner\.max_concurrency`\?"),
    ("unknown base", "seed: 1\nbase: huge", r":2: key 'base': there is no base 'huge'; choose one of default"),
    ("list of bases", "seed: 1\nbase: [tiny]", r":2: key 'base': there is no base \['tiny'\]"),
    ("base of a section", "base: tiny\ngame:\n  base: tiny", r":3: key 'game\.base': there is no such key"),
    ("truth for a number", "seed: true", r":1: key 'seed': expected a number, found true"),
    ("list for a number", "generate: {temperature: [1]}", r":1: key 'generate\.temperature': .*number, found a list"),
    ("number for a truth", "generate: {thinking: 7}", r":1: .*expected true or false, found 7"),
    ("switch as an argument", "generate: {template_args: {enable_thinking: true}}", r":1: .*generate\.thinking sets"),
    ("list as an argument", "generate: {template_args: {a: [1]}}", r":1: .*args': a: expected a text, a number"),
    ("text for arguments", "generate: {template_args: low}", r":1: .*expected names and values in braces, found"),
    ("no date", "generate: {date: 2026-13-01}", r":1: .*expected a date such as 2024-07-26, found '2026-13-01'"),
    ("number for a text", "iterate: {partner: 5}", r":1: .*expected a text, found 5"),
    ("number for a section", "base: tiny\n\ngame: 5", r":3: key 'game': expected keys and values, found 5"),
    ("text for a list", "engine: {server_url: http://x}", r":1: .*a list, found the text 'http://x'; write it"),
    ("unknown choice", "train: {loggers: [console, stone]}", r":1: .*expected console, .* found the"),
    ("nothing", "generate: {num_episodes: null}", r":1: .*a whole number, found nothing"),
    ("fraction", "generate: {num_episodes: 8.0}", r":1: key 'generate.num_episodes': expected a whole number"),
    ("too few", "generate: {num_episodes: 0}", r":1: .*expected at least 1, found 0"),
    ("rate of 0", "train: {learning_rate: 0}", r":1: .*expected a number above 0, found 0"),
    ("huge number", "engine: {hang_timeout: 1.0e+300}", r":1: key 'engine.hang_timeout': the largest number"),
    ("not a number", "train: {kl_coef: .nan}", r":1: key 'train.kl_coef': .*finite"),
    ("scale below 1", "game: {scale_max: 0.5}", r":1: key 'game.scale_max': expected at least 1"),
    ("muted environment", "game: {name: textarena, mute: true}", r":1: key 'game.mute': .*cannot be muted"),
    ("no range", "game: {name: pettingzoo, lowest: 2}", r":1: .*lowest: 2 is not below highest, 1"),
    ("no address", "engine: {server_url: [nowhere]}", r":1: key 'engine.server_url': not an address such as"),
    ("override without a key", "train: {overrides: ['=3']}", r":1: key 'train.overrides.*names no key"),
]  # fmt: skip
CONFIGURATIONS = [
    *(Bad(f"configuration: {name}", CONFIG, rf"^run\.yaml{says}", {"run.yaml": text}) for name, text, says in TEXTS),
    Bad("configuration: folder", CONFIG, r"^run\.yaml: a folder, not a file; give a YAML", {"run.yaml": folder}),
    Bad("configuration: unreadable", "config --config /proc/self/mem", "^/proc/self/mem: Input/output error"),
]  # fmt: skip

OPTIONS = [
    Bad("option: infinite", "generate --temperature inf", "--temperature.*finite"),
    Bad("option: thousands of digits", f"generate --num-episodes {'9' * 5_000}", "--num-episodes"),
    Bad("option: empty", "generate --output ''", "--output"),
    Bad("players: one", "crossplay random --num-states 2 --output out", "two or more different players"),
    Bad("a seat, with itself", f"{EVALUATE} --seat 0", "--seat: .*--partner"),
    Bad("a seat that is not there", f"{EVALUATE} --partner random --seat 2", "--seat 2: .*seats 0 to 1"),
    Bad("a seat of iterate, in self-play", f"{NEW_RUN} --set iterate.seat=1", "iterate.seat: .*--partner"),
    Bad("a seat of iterate", f"{NEW_RUN} --partner random --set iterate.seat=2", "iterate.seat 2: .*seats 0 to 1"),
    Bad("unknown key of verl's", tuple(f"{command} -- trainer.nokey=1" for command in (TRAIN, f"{TRAIN} --dry-run",
        f"{ONLINE} --dry-run")),
        r"^train\.overrides .*Could not override 'trainer\.nokey'\..*\+KEY=VALUE"),
    Bad("GPU that is not there", "generate --set device=cuda", "needs 1 GPU, visible: 0; .*--set device=cpu"),
]  # fmt: skip

# Episodes.


def without_last_token(stream: Any) -> Any:
    """Let the token stream end with an observation."""
    for name, value in (("response_ids", 5), ("response_mask", 0), ("response_logprobs", 0.0)):
        stream[name].append(value)
    return stream


def masked_with_log_prob(stream: Any) -> Any:
    stream["response_mask"][0], stream["response_logprobs"][0] = 0, -0.5
    return stream


STREAMS: list[tuple[str, str, Any, str]] = [
    ("log-prob that is no number", "response_logprobs.0", NAN, "response_logprobs"),
    ("positive log-prob", "response_logprobs.0", 0.25, "response_logprobs"),
    ("log-prob without a probability", "response_logprobs.0", -104.5, "response_logprobs"),
    ("too few log-probs", "response_logprobs", lambda found: found[:-1], "response_logprobs"),
    ("short mask", "response_mask", lambda found: found[:-1], "response_mask"),
    ("mask of 2", "response_mask.0", 2, "response_mask"),
    ("negative sampled id", "response_ids.0", -1, "response_ids"),
    ("sampled id beyond the vocabulary", "response_ids.0", 2**31 - 1, "response_ids"),
    ("prompt id beyond the vocabulary", "prompt_ids.1", 100_000, "prompt_ids"),
    ("empty prompt", "prompt_ids", [], "prompt_ids"),
    ("observation at the end", "", without_last_token, "response_mask"),
    ("log-prob of a masked token", "", masked_with_log_prob, "response_logprobs"),
]  # fmt: skip
"""Token streams that no model samples: name, path, value, and the field that is named."""

EPISODES: list[tuple[str, str, Any, str]] = [
    *((name, f"trajectories.0.{path}".rstrip("."), value, says) for name, path, value, says in STREAMS[-2:]),
    ("id of 80 bits", "trajectories.0.response_ids.0", 2**80, "64 bits"),
    ("prompt beyond the messages", "trajectories.0.num_prompt_messages", 99, "num_prompt_messages"),
    ("trajectory of a third seat", "trajectories.0.seat", 2, "'players': has 2"),
    ("two trajectories of a seat", "trajectories.0.seat", 1, "'trajectories'"),
    ("turn of a third seat", "turns.0.seat", 2, "'players'"),
    ("trajectory of another player", "players", ["policy", "random"], "'trajectories'"),
    ("three players", "players", ["policy"] * 3, "'players'"),
    ("unknown action", "turns.0.action", "sing", r"'turns\.0\.action'"),
    ("unknown error", "turns.1.error_kind", "rude", r"'turns\.1\.error_kind'"),
    ("impossible proposal", "turns.0.proposal", [[0, 0], [0, 1], [1, 2]], r"'turns\.0\.proposal'"),
    ("unknown status", "outcome.status", "won", r"'outcome\.status'"),
    ("reward without an agreement", "outcome.status", "turn_limit", r"'outcome\.normalized_reward'"),
    ("one reward", "outcome.rewards", [0.5], r"'outcome\.rewards'"),
    ("rewards of another mean", "outcome", lambda old: old | {"rewards": [0.0, 0.001]}, "normalized_reward'"),
    ("low reward", "outcome.normalized_reward", lambda found: found / 2, r"'outcome\.normalized_reward'"),
    ("high score", "outcome.score", lambda found: found + 1, r"'outcome\.score'"),
    ("impossible agreement", "outcome.proposal", [[0, 0], [0, 1], [1, 2]], r"'outcome\.proposal'"),
    ("high best score", "outcome.best", lambda found: found + 1, r"'outcome\.best'"),
    ("low best score", "outcome.best", lambda found: found - 1, r"'outcome\.best'"),
    ("unknown game", "game", "chess", "'game'"),
    ("ragged table", "state.table", [[1, 2], [3]], "'state'"),
    ("negative temperature", "policy.temperature", -0.5, r"'policy\.temperature'"),
    ("another temperature", "policy.temperature", 0.123, r"'policy\.temperature': 0.123, but 1.0 before"),
    ("another state of the group", "state.scale1", 2.0, "'state'"),
    ("future version", "schema_version", 3, "'schema_version'"),
]  # fmt: skip
READING = (
    "convert games.jsonl --output out",
    "show games.jsonl",
    "report games.jsonl --output out",
    "export games.jsonl --output out",
    "imitate games.jsonl --config tiny --output out",
    "evaluate random --states games.jsonl --output out",
)
AGREED = 2
"""Line of an episode that ended with an agreement."""
GAMES_FILES = [
    *(Bad(f"episode: {name}", CONVERT, rf"^games\.jsonl:{AGREED}: .*{says}",
          {"games.jsonl": in_line(AGREED, path, value)})
      for name, path, value, says in EPISODES),
    Bad("episodes: torn line", CONVERT, r"^games\.jsonl:2: .*JSON", {"games.jsonl": line(2, lambda old: old[:300])}),
    Bad("episodes: deep line", CONVERT, r"^games\.jsonl:2: .*JSON", {"games.jsonl": line(2, b"[" * 100_000)}),
    *(Bad(f"no episodes but {name}", (CONVERT, "show games.jsonl", "report games.jsonl --output out",
                                      "imitate games.jsonl --config tiny --output out"),
          r"^games\.jsonl:1: not an episode \(.+\); give a file of episodes, as `selfplay generate` writes it$",
          {"games.jsonl": content})
      for name, content in (("a table", "a,b\n1,2\n"), ("states", '{"table": [[1]]}\n'), ("a list", "[\n1\n]\n"),
                            ("YAML", "seed: 1\n"), ("bytes", b"\x80\x81\n"))),
    Bad("episodes: one a state", CONVERT, r"^games\.jsonl: one episode per state.*--episodes-per-state 2",
        {"games.jsonl": lambda file: file.write_text("".join(file.read_text().splitlines(keepends=True)[::2]))}),
    Bad("episodes: none", CONVERT, r"^games\.jsonl: holds no finished episode", {"games.jsonl": "\n\n"}),
    Bad("episodes: pipe", CONVERT, r"^games\.jsonl: a pipe", {"games.jsonl": pipe}),
    Bad("episodes: parquet",
        ("show train.parquet", "convert train.parquet --output out", "imitate train.parquet --config tiny --output out",
         "evaluate random --config tiny --states train.parquet --output out"),
        r"^train\.parquet: a parquet file, but this command reads JSONL, such as the episodes of `selfplay generate`$"),
    *(Bad(f"episodes: UTF-16, {name}", READING, r"^games\.jsonl: UTF-16 text; save the file as UTF-8$",
          {"games.jsonl": lambda file, name=name: file.write_bytes(file.read_text().encode(name))})
      for name in ("utf-16", "utf-16-be", "utf-16-le")),
    Bad("episodes: cut gzip", READING, r"^games\.jsonl: damaged gzip data \(.+\); compress the file again$",
        {"games.jsonl": lambda file: file.write_bytes(gzip.compress(file.read_bytes())[:40])}),
    Bad("episodes: damaged gzip", READING, r"^games\.jsonl: damaged gzip data \(.+\); compress the file again$",
        {"games.jsonl": lambda file: file.write_bytes(gzip.compress(b"{}\n")[:-8] + bytes(8))}),
    Bad("episodes: compressed, and to grow", (PLAY, "show played/games.jsonl --follow"),
        r"^played/games\.jsonl: compressed with gzip, so that no line can be added; decompress it \(`gunzip`\)$",
        {"played/games.jsonl": lambda file: file.write_bytes(gzip.compress(file.read_bytes()))}),
    Bad("log of questions: compressed", QUESTIONS, r"^log/questions\.jsonl: damaged gzip data",
        {"log/questions.jsonl": lambda file: file.write_bytes(gzip.compress(file.read_bytes())[:40])}),
    Bad("episodes: folder", "convert run", "^run: a folder, not a file"),
    Bad("convert: link to itself", CONVERT, r"^games\.jsonl: Too many levels of symbolic links", {"games.jsonl": loop}),
    Bad("imitate: link to itself", f"{IMITATE} out", r"^games\.jsonl: Too many levels", {"games.jsonl": loop}),
    Bad("game: value for nothing", "config --game matching:x", r"--game: 'matching:x': matching takes no value"),
    Bad("game check: no such file", "game check bargaining --config none.yaml", r"no built-in.*none\.yaml"),
    Bad("game: link to itself", "config --game own.py", r"own\.py: there is no such file", {"own.py": loop}),
    Bad("export: no episodes", "export games.jsonl --output out", r"^games\.jsonl: no episodes; ", {"games.jsonl": ""}),
    Bad("imitate: another configuration", f"{IMITATE} out",
        r"^games\.jsonl:\d: .*\(--config\)"),
    Bad("generate: folder", f"{SCRIPTED} .", r"^\.: a folder, not a file; give another --output"),
    Bad("generate: name", f"{SCRIPTED} some.1", r"^some\.1: give the file of episodes another name, which ends with"),
    Bad("generate: name of figures", f"{SCRIPTED} metrics.jsonl", r"^metrics\.jsonl: give the file of episodes"),
    Bad("generate: link", f"{SCRIPTED} link.jsonl", r"^link\.jsonl: is a link, and nothing is", {"link.jsonl": loop}),
    Bad("report: infinite size", "report games.jsonl --max-megabytes inf --output out.html", "--max-megabytes"),
    Bad("show: seed of nothing", "show games.jsonl --seed 3", "--seed is the seed of --random"),
    Bad("show: folder", "show run", "^run: a folder; give a file of episodes, such as run/iter_1"),
    Bad("report: text", "report run/manifest.json --output out.html", r"manifest\.json:1: .*`selfplay generate`"),
    Bad("report: folder without episodes", "report data --output out.html", "^data: no episodes in it"),
    Bad("report: missing", "report none --output out.html", "^none: no such file or folder"),
    Bad("pages: other machines without a key", f"{PAGES} --listen 0.0.0.0", "set SELFPLAY_PLAY_KEY to 8 characters"),
    Bad("pages: none", f"{PAGES.replace('--web ', '')} --patience 5", "^--port, --listen and --patience are about"),
    Bad("pages: log", PAGES, r"^out\.people\.jsonl:1: field 'turn\.seat'.*`selfplay play --web` writes this file",
        {"out.people.jsonl": b'{"at":0,"kind":"turn","episode_id":"x","number":0,"text":"","finish_reason":"stop"}\n'}),
    Bad("continued: torn in the middle", PLAY, r"games\.jsonl:2: ", {"played/games.jsonl": line(2, b"{")}),
    Bad("continued: twice", PLAY, r"games\.jsonl:9: .*in line 1 too",
        {"played/games.jsonl": lambda file: file.write_text(file.read_text() * 2)}),
]  # fmt: skip

# Rows.

ROWS: list[tuple[str, str, Any, str]] = [
    *STREAMS,
    ("no log-prob", "response_logprobs.0", None, "response_logprobs"),
    ("no prompt ids", "prompt_ids", None, "prompt_ids"),
    ("no group", "extra_info.index", None, "index"),
    ("third seat", "extra_info.seat", 2, "seat"),
    ("seat twice", "extra_info.seat", 1, "extra_info"),
    ("episode beyond the group", "extra_info.episode", 2, "episode"),
    ("rows missing", "extra_info.group_rows", 5, "group_rows"),
    ("high reward", "reward_model.normalized_reward", 1.01, r"normalized_reward': 1\.01, expected 0 to 1"),
    ("rewards of one episode differ", "reward_model.normalized_reward", 0.001, "normalized_reward"),
    ("another temperature", "sampling_temperature", 0.123, "sampling_temperature"),
    (
        "no tokens",
        "",
        lambda row: row | {"response_ids": [], "response_mask": [], "response_logprobs": []},
        "response_ids",
    ),
]  # fmt: skip
SHARED = ("short mask", "rows missing", "rewards of one episode differ", "another temperature")
BOTH = (TRAIN, CHECK)
"""Commands with one reader of rows; some cases show that both have it, and the others are given to the quicker one."""
PARQUET = [
    *(Bad(f"rows: {name}", BOTH if name in SHARED else CHECK, rf"^train\.parquet: row [23]: field '{says}",
            {"train.parquet": in_row(2, path, value)})
        for name, path, value, says in ROWS
    ),
    Bad("rows: none", BOTH, r"^train\.parquet: no rows", {"train.parquet": in_table(lambda table: table.slice(0, 0))}),
    Bad("rows: column missing", BOTH, r"^train\.parquet: .*'?prompt_ids|columns",
        {"train.parquet": in_table(lambda table: table.drop_columns(["prompt_ids"]))}),
    Bad("rows: column of text", BOTH, r"^train\.parquet: column 'prompt_ids' is string",
        {"train.parquet": of_text("prompt_ids")}),
    Bad("rows: fields of text", BOTH, r"^train\.parquet: no column 'extra_info' of fields",
        {"train.parquet": of_text("extra_info")}),
    Bad("rows: metadata that is no JSON", BOTH, "'selfplay' is not JSON", {"train.parquet": about(b"\xff")}),
    Bad("rows: metadata that is a list", BOTH, "'selfplay' is not a JSON object", {"train.parquet": about(b"[1]")}),
    Bad("rows: future version", BOTH, "version 99 of the format", {"train.parquet": about(b'{"schema_version": 99}')}),
    Bad("rows: top_p", BOTH, "top_p=0.5", {"train.parquet": about(b'{"top_p": 0.5}')}),
    Bad("rows: written by pandas", BOTH, r"^train\.parquet: written by pandas, which drops the metadata of `selfplay "
        r"convert`, such as the model that sampled the rows; convert the episodes again, and change rows with pyarrow",
        {"train.parquet": lambda file: pd.read_parquet(file).to_parquet(file)}),
    Bad("rows: of nobody", TRAIN, "does not say which model", {"train.parquet": about(b"{}")}),
    Bad("rows: cut file", BOTH, r"^train\.parquet: not a readable parquet file", {"train.parquet": cut(0.6)}),
    Bad("rows: pipe", BOTH, r"^train\.parquet: a pipe", {"train.parquet": pipe}),
]  # fmt: skip

# Small files of runs, evaluations, trainings and states.

DAMAGES: list[tuple[str, Spoil, str]] = [
    ("torn", cut(0.3), r":\d+: not JSON"),
    ("deep", '{"a":' * 100_000, ": not JSON: nested too deep"),
    ("integer of 10,000 digits", '{"seed": ' + "9" * 10_000 + "}", ": not JSON: Exceeds the limit"),
    ("not a number", '{"iterations": NaN}', ": not JSON: NaN is not a number"),
    ("infinite", '{"iterations": 1e999}', ": not JSON: a number is too large"),
    ("no keys", "{}", ": field 'iterations' is missing"),
]  # fmt: skip
FINISHED = "iterations.1.evaluate.figures"
SMALL_FILES = [
    *(Bad(f"state.json: {name}", ITERATE, rf"run/state\.json{says}.*`selfplay iterate` writes this file",
          {"run/state.json": spoil})
      for name, spoil, says in DAMAGES),
    Bad("state.json: edited figure", ITERATE, r"run/state\.json: iteration 1, evaluate: field '.*remove this entry",
        {"run/state.json": in_json(f"{FINISHED}.figures.held_out_reward", "high")}),
    *(Bad(f"state.json: {name}", ITERATE, r"run/state\.json: iteration 1, evaluate: field 'figures.*remove this entry",
          {"run/state.json": in_json(f"{FINISHED}.figures.{figure}", value)})
      for name, figure, value in (
          ("reward without an interval", "held_out_greedy_reward", {"value": 0.5, "low": None, "high": None}),
          ("reward as a number", "held_out_reward", 0.5),
          ("a figure without an end", "held_out_talk_score", {"value": 0.5, "low": 0.4}))),
    Bad("manifest.json", (ITERATE, "report run --output out.html"), r"run/manifest\.json:1: not JSON",
        {"run/manifest.json": "x"}),
    Bad("manifest.json: another run", f"{ITERATE} --seed 3", r"run was begun with seed = 0, now it is 3"),
    Bad("metrics.jsonl: of a run", "report run --output out.html", r"iter_1/metrics\.jsonl:2: damaged: not the figures",
        {"run/iter_1/metrics.jsonl": line(2, b'{"loss": 1}')}),
    Bad("training.json", RESUME, r"trainer_state/training\.json:1: not JSON",
        {"training/trainer_state/training.json": "x"}),
    Bad("training.json: another training", RESUME, r"^training was begun with data = "),
    Bad("arguments of an evaluation", "evaluate random --num-states 2 --episodes 1 --output evaluation",
        r"evaluation/scripted\.args\.json: expected a JSON object", {"evaluation/scripted.args.json": "[1]"}),
    Bad("summary of an evaluation", "evaluate random --num-states 2 --episodes 1 --output evaluation",
        r"evaluation/scripted\.summary\.json: field 'groups': Field", {"evaluation/scripted.summary.json": "{}"}),
    Bad("evaluation.json", "report evaluation --output out.html", r"evaluation/evaluation\.json:1: not JSON",
        {"evaluation/evaluation.json": "x"}),
    Bad("evaluation of other states", "evaluate random --num-states 3 --episodes 1 --compare evaluation --output out",
        "^evaluation: not comparable"),
    Bad("file for a folder", ("convert games.jsonl --output games.jsonl", f"{NEW_STATES} games.jsonl"),
        r"^games\.jsonl: is a file; give a folder"),
    Bad("plots in a file", "report games.jsonl --format png --output games.jsonl", r"^games\.jsonl: is a file; give a"),
    Bad("output below a device", f"{NEW_STATES} /dev/null/x", "^/dev/null: is a device or pipe; give a folder"),
    Bad("output below a file", tuple(f"{command} games.jsonl/x" for command in TO_FILES),
        r"^games\.jsonl: is a file; give a folder"),
    Bad("folder for a file", tuple(f"{command} run" for command in TO_FILES),
        "^run: a folder, not a file; give another --output"),
    Bad("new folder for a file", tuple(f"{command} new/" for command in (SCRIPTED, *TO_FILES)),
        "^new/: a folder, not a file; give another --output"),
    Bad("owner of a folder", (EVALUATE.replace("--output out", "--output evaluation"), f"{NEW_STATES} evaluation"),
        r"^evaluation/\.selfplay: names no command that writes", {"evaluation/.selfplay": "somebody"}),
    Bad("link to itself for a folder", tuple(f"{command} link" for command in TO_FOLDERS),
        "^link: is a link that leads nowhere; give a folder, or remove the link", {"link": loop}),
    Bad("foreign checkpoint", tuple(f"{command} foreign" for command in TO_TRAININGS),
        "^foreign/checkpoint exists but was not made by a training here", {"foreign/checkpoint": foreign}),
    Bad("foreign checkpoint in a run", (ITERATE, ITERATE.replace("--dry-run ", "")),
        "^run/iter_2/checkpoint exists but was not made by a training here", {"run/iter_2/checkpoint": foreign}),
    Bad("lines of silence", "game silence --num-states 99999999 --output silence.json",
        r"^silence\.json: field 'entries\.0'", {"silence.json": '{\n  "entries": [1]}'}),
]  # fmt: skip

STATE: list[tuple[str, str, Any, str]] = [
    ("field missing", "mask1", ..., "'mask1'"),
    ("half a point", "table.0.0", 0.5, "'table'"),
    ("ragged table", "table", [[1, 2], [3]], "'table'"),
    ("mask of 2", "mask1.0.0", 2, "'mask1'"),
    ("mask of another shape", "mask2", [[1]], "'mask2' has shape"),
    ("table of one row", "table", [[1]], "'table' has shape"),
    ("scale of 0", "scale1", 0, "'scale1'"),
    ("names of numbers", "papers", [1, 2, 3], "'papers' needs 3"),
    ("high best score", "best_assignment_reward", 999, "best_assignment_reward"),
    ("high human score", "proposal_reward", 10**9, "'proposal_reward'"),
]  # fmt: skip
STATES_FILES = [
    *(
        Bad(f"state: {name}", STATES, rf"^states\.jsonl:2: .*{says}", {"states.jsonl": in_line(2, path, value)})
        for name, path, value, says in STATE
    ),
    Bad("states: a list", STATES, r"^states\.jsonl:2: expected a JSON object", {"states.jsonl": line(2, b"[]")}),
    Bad("states: torn line", STATES, r"^states\.jsonl:2: not JSON", {"states.jsonl": line(2, lambda old: old[:50])}),
    Bad("states: none", STATES, r"^states\.jsonl: holds no game state", {"states.jsonl": ""}),
    Bad("states: device", STATES, r"^states\.jsonl: a device", {"states.jsonl": device}),
    Bad("online: cut file", ONLINE, r"train\.parquet: not a readable parquet", {"states/train.parquet": cut(0.6)}),
    Bad("online: other columns", ONLINE, r"states/train\.parquet: its columns",
        {"states/train.parquet": in_table(lambda table: table.select(["data_source"]))}),
    Bad("online: no rules", ONLINE, r"states/train\.parquet.*field 'rules' is damaged",
        {"states/train.parquet": in_row(0, "extra_info.rules", "{")}),
    Bad("online: rules of another game", ONLINE, "another game than the configuration's",
        {"states/train.parquet": in_row(0, "extra_info.rules", '{"size": 8}')}),
    Bad("online: no state", ONLINE, r"states/train\.parquet.*game_state",
        {"states/train.parquet": in_row(0, "game_state", "{}")}),
]  # fmt: skip

# Models, prompts, the chat partner, slime.


def chat_template(after_role: str, after_header: str) -> str:
    """A chat template with other text after the role of an earlier reply and after the header of the next one."""
    return (
        "{% for m in messages %}<|im_start|>{{ m.role }}{{ '" + after_role + "' if m.role == 'assistant' }}\n"
        "{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant" + after_header + "{% endif %}"
    )


MODELS = [
    Bad("model: size of text", LOAD, r"config\.json: .*hidden_size",
        {"model/config.json": in_json("hidden_size", "wide")}),
    Bad("model: no weights", LOAD, "model: no weights there", {"model/model.safetensors": gone}),
    Bad("model: two sets of weights", LOAD, r"model: holds pytorch_model\.bin beside the weights of model\.safetensors",
        {"model/pytorch_model.bin": "x"}),
    Bad("model: two heads", LOAD, r"model: lm_head\.weight differs from model\.embed_tokens\.weight",
        {"model/config.json": in_json("tie_word_embeddings", True)}),
    Bad("model: no tokenizer", MODEL, "model: no tokenizer found there",
        {"model/tokenizer.json": gone, "model/tokenizer_config.json": gone}),
    Bad("model: always thinks", MODEL, r"model: the chat template begins each reply with a thought.*thinking: true",
        {"model/chat_template.jinja": chat_template("", "\n<think>\n")}),
    Bad("model: unread argument", f"{MODEL} --set 'generate.template_args={{effort: 1}}'",
        r"^generate\.template_args\.effort: the chat template of \./model does not read it; leave it out"),
    Bad("model: chooses a recipient", MODEL, r"model: the chat template lets a model begin a reply with 'to=user",
        {"model/chat_template.jinja": chat_template(" to=user<|im_start|>", "")}),
]  # fmt: skip
OTHERS = [
    Bad("prompt: missing", PROMPTS, r"game\.prompts: .*system\.j2", {"prompts/system.j2": gone}),
    Bad("cache of text", CHAT, r"partner\.cache: .*answers\.sqlite3", {"answers.sqlite3": "x" * 4096}),
    Bad("cache: device", CHAT, r"^answers\.sqlite3: a device, not a file; .*partner\.cache",
        {"answers.sqlite3": device}),
    Bad("questions: torn line", QUESTIONS, r"log/questions\.jsonl:2: ",
        {"log/questions.jsonl": line(2, lambda old: old[:40])}),
    Bad("questions: file", "slime questions games.jsonl --output out", r"^games\.jsonl: no such folder"),
]  # fmt: skip


CASES = [*CONFIGURATIONS, *OPTIONS, *GAMES_FILES, *PARQUET, *SMALL_FILES, *STATES_FILES, *MODELS, *OTHERS]
"""All bad inputs."""
