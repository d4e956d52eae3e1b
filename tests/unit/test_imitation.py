"""Which episodes are imitated: selection, weights, held-out states, and what is refused in one clear line."""

import asyncio
import json
import shutil
from collections.abc import Iterator
from itertools import chain, groupby
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from factories import BOARD, byte_chat, make_episodes, write_episodes
from test_resume import trained

from selfplay_pipeline.cli.show.training import barely_fell
from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.config.schema import ImitateConfig
from selfplay_pipeline.config.training import WRITES_ROWS
from selfplay_pipeline.convert.imitation import HELD_OUT, TRAIN, Imitated, Source, make_rows
from selfplay_pipeline.convert.parquet import read_rows
from selfplay_pipeline.convert.rows import METADATA_KEY
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.games.bargaining.game import BargainingGame
from selfplay_pipeline.games.base import MUTED
from selfplay_pipeline.games.matching.game import MatchingGame
from selfplay_pipeline.train.imitation import imitate_episodes, training_of, usual_rate

COMPACT = BOARD.model_copy(update={"prompts": "compact"})
"""What the tiny model reads."""
GROUPS, EPISODES = 12, 3


@pytest.fixture(scope="module")
def games(tmp_path_factory):
    return write_episodes(tmp_path_factory.mktemp("games") / "games.jsonl", make_episodes(GROUPS, EPISODES))


def write(output, *sources, game=None, best_of_group=0, context_length=10_000, **choice) -> Imitated:
    made = make_rows(
        [Source.of(str(source)) for source in sources],
        game or MatchingGame(BOARD),
        byte_chat(),
        ImitateConfig(**{"held_out": 0.25} | choice),
        best_of_group=best_of_group,
        context_length=context_length,
        seed=0,
    )
    made.write(output)
    return made.counts


def rows(output, *names) -> list[dict]:
    return [row for name in names or (TRAIN, HELD_OUT) for row in pq.read_table(output / name).to_pylist()]


def states(output, name) -> set[str]:
    return {row["reward_model"]["game_state"] for row in rows(output, name)}


def test_every_row_is_there_or_left_out_for_a_named_reason(games, tmp_path):
    done = write(tmp_path, games, min_reward=0.3, best_of_group=2, seats=[0, 1])
    assert done.episodes == GROUPS * EPISODES
    assert done.to_text().startswith(f"{done.train_rows + done.held_out_rows} rows of {done.episodes} episodes: ")
    assert done.train_rows + done.held_out_rows + sum(done.left_out.values()) == 2 * GROUPS * EPISODES
    assert {"reward below 0.3", "not among the best of its state"} <= done.left_out.keys()
    assert (len(rows(tmp_path, TRAIN)), len(rows(tmp_path, HELD_OUT))) == (done.train_rows, done.held_out_rows)
    assert done.trained_tokens == sum(sum(row["response_mask"]) for row in rows(tmp_path, TRAIN))
    assert all(row["reward_model"]["normalized_reward"] >= 0.3 for row in rows(tmp_path))


def test_whole_states_are_held_out_the_same_ones_each_time_and_one_seat_alone_can_be_imitated(games, tmp_path):
    for name in ("one", "other"):
        write(tmp_path / name, games, seats=[1])
    trained, away = states(tmp_path / "one", TRAIN), states(tmp_path / "one", HELD_OUT)
    assert len(away) == GROUPS // 4 and len(trained) == GROUPS - GROUPS // 4 and not trained & away
    assert states(tmp_path / "other", HELD_OUT) == away
    assert {row["extra_info"]["seat"] for row in rows(tmp_path / "one")} == {1}


def test_held_out_rows_of_a_call_that_was_cut_do_not_stay(games, tmp_path):
    write(tmp_path, games)
    write(tmp_path, games, held_out=0)
    assert not (tmp_path / HELD_OUT).exists()


def test_one_state_is_one_group_whatever_files_its_episodes_are_in(games, tmp_path):
    half = games.read_text().splitlines(keepends=True)
    for name, part in (("a", half[::2]), ("b", half[1::2])):
        (tmp_path / f"{name}.jsonl").write_text("".join(part))
    write(tmp_path / "out", tmp_path / "a.jsonl", f"{tmp_path}/b.jsonl=0.5", best_of_group=1, held_out=0)
    found = rows(tmp_path / "out", TRAIN)
    groups = {row["extra_info"]["index"] for row in found}
    assert len(groups) == len({(row["extra_info"]["index"], row["extra_info"]["episode"]) for row in found})
    low, high = sorted({row["weight"] for row in found})
    assert high / low == pytest.approx(2)
    own = [sum(row["response_mask"]) for row in found]
    assert np.average([row["weight"] for row in found], weights=own) == pytest.approx(1)
    assert sum(len(batch.index) for batch in read_rows(tmp_path / "out" / TRAIN)) == len(found)
    facts = json.loads(pq.read_schema(tmp_path / "out" / TRAIN).metadata[METADATA_KEY])
    assert facts["temperature"] == 1.0 == found[0]["sampling_temperature"]


