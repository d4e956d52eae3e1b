"""Random episodes that are valid in every respect: real rules, a real (byte-level) chat template, both trajectories."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
from hypothesis import strategies as st
from jinja2 import Template
from safetensors.numpy import load_file, save_file
from tokenizers import AddedToken

from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.core.content_hash import content_hash
from selfplay_pipeline.engines.types import Completion, EngineError, FinishReason, SamplingParams
from selfplay_pipeline.games.base import Game, ScriptedPlayer, Session, Status, Step, state_rng
from selfplay_pipeline.games.matching.game import MatchingGame
from selfplay_pipeline.games.matching.proposals import format_proposal
from selfplay_pipeline.games.matching.rules import MatchingConfig, MatchingState, best_matching
from selfplay_pipeline.games.registry import make_game
from selfplay_pipeline.generate.episode import ContextFull, Episode, Player
from selfplay_pipeline.generate.human_episodes import NOBODY
from selfplay_pipeline.generate.players import ScriptSeat, policy_player
from selfplay_pipeline.generate.records import EpisodeRecord, OutcomeRecord, PolicyRecord, SeatRecord
from selfplay_pipeline.generate.trajectory import ChatTokenizer

BOARD = MatchingConfig(size=3, max_score=9, scale_max=1, hard_factor=0, max_length=12, max_errors=3)
TINY = "data/tiny_model"
POLICY = PolicyRecord(
    checkpoint=TINY, weights=content_hash(TINY), iteration=0, engine="sglang", temperature=1.0, max_new_tokens=48
)


def other_weights(folder: Path, factor: float = 1.2) -> str:
    """Write the tiny model with scaled weights: another checkpoint of one tokenizer; returns its folder."""
    copytree(TINY, folder)
    weights = {name: factor * tensor for name, tensor in load_file(folder / "model.safetensors").items()}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return str(folder)


def untrained(config: str, folder: Path) -> str:
    """Write a tiny model that speaks the game's words, but has learned nothing; returns its folder."""
    import torch

    from selfplay_pipeline.warm_start.tiny_model import build_tokenizer, new_model

    torch.manual_seed(0)
    tokenizer = build_tokenizer(make_game(load_config(config, {}).game).lessons["self-play"].words)
    tokenizer.save_pretrained(folder)
    new_model(tokenizer).save_pretrained(folder)
    return str(folder)


SPECIAL = ("<|im_start|>", "<|im_end|>")
CHATML = Template(
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    keep_trailing_newline=True,
)


class ByteTokenizer:
    """One id per UTF-8 byte, 256 and 257 for ChatML's two special tokens; needs neither torch nor transformers."""

    chat_template = "chatml"
    name_or_path = "bytes"
    eos_token_id = 257
    special_tokens_map: dict[str, str] = {}
    added_tokens_decoder = {256 + number: AddedToken(token, special=True) for number, token in enumerate(SPECIAL)}

    def get_chat_template(self) -> str:
        return self.chat_template

    def apply_chat_template(self, messages: Any, *, add_generation_prompt: bool, tokenize: bool) -> str:
        assert not tokenize
        return CHATML.render(messages=messages, add_generation_prompt=add_generation_prompt)

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        assert not add_special_tokens
        ids: list[int] = []
        for part in re.split("(" + "|".join(map(re.escape, SPECIAL)) + ")", text):
            ids += [256 + SPECIAL.index(part)] if part in SPECIAL else part.encode()
        return ids

    def __call__(self, text: str, *, add_special_tokens: bool, return_offsets_mapping: bool) -> dict[str, list[Any]]:
        assert return_offsets_mapping
        parts = re.finditer("|".join([*map(re.escape, SPECIAL), "[^<]+|<"]), text)
        spans = []
        for part in parts:
            spans += [part.span()] if part[0] in SPECIAL else _spans_of_bytes(part[0], part.start())
        return {"input_ids": self.encode(text, add_special_tokens=add_special_tokens), "offset_mapping": spans}

    def decode(self, ids: list[int]) -> str:
        return bytes(token for token in ids if token < 256).decode()


def _spans_of_bytes(text: str, start: int) -> list[tuple[int, int]]:
    return [(at, at + 1) for at, character in enumerate(text, start) for _ in character.encode()]


@cache
def byte_chat() -> ChatTokenizer:
    return ChatTokenizer(ByteTokenizer())


@cache
def board_state(seed: int, group: int, config: MatchingConfig = BOARD) -> MatchingState:
    return MatchingGame(config).sample_state(state_rng(seed, group))


@dataclass(frozen=True)
class Habits:
    """How an episode goes: how often its players talk, spoil a turn, are cut, and do without agreement."""

    talk: float = 0.5
    spoil: float = 0.15
    cut: float = 0.1
    reject: float = 0.2
    best: float = 0.3
    """How often a proposal is the optimum."""


