"""File of a study with people: its states, partners, texts and order."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from selfplay_pipeline.config.identity import portable
from selfplay_pipeline.config.load import mistake
from selfplay_pipeline.config.schema import Config
from selfplay_pipeline.config.yaml_file import YamlFile, read_yaml
from selfplay_pipeline.core.command_line import LARGEST
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.folders import check_folder
from selfplay_pipeline.core.shipped import shipped
from selfplay_pipeline.core.terminal.harmless import harmless
from selfplay_pipeline.evaluate.states import StateSet, first_of, held_out_states, read_states
from selfplay_pipeline.games.base import Game
from selfplay_pipeline.games.registry import make_game
from selfplay_pipeline.generate.records import PERSON
from selfplay_pipeline.generate.run import GenerateJob
from selfplay_pipeline.generate.seats import check_players
from selfplay_pipeline.generate.stage import check_seats, make_job
from selfplay_pipeline.people.web.trial_order import Order

MOST_PEOPLE = 100_000
"""Largest number of people of one file."""
LONGEST = 20_000
"""Largest number of characters of one text."""
INSTRUCTIONS = (
    "You play several short games, each with another player, which may be a computer program. In each game you see "
    "your part of a problem, talk with the other player, and decide together. Try to reach as high a reward as you can."
)
CONSENT = (
    "Taking part is voluntary. You may stop at any time, by closing this page. What you write is stored under a "
    "number, together with the times of your turns, and without your name or your address."
)
NOTICE = (
    "In some games the other player does not receive what you write, but a message that somebody wrote in another "
    "game. You are not told in which games."
)
THANKS = "That was the last game of this study. Thank you."

Count = Annotated[int, Field(ge=1, le=LARGEST)]
Text = Annotated[str, Field(min_length=1, max_length=LONGEST), AfterValidator(lambda text: harmless(text, lines=True))]


class _Keys(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class StatesOf(_Keys):
    """Section `states`: held-out states of the configured game by seed and number, or states of a file."""

    seed: Annotated[int, Field(ge=0, le=LARGEST)] | None = None
    count: Count | None = None
    file: str | None = None

    @model_validator(mode="after")
    def _one_source(self) -> StatesOf:
        if self.file is None and self.count is None:
            raise ValueError("give `count`, the number of states, or a `file` of states")
        if self.file is not None and self.seed is not None:
            raise ValueError("has a `file` and a `seed`; give one of them")
        return self


class Study(_Keys):
    """Content of the file."""

    states: StatesOf
    """States that are played."""
    partners: Annotated[list[str], Field(min_length=1)]
    """Players by the names that --player takes; people are not told them."""
    episodes: Count
    """Number of episodes of each person."""
    seats: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)] = [0]
    """Seats of the person, each in turn with each partner."""
    seed: Annotated[int, Field(ge=0, le=LARGEST)] = 0
    """Seed of the order."""
    altered: Annotated[int, Field(ge=0)] = 0
    """Number of episodes per person in which the partner hears other messages than the person wrote."""
    title: Text = "A study"
    """Heading of the pages."""
    instructions: Text = INSTRUCTIONS
    """Text that a person reads first, and may read again in each episode."""
    consent: Text = CONSENT
    """Text of the consent."""
    altered_notice: Text = NOTICE
    """Sentences below the consent text that say that messages may be altered; shown if `altered` is above 0."""
    thanks: Text = THANKS
    """Text after the last episode."""

    @property
    def agreed_to(self) -> str:
        """The whole text of the consent."""
        return f"{self.consent}\n\n{self.altered_notice}" if self.altered else self.consent


@dataclass(frozen=True)
class OpenStudy:
    """A study with its states.

    Attributes:
        source: File of the study.
    """

    source: YamlFile
    study: Study
    states: StateSet

    @property
    def order(self) -> Order:
        """Lists of all people."""
        study = self.study
        return Order(
            study.seed, len(self.states), len(study.partners), tuple(study.seats), study.episodes, study.altered
        )

    def job(self, config: Config, output: Path) -> GenerateJob:
        """Returns the job of all people's episodes: episode `n` of a state belongs to person `n`."""
        study, count = self.study, len(self.states)
        endless = {"num_episodes": count * MOST_PEOPLE, "episodes_per_state": MOST_PEOPLE}
        config = config.model_copy(update={"generate": config.generate.model_copy(update=endless)})
        job = make_job(config, output, str(config.model), 0, 0, [PERSON, *study.partners])
        decided = {f"study.{key}": getattr(study, key) for key in ("episodes", "seats", "seed", "altered")}
        return replace(job, seed=study.seed, arguments=portable(job.arguments | self.states.identity | decided, output))


