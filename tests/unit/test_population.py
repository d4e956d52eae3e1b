"""A population: who plays with whom, in which order, after a kill too; one member alone is `iterate`."""

import asyncio
import json
import shutil
from collections import Counter
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest
from command import selfplay
from factories import FINISHED
from test_partner_shares import MODEL, Answers, content, mixture

from selfplay_pipeline.config.schema import Config
from selfplay_pipeline.core.content_hash import content_hash
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.shipped import shipped
from selfplay_pipeline.generate.read_records import read_episodes
from selfplay_pipeline.iterate.loop import Loop, run_iterate
from selfplay_pipeline.iterate.partners import at_once
from selfplay_pipeline.iterate.population import member_configs, plan_population, run_population
from selfplay_pipeline.iterate.preflight import plan_iterate
from selfplay_pipeline.iterate.results import Trained

ITERATIONS = 2


def config(partners=(), **changes) -> Config:
    given = {"iterate.num_iterations": ITERATIONS, "iterate.evaluate_every": 0, "train.loggers": []}
    return mixture([*partners], **given | {"generate.num_episodes": 12} | changes)


class Killed(Exception):
    pass


@dataclass
class Stages(Loop):
    """Plays without servers; a training makes a checkpoint of other weights, which follow from member and iteration."""

    def __post_init__(self) -> None:
        self.servers = Answers(self.config, self.run.path)

    def _prepare_training(self, number: int) -> None:
        pass

    async def _train(self, number: int, checkpoint: str, rows: Path) -> Trained:
        made = self.run.iteration(number) / "checkpoint"
        shutil.rmtree(made, ignore_errors=True)
        shutil.copytree(shipped(MODEL), made)
        with (made / "model.safetensors").open("r+b") as file:
            file.seek(-20 * number - self.config.seed // 1000, 2)
            file.write(b"\x01")
        figures = FINISHED["train"] | {"checkpoint": str(made), "weights": content_hash(str(made))}
        return Trained(**figures)


def files(folder: Path) -> dict[str, bytes]:
    """Returns the files of all iterations of a run, but for times."""
    runs = sorted(folder.glob("iter_*"), key=str)
    return {f"{one.name}/{name}": found for one in runs for name, found in content(one).items()}


@pytest.mark.long
def test_one_member_alone_has_the_files_of_iterate_to_the_byte(tmp_path):
    place = tmp_path / "member_1"  # of both, because records of later iterations name the checkpoint
    asyncio.run(run_iterate(config(), place, Stages))
    alone = files(place)
    place.rename(tmp_path / "alone")
    (run,) = asyncio.run(run_population(config(), tmp_path, 1, Stages))
    assert run.path == place and files(place) == alone and len(alone) == 5 * ITERATIONS
    settings = [json.loads((one / "manifest.json").read_text())["config"] for one in (place, tmp_path / "alone")]
    assert settings[0] == settings[1]


@pytest.mark.long
def test_each_member_plays_with_itself_and_with_the_others_of_the_round_before(tmp_path):
    runs = asyncio.run(run_population(config(), tmp_path, 3, Stages))
    assert [at_once(one) for one in member_configs(config(), 3)] == [2, 2, 2]
    weights = {(run.path.name, number): content_hash(run.checkpoint(number)) for run in runs for number in (1, 2)}
    assert len({*weights.values(), content_hash(shipped(MODEL))}) == 7
    weights |= {(run.path.name, 0): content_hash(shipped(MODEL)) for run in runs}
    states = set()
    for run in runs:
        others = [one.path.name for one in runs if one is not run]
        for number in (1, 2):
            records = [*read_episodes(run.games(number))]
            tables = Counter(record.partners for record in records)
            of_others = Counter(f"{seat}: {weights[name, number - 1]}" for name in others for seat in (0, 0, 1, 1))
            assert tables == {"": 4} | of_others, "a third each, in each seat"
            for record in records:
                held = {record.seats[seat].policy.weights for seat in record.trained_seats}
                assert held == {weights[run.path.name, number - 1]}
            played = run.state.played(number)
            assert {partner: found.groups for partner, found in played.partners.items()} == dict.fromkeys(
                ["self", *others], 2
            )
        states |= {str(record.state) for record in records}
    assert len(states) == 18, "seeds and so states differ"


@pytest.mark.long
def test_killed_between_any_two_stages_it_continues_with_the_same_partners(tmp_path):
    place, killed = tmp_path / "all", 0
    whole = {run.path.name: files(run.path) for run in asyncio.run(run_population(config(), place, 2, Stages))}
    place.rename(tmp_path / "whole")
    for limit in count():
        left = iter(range(1))

        @dataclass
        class Stopped(Stages):
            async def _stage(self, number, stage, checkpoint, left=left):
                if self.run.state.get(number, stage) is None and next(left, None) is None:
                    raise Killed
                await super()._stage(number, stage, checkpoint)

        try:
            runs = asyncio.run(run_population(config(), place, 2, Stopped))
            break
        except Killed:
            killed = limit + 1
    assert killed == 2 * 2 * 3 - 1
    assert {run.path.name: files(run.path) for run in runs} == whole


@pytest.mark.long
def test_a_checkpoint_of_another_member_that_changed_is_refused(tmp_path):
    first, _ = asyncio.run(run_population(config(**{"iterate.num_iterations": 1}), tmp_path, 2, Stages))
    with (Path(first.checkpoint(1)) / "model.safetensors").open("r+b") as file:
        file.write(b"\x00\x00")
    with pytest.raises(UserError, match=r"member_1/iter_1/checkpoint: holds other files than when"):
        asyncio.run(run_population(config(), tmp_path, 2, Stages))


def losing(folder: Path, *names: str) -> None:
    for name in names:
        shutil.rmtree(folder / name) if (folder / name).is_dir() else (folder / name).unlink()


@pytest.mark.long
@pytest.mark.parametrize(
    ("lost", "words"),
    [
        (["member_1/manifest.json", "member_2/manifest.json"], "member_1/manifest.json: is missing"),
        (["member_2/manifest.json"], "member_2/manifest.json: is missing"),
        (["member_2"], "member_2: its iteration 1, which member_1 played with, is gone"),
        (["member_2/state.json"], "member_2/iter_1/checkpoint exists but was not made by a training here"),
        (["member_1"], "member_1: its iteration 1, which member_2 played with, is gone"),
    ],
)
def test_a_population_that_lost_files_is_refused(tmp_path, lost, words):
    asyncio.run(run_population(config(), tmp_path, 2, Stages))
    losing(tmp_path, *lost)
    before = sorted(tmp_path.rglob("*"))
    for again in (lambda: asyncio.run(run_population(config(), tmp_path, 2, Stages)),
                  lambda: plan_population(config(), tmp_path, 2)):  # fmt: skip
        with pytest.raises(UserError, match=words):
            again()
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.long
def test_a_member_that_is_removed_before_the_second_round_is_missed_too(tmp_path):
    asyncio.run(run_population(config(**{"iterate.num_iterations": 1}), tmp_path, 2, Stages))
    losing(tmp_path, "member_2")
    with pytest.raises(UserError, match="member_2: its files are gone"):
        asyncio.run(run_population(config(), tmp_path, 2, Stages))


@pytest.mark.long
def test_an_episode_that_was_taken_out_of_a_finished_iteration_is_missed(tmp_path):
    asyncio.run(run_iterate(config(), tmp_path / "run", Stages))
    games = tmp_path / "run" / "iter_1" / "selfplay_games.jsonl"
    lines = games.read_bytes().splitlines(keepends=True)
    games.write_bytes(b"".join(lines[1:]))
    with pytest.raises(UserError, match=r"iter_1/selfplay_games\.jsonl: holds other episodes than when they"):
        asyncio.run(run_iterate(config(), tmp_path / "run", Stages))
    games.unlink()
    asyncio.run(run_iterate(config(), tmp_path / "run", Stages))


def test_shares_of_the_others_are_divided_equally():
    given = [
        {"player": "members", "share": 0.5}, {"player": "past", "share": 0.2, "last": 3},
        {"player": "sharing", "share": 0.3},
    ]  # fmt: skip
    _, second, _ = member_configs(config(given), 3)
    assert [(one.player, one.share, one.last) for one in second.iterate.partners] == [
        ("member_1", 0.25, 5), ("member_3", 0.25, 5), ("past", 0.2, 3), ("sharing", 0.3, 5),
    ]  # fmt: skip
    assert second.seed == 1000
    assert member_configs(config(), 1) == [config()]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--set", "iterate.partners=[members=1]", "--members", "1"), "the only member of a population has no others"),
        (("--partner", "member_2"), "member_2: a population names its members itself"),
        (("--partner", "member_2", "--members", "1"), "member_2: a population names its members itself"),
        (("--set", "iterate.partners=[members=0.5, member_9=0.5]"), "member_9: a population names its members"),
        (
            ("--partner", "sharing"),
            "name all in iterate.partners, such as --set 'iterate.partners=[members=0.5, sharing=0.5]'",
        ),
        (("--set", "iterate.partners=[self=1]"), "no share for the other members; give one, such as members=0.5"),
        (("--set", "train.loggers=[wandb]"), "train.loggers: wandb: one process trains all members"),
        (("--seed", "2147483000"), "the last member's seed would be too large"),
        (("--members", "0"), "'--members'"),
        (("--set", "iterate.partners=[members=0.5, nobody=0.5]"), "no scripted player or checkpoint 'nobody'"),
        (("--set", "engine.server_url=[http://127.0.0.1:9]"), "a server of its own, and 1 is given"),
    ],
)
def test_a_population_that_cannot_be_is_refused_before_anything_is_written(options, words, tmp_path):
    done = selfplay("iterate", "--members", "3", "--config", "tiny", "--output", str(tmp_path / "all"), *options)
    assert done.returncode == 2 and words in done.stderr, done.stderr
    assert not (tmp_path / "all").exists()


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("members", ("--set", "iterate.partners=[members=1]")),
        ("member_2", ("--set", "iterate.partners=[member_2=1]")),
        ("members", ("--partner", "members")),
        ("member_2", ("--partner", "member_2", "--set", "iterate.seat=1", "--dry-run")),
    ],
)  # fmt: skip
def test_iterate_alone_refuses_members(name, options, tmp_path):
    done = selfplay("iterate", "--config", "tiny", "--output", str(tmp_path / "run"), *options)
    assert done.returncode == 2 and f"{name} stands for members of a population" in done.stderr
    assert not (tmp_path / "run").exists()


