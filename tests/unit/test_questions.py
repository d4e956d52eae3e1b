"""What counts as a question, which pairs it asks for, and what an answer gives away."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfplay_pipeline.games.base import INVALID, Asking, Said
from selfplay_pipeline.games.matching.game import MatchingGame
from selfplay_pipeline.games.matching.names import PAPERS, REVIEWERS
from selfplay_pipeline.games.matching.questions import NOUNS, asked_pairs, asking
from selfplay_pipeline.games.matching.rules import MatchingConfig, MatchingState
from selfplay_pipeline.games.matching.scripted import ask, player_view, tell
from selfplay_pipeline.games.questions import is_question
from selfplay_pipeline.games.tags import ActionKind

GAMES, LABELS = (
    [json.loads(line) for line in Path(f"data/dialop/{name}.jsonl").read_text().splitlines()]
    for name in ("optimization_human", "question_labels")
)
NAMES, TITLES = [name.split()[0] for name in REVIEWERS[:8]], [title.split(":")[0] for title in PAPERS[:8]]


def read(text: str) -> set[tuple[str, str]]:
    return {(NAMES[row], TITLES[column]) for row, column in asked_pairs(text, PAPERS[:8], REVIEWERS[:8])}


def precision_and_recall(found: list[set], labelled: list[set]) -> tuple[float, float]:
    hits = sum(len(one & other) for one, other in zip(found, labelled, strict=True))
    return hits / sum(map(len, found)), hits / sum(map(len, labelled))


ODD = [line for line in LABELS if line["game"] % 2]
"""The rules were written with the labelled messages of even games in sight."""


@pytest.mark.parametrize(
    ("lines", "questions", "pairs"),
    [(LABELS, (0.96, 0.95), (0.93, 0.79)), (ODD, (0.94, 0.91), (0.88, 0.75))], ids=["all", "unseen"],
)  # fmt: skip
def test_questions_of_people_and_their_pairs_are_found_with_this_precision_and_recall(lines, questions, pairs) -> None:
    found = [{True} & {is_question(line["text"], NOUNS)} for line in lines]
    asked = precision_and_recall(found, [{True} & {line["asks"]} for line in lines])
    labelled = [set(map(tuple, line["pairs"])) for line in lines]
    named = precision_and_recall([read(line["text"]) for line in lines], labelled)
    assert all(is_ >= least for is_, least in zip((*asked, *named), (*questions, *pairs), strict=True)), (asked, named)


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("[message] How is Ethan for QuAC?", {("Ethan", "QuAC")}),
        ("what is your score for ava li on bleu", {("Ava", "BLEU")}),
        ("Noah or Ava for GLUE?", {("Noah", "GLUE"), ("Ava", "GLUE")}),
        ("Ava on BLEU or GLUE?", {("Ava", "BLEU"), ("Ava", "GLUE")}),
        ("BLEU: Ava? SWAG: Noah?", {("Ava", "BLEU"), ("Noah", "SWAG")}),
        ("[message] Ava BLEU 5 Daniel GloVe?", {("Daniel", "GloVe")}),
        ("Could you tell me how Sofia scores on Electra", {("Sofia", "Electra")}),
        ("Please share your scores for Ava on BLEU.", {("Ava", "BLEU")}),
        ("I need the score of Ava on BLEU", {("Ava", "BLEU")}),
        ("Could you tell me your scores for:\n1. Ava Li - BLEU\n2. Noah - GLUE", {("Ava", "BLEU"), ("Noah", "GLUE")}),
        ("Do you see Ava on BLEU<BR>Noah on GLUE is my best", {("Ava", "BLEU")}),
        ("Is Ava above 50 on BLEU?", {("Ava", "BLEU")}),
        ("I have 55 for Ava on BLEU and 40 for Noah on GLUE, what do you have?", set()),
        ("Ava with BLEU has a score of 55, what are your scores?", set()),
        ("Ava, Daniel and Noah on BLEU, GLUE and SWAG?", set()),
        ("What are your scores for Ava?", set()),
        ("Anyone good for SWAG besides Sofia?", set()),
        ("I have Ava on BLEU. What do you have?", set()),
        ("Ava is great on BLEU", set()),
    ],
)  # fmt: skip
def test_pairs_that_are_asked_for(text: str, pairs: set[tuple[str, str]]) -> None:
    assert read(text) == pairs
    assert is_question(text) == (text != "Ava is great on BLEU")


@pytest.mark.parametrize(
    "text", ["Whatever you like", "Whole row is bad", "Whereas I see", "Doesn't matter", "Any is fine"]
)
def test_words_that_only_begin_like_a_question(text: str) -> None:
    assert not is_question(text)


@pytest.mark.parametrize("text", ["?", " ", "\n", "<br ", "Ava ", "Ava BLEU ", "5", "ok ", "- ", "share your "])
def test_long_hostile_messages_are_read_in_no_time(text: str) -> None:
    asked_pairs("x" + text * (100_000 // len(text)) + "x", PAPERS[:8], REVIEWERS[:8])


@given(st.sets(st.tuples(st.integers(0, 7), st.integers(0, 7)), min_size=1))
def test_what_scripted_players_ask_for_is_read_back_and_what_they_tell_asks_for_nothing(
    cells: set[tuple[int, int]],
) -> None:
    game = MatchingGame(MatchingConfig(hard_factor=0))
    view = player_view(game.start(game.sample_state(np.random.default_rng(0))), 0)
    assert asked_pairs(ask(view, sorted(cells)), view.papers, view.reviewers) == cells
    told = tell(view, dict.fromkeys(cells, 7))
    assert not is_question(told)


HOW, IT_IS = (0, "How is Daniel on BLEU?"), (1, "66 on my scale")


class TestAsking:
    """A board of two: seat 0 sees Ava's row, seat 1 Daniel's and Ava's first."""

    STATE = MatchingState(
        table=np.array([[11, 22], [33, 44]]),
        masks=(np.array([[1, 1], [0, 0]], dtype=bool), np.array([[1, 0], [1, 1]], dtype=bool)),
        scales=(1.0, 2.0),
        best=55,
        papers=PAPERS[:2],
        reviewers=REVIEWERS[:2],
    )  # fmt: skip

    def count(self, *turns: tuple[int, str]) -> Asking:
        return asking([Said(seat, f"[message] {text}") for seat, text in turns], self.STATE, 0)

    def test_a_question_and_its_answer(self) -> None:
        found = self.count(HOW, IT_IS)
        assert found == Asking(messages=1, questions=1, specific=1, facts=1, learned=1, partner_messages=1)

    def test_a_general_question_is_none_for_a_pair(self) -> None:
        assert self.count((0, "What do you have?"), (1, "some")) == Asking(1, 1, partner_messages=1)

    @pytest.mark.parametrize(
        ("turns", "expected"),
        [
            ([(0, "Ava BLEU?"), (1, "Ava BLEU 22")], {"learned": 0}),  # it sees that itself
            ([HOW, (1, "Daniel BLEU 66")] * 2, {"specific": 2, "repeated": 1, "facts": 1, "learned": 1}),
            ([HOW, (1, "Daniel BLEU 66 Daniel Electra 88")], {"leaks": 1}),
            ([HOW, (1, "It is 66, and my best is an 88")], {"leaks": 1}),
            ([HOW, (1, "Daniel is 88 on Electra")], {"leaks": 1}),
            (  # what was asked for before may be told later
                [(0, "Daniel on BLEU, Daniel on Electra?"), (1, "66"), (0, "and?"), (1, "88 for Electra")],
                {"leaks": 0, "learned": 2},
            ),
            # no score of the partner's, or said by the player
            ([(0, "I have 88 for you"), (1, "you say 88, I cannot see 2 of them")], {"leaks": 0}),
        ],
    )
    def test_what_is_learned_repeated_and_leaked(self, turns: list[tuple[int, str]], expected: dict[str, int]) -> None:
        found = self.count(*turns)
        assert {name: getattr(found, name) for name in expected} == expected

    def test_only_messages_count(self) -> None:
        turns = [Said(0, "[propose] Proposal: BLEU: Ava?", ActionKind.PROPOSE), Said(1, "66?", INVALID)]
        assert asking(turns, self.STATE, 0) == Asking()


def test_a_game_adds_the_nouns_that_its_players_request() -> None:
    text = "Please share the affinities of Ava"
    assert is_question(text, NOUNS) and not is_question(text)
    assert is_question("Please share the scores of Ava"), "what is a word of any game needs no list"
    assert asked_pairs("Ava on BLEU? Ava Li on GLUE?", ("BLEU", "GLUE"), ("Ava Li", "Ava Reed")) == {(0, 1)}
