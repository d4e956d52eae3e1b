"""Export of episodes as a Hugging Face dataset: one row per seat, the episodes themselves, and a dataset card."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from selfplay_pipeline.config.identity import differences, flatten, in_words
from selfplay_pipeline.convert.imitation import EPISODES
from selfplay_pipeline.convert.replay import Recorded, conversations, recorded_episodes
from selfplay_pipeline.convert.rows import MESSAGES
from selfplay_pipeline.core.errors import UserError, first_line
from selfplay_pipeline.core.files import filling, write_json
from selfplay_pipeline.core.folders import check_folder
from selfplay_pipeline.core.reporting import progress
from selfplay_pipeline.evaluate.states import StateSet, key_of, references
from selfplay_pipeline.games.base import Game, State
from selfplay_pipeline.generate.read_records import read_episodes
from selfplay_pipeline.generate.records import CHAT, PERSON, POLICY
from selfplay_pipeline.metrics.bootstrap import Interval
from selfplay_pipeline.report.sources import EpisodesFile

SEATS, CARD = "seats.parquet", "README.md"
RULES = Path(EPISODES).with_suffix(".args.json").name
"""Name of the file with the game's rules, where commands that read episodes look for them."""
BATCH = 256
"""Number of episodes whose rows are written at once."""
META = pa.struct(
    {
        "game": pa.string(),
        "file": pa.int64(),
        "episode_id": pa.string(),
        "state_id": pa.string(),
        "seed": pa.int64(),
        "seat": pa.int64(),
        "role": pa.string(),
        "player": pa.string(),
        "model": pa.string(),
        "weights": pa.string(),
        "iteration": pa.int64(),
        "temperature": pa.float64(),
        "trained": pa.bool_(),
        "outcome": pa.string(),
        "reward": pa.float64(),
        "turns": pa.int64(),
        "illegal_turns": pa.int64(),
    }
)
SCHEMA = pa.schema({"messages": MESSAGES, "meta": META})
"""Columns of seats.parquet."""
ABOUT = {
    # The episode holds neither the prompt of a chat model nor the prompts for people.
    "messages": "what the seat read (`system`, `user`) and wrote (`assistant`), from the first turn to the last; "
    f"seats of `{CHAT}` and `{PERSON}` have the game's configured prompts in place of those that they read",
    "meta.game": "name of the game",
    "meta.file": "number of the file of the episode, from 1, in the order in which the files were given to `export`",
    "meta.episode_id": "name of the episode in this file; its seats have a row each",
    "meta.state_id": "hash of the problem; equal for episodes that pose the same one",
    "meta.seed": "seed of the run that played the episode; its other episodes have the same",
    "meta.seat, meta.role": "number of the seat, from 0, and its role in the game",
    "meta.player": f"who held the seat: `{POLICY}`, a script, `{CHAT}`, `{PERSON}`, or a checkpoint",
    "meta.model, meta.weights": "path and content hash of the checkpoint that held the seat; null for other players",
    "meta.iteration": "training iterations of the policy before the episode; null for other players",
    "meta.temperature": "sampling temperature; null for other players",
    "meta.trained": "whether the seat's turns were training data",
    "meta.outcome": "how the episode ended",
    "meta.reward": "reward of the seat, normalised by the game's formula",
    "meta.turns, meta.illegal_turns": "number of the seat's turns, and how many of them broke a rule",
}


@dataclass
class Exported:
    """Counts and figures of an export, for its card.

    Attributes:
        rewards: Rewards of the seats by their player.
        states: First state of each problem, by its hash.
    """

    game: Game
    episodes: int = 0
    rewards: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    states: dict[str, State] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        return sum(map(len, self.rewards.values()))

    def lines(self) -> dict[str, Interval]:
        """Returns the reference rewards of the game on the exported states."""
        return references(self.game, StateSet("exported", tuple(self.states.values())))

    def to_text(self) -> str:
        """Returns the counts in words."""
        return f"rows {self.rows}, episodes {self.episodes}, states {len(self.states)}"


def export_episodes(files: Sequence[Path], game: Game, output: Path, license: str = "") -> Exported:
    """Write a dataset folder: seats.parquet, the episodes and a dataset card.

    `datasets.load_dataset(folder)` loads seats.parquet; `selfplay imitate` reads the episodes.

    Args:
        files: Files of episodes of the game.
        game: The game with the configuration that the episodes were played with.
        output: The folder.
        license: Licence of the dataset, as the hub names it; "" states none.

    Raises:
        UserError: A line is invalid, an episode is of another game or configuration, there are no episodes, or the
            folder holds something else.
    """
    check_export(output)
    done = Exported(game)
    rules = flatten({"game": game.config.model_dump(mode="json")})
    with filling(output) as new:
        with pq.ParquetWriter(new / SEATS, SCHEMA) as seats, (new / EPISODES).open("wb") as episodes:
            rows: list[dict[str, Any]] = []
            for one, messages in read(files, game):
                episodes.write(one.line.rstrip(b"\n") + b"\n")
                rows += _rows(one, messages, done)
                if len(rows) >= BATCH * len(game.roles):
                    seats.write_table(pa.Table.from_pylist(rows, schema=SCHEMA))
                    rows = []
            seats.write_table(pa.Table.from_pylist(rows, schema=SCHEMA))
        write_json(new / RULES, rules)
        (new / CARD).write_text(card(done, output.name, license), "utf-8")
    return done


def check_export(output: Path) -> None:
    """Raises UserError if the folder holds something that `export` did not write."""
    check_folder(output, "export")
    if output.exists() and any(output.iterdir()) and not (output / SEATS).exists():
        raise UserError(f"{output} holds something that `selfplay export` did not write; give another --output")


