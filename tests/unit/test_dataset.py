"""`selfplay export`: episodes as a dataset that other tools load, and that `imitate` reads back."""

import json
from pathlib import Path
from typing import Any

import datasets
import pytest
from command import selfplay
from factories import BOARD, byte_chat, make_episodes, write_episodes

from selfplay_pipeline.config.schema import ImitateConfig
from selfplay_pipeline.convert.imitation import Source, make_rows
from selfplay_pipeline.convert.replay import replay
from selfplay_pipeline.dataset import export_episodes
from selfplay_pipeline.games.registry import make_game
from selfplay_pipeline.generate.records import EpisodeRecord, read_episodes

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
    records = {(path, record.episode_id): record for path in files for record in read_episodes(path)}
    seats = [(record, seat) for record in records.values() for seat in sorted({turn.seat for turn in record.turns})]
    assert len(rows) == len(seats) > len(records)
    for row, (record, seat) in zip(rows, seats, strict=True):
        meta, held = row["meta"], record.seats[seat]
        assert row["messages"] == messages_of(record, seat)
        assert (meta["episode_id"], meta["seat"], meta["player"]) == (record.episode_id, seat, held.name)
        assert (meta["reward"], meta["outcome"]) == (record.outcome.reward_of(seat), record.outcome.status)
        assert meta["model"] == (held.policy and held.policy.checkpoint)
        assert sum(message["role"] == "assistant" for message in row["messages"]) == meta["turns"]
    assert len({row["meta"]["state_id"] for row in rows}) == len({str(record.state) for record in records.values()})


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


def test_private_without_push_is_refused(files: list[Path], tmp_path: Path) -> None:
    done = selfplay("export", str(files[0]), "--output", str(tmp_path / "out"), "--private")
    assert done.returncode == 2 and "--private is for a dataset on the hub; give --push" in done.stderr
    assert not [*tmp_path.iterdir()]
