"""Several partners in training: shares, seats, earlier checkpoints, servers, and what is trained on."""

import asyncio
import json
import shutil
from collections import Counter
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from command import selfplay
from factories import FINISHED
from hypothesis import given
from hypothesis import strategies as st

from selfplay_pipeline.config.fields import as_yaml
from selfplay_pipeline.config.identity import deciding, differences
from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.config.schema import Config, PartnerShare
from selfplay_pipeline.core.content_hash import content_hash
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.model_sizes import sizes_of
from selfplay_pipeline.core.shipped import shipped
from selfplay_pipeline.doctor.estimate import gpu_speed
from selfplay_pipeline.doctor.examine import Machine, examine
from selfplay_pipeline.engines.types import Completion, EngineError, FinishReason
from selfplay_pipeline.games.registry import make_game
from selfplay_pipeline.generate.read_records import read_episodes
from selfplay_pipeline.generate.seats import Backends, Servers
from selfplay_pipeline.generate.stage import playable_together
from selfplay_pipeline.generate.trajectory import ChatTokenizer
from selfplay_pipeline.iterate.folder import RunDirectory, StageRecord
from selfplay_pipeline.iterate.logs import PipelineLog
from selfplay_pipeline.iterate.loop import Loop
from selfplay_pipeline.iterate.partners import (
    at_once,
    earlier_checkpoints,
    groups_of_iteration,
    partners_in_turn,
    trained_seats,
)
from selfplay_pipeline.train.process import Trainer

MODEL = "data/tiny_model"
MIXTURE = [
    {"player": "self", "share": 0.5},
    {"player": "past", "share": 0.3, "last": 2},
    {"player": "sharing", "share": 0.2},
]


def mixture(partners=MIXTURE, **changes) -> Config:
    given = {"generate.num_episodes": 20, "generate.episodes_per_state": 2, "iterate.partners": partners}
    return load_config("tiny", given | {"model": MODEL} | changes)


# --- who plays with whom --------------------------------------------------------------------------------------------


@given(st.lists(st.floats(0.01, 1), min_size=1, max_size=7))
def test_at_every_moment_of_a_run_the_shares_are_met_to_within_one_group(weights):
    shares = np.array(weights) / sum(weights)
    partners = [PartnerShare(player=f"p{at}", share=min(1.0, share)) for at, share in enumerate(shares)]
    counts = np.zeros(len(shares))
    for number, (chosen, before) in enumerate(islice(partners_in_turn(partners), 200), start=1):
        assert counts[chosen] == before
        counts[chosen] += 1
        assert np.abs(counts - shares * number).max() < 1


def test_the_policy_holds_each_seat_in_turn_and_past_draws_each_of_the_newest_checkpoints():
    groups = [group for number in range(1, 41) for group in groups_of_iteration(mixture(), number, ["c3", "c2", "c1"])]
    assert Counter(group.partner for group in groups) == {"self": 200, "past": 120, "sharing": 80}
    tables = Counter(group.players for group in groups)
    assert tables["policy", "policy"] == 200
    assert tables["policy", "sharing"] == tables["sharing", "policy"] == 40
    assert {tables["policy", one] + tables[one, "policy"] for one in ("c1",)} == {0}, "only the two newest"
    # Each of 120 draws is one of two with equal probability: 1e-8 is the probability of fewer than 30.
    assert min(tables["policy", one] + tables[one, "policy"] for one in ("c2", "c3")) >= 30
    assert groups == [
        group for number in range(1, 41) for group in groups_of_iteration(mixture(), number, ["c3", "c2"])
    ]


def test_the_seats_of_three_are_held_in_turn():
    config = load_config("tiny_mediation", {"iterate.partners": [{"player": "sharing", "share": 1.0}]})
    found = [group.players for group in groups_of_iteration(config, 1, ["c"])][:3]
    assert found == [tuple("policy" if at == seat else "sharing" for at in range(3)) for seat in range(3)]


def test_past_is_the_starting_model_until_there_is_an_earlier_one_and_no_checkpoint_counts_twice():
    assert earlier_checkpoints(["model"]) == ["model"]
    assert earlier_checkpoints(["model", "one"]) == ["model"]
    assert earlier_checkpoints(["model", "one", "two", "three"]) == ["two", "one", "model"]
    assert earlier_checkpoints(["model", "one", "one", "three", "three"]) == ["one", "model"], "carried forward"


