"""Verification of a converted file with verl's dataset, the tokenizer and the game's own loader."""

from __future__ import annotations

import json
import tempfile
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from selfplay_pipeline.convert.parquet import read_rows, read_table
from selfplay_pipeline.convert.rows import METADATA_KEY, OF_EPISODES, TRAINED, schema_with
from selfplay_pipeline.core.checkpoints import vocabulary_of
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.files import write_text
from selfplay_pipeline.core.small_files import check_is_no_pattern
from selfplay_pipeline.games.base import read_state
from selfplay_pipeline.games.registry import game_named
from selfplay_pipeline.generate.records import ChatMessage
from selfplay_pipeline.generate.trajectory import ChatTokenizer


@dataclass
class CheckReport:
    """Passed checks, one line each, with the number of rows, episodes or groups."""

    path: Path
    lines: list[str] = field(default_factory=list)

    def to_text(self) -> str:
        return "\n".join([f"{self.path}: all checks passed", *(f"  {line}" for line in self.lines)]) + "\n"


def check_parquet(path: Path, model: str) -> CheckReport:
    """Check every row, write the report next to the data as `<name>.check.txt`, and return it.

    Args:
        path: The file train.parquet or val.parquet.
        model: Model whose tokenizer the episodes were played with.

    Raises:
        UserError: A check failed; the message names the first such check and its row.
    """
    rows = _read(path, vocabulary_of(model))
    facts = json.loads((pq.read_schema(path).metadata or {}).get(METADATA_KEY, b"{}"))
    template = facts.get("template")
    chat = ChatTokenizer.load(model, **(template if isinstance(template, dict) else {}))
    report = CheckReport(path)
    _check_verl_loads(path, rows, chat)
    report.lines.append(f"verl's RLHFDataset loads {len(rows)} rows and gives back their prompts")
    for number, row in enumerate(rows):
        where = f"{path}: row {number} ({row['extra_info']['episode_id']}, seat {row['extra_info']['seat']})"
        _check_tokens(where, row, chat)
    report.lines.append(f"{len(rows)} rows: prompt_ids are the chat template's own tokens of `prompt`")
    report.lines.append(f"{len(rows)} rows: unmasked tokens decode to the assistant messages, in order")
    report.lines.append(f"{len(rows)} rows: masks and log-probs fit, and the last token, which has the reward, is own")
    episodes, groups = _check_groups(path, rows)
    report.lines.append(
        f"{episodes} episodes: all perspectives have the same game state, and one reward where they share it"
    )
    if facts.get("placebo"):
        report.lines.append("a placebo: rewards are permuted within groups, and say nothing of their episodes")
    if TRAINED in rows[0]:
        report.lines.append(f"{len(rows)} rows: trained on a reward of their own, not on the game's")
    report.lines.append(
        f"{groups} groups: one game state, two episodes or more, rewards in [0, 1] over the state's best"
    )
    write_text(path.with_suffix(".check.txt"), report.to_text())
    return report


def _read(path: Path, vocabulary: int | None) -> list[dict[str, Any]]:
    for _ in read_rows(path, vocabulary):
        pass
    table = read_table(path)
    ours = schema_with(*(name for name in OF_EPISODES if name in table.column_names))
    if not table.schema.equals(ours, check_metadata=False) or METADATA_KEY not in (table.schema.metadata or {}):
        raise UserError(f"{path}: its columns are not those that `selfplay convert` writes; convert the episodes again")
    if not table.num_rows:
        raise UserError(f"{path}: no rows; play episodes and convert them first")
    for name in ours.names:
        if table.column(name).null_count:
            raise UserError(f"{path}: column {name!r} has a row without a value; convert the episodes again")
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


def _check_verl_loads(path: Path, rows: list[dict[str, Any]], chat: ChatTokenizer) -> None:
    from omegaconf import OmegaConf
    from verl.utils.dataset.rl_dataset import RLHFDataset

    check_is_no_pattern(path)
    longest = max((len(row["prompt_ids"]) for row in rows), default=1)
    with tempfile.TemporaryDirectory() as cache:
        config = OmegaConf.create(
            {
                "max_prompt_length": longest,
                "cache_dir": cache,
                "return_raw_chat": True,
                "filter_overlong_prompts": False,
            }
        )
        dataset = RLHFDataset(data_files=[str(path.resolve())], tokenizer=chat.tokenizer, config=config)
        if len(dataset) != len(rows):
            raise UserError(
                f"{path}: verl's RLHFDataset loads only {len(dataset)} of {len(rows)} rows; convert the episodes again"
            )
        for number, row in enumerate(rows):
            if list(dataset[number]["raw_prompt"]) != row["prompt"]:
                raise UserError(
                    f"{path}: row {number}: verl's RLHFDataset gives another prompt; convert the episodes again"
                )


def _check_tokens(where: str, row: dict[str, Any], chat: ChatTokenizer) -> None:
    prompt = [ChatMessage.model_validate(message) for message in row["prompt"]]
    if chat.rendered_prompt(prompt) != row["prompt_ids"]:
        raise UserError(
            f"{where}: prompt_ids are not the chat template's tokens of `prompt`; give --model, the model that played"
        )
    spans = groupby(zip(row["response_ids"], row["response_mask"], strict=True), key=lambda pair: pair[1])
    own = [chat.decode_reply([token for token, _ in span]) for mask, span in spans if mask]
    said = [message["content"] for message in row["messages"][len(prompt) :] if message["role"] == "assistant"]
    if own != said:
        raise UserError(
            f"{where}: the unmasked tokens do not decode to the assistant messages; convert the episodes again"
        )


def _check_groups(path: Path, rows: list[dict[str, Any]]) -> tuple[int, int]:
    facts = json.loads((pq.read_schema(path).metadata or {}).get(METADATA_KEY, b"{}"))
    try:
        game, shared = game_named(facts["game"]), facts["shared_reward"]
    except ValueError as error:
        raise UserError(f"{path}: field 'game' of its metadata: {error}") from None
    episodes: dict[tuple[int, int], set[tuple[float, str]]] = defaultdict(set)
    states: dict[int, set[str]] = defaultdict(set)
    for row in rows:
        info, reward = row["extra_info"], row["reward_model"]
        episodes[info["index"], info["episode"]].add((reward["normalized_reward"], reward["game_state"]))
        states[info["index"]].add(reward["game_state"])
    for (group, episode), seen in episodes.items():
        if len(seen if shared else {state for _, state in seen}) != 1:
            raise UserError(
                f"{path}: group {group} episode {episode}: the perspectives differ in reward or state; "
                "convert the episodes again"
            )
    for group, found in states.items():
        if len(found) != 1 or sum(index == group for index, _ in episodes) < 2:
            raise UserError(
                f"{path}: group {group} has {len(found)} states, or fewer than two episodes; convert the episodes again"
            )
        try:
            read_state(game, next(iter(found)))
        except UserError as error:
            raise UserError(f"{path}: group {group}: field 'game_state': {error}; convert the episodes again") from None
    return len(episodes), len(states)
