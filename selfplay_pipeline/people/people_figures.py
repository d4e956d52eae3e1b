"""`selfplay evaluate --people`: figures of people's episodes by partner, with intervals over people and states."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from selfplay_pipeline.config.identity import section
from selfplay_pipeline.config.schema import SELF, Config
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.files import explain, write_text
from selfplay_pipeline.core.reporting import progress
from selfplay_pipeline.core.shipped import as_listed
from selfplay_pipeline.core.small_files import read_object
from selfplay_pipeline.evaluate.run import Evaluation, default_folder
from selfplay_pipeline.evaluate.states import StateSet, references
from selfplay_pipeline.games.base import Game
from selfplay_pipeline.games.figures import Figure, Measures
from selfplay_pipeline.games.measured import Measured, heard_of
from selfplay_pipeline.games.registry import make_game, stored_game_config
from selfplay_pipeline.generate.episode import Episode
from selfplay_pipeline.generate.episode_wrappers import is_words, swap_of
from selfplay_pipeline.generate.players import script_player
from selfplay_pipeline.generate.read_records import arguments_path, read_episodes
from selfplay_pipeline.generate.records import EpisodeRecord, SeatRecord
from selfplay_pipeline.metrics.bootstrap import Interval, Totals
from selfplay_pipeline.metrics.figures import FIGURES, REWARD, bounded, is_measured, measure_reward
from selfplay_pipeline.people.crossed import Crossed, crossed_contrast
from selfplay_pipeline.people.log import BegunLine, LostLine, TurnLine, log_path, read_log

GAMES = "selfplay_games.jsonl"
"""File of episodes in the folder of a study."""
MADE_BY = "selfplay play"
SELF_PLAY_EPISODES = 4
"""Number of episodes of each state in which a scripted partner plays with itself."""
NAMES = ("reward", "agreed", "reward_if_agreed", "illegal", "messages", "words", "questions", "turns", "length")
SHOWN: dict[str, str | Figure] = {
    **{figure.name: figure for figure in FIGURES if figure.name in NAMES},
    "partner_words": "words of the partner an episode",
    "seconds": "seconds a turn of the person",
}
"""Figures by name in display order, each with its label or definition. Those of `FIGURES` measure the person's seat."""


@dataclass(frozen=True)
class Held:
    """One person's part in one episode.

    Attributes:
        person: Anonymous name of the person.
        partner: Players of the other seats.
        place: Number of the episode in the person's list of a study; None without a study.
        seconds: Time of each turn of the person.
    """

    record: EpisodeRecord
    seat: int
    person: str
    partner: str
    place: int | None
    seconds: Sequence[float]

    @property
    def is_altered(self) -> bool:
        """Whether each message of the person was replaced."""
        return all(heard_of(turn) for turn in self.record.turns if turn.seat == self.seat and is_words(turn))

    def measures(self, game: Game) -> Measures:
        """Returns the figures of the part."""
        own = Measured(game, self.record, (self.seat,))
        others = Measured(game, self.record, [seat for seat, _ in enumerate(self.record.seats) if seat != self.seat])
        figures = {name: figure for name, figure in SHOWN.items() if isinstance(figure, Figure)}
        found = {name: figure.parts(own) for name, figure in figures.items() if is_measured(own, figure)}
        words = next(figure for figure in FIGURES if figure.name == "words")
        return found | {"partner_words": words.parts(others), "seconds": (sum(self.seconds), len(self.seconds))}


class AlteredWords(BaseModel):
    """Episodes in which the partner heard altered messages, and the worth of words.

    Attributes:
        episodes: Number of these episodes.
        reward: Reward in these episodes.
        worth: Reward of the other episodes minus this reward. Each person's first episode, which is never altered, is
            left out.
        heard: Number of altered messages.
        empty: Number of altered messages without content, because no message of another episode fitted.
    """

    model_config = ConfigDict(extra="forbid")

    episodes: int
    reward: Interval
    worth: Interval
    heard: int
    empty: int