def test_groups_are_played_partner_by_partner_and_scripts_beside_the_first():
    tables = [("policy", "policy"), ("policy", "/b"), ("sharing", "policy"), ("/a", "policy"), ("policy", "/a")]
    assert playable_together(make_game(mixture().game), tables) == [
        (["policy", "/b", "sharing"], [0, 1, 2]), (["/a", "policy"], [3, 4]),
    ]  # fmt: skip
    assert playable_together(make_game(mixture().game), tables[:1]) == [(["policy"], [0])]


@pytest.mark.parametrize(
    ("partners", "servers", "seats"),
    [
        ([], 1, 2.0), (MIXTURE, 2, 1.5), ([{"player": "self", "share": 1.0}], 1, 2.0),
        ([{"player": "self", "share": 0.5}, {"player": "sharing", "share": 0.5}], 1, 1.5),
        ([{"player": MODEL, "share": 0.5}, {"player": "data/tiny_honest_model", "share": 0.5}], 2, 1.0),
    ],
)  # fmt: skip
def test_a_policy_and_its_partners_need_two_servers_at_most(partners, servers, seats):
    config = mixture(partners)
    assert (at_once(config), trained_seats(config)) == (servers, seats)
    machine = Machine(gpus=1, gpu=10**11, host=10**12, disk=10**13, here=False)
    sizes = sizes_of(shipped(MODEL))
    found = examine(config.model_copy(update={"device": "cuda"}), sizes, machine, gpu_speed("H100"))
    assert found.serving and found.serving.memory == int(config.engine.memory_fraction * 10**11 / servers)


@pytest.mark.parametrize(
    ("partners", "words"),
    [
        ([{"player": "self", "share": 0.5}], "the shares add up to 0.5; they must add up to 1"),
        ([{"player": "self", "share": 0.5}] * 2, "named twice"),
        ([{"player": "past", "share": 1, "last": 0}], "entry 1, last: expected at least 1, found 0"),
        ([{"player": "self", "share": 1, "last": 2}], "last: 2 is for the partner `past`"),
        ([{"player": "self", "share": 0}], "entry 1, share: expected a number above 0, found 0"),
        ([{"player": "self", "share": 1, "seat": 0}], "entry 1, seat: there is no such key"),
        ([{"player": "self"}], "entry 1, share: Field required"),
        (["self"], "expected PLAYER=SHARE, such as self=0.5, found 'self'"),
    ],
)
def test_partners_that_cannot_be_are_refused_with_the_key(partners, words, tmp_path):
    (tmp_path / "my.yaml").write_text(f"seed: 1\niterate:\n  partners: {json.dumps(partners)}\n")
    with pytest.raises(UserError) as refused:
        load_config(str(tmp_path / "my.yaml"), {})
    assert str(refused.value).startswith(f"{tmp_path / 'my.yaml'}:3: key 'iterate.partners': ")
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--set", "iterate.partners=[self=0.5, nobody=0.5]"), "no scripted player or checkpoint 'nobody'"),
        (("--set", "iterate.partners=[self=1]", "--partner", "sharing"), "cannot be combined with partner: sharing"),
        (
            ("--set", "iterate.partners=[self=1]", "--set", "iterate.seat=1"),
            "--set iterate.partners and --set iterate.seat: partners: cannot be",
        ),
        (("--partner", "past"), "--partner, the option for iterate.partner: `past` stands only in `partners`"),
        (
            ("--set", f"iterate.partners=[{MODEL}=0.5, {MODEL}/=0.5]"),
            f"--set iterate.partners: {MODEL} and {MODEL}/ are the same checkpoint",
        ),
        (("--set", "iterate.partners=[person=1]"), "a person plays with `selfplay play` only"),
        (("--set", "iterate.partners=[policy=1]"), "'policy' is not allowed here"),
        (
            ("--set", "iterate.partners=[past=1]", "--set", "engine.server_url=[http://127.0.0.1:9]"),
            "a server of its own, and 1 is given",
        ),
    ],
)
def test_a_run_with_such_partners_is_refused_before_anything_is_written(options, words, tmp_path):
    done = selfplay("iterate", "--config", "tiny", "--output", str(tmp_path / "run"), *options)
    assert done.returncode == 2 and words in done.stderr and len(done.stderr.strip().splitlines()) <= 2
    assert not (tmp_path / "run").exists()


def test_printed_partners_read_back_to_the_same(tmp_path):
    again, config = tmp_path / "again.yaml", mixture()
    again.write_text(as_yaml(config))
    assert load_config(str(again), {}).iterate == config.iterate
    assert not differences(deciding(config, "iterate"), deciding(load_config(str(again), {}), "iterate"))