def test_a_file_may_teach_one_seat_only_and_only_the_beginnings_of_its_turns(games, tmp_path):
    half = games.read_text().splitlines(keepends=True)
    for name, part in (("a", half[::2]), ("b", half[1::2])):
        (tmp_path / f"{name}.jsonl").write_text("".join(part))
    whole = [Source(tmp_path / "a.jsonl", seats=(0,)), Source(tmp_path / "b.jsonl", seats=(1,))]
    cut = [whole[0], whole[1]._replace(first_tokens=2)]
    made, expected = (
        make_rows(
            sources, MatchingGame(BOARD), byte_chat(), ImitateConfig(held_out=0), context_length=10_000, seed=0
        ).parts[TRAIN]
        for sources in (cut, whole)
    )
    assert {row["extra_info"]["seat"] for row in made} == {0, 1}
    for short, row in zip(made, expected, strict=True):
        mask = row["response_mask"]
        runs = [[*run] for own, run in groupby(range(len(mask)), mask.__getitem__) if own]
        learned = runs if row["extra_info"]["seat"] == 0 else [run[:2] for run in runs]
        assert np.flatnonzero(short["response_mask"]).tolist() == [*chain(*learned)]
        end = learned[-1][-1] + 1
        assert len(short["response_mask"]) == end, "a row ends with the last token that is imitated"
        for stream in ("prompt_ids", "response_ids", "response_logprobs"):
            kept = row[stream] if stream == "prompt_ids" else row[stream][:end]
            assert np.array_equal(short[stream], kept), "the rest is read all the same"


def test_a_row_whose_beginnings_fit_the_context_is_kept(games):
    def kept(first_tokens: int, context_length: int) -> list[int]:
        source = Source(games, seats=(1,), first_tokens=first_tokens)
        choice = ImitateConfig(held_out=0)
        made = make_rows(
            [source], MatchingGame(BOARD), byte_chat(), choice, context_length=context_length, seed=0
        ).parts[TRAIN]
        return [len(row["prompt_ids"]) + len(row["response_ids"]) for row in made]

    lengths = kept(0, 10_000), kept(2, 10_000)
    between = (min(lengths[0]) + min(lengths[1])) // 2
    assert min(lengths[1]) <= between < min(lengths[0])
    assert kept(2, between) == [length for length in lengths[1] if length <= between]


def test_the_reader_of_a_muted_file_meets_no_words(games):
    def met(mute: bool) -> Iterator[str]:
        chat, choice = byte_chat(), ImitateConfig(held_out=0)
        made = make_rows(
            [Source(games, mute=mute)], MatchingGame(BOARD), chat, choice, context_length=10_000, seed=0
        ).parts[TRAIN]
        for row in made:
            others = ~row["response_mask"].astype(bool)
            yield chat.tokenizer.decode(np.array(row["response_ids"])[others])

    said = [turn["text"] for line in games.read_text().splitlines() for turn in json.loads(line)["turns"]]
    messages = {f"The other player said: {text}" for text in said if text.startswith(f"{MUTED} ")}
    assert any(message in text for text in met(False) for message in messages)
    assert not any(message in text for text in met(True) for message in messages)