class WithPartner(BaseModel):
    """Figures of people with one partner, in the episodes in which the partner heard what they wrote.

    Attributes:
        people: Number of people.
        states: Number of played states.
        altered: Further episodes, with altered messages; None without any.
        partly_altered: Number of further episodes in which the rules allowed no other message in place of one message,
            so that they count for nothing.
        player: Partner as `selfplay evaluate` takes it; "" for several players or a person.
        self_play: Reward of the partner with itself; None if it is unknown.
        self_play_on: States of the partner's self-play.
    """

    model_config = ConfigDict(extra="forbid")

    people: int
    states: int
    episodes: int
    statuses: dict[str, int]
    figures: dict[str, Interval]
    altered: AlteredWords | None = None
    partly_altered: int = 0
    player: str = ""
    self_play: Interval | None = None
    self_play_on: str = ""


class PeopleReport(BaseModel):
    """Figures of all people of one file.

    Attributes:
        absent: Number of further people, who took no turn in any episode and are left out.
        partners: Figures by the names of the players of the other seats.
        references: Reference rewards on the played states, and of wordless play, as in `Evaluation`.
        pairs: Reward of recorded pairs of people on states of this configuration; None if there are none.
        num_pairs: Number of their episodes.
    """

    model_config = ConfigDict(extra="forbid")

    game: str
    people: int
    absent: int = 0
    states: int
    partners: dict[str, WithPartner]
    references: dict[str, Interval]
    pairs: Interval | None = None
    num_pairs: int = 0


@dataclass
class Logged:
    """Content of the people's log: each begun episode, and the times of its turns by seat."""

    begun: dict[str, BegunLine] = field(default_factory=dict)
    seconds: dict[tuple[str, int], list[float]] = field(default_factory=lambda: defaultdict(list))

    @classmethod
    def of(cls, games: Path) -> Logged:
        """Returns the content of the log beside a file of episodes.

        Raises:
            UserError: The log is missing, or a line is invalid.
        """
        path, logged = log_path(games), cls()
        if not path.exists():
            raise UserError(
                f"{games}: has no {path.name} beside it, which says who played what; `selfplay play --web` writes both"
            )
        for line in read_log(path):
            if isinstance(line, BegunLine):
                logged.begun[line.episode_id] = line
            elif isinstance(line, TurnLine) and line.seconds is not None:
                logged.seconds[line.episode_id, line.seat].append(line.seconds)
            elif isinstance(line, LostLine):
                for key in [key for key in logged.seconds if key[0] == line.episode_id]:
                    del logged.seconds[key]
        return logged


def run_people(config: Config, place: Path) -> PeopleReport:
    """Measure the stored episodes of people, write `NAME.evaluation.json` beside them, and return its content.

    Args:
        config: The configuration; the rules of the game are those of the file.
        place: File of episodes, or the folder of a study.

    Raises:
        UserError: The file, its log or its arguments are missing or invalid, or it has no episode of a person.
    """
    games = games_at(place)
    game = played_game(games)
    arguments = read_object(arguments_path(games), MADE_BY)
    parts, absent = parts_of(games)
    game = game.of_state(parts[0].record.state)
    states = {part.record.group_index: game.state_from_json(part.record.state) for part in parts}
    by_partner: dict[str, list[Held]] = defaultdict(list)
    for part in parts:
        by_partner[part.partner].append(part)
    pairs = [episode.reward for episode in game.human_episodes()]
    report = PeopleReport(
        game=game.name,
        people=len({part.person for part in parts}),
        absent=absent,
        states=len(states),
        partners={
            name: with_partner(game, own, [*states]).model_copy(
                update=self_play_of(config, game, arguments, own, states)
            )
            for name, own in sorted(by_partner.items())
        },
        references=references(game, StateSet("of the people", tuple(states.values()))),
        pairs=_mean(pairs) if pairs else None,
        num_pairs=len(pairs),
    )
    write_text(evaluation_path(games), report.model_dump_json(indent=2) + "\n")
    return report