def test_a_mixture_whose_manifest_lacks_a_newer_key_continues_with_its_default(tmp_path):
    RunDirectory(tmp_path).open(mixture())
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    del manifest["config"]["convert"]["placebo"]
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    RunDirectory(tmp_path).open(mixture())
    with pytest.raises(UserError, match=r"convert\.placebo = False, now it is True"):
        RunDirectory(tmp_path).open(mixture(**{"convert.placebo": True}))


# --- playing --------------------------------------------------------------------------------------------------------


class Answering:
    """An engine whose answer follows from the checkpoint, the episode, the seat and the length of the prompt."""

    def __init__(self, checkpoint: str) -> None:
        self.chat, self.checkpoint = ChatTokenizer.load(shipped(MODEL)), content_hash(checkpoint)

    async def generate(self, prompt_ids, params, *, session=""):
        seed = [*f"{self.checkpoint} {session} {len(prompt_ids)}".encode()]
        proposal = "[propose] Ava: BLEU, Ben: GloVe, Cal: ELMo" if np.random.default_rng(seed).random() < 0.5 else ""
        text = proposal or "[message] Ava BLEU 3"
        ids = [*self.chat.tokenizer.encode(text, add_special_tokens=False), self.chat.end_of_turn]
        logprobs = np.random.default_rng(seed).uniform(-2, 0, len(ids)).astype(np.float32).tolist()
        return Completion(ids, logprobs, FinishReason.STOP, len(prompt_ids), 0)


class Answers(Servers):
    """Two engines, without servers; notes which checkpoint each was asked to serve, and what it had to keep."""

    def __init__(self, config: Config, folder: Path) -> None:
        super().__init__(Backends.of(config), folder, at_once=at_once(config))
        self.asked: list[str] = []

    async def serving(self, checkpoint, *, keep=()):
        assert len({checkpoint, *keep}) <= len(self._slots)
        self.asked.append(checkpoint)
        return Answering(checkpoint)


def loop_in(folder: Path, config: Config) -> Loop:
    run = RunDirectory(folder)
    folder.mkdir(exist_ok=True)
    run.open(config)
    return Loop(config, run, Answers(config, folder), Trainer(), PipelineLog(config, folder))


def play(loop: Loop, number: int) -> None:
    for stage in ("generate", "convert"):
        asyncio.run(loop._stage(number, stage, loop._checkpoint(number, stage)))


def train(loop: Loop, number: int) -> None:
    """Notes a checkpoint of other weights as the result of a training."""
    made = shutil.copytree(shipped(MODEL), loop.run.iteration(number) / "checkpoint")
    with (made / "model.safetensors").open("r+b") as file:
        file.seek(-number, 2)
        file.write(b"\x01")
    figures = FINISHED["train"] | {"checkpoint": str(made), "weights": content_hash(str(made))}
    loop.run.finish(number, "train", StageRecord(seconds=1.0, figures=figures))


def content(folder: Path) -> dict[str, bytes]:
    """Returns the files of an iteration, but for times."""
    names = ("selfplay_games.jsonl", "selfplay_games.args.json", "train.parquet", "convert.json", "convert_report.txt")
    return {name: (folder / name).read_bytes() for name in names}


@pytest.mark.long
def test_a_share_of_1_of_self_gives_the_files_of_self_play_to_the_byte(tmp_path):
    found = []
    for name, partners in (("none", []), ("self", [{"player": "self", "share": 1.0}])):
        loop = loop_in(tmp_path / name, mixture(partners))
        play(loop, 1)
        played, line = loop.run.state.played(1), content(tmp_path / name / "iter_1")
        assert played is not None
        timed = {"seconds", "episodes_per_second", "sampled_tokens_per_second"}
        found.append((line, played.model_dump(exclude=timed), loop.servers.asked))
    assert found[0] == found[1]
    assert len(found[0][0]["selfplay_games.jsonl"].splitlines()) == 20