def test_a_row_beyond_the_context_is_left_out_and_counted(games, tmp_path):
    write(tmp_path / "all", games)
    lengths = [len(row["prompt_ids"]) + len(row["response_ids"]) for row in rows(tmp_path / "all")]
    limit = sorted(lengths)[len(lengths) // 2]
    done = write(tmp_path / "some", games, context_length=limit)
    assert done.left_out[f"longer than the {limit} tokens of the context (engine.context_length)"] == sum(
        n > limit for n in lengths
    )


@pytest.mark.parametrize(
    ("choice", "problem"),
    [
        ({"min_reward": 1.0, "seats": [2]}, "imitate.seats: 2, but matching has 2 seats"),
        ({"context_length": 3}, "nothing is left to imitate .*longer than the 3 tokens"),
        ({"game": BargainingGame()}, "games.jsonl:1: field 'game': an episode of matching, but .* bargaining"),
        ({"game": MatchingGame(BOARD.model_copy(update={"size": 4}))}, "games.jsonl:1: field 'state': .*--config"),
    ],
)
def test_what_cannot_be_imitated_is_refused_and_nothing_is_written(games, tmp_path, choice, problem):
    with pytest.raises(UserError, match=problem):
        write(tmp_path / "out", games, **choice)
    assert not (tmp_path / "out").exists()


def test_a_file_may_have_a_weight_and_an_equals_sign_in_its_name(tmp_path):
    (tmp_path / "a=2").touch()
    assert Source.of(str(tmp_path / "a=2")).weight == 1
    assert Source.of(f"{tmp_path}/a=2=3") == Source(tmp_path / "a=2", 3.0)
    assert Source.of("lr=1/games.jsonl") == Source(Path("lr=1/games.jsonl"))
    for text in ("f=0", "f=-1", "f=x", "f=inf", "f=nan", "f="):
        with pytest.raises(UserError, match="is not a weight"):
            Source.of(text)


def imitate(settings, *sources, output):
    return asyncio.run(imitate_episodes(settings, [Source(source) for source in sources], output))


async def only_told(job, *rest):
    return job


@pytest.fixture
def begun(games, tmp_path, monkeypatch):
    """A copy of the episodes, the configuration by which their rows were made, and the folder of the training."""
    monkeypatch.setattr("selfplay_pipeline.train.imitation.train_policy", only_told)
    settings = load_config("tiny", {"train.epochs": 3, "imitate.held_out": 0.2}).model_copy(update={"game": COMPACT})
    copied = Path(shutil.copy(games, tmp_path / "copied.jsonl"))
    job = imitate(settings, copied, output=tmp_path / "out")
    assert (job.held_out, job.epochs, job.imitated) == (tmp_path / "out" / HELD_OUT, 3, 0)
    return copied, settings, tmp_path / "out"


def test_rows_are_made_once_and_other_episodes_in_the_same_file_are_refused(begun):
    episodes, settings, output = begun
    lines = episodes.read_bytes().splitlines(keepends=True)
    episodes.write_bytes(b"".join(lines))
    (output / TRAIN).write_bytes(b"not made anew")
    imitate(settings, episodes, output=output)
    assert (output / TRAIN).read_bytes() == b"not made anew"
    episodes.write_bytes(b"".join(lines[:-1]))
    with pytest.raises(UserError, match=r"begun with contents of .*/copied.jsonl = '\w{16}', now it is '\w{16}'"):
        imitate(settings, episodes, output=output)


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [("engine", "context_length", 900), ("imitate", "min_reward", 0.5), ("train", "best_of_group", 2)],
)
def test_what_decides_which_rows_are_left_out_cannot_change(begun, section, key, value):
    episodes, settings, output = begun
    part = getattr(settings, section).model_copy(update={key: value})
    with pytest.raises(UserError, match=rf"begun with {section}\.{key} = .*, now it is {value}"):
        imitate(settings.model_copy(update={section: part}), episodes, output=output)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"train.overrides": [WRITES_ROWS]}, "selfplay.dump_rows=true.: rows that are imitated have no advantages"),
        ({"generate.thinking": True}, "generate.thinking: episodes hold no thoughts"),
    ],
)
def test_what_imitation_cannot_do_is_refused_before_any_rows_are_made(games, tmp_path, given, words):
    with pytest.raises(UserError, match=words):
        imitate(load_config("tiny", given).model_copy(update={"game": COMPACT}), games, output=tmp_path / "out")
    assert not (tmp_path / "out" / TRAIN).exists()


def test_one_file_under_two_names_is_refused(games, tmp_path):
    copied = Path(shutil.copy(games, tmp_path / "copied.jsonl"))
    with pytest.raises(UserError, match=r"copied.jsonl hold the same episodes; give one of them, as FILE=2 to count"):
        imitate(load_config("tiny").model_copy(update={"game": COMPACT}), games, copied, output=tmp_path / "out")


def test_the_usual_rate_falls_with_the_number_of_weights():
    sizes = {1: 3e-3, 82_000: 3e-3, 954_752: 1e-3, 134_515_008: 8.6e-5, 7_615_616_512: 1.1e-5, 70_000_000_000: 3.8e-6}
    assert {weights: usual_rate(weights) for weights in sizes} == sizes


@pytest.mark.parametrize(
    ("given", "rate"),
    [
        ({}, 1e-3),
        ({"train.lora_rank": 32}, 1.7e-3),  # 328 thousand weights, instead of 955 thousand
        ({"imitate.learning_rate": 4e-5}, 4e-5),
    ],
)
def test_a_rate_that_is_not_given_is_chosen_by_what_is_trained(tmp_path, given, rate):
    config = load_config("tiny", given)
    assert training_of(config, tmp_path).learning_rate == rate


@pytest.mark.parametrize(
    ("losses", "held_out", "warned"),
    [
        # as measured with the untrained tiny model at 1e-5, and at the usual rate
        ((6.1, 5.6), (6.0783, 5.6250), "the held-out loss went from 6.0783 to 5.6250 nats a token"),
        ((6.1, 1.0), (6.0783, 0.8893), ""),
        ((6.1, 5.9), (), "the loss went from 6.1000 to 5.9000 nats a token"),
        ((6.1, 0.9), (), ""),
        ((6.1,), (), ""),
        ((0.1, 0.1), (0.2, 0.3), "give fewer --epochs or a lower --learning-rate"),
    ],
)
def test_a_loss_that_hardly_falls_is_warned_of(tmp_path, losses, held_out, warned):
    result = trained(tmp_path, held_out_losses=held_out)
    steps = [json.dumps({"step": step, "selfplay/loss": loss}) + "\n" for step, loss in enumerate(losses, 1)]
    result.metrics_path.write_text("".join(steps))
    said = barely_fell(result) or ""
    assert bool(said) == bool(warned) and warned in said