def games_at(place: Path) -> Path:
    """Returns the file of episodes at a path that names the file or its folder.

    Raises:
        UserError: The file does not exist.
    """
    games = place / GAMES if place.is_dir() else place
    if not games.is_file():
        raise UserError(f"--people: {games}: there is no such file; `selfplay play --web` writes one")
    return games


def evaluation_path(games: Path) -> Path:
    """Returns the path of the figures beside a file of episodes."""
    return games.with_suffix(".evaluation.json")


def played_game(games: Path) -> Game:
    """Returns the game with the rules that the arguments beside a file of episodes name.

    Raises:
        UserError: The arguments are missing or name no game.
    """
    path = arguments_path(games)
    try:
        return make_game(stored_game_config(section(read_object(path, MADE_BY), "game")))
    except ValidationError as error:
        raise UserError(f"{path}: {explain(error)}") from None


def parts_of(games: Path) -> tuple[list[Held], int]:
    """Returns each person's part in each stored episode, and the number of people who took no turn in any.

    The parts of the latter are left out: they came and went, or one person came twice.

    Raises:
        UserError: A line is invalid, an episode is not in the log, or there is no episode with a turn of a person.
    """
    logged, parts = Logged.of(games), list[Held]()
    for record in read_episodes(games):
        own = [number for number, seat in enumerate(record.seats) if seat.kind == "person"]
        begun = logged.begun.get(record.episode_id)
        if own and (begun is None or {*begun.people} != {*own}):
            raise UserError(f"{games}: {record.episode_id}: {log_path(games).name} does not say who played it")
        for seat in own:
            assert begun is not None
            others = sorted({as_listed(held.name) for number, held in enumerate(record.seats) if number != seat})
            seconds = logged.seconds.get((record.episode_id, seat), [])
            parts.append(Held(record, seat, begun.people[seat], ", ".join(others), begun.place, seconds))
    present = {part.person for part in parts if any(turn.seat == part.seat for turn in part.record.turns)}
    if not present:
        raise UserError(f"{games}: has no episode with a turn of a person; `selfplay play --web` writes some")
    absent = {part.person for part in parts} - present
    return [part for part in parts if part.person in present], len(absent)


def _together(parts: Sequence[Held]) -> dict[str, str]:
    """Returns the group of each person: all who played with each other, directly or through others.

    Rewards of people in one episode are one observation, so that only groups are independent.
    """
    group_of, episodes = {part.person: part.person for part in parts}, dict[str, str]()
    for part in parts:
        one, other = group_of[part.person], group_of[episodes.setdefault(part.record.episode_id, part.person)]
        group_of = {person: other if group == one else group for person, group in group_of.items()}
    return group_of


def with_partner(game: Game, parts: Sequence[Held], states: Sequence[int]) -> WithPartner:
    """Returns the figures of people with one partner."""
    group_of = _together(parts)
    groups = list(dict.fromkeys(group_of.values()))
    plain = [part for part in parts if swap_of(part.record) is None]
    to_alter = [part for part in parts if swap_of(part.record) is not None]
    altered = [part for part in to_alter if part.is_altered]
    shares = bounded(game)

    def crossed(chosen: Sequence[Held], *, reward_only: bool) -> Crossed:
        measured = [
            (
                group_of[part.person],
                part.record.group_index,
                measure_reward(Measured(game, part.record, (part.seat,))) if reward_only else part.measures(game),
            )
            for part in chosen
        ]
        return Crossed.of(measured, groups, states)

    words, played = None, {part.record.episode_id: part.record for part in plain}
    later = [part for part in plain if part.place != 0]
    if altered and later:
        records = {part.record.episode_id: part.record for part in altered}
        heard = [text for record in records.values() for turn in record.turns for text in {*heard_of(turn).values()}]
        anew = crossed(altered, reward_only=True)
        words = AlteredWords(
            episodes=len(records),
            reward=anew.intervals(shares)[REWARD.name],
            worth=crossed_contrast([(1, crossed(later, reward_only=True)), (-1, anew)], shares)[REWARD.name],
            heard=len(heard),
            empty=heard.count(""),
        )
    return WithPartner(
        people=len({part.person for part in plain}),
        states=len({part.record.group_index for part in plain}),
        episodes=len(played),
        statuses=dict(Counter(record.outcome.status for record in played.values())),
        figures=crossed(plain, reward_only=False).intervals(shares),
        altered=words,
        partly_altered=len({part.record.episode_id for part in to_alter if not part.is_altered}),
    )