def make_episode(
    group: int = 0,
    episode: int = 0,
    *,
    seed: int = 0,
    config: MatchingConfig = BOARD,
    policy: PolicyRecord = POLICY,
    chat: ChatTokenizer | None = None,
    habits: Habits = Habits(),
    ends_after: int | None = None,
    ends_with: Status = Status.CONTEXT_LENGTH,
) -> EpisodeRecord:
    """Play one state at random and record it as `generate` would; the arguments decide every byte.

    Args:
        ends_after: break the episode off after so many turns.
        ends_with: why, a full context or an engine failure.
    """
    chat = chat or byte_chat()
    game, state = MatchingGame(config), board_state(seed, group, config)
    stop = {Status.ENGINE_FAILURE: EngineError, Status.CONTEXT_LENGTH: ContextFull}[ends_with]
    engine = RandomTurns(chat, state, habits, np.random.default_rng([seed, group, episode]), ends_after, stop)
    seat = policy_player(engine, chat, policy, context_length=1 << 30)
    seated = Episode(game, state, [seat] * 2, f"s{seed}-g{group:06d}-p{episode}", (seed, group, episode))
    engine.episode = seated
    seated.play_out()
    return seated.record(policy)


@cache
def drawn(game: Game, seed: int) -> Any:
    """The first state of a seed."""
    return game.sample_state(state_rng(seed, 0))


def play(game: Game, state: Any, *players: str | ScriptedPlayer, seed: int | np.random.Generator = 0) -> Episode:
    """An episode of scripts, which take no illegal turn and share one stream of random numbers.

    Args:
        players: scripts, or names of the game's own; one holds all seats.
    """
    rng = np.random.default_rng(seed)
    scripts = [game.players[one] if isinstance(one, str) else one for one in players] * len(game.roles)
    held = [player_of(script, rng) for script in scripts[: len(game.roles)]]
    episode = Episode(game, state, held, "e", (0, 0, 0))
    episode.play_out()
    assert [turn for turn in episode.turns if turn.error is not None] == []
    return episode


def streams(game: Game, state: Any, turns: Sequence[tuple[int, str]]) -> list[list[str]]:
    """All that each seat reads, as long as the turns are legal on the state."""
    session = game.start(state)
    read = [[str(session.opening(seat))] for seat, _ in enumerate(game.roles)]
    for seat, text in turns:
        step = session.step(seat, text)
        if step.error is not None:
            break
        for stream, observation in zip(read, step.observations, strict=True):
            stream.append(observation)
    return read


def scripts_record(game: Game, state: Any, episode: Episode) -> EpisodeRecord:
    """The record of an episode of scripted players."""
    return EpisodeRecord.of(
        [SeatRecord(kind="script", name="sharing") for _ in game.roles], NOBODY, episode_id="e", group_index=0,
        episode=0, seed=0, game=game.name, state=game.state_to_json(state), turns=episode.turns, trajectories=[],
        outcome=OutcomeRecord.of(episode.session.outcome()),
    )  # fmt: skip


def alike(ours: Sequence[Any], theirs: Sequence[Any], quantity: Callable[[Any], float]) -> bool:
    """Whether the means of a quantity are within four standard errors of the difference."""
    one, other = (np.array([quantity(each) for each in samples]) for samples in (ours, theirs))
    error = np.hypot(one.std() / len(one) ** 0.5, other.std() / len(other) ** 0.5)
    return bool(abs(one.mean() - other.mean()) < 4 * error)


def player_of(script: ScriptedPlayer, rng: np.random.Generator) -> Player:
    """A script that the game need not know, with a stream of random numbers."""
    return Player(SeatRecord(kind="script", name="script"), lambda seat: ScriptSeat(script, seat.view, rng))


def take(session: Session, text: str, *, cut: bool = False) -> Step:
    """The turn of the seat that may act first."""
    return session.step(session.seats[0], text, cut=cut)


@dataclass
class RandomTurns:
    """An engine that knows what the players see, and answers as their habits are, until it fails."""

    chat: ChatTokenizer
    state: MatchingState
    habits: Habits
    rng: np.random.Generator
    ends_after: int | None
    error: type[Exception]
    episode: Episode | None = None

    async def generate(self, prompt_ids: Sequence[int], params: SamplingParams, *, session: str = "") -> Completion:
        assert self.episode is not None
        if len(self.episode.turns) == self.ends_after:
            raise self.error("on purpose")
        cut = bool(self.rng.random() < self.habits.cut)
        text = _random_turn(self.state, self.episode.session.pending, self.habits, self.rng)
        return _sampled(self.chat, text, cut, self.rng)


class RandomPlay:
    """An engine that samples random play of any game."""

    def __init__(self, game: Game, chat: ChatTokenizer, seed: int) -> None:
        self.game, self.chat, self.rng = game, chat, np.random.default_rng(seed)
        self.episode: Episode | None = None

    async def generate(self, *prompt: Any, session: str = "") -> Completion:
        assert self.episode is not None
        playing = self.episode.session
        text = self.game.players["random"].act(self.game.view(playing, playing.seats[0]), self.rng)
        return completion(self.chat, text)


