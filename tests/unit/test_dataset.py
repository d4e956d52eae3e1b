"""`selfplay export`: episodes as a dataset that other tools load, and that `imitate` reads back."""

import json
from pathlib import Path
from typing import Any

import datasets
import pyarrow.parquet as pq
import pytest
from command import selfplay
from factories import BOARD, byte_chat, make_episodes, write_episodes

from selfplay_pipeline.config.schema import ImitateConfig
from selfplay_pipeline.convert.imitation import Source, make_rows
from selfplay_pipeline.convert.replay import replay
from selfplay_pipeline.dataset import export_episodes
from selfplay_pipeline.games.base import MESSAGE
from selfplay_pipeline.games.registry import make_game
from selfplay_pipeline.generate.read_records import read_episodes
from selfplay_pipeline.generate.records import EpisodeRecord

GAME = make_game(BOARD)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Episodes of a policy, and those of scripts."""
    folder = tmp_path_factory.mktemp("export")
    policy = write_episodes(folder / "games.jsonl", make_episodes(3, 4))
    scripts = folder / "scripts" / "games.jsonl"
    (folder / "board.yaml").write_text(f"base: tiny\ngame: {json.dumps(BOARD.model_dump())}\n")
    command = ("generate", "--config", str(folder / "board.yaml"), "--num-episodes", "8", "--output", str(scripts))
    done = selfplay(*command, "--player", "sharing", "--player", "random")
    assert done.returncode == 0, done.stderr
    return [policy, scripts]


@pytest.fixture(scope="module")
def folder(files: list[Path]) -> Path:
    out = files[0].parent / "dataset"
    done = selfplay(
        "export", *map(str, files), "--config", str(out.parent / "board.yaml"), "--output", str(out), "--license", "mit"
    )
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture(scope="module")
def rows(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return list(datasets.load_dataset(str(folder), cache_dir=str(tmp_path_factory.mktemp("cache")))["train"])


def messages_of(record: EpisodeRecord, seat: int) -> list[dict[str, str]]:
    """Returns the stored messages of a trained seat; else those of a replay with a tokenizer."""
    stored = {trajectory.seat: trajectory for trajectory in record.trajectories}
    return [message.model_dump() for message in (stored.get(seat) or replay(record, GAME, byte_chat())[seat]).messages]


def test_each_seat_that_took_a_turn_is_a_row_with_its_messages(files: list[Path], rows: list[dict[str, Any]]) -> None:
    records = {(file, record.episode_id): record for file in (1, 2) for record in read_episodes(files[file - 1])}
    seats = [
        (file, record, seat)
        for (file, _), record in records.items()
        for seat in sorted({turn.seat for turn in record.turns})
    ]
    assert len(rows) == len(seats) > len(records)
    for row, (file, record, seat) in zip(rows, seats, strict=True):
        meta, held = row["meta"], record.seats[seat]
        assert meta["file"] == file
        assert row["messages"] == messages_of(record, seat)
        assert (meta["episode_id"], meta["seat"], meta["player"]) == (record.episode_id, seat, held.name)
        assert (meta["reward"], meta["outcome"]) == (record.outcome.reward_of(seat), record.outcome.status)
        assert meta["model"] == (held.policy and held.policy.checkpoint)
        assert sum(message["role"] == "assistant" for message in row["messages"]) == meta["turns"]
    assert len({row["meta"]["state_id"] for row in rows}) == len({str(record.state) for record in records.values()})


def test_an_episode_that_is_given_twice_is_refused(files: list[Path], tmp_path: Path) -> None:
    given = (str(files[1]), str(files[1]), "--config", str(files[0].parent / "board.yaml"))
    done = selfplay("export", *given, "--output", str(tmp_path / "out"))
    where = f"{files[1]}:1"
    assert done.returncode == 2 and f"{where}: the same episode was in {where} already; give it once" in done.stderr


def test_imitation_of_the_folder_trains_on_the_same_tokens(files: list[Path], folder: Path) -> None:
    def parts(*names: Path) -> dict[str, list[dict[str, Any]]]:
        sources = [Source.of(f"{name}=2") for name in names]
        return make_rows(sources, GAME, byte_chat(), ImitateConfig(), context_length=100_000, seed=0).parts

    exported, files_parts = parts(folder), parts(*files)
    for name, expected in files_parts.items():
        assert len(exported[name]) == len(expected)
        for row, other in zip(exported[name], expected, strict=True):
            for column in ("prompt_ids", "response_ids", "response_mask"):
                assert row[column].tolist() == other[column].tolist()


def test_the_card_has_licence_players_and_reference_lines(folder: Path) -> None:
    card = (folder / "README.md").read_text()
    assert card.startswith('---\nlicense: "mit"\n')
    for line in ("| policy | ", "| sharing | ", "| random | ", "| own_view | ", "| optimum | 1.000 |"):
        assert line in card


def test_the_card_says_whose_prompts_and_which_seed_a_row_has(folder: Path) -> None:
    card = (folder / "README.md").read_text()
    assert "seats of `chat` and `person` have the game's configured prompts in place of those that they read" in card
    assert "| meta.seed | seed of the run that played the episode" in card


def test_a_dataset_is_replaced_and_other_folders_are_kept(files: list[Path], folder: Path, tmp_path: Path) -> None:
    assert export_episodes(files[:1], GAME, folder.parent / "twice").episodes == 12
    assert export_episodes(files[1:], GAME, folder.parent / "twice").episodes == 8
    (tmp_path / "mine.txt").write_text("mine")
    done = selfplay("export", str(files[0]), "--output", str(tmp_path))
    assert done.returncode == 2 and "holds something that" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_files_of_different_rules_are_refused_because_a_seat_heard_something_else(tmp_path: Path) -> None:
    for name, mute in (("heard", "false"), ("muted", "true")):
        (tmp_path / f"{name}.yaml").write_text(f"base: tiny\ngame: {{mute: {mute}}}\n")
        options = ("--config", str(tmp_path / f"{name}.yaml"), "--num-episodes", "2", "--episodes-per-state", "2")
        play = ("generate", "--player", "sharing", *options, "--output", str(tmp_path / f"{name}.jsonl"))
        assert selfplay(*play).returncode == 0
    heard, muted = (str(tmp_path / f"{name}.jsonl") for name in ("heard", "muted"))
    for arguments in ((heard, muted), (muted, "--config", str(tmp_path / "heard.yaml"))):
        done = selfplay("export", *arguments, "--output", str(tmp_path / "out"))
        assert done.returncode == 2 and "muted.jsonl was played with game.mute = " in done.stderr, done.stderr
        assert not (tmp_path / "out").exists()
    assert selfplay("export", muted, "--output", str(tmp_path / "out")).returncode == 0
    again = selfplay("export", str(tmp_path / "out" / "episodes.jsonl"), "--output", str(tmp_path / "again"))
    assert again.returncode == 0, again.stderr
    rows = pq.read_table(tmp_path / "again" / "seats.parquet").to_pylist()
    heard_there = [message["content"] for row in rows for message in row["messages"] if message["role"] == "user"]
    said = {
        turn.text for one in read_episodes(tmp_path / "muted.jsonl") for turn in one.turns if turn.action == MESSAGE
    }
    assert said and not any(text in heard for heard in heard_there for text in said), "the dataset keeps its rules"


@pytest.mark.long
def test_a_dataset_of_another_protocol_is_reported_by_its_own_rules(tmp_path: Path) -> None:
    (tmp_path / "fixed.yaml").write_text("game: {name: mediation, protocol: fixed}\n")
    games, out = tmp_path / "games.jsonl", tmp_path / "out"
    options = ("--config", str(tmp_path / "fixed.yaml"), "--num-episodes", "4", "--episodes-per-state", "2")
    assert selfplay("generate", "--player", "random", *options, "--output", str(games)).returncode == 0
    assert selfplay("export", str(games), "--output", str(out)).returncode == 0
    done = selfplay("report", str(out))
    assert done.returncode == 0 and "read with the default rules" not in done.stderr
    (out / "episodes.args.json").unlink()
    done = selfplay("report", str(out), "--output", str(tmp_path / "page.html"))
    assert done.returncode == 0, "figures that depend on the rules are left out"
    assert "episodes.jsonl: read with the default rules of mediation, since the file with its own" in done.stderr


def test_private_without_push_is_refused(files: list[Path], tmp_path: Path) -> None:
    done = selfplay("export", str(files[0]), "--output", str(tmp_path / "out"), "--private")
    assert done.returncode == 2 and "--private is for a dataset on the hub; give --push" in done.stderr
    assert not [*tmp_path.iterdir()]
