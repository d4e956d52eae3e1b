"""The episodes of people: all of them become episodes by our rules, and all that is left out has a reason."""

from collections import Counter
from pathlib import Path

import pytest
from command import selfplay
from factories import byte_chat, make_episodes, write_episodes

from selfplay_pipeline.convert.replay import replay
from selfplay_pipeline.games.matching import humans
from selfplay_pipeline.games.matching.game import MatchingGame
from selfplay_pipeline.generate.read_records import read_episodes
from selfplay_pipeline.generate.records import PERSON, EpisodeRecord

EPISODES = list(humans.human_episodes())


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("people") / "humans.jsonl"
    done = selfplay("game", "humans", "--output", str(path))
    assert "134 episodes of people, 268 rows to imitate, 1863 actions" in done.stdout
    assert "left out 156: a message beside a proposal of the same seat" in done.stdout
    return path


@pytest.fixture(scope="module")
def records(written: Path) -> list[EpisodeRecord]:
    return list(read_episodes(written))


def test_all_134_are_agreed_upon_by_our_rules_with_the_recorded_rewards(records: list[EpisodeRecord]) -> None:
    assert len(records) == 134
    for record, episode in zip(records, EPISODES, strict=True):
        assert record.outcome.status == "agreed"
        assert record.outcome.normalized_reward == pytest.approx(episode.reward, abs=1e-12)
        assert record.players == [PERSON, PERSON] and not record.trajectories
        assert all(turn.error is None for turn in record.turns)
        assert {turn.seat for turn in record.turns} == {0, 1}, "both seats can be imitated"


def test_each_action_is_kept_or_counted_under_a_reason(records: list[EpisodeRecord]) -> None:
    left_out = sum((Counter(episode.left_out) for episode in EPISODES), Counter())
    assert left_out == {humans.BESIDE: 156, humans.WAITING: 37, humans.AGAIN: 8, humans.REPLACED: 4}
    for record, episode in zip(records, EPISODES, strict=True):
        assert len(record.turns) + sum(episode.left_out.values()) == episode.num_turns


def test_people_speak_their_own_words_from_their_own_view(records: list[EpisodeRecord]) -> None:
    for record, episode in zip(records, EPISODES, strict=True):
        said = [(turn.seat, turn.text) for turn in record.turns if turn.action == "message"]
        written = iter((turn.seat, f"[message] {turn.text}") for turn in episode.turns)
        assert all(any(one == other for other in written) for one in said), "the same messages, in their order"
    one = EPISODES[0]  # player 1 spoke first in it, and is seat 0
    assert one.turns[0].seat == 0 and one.state.scales[0] == pytest.approx(6.2648, abs=1e-4)


def test_the_file_takes_the_place_of_no_other_one(tmp_path: Path) -> None:
    ours = write_episodes(tmp_path / "games.jsonl", make_episodes(1, 1))
    before = ours.read_bytes()
    assert selfplay("game", "humans", "--output", str(ours)).returncode == 2 and ours.read_bytes() == before
    for _ in "written", "written anew":
        assert selfplay("game", "humans", "--output", str(tmp_path / "humans.jsonl")).returncode == 0


@pytest.mark.long
def test_both_seats_of_all_134_become_rows_to_imitate(records: list[EpisodeRecord]) -> None:
    rows = [row for record in records for row in replay(record, MatchingGame(), byte_chat())]
    assert len(rows) == 268 and all(sum(row.response_mask) > 0 for row in rows)


def message(player: int, words: str = "hi") -> dict[str, object]:
    return {"type": "message", "player": player, "message": {"data": words}}


def proposal(player: int) -> dict[str, object]:
    return {"type": "proposal", "player": player}


def answer(player: int, *, accept: bool) -> dict[str, object]:
    return {"type": "proposal_response", "player": player, "response": {"accept": accept}}


NO, YES = answer(1, accept=False), answer(1, accept=True)


@pytest.mark.parametrize(
    ("log", "kept", "left_out"),
    [
        ([message(0), message(1), proposal(0), YES], [0, 1, 2, 3], {}),
        ([message(1), message(0), proposal(0), YES], [0, 2, 3], {humans.BESIDE: 1}),
        ([proposal(0), message(0), YES], [0, 2], {humans.WAITING: 1}),
        ([proposal(0), proposal(0), YES], [1, 2], {humans.REPLACED: 1}),
        ([proposal(0), NO, message(1), proposal(0), YES], [0, 1, 2, 3, 4], {}),
        ([proposal(0), NO, proposal(0), YES], [2, 3], {humans.AGAIN: 2}),
        ([proposal(0), NO, message(0), message(1), proposal(0), YES], [0, 1, 3, 4, 5], {humans.BESIDE: 1}),
    ],
)
def test_what_is_kept_of_what_people_did(log: list, kept: list[int], left_out: dict[str, int]) -> None:
    turns, counted = humans.turns_of(log)
    assert [entry for turn in turns for entry in turn] == [log[number] for number in kept]
    assert counted == left_out