def test_the_plan_counts_the_seats_that_the_policy_holds(tmp_path):
    given = {"generate.num_episodes": 12, "generate.episodes_per_state": 2}
    for members, words in ((3, "about 16 rows at most"), (2, "about 18 rows at most"), (1, ": 24 rows at most")):
        lines = plan_population(config(**given), tmp_path / "all", members)
        assert sum(words in line for line in lines) == members, lines
    assert "about 12 rows at most" in plan_iterate(config([{"player": "sharing", "share": 1}], **given), tmp_path)[0]
    alone = config(**given | {"iterate.partner": "sharing"})
    assert ": 12 rows at most" in plan_iterate(alone, tmp_path)[0]


@pytest.mark.long
def test_another_number_of_members_and_the_folder_of_a_run_are_refused(tmp_path):
    asyncio.run(run_population(config(**{"iterate.num_iterations": 1}), tmp_path / "all", 2, Stages))
    with pytest.raises(UserError, match=r"member_1 was begun with iterate\.partners = "):
        asyncio.run(run_population(config(), tmp_path / "all", 3, Stages))
    with pytest.raises(UserError, match="holds what `selfplay iterate --members` wrote; `selfplay iterate` needs"):
        asyncio.run(run_iterate(config(), tmp_path / "all", Stages))
    with pytest.raises(UserError, match="holds what `selfplay iterate` wrote; `selfplay iterate --members` needs"):
        asyncio.run(run_population(config(), tmp_path / "all" / "member_1", 2, Stages))