@pytest.mark.long
def test_a_mixture_is_played_partner_by_partner_and_each_row_is_of_the_policy(tmp_path):
    loop, policy = loop_in(tmp_path / "run", config := mixture()), shipped(MODEL)
    for number in (1, 2, 3):
        loop.servers.asked.clear()
        play(loop, number)
        made = [policy, *(loop.run.checkpoint(earlier) for earlier in range(1, number))]
        groups = loop._groups(number)
        *past, own = made
        partners = {name for group in groups for name in group.players} - {"policy", "sharing"}
        assert partners == {*(past or [policy])}, "the two newest, in an iteration of three such groups"
        assert Counter(loop.servers.asked) == {own: max(1, len(partners))} | dict.fromkeys(partners - {own}, 1) or (
            number == 1 and loop.servers.asked == [own] * 2
        )
        records = [*read_episodes(loop.run.games(number))]
        assert len(records) == config.generate.num_episodes
        for record in records:
            group = groups[record.group_index - 10 * (number - 1)]
            assert tuple(seat.name for seat in record.seats) == group.players
            assert record.trained_seats == [at for at, name in enumerate(group.players) if name == "policy"]
            assert {record.seats[at].policy.weights for at in record.trained_seats} == {content_hash(own)}
        played = loop.run.state.played(number)
        assert played is not None and {*played.partners} == {"self", "past", "sharing"}
        for partner, figures in played.partners.items():
            of = [one for one in records if groups[one.group_index - 10 * (number - 1)].partner == partner]
            states = {one.group_index: [other for other in of if other.group_index == one.group_index] for one in of}
            assert figures.share == len(states) / 10 == {"self": 0.5, "past": 0.3, "sharing": 0.2}[partner]
            assert figures.mean_reward == pytest.approx(np.mean([one.outcome.normalized_reward for one in of]))
            flat = sum(np.ptp([one.outcome.normalized_reward for one in own]) == 0 for own in states.values())
            assert (figures.groups, figures.groups_without_signal) == (len(states), flat)
        assert sum(one.groups for one in played.partners.values()) == played.groups
        train(loop, number)


@pytest.mark.long
def test_a_mixture_that_was_killed_plays_what_is_missing_and_loads_no_partner_in_vain(tmp_path):
    loop = loop_in(tmp_path / "run", mixture())
    for number in (1, 2):
        play(loop, number)
        train(loop, number)
    play(loop, 3)
    games = loop.run.games(3)
    whole = {record.episode_id: record for record in read_episodes(games)}
    newest = loop.run.checkpoint(1)
    kept = [line for line in games.read_text().splitlines(keepends=True) if newest not in line]
    assert 0 < len(kept) < 20
    games.write_text("".join(kept))
    for written in ("train.parquet", "convert.json", "selfplay_games.summary.json"):
        (games.parent / written).unlink()
    del loop.run.state.iterations[3]
    (loop.run.path / "state.json").write_text(loop.run.state.model_dump_json())
    again = loop_in(tmp_path / "run", mixture())
    play(again, 3)
    assert again.servers.asked == [loop.run.checkpoint(2), newest], "the other partner's groups are there"
    assert {record.episode_id: record for record in read_episodes(games)} == whole
    with pytest.raises(UserError, match=r"iterate\.partners = .*, now it is "):
        loop_in(tmp_path / "run", mixture([{"player": "self", "share": 0.5}, {"player": "past", "share": 0.5}]))


@pytest.mark.long
def test_an_episode_that_is_lost_twice_is_counted_whatever_partner_comes_after_it(tmp_path, monkeypatch):
    begun = Answering.generate

    async def generate(self, prompt_ids, params, *, session=""):
        if session.startswith(lost):
            raise EngineError("on purpose")
        return await begun(self, prompt_ids, params, session=session)

    loop = loop_in(tmp_path / "run", mixture())
    for number in (1, 2):
        play(loop, number)
        train(loop, number)
    first, *_ = playable_together(make_game(loop.config.game), [group.players for group in loop._groups(3)])
    lost = f"s0-g{20 + first[1][0]:06d}-p0"
    monkeypatch.setattr(Answering, "generate", generate)
    asyncio.run(loop._stage(3, "generate", loop._checkpoint(3, "generate")))
    played = loop.run.state.played(3)
    assert played is not None and played.statuses["engine_failure"] == 1 and played.episodes == 20


def test_played_ahead_the_past_is_that_of_the_checkpoint_that_plays(tmp_path):
    loop = loop_in(tmp_path / "run", mixture([{"player": "past", "share": 1.0}], **{"iterate.ahead": 1}))
    for number in (1, 2):
        train(loop, number)
    others = [{name for group in loop._groups(number) for name in group.players} - {"policy"} for number in range(1, 5)]
    model, first = shipped(MODEL), loop.run.checkpoint(1)
    assert loop._checkpoint(4, "generate") == loop.run.checkpoint(2)
    assert others == [{model}, {model}, {model}, {model, first}]