def read(files: Sequence[Path], game: Game) -> Iterator[tuple[Recorded, list[list[Any]]]]:
    """Yields each episode with the messages of its seats, as JSON objects.

    A trained seat has the messages that it was trained on; the messages of other seats are those of the replay,
    with the prompts of the game.

    Raises:
        UserError: A line is invalid, an episode is there twice, or is of another game or configuration; or there are no
            episodes.
    """
    _check_rules(files, game)
    places: dict[bytes, str] = {}
    with progress("reading episodes", brief=True) as shown:
        for one in recorded_episodes(files, game, shown):
            digest = sha256(one.line.strip()).digest()
            if first := places.get(digest):
                raise UserError(f"{one.where}: the same episode was in {first} already; give it once")
            places[digest] = one.where
            try:
                seats = conversations(one.record, game)
            except ValueError as error:
                raise UserError(f"{one.where}: {error}") from None
            for trajectory in one.record.trajectories:
                seats[trajectory.seat] = trajectory.messages
            yield one, [[message.model_dump() for message in messages] for messages in seats]
    if not places:
        raise UserError(f"{', '.join(map(str, files))}: no episodes; `selfplay generate` writes them")


def _check_rules(files: Sequence[Path], game: Game) -> None:
    """Raises UserError if the rules beside a file differ from the game's, since a seat may have read something else."""
    for path in files:
        file, first = EpisodesFile(path, "other", ""), next(read_episodes(path), None)
        if first is None or (rules := file.game_config()) is None or not rules.name == first.game == game.name:
            continue
        both = (file.game_of(first), game.of_state(first.state))
        played, here = (flatten({"game": one.config.model_dump(mode="json")}) for one in both)
        if differ := differences(played, here):
            raise UserError(
                f"{path} was played with {in_words(differ)}; export files of other rules to a folder of their own"
            )


def _rows(one: Recorded, messages: Sequence[list[Any]], done: Exported) -> list[dict[str, Any]]:
    """Returns the rows of the seats that took a turn, and counts them."""
    record = one.record
    state = key_of(done.game, record.state)
    done.episodes += 1
    done.states.setdefault(state, done.game.state_from_json(record.state))
    rows = []
    for seat, (role, held) in enumerate(zip(done.game.roles, record.seats, strict=True)):
        turns = [turn for turn in record.turns if turn.seat == seat]
        if not turns:
            continue
        reward = record.outcome.reward_of(seat)
        done.rewards[held.name].append(reward)
        meta = {
            "game": record.game,
            "file": one.file + 1,
            "episode_id": record.episode_id,
            "state_id": state[:16],
            "seed": record.seed,
            "seat": seat,
            "role": role,
            "player": held.name,
            "model": held.policy and held.policy.checkpoint,
            "weights": held.policy and held.policy.weights,
            "iteration": held.policy and held.policy.iteration,
            "temperature": held.policy and held.policy.temperature,
            "trained": held.trained,
            "outcome": record.outcome.status,
            "reward": reward,
            "turns": len(turns),
            "illegal_turns": sum(turn.error is not None for turn in turns),
        }
        rows.append({"messages": messages[seat], "meta": meta})
    return rows


def card(done: Exported, name: str, license: str) -> str:
    """Returns the dataset card: its settings for the hub, then what the dataset holds."""
    settings = {
        **({"license": license} if license else {}),
        "task_categories": ["text-generation"],
        "tags": ["self-play", "dialogue", "cooperation", done.game.name],
        "configs": [{"config_name": "default", "data_files": [{"split": "train", "path": SEATS}]}],
    }
    players = [
        f"| {player} | {len(rewards)} | {sum(rewards) / len(rewards):.3f} |"
        for player, rewards in sorted(done.rewards.items())
    ]
    lines = [f"| {line} | {at.value:.3f} |" for line, at in done.lines().items()]
    columns = [f"| {column} | {about} |" for column, about in ABOUT.items()]
    return "\n".join(
        [
            "---",
            *(f"{key}: {json.dumps(value)}" for key, value in settings.items()),  # JSON is YAML
            "---",
            "",
            f"# {name}",
            "",
            f"Episodes of a cooperative dialogue game ({done.game.describe()}) in which each seat knows only a part of "
            f"what matters: {done.to_text()}. Written by selfplay-pipeline.",
            "",
            *("| player | rows | mean reward |", "|---|---|---|", *players, ""),
            *(("Reward of other ways to play, for comparison:", "") if lines else ()),
            *(("| reference | reward |", "|---|---|", *lines, "") if lines else ()),
            *("| column | content |", "|---|---|", *columns, ""),
            f"A row is one seat's part of one episode. `{EPISODES}` holds the episodes as they were recorded, with",
            "token ids and log-probs; `selfplay imitate FOLDER` trains on them.",
            "",
        ]
    )


def push(folder: Path, repository: str, *, private: bool) -> str:
    """Uploads a dataset folder to the hub with the hub's own client, and returns the address of the dataset.

    Args:
        folder: The folder, which `export_episodes` wrote.
        repository: Name of the dataset on the hub, such as `me/episodes`.
        private: Whether a new dataset is visible to its owner only.

    Raises:
        UserError: The hub does not answer, or refuses; the folder is kept.
    """
    from huggingface_hub import HfApi

    try:
        api = HfApi()
        address = api.create_repo(repository, repo_type="dataset", private=private, exist_ok=True)
        api.upload_folder(
            repo_id=repository, repo_type="dataset", folder_path=folder, allow_patterns=[SEATS, EPISODES, RULES, CARD]
        )
    except Exception as error:  # of whichever library carries the request
        raise UserError(
            f"--push {repository}: the hub did not take the dataset ({first_line(error)}); {folder} is complete: "
            "log in with `hf auth login`, and repeat the command"
        ) from None
    return str(address)