def self_play_of(
    config: Config, game: Game, arguments: Mapping[str, Any], parts: Sequence[Held], states: Mapping[int, Any]
) -> dict[str, Any]:
    """Returns the fields about the self-play of a partner; empty for several players or a person.

    A script plays the states of the people now. Of other players, `selfplay evaluate` stored it in its default folder.

    Args:
        config: The configuration.
        game: The game with the rules of the people.
        arguments: Stored arguments of the people's episodes.
        parts: Parts of people with the partner.
        states: The played states by number.
    """
    record, seat = parts[0].record, parts[0].seat
    others = [held for number, held in enumerate(record.seats) if number != seat]
    if len({held.identity for held in others}) > 1 or others[0].kind == "person":
        return {}
    if others[0].kind == "script":
        rewards = list[float]()
        with progress(f"{others[0].name} with itself") as report:
            for number, state in states.items():
                rewards.append(_self_play(game, others[0].name, number, state))
                report(len(rewards), len(states))
        return {"player": others[0].name, "self_play": _mean(rewards), "self_play_on": "the same states"}
    player = others[0].policy.checkpoint if others[0].policy else others[0].name
    return {"player": as_listed(player), **_stored(config, game, arguments, others[0], player)}


def _self_play(game: Game, player: str, number: int, state: Any) -> float:
    """Returns the mean reward of a scripted player with itself on one state."""
    total = 0.0
    for episode in range(SELF_PLAY_EPISODES):
        players = [script_player(player)] * len(game.roles)
        played = Episode(game, state, players, f"self-{number}-{episode}", (0, number, episode))
        played.play_out()
        rewards = played.session.outcome().rewards
        total += sum(rewards) / len(rewards)
    return total / SELF_PLAY_EPISODES


def _stored(config: Config, game: Game, of_people: Mapping[str, Any], held: SeatRecord, player: str) -> dict[str, Any]:
    """Returns the stored self-play of the same checkpoint, or of the same chat model, under the same rules."""
    folder = default_folder(player, SELF, None, config.model_copy(update={"game": game.config}))
    if not (folder / "evaluation.json").is_file():
        return {}
    mode = "sampled" if held.policy else "scripted"
    arguments = read_object(folder / f"{mode}.args.json", "selfplay evaluate")
    sections = ("game", "partner") if held.kind == "chat" else ("game",)
    same = held.identity in (arguments.get("policy.weights"), player) and all(
        section(arguments, name) == section(of_people, name) for name in sections
    )
    try:
        evaluation = Evaluation.model_validate_json((folder / "evaluation.json").read_bytes())
    except ValidationError as error:
        raise UserError(f"{folder / 'evaluation.json'}: {explain(error)}") from None
    report = next((report for name, report in evaluation.modes.items() if name == mode), None)
    if not same or evaluation.partner != SELF or report is None:
        return {}
    return {"self_play": report.figures[REWARD.name], "self_play_on": evaluation.states}


def _mean(values: Sequence[float]) -> Interval:
    """Returns the mean of one value per state, or per episode on a state of its own, with its interval."""
    return Totals.of({REWARD.name: (values, [1.0] * len(values))}).intervals()[REWARD.name]