def completion(chat: ChatTokenizer, text: str, finish: FinishReason = FinishReason.STOP, read: int = 0) -> Completion:
    """What an engine returns that samples exactly the tokens of a text, after a prompt of so many tokens."""
    ids = chat.tokenizer.encode(text, add_special_tokens=False) + [chat.end_of_turn] * (finish is FinishReason.STOP)
    return Completion(ids, [-0.5] * len(ids), finish, prompt_tokens=read, cached_tokens=0)


def make_random_episode(
    game: Game, group: int, episode: int, *, chat: ChatTokenizer | None = None, seed: int = 0
) -> EpisodeRecord:
    """Record random play of any game as that of a policy in all seats."""
    engine = RandomPlay(game, chat or byte_chat(), seed)
    players = [policy_player(engine, engine.chat, POLICY, context_length=1 << 30)] * len(game.roles)
    state = game.sample_state(state_rng(0, group))
    seated = Episode(game, state, players, f"g{group}-{episode}", (0, group, episode))
    engine.episode = seated
    seated.play_out()
    return seated.record(POLICY)


def make_episodes(groups: int, episodes_per_state: int, **options: Any) -> Iterator[EpisodeRecord]:
    """All episodes of some groups; options as for `make_episode`."""
    for group in range(groups):
        for episode in range(episodes_per_state):
            yield make_episode(group, episode, **options)


def write_episodes(path: Path, episodes: Any) -> Path:
    """One episode a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        for record in episodes:
            file.write(record.model_dump_json() + "\n")
    return path


HELD_OUT = {"value": 0.9, "low": 0.8, "high": 1.0}
FINISHED: dict[str, dict[str, Any]] = {
    "generate": {
        "mean_reward": 0.8, "reward_standard_error": 0.01, "agreement_rate": 1.0, "illegal_per_episode": 0.0,
        "messages_per_episode": 1.5, "groups_without_signal": 2, "groups": 8,
    },
    "convert": {},
    "train": {"checkpoint": "c", "carried": False, "steps": 7},
    "evaluate": {"checkpoint": "c", "figures": {"held_out_reward": HELD_OUT, "held_out_greedy_reward": HELD_OUT}},
}  # fmt: skip
"""Figures of finished stages, as `iterate` records them."""


def by_name(figures: dict[str, Any], first: str = "") -> dict[str, Any]:
    """Held-out figures by name, given as they stand in a line of `metrics.jsonl`."""
    found: dict[str, Any] = {}
    for name, value in figures.items():
        inner = isinstance(value, dict) and value.keys() != HELD_OUT.keys()
        found |= by_name(value, f"{first}{name}.") if inner else {f"{first}{name}": value}
    return found


def words_worth(**worth: float) -> dict[str, Any]:
    """Figures of one mode's swapped messages, given the worth of words."""
    return {"redrawn": True, "swapped_reward": HELD_OUT, "worth": worth, "heard": 8, "empty": 0}


def set_at(data: Any, path: str, value: Any) -> None:
    """Set what lies at a dotted path in nested dictionaries."""
    *outer, last = path.split(".")
    for key in outer:
        data = data[key]
    data[last] = value


def episode_records(**fixed: Any) -> st.SearchStrategy[EpisodeRecord]:
    """Episodes of any kind: agreed or not, with illegal and cut turns, broken off early, of seats that never spoke."""
    share = st.floats(0, 1)
    options = {
        "group": st.integers(0, 50),
        "episode": st.integers(0, 7),
        "seed": st.integers(0, 3),
        "habits": st.builds(Habits, talk=share, spoil=share, cut=share, reject=share, best=share),
        "ends_after": st.none() | st.integers(0, 6),
    }
    return st.builds(make_episode, **options | {name: st.just(value) for name, value in fixed.items()})


def _random_turn(state: MatchingState, pending: Any, habits: Habits, rng: np.random.Generator) -> str:
    if rng.random() < habits.spoil:
        return str(rng.choice(["hello", "[message]", "[propose] Proposal: BLEU", "[accept]", "naïve → 雪"]))
    if pending is not None:
        return "[reject]" if rng.random() < habits.reject else "[accept]"
    if rng.random() < habits.talk:
        return f"[message] {state.reviewers[int(rng.integers(state.size))]}, {int(rng.integers(100))}?"
    if rng.random() < habits.best:
        return format_proposal(best_matching(state.table)[0], state.papers, state.reviewers)
    matching = tuple(enumerate(rng.permutation(state.size).tolist()))
    return format_proposal(matching, state.papers, state.reviewers)


def _sampled(chat: ChatTokenizer, text: str, cut: bool, rng: np.random.Generator) -> Completion:
    ids = list(chat.tokenizer.encode(text, add_special_tokens=False))
    if not cut:
        ids.append(chat.end_of_turn)
    logprobs = (-rng.exponential(size=len(ids))).tolist()
    return Completion(ids, logprobs, FinishReason.LENGTH if cut else FinishReason.STOP, 0, 0)