def read_study(path: Path, config: Config) -> OpenStudy:
    """Returns the study of a file, for the configured game.

    Raises:
        UserError: The file is not YAML, a key is unknown, or a value does not fit; the message names file, line, key.
    """
    source, game = read_yaml(path), make_game(config.game)
    try:
        study = Study.model_validate(source.data)
    except ValidationError as error:
        first = error.errors()[0]
        keys = [part for part in first["loc"] if isinstance(part, str)]
        if first["type"] == "extra_forbidden":
            known = StatesOf if len(keys) > 1 else Study
            raise _wrong(source, keys, f"there is no such key; the keys are {', '.join(known.model_fields)}") from None
        what = "is missing; docs/studies.md describes the file" if first["type"] == "missing" else mistake(first)
        raise _wrong(source, keys, what) from None
    study = study.model_copy(update={"partners": [*map(shipped, study.partners)]})
    _check_keys(source, study, game, config)
    return OpenStudy(source, study, _states(source, study, game))


def check_study(config: Config, output: Path, study: OpenStudy) -> None:
    """Raises UserError unless the partners can play here and the file can be continued; writes nothing."""
    check_folder(output.parent, "generate")
    check_seats(config, str(config.model), study.study.partners)
    study.job(config, output).store.check()


def _check_keys(source: YamlFile, study: Study, game: Game, config: Config) -> None:
    for key, names in (("partners", study.partners), ("seats", study.seats)):
        if len({*names}) < len(names):
            raise _wrong(source, [key], "names one of them twice")
    if PERSON in study.partners:
        raise _wrong(source, ["partners"], f"{PERSON!r} is no partner; each person plays alone with a partner")
    try:
        check_players(game, study.partners)
    except UserError as error:
        raise _wrong(source, ["partners"], str(error)) from None
    if max(study.seats) >= len(game.roles):
        raise _wrong(source, ["seats"], f"{max(study.seats)}, but the game {game.name} has {len(game.roles)} seats")
    if study.altered >= study.episodes:
        raise _wrong(
            source, ["altered"], f"{study.altered} of {study.episodes} episodes; the first one is never altered"
        )


def _states(source: YamlFile, study: Study, game: Game) -> StateSet:
    chosen = study.states
    if chosen.file is None:
        assert chosen.count is not None
        if chosen.count < study.episodes:
            raise _too_few(source, chosen.count, study.episodes)
        return held_out_states(game, chosen.count, chosen.seed or 0)
    try:
        states = read_states(Path(shipped(chosen.file)), game)
    except UserError as error:
        raise _wrong(source, ["states", "file"], str(error)) from None
    count = chosen.count or len(states)
    if count > len(states):
        raise _wrong(source, ["states", "count"], f"{count}, but the file has {len(states)} states")
    if count < study.episodes:
        raise _too_few(source, count, study.episodes)
    return first_of(game, states, count)


def _too_few(source: YamlFile, states: int, episodes: int) -> UserError:
    return _wrong(source, ["episodes"], f"{episodes}, but there are {states} states, and no person plays a state twice")


def _wrong(source: YamlFile, keys: list[str], what: str) -> UserError:
    """Returns an error that names file, line and key."""
    return UserError(f"{source.where(keys) if keys else source.name}: {what}")
