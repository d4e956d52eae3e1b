"""The reader of actions: what language models write is understood, and nothing is guessed."""

import json
import re

import numpy as np
import pytest
from command import SUPPORT
from factories import take
from hypothesis import given
from hypothesis import strategies as st
from proposal_corpus import (
    BEFORES,
    BOARDS,
    CLOSINGS,
    DECISIONS,
    HOSTILE,
    HOSTILE_SHARED,
    LAYOUTS,
    LINES,
    OPENINGS,
    OTHER_FORMS,
    SHARED,
    TAGS,
    TELLS_MORE,
    THREE,
    UNFINISHED,
    WHOLES,
    Board,
    Style,
    case,
    denied_turns,
    full_proposals,
    short,
)
from quick import examples

from selfplay_pipeline.games.base import ParseError, state_rng
from selfplay_pipeline.games.matching.game import MatchingGame
from selfplay_pipeline.games.matching.humans import human_episodes
from selfplay_pipeline.games.matching.proposals import ErrorKind, format_proposal, parse_action
from selfplay_pipeline.games.matching.questions import asking
from selfplay_pipeline.games.matching.rules import MatchingConfig
from selfplay_pipeline.games.matching.session import MatchingSession
from selfplay_pipeline.games.tags import ActionKind, untagged
from selfplay_pipeline.generate.records import TurnRecord

REFUSED = TELLS_MORE | OTHER_FORMS
TURNS = json.loads((SUPPORT / "reader_turns.json").read_text())
"""Turns on the board of three, written before the rule that reads them, and what each is."""
EIGHT = format_proposal([(index, index) for index in range(8)], BOARDS["8"].papers, BOARDS["8"].reviewers)
MATCHING = ((0, 0), (1, 1), (2, 2))


def read(text: str, board: Board = BOARDS["3"]) -> tuple[str, object]:
    try:
        action = parse_action(text, board.papers, board.reviewers)
    except ParseError as error:
        return "refused", str(error)
    return action.kind.value, action.proposal


def start(**options: object) -> MatchingSession:
    game = MatchingGame(MatchingConfig(size=3, max_score=9, scale_max=1, hard_factor=0, **options))
    return game.start(game.sample_state(state_rng(0, 0)))


# --- the corpus ---------------------------------------------------------------------------------------------


def test_full_proposals_are_read_unless_they_say_more_or_have_another_form() -> None:
    for one in full_proposals():
        kind, proposal = read(one.text, one.board)
        expected = ("refused",) if one.style in REFUSED else ("propose", one.matching)
        assert (kind, proposal)[: len(expected)] == expected, one


@pytest.mark.parametrize("turn", TURNS, ids=lambda turn: turn["name"])
def test_a_turn_by_an_attacker_or_a_polite_player(turn: dict[str, str]) -> None:
    kind, proposal = read(turn["text"])
    # A colon before the tag leaves its sentence unfinished: the only polite turn that the rule refuses.
    assert kind == ("refused" if turn["name"] == "text before" else turn["wanted"]), proposal
    assert kind != "propose" or proposal == MATCHING


PEOPLE = [said.text for episode in human_episodes() for said in episode.turns]
COURTESIES = re.compile(
    r"\W*(?:(?:hello|hi|ok|okay|great|sure|good|perfect|here is my proposal|i agree|(?:that )?works for me|that works"
    r"|(?:that )?sounds good(?: to me)?|we can do better)\W*)+",
    re.IGNORECASE,
)


@pytest.mark.parametrize("form", [EIGHT + "\n{}", EIGHT.replace("Proposal:", "{}"), "[accept] {}", "[reject] {}"])
def test_no_word_of_people_is_taken_behind_a_tag_unless_it_is_a_courtesy(form: str) -> None:
    assert len(PEOPLE) == 1610
    taken = [text for text in PEOPLE if read(form.format(text), BOARDS["8"])[0] != "refused"]
    assert len(taken) <= 75 and all(map(COURTESIES.fullmatch, taken)), taken


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        *((text, "accept") for text in DECISIONS),
        *((text, "refused") for text in (*UNFINISHED, *denied_turns())),
        *((text, wanted or "refused") for text, wanted in HOSTILE.values()),
    ],
)
def test_a_turn_is_the_action_that_it_states_and_none_if_it_denies_quotes_or_only_talks_of_one(
    text: str, kind: str
) -> None:
    """A tag in a sentence decides nothing; a decision may have sentences before it."""
    assert read(text)[0] == kind


@pytest.mark.parametrize("name", HOSTILE_SHARED)
def test_a_name_that_two_reviewers_share_names_neither(name: str) -> None:
    kind, why = read(HOSTILE_SHARED[name], SHARED)
    assert kind == "refused" and "write the full name" in str(why)


parts = st.builds(
    Style,
    tag=st.sampled_from(list(TAGS.values())),
    before=st.sampled_from(["", *BEFORES.values()]),
    opening=st.sampled_from(list(OPENINGS.values())),
    line=st.sampled_from(list(LINES.values())),
    layout=st.sampled_from(list(LAYOUTS.values())),
    closing=st.sampled_from(["", *CLOSINGS.values()]),
    whole=st.sampled_from([None, None, None, *WHOLES.values()]),
)
boards = st.sampled_from(list(BOARDS.values()))


@examples(300)
@given(parts, boards, st.integers(0, 1000))
def test_shuffled_decorations_are_read_right_or_refused(style: Style, board: Board, seed: int) -> None:
    one = case("mixed", style, board, np.random.default_rng(seed))
    kind, proposal = read(one.text, board)
    assert kind == "refused" or (kind, proposal) == ("propose", one.matching)


def test_nine_of_ten_proposals_of_shuffled_decorations_are_accepted() -> None:
    rng, accepted, tried = np.random.default_rng(5), 0, 1000
    parts = (TAGS, BEFORES, OPENINGS, LINES, LAYOUTS, CLOSINGS)
    pick = [[how for name, how in part.items() if name not in REFUSED] for part in parts]
    for _ in range(tried):
        tag, before, opening, line, layout, closing = (part[rng.integers(len(part))] for part in pick)
        one = case("mixed", Style(tag, before, opening, line, layout, closing), BOARDS["8"], rng)
        accepted += read(one.text, BOARDS["8"]) == ("propose", one.matching)
    assert accepted >= 0.9 * tried, accepted


@examples(300)
@given(parts, st.sampled_from(["3", "8"]), st.integers(0, 1000), st.sampled_from(["unknown", "missing", "twice"]))
def test_a_proposal_with_one_bad_pair_is_refused(style: Style, size: str, seed: int, damage: str) -> None:
    board, rng = BOARDS[size], np.random.default_rng(seed)
    pairs = [(paper, name, 7) for paper, name in zip(board.papers, rng.permutation(board.reviewers), strict=True)]
    victim = int(rng.integers(len(pairs)))
    if damage == "missing":
        del pairs[victim]
    else:
        stranger = "Ulrich Kowalski" if damage == "unknown" else pairs[victim - 1][1]
        pairs[victim] = (pairs[victim][0], str(stranger), 7)
    assert read(style.write(board, pairs), board)[0] == "refused"


@pytest.mark.long
@given(st.text(max_size=80), st.integers(0, 3), st.integers(0, 3))
def test_any_text_is_an_action_or_refused(text: str, at: int, tag: int) -> None:
    tags = ("[message]", "[propose]", "[accept]", "[reject]")
    read(text[:at] + tags[tag] + text[at:])


@pytest.mark.parametrize(
    "text",
    [
        "?", " ", "\n", "<br ", "<b", "Ava ", "Ava BLEU ", "5", "[", "[ ", "(", "*", "a", "A", "[accept", "''", "&",
        "| ", "thanks ", "[accept] ",
    ],
)  # fmt: skip
def test_long_hostile_turns_are_read_in_no_time(text: str) -> None:
    for tag in ("[propose]", "[message]", "[accept]", ""):
        read("x" + text * (100_000 // len(text)) + tag + text * (100_000 // len(text)) + "x")


# --- errors -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("turn", "kind", "words"),
    [
        ("[propose]\nBLEU: Ava\nElectra: Peter Lustig\nGloVe: Sofia", ErrorKind.MALFORMED, "Lustig' is unclear"),
        ("[propose]\nBLEU: Ava\nElectra: Daniel", ErrorKind.INCOMPLETE, "no reviewer for GloVe"),
        ("[propose]\nBLEU: Ava\nElectra: Ava\nGloVe: Sofia", ErrorKind.REPEATED_NAME, "repeats Ava"),
        (f"[message] What?\n[propose] {THREE}", ErrorKind.SEVERAL_ACTIONS, "[message] and [propose]"),
    ],
)
def test_an_error_says_what_is_wrong(turn: str, kind: ErrorKind, words: str) -> None:
    step = take(start(), turn)
    assert step.error_kind == kind
    assert step.error is not None and "\n" not in step.error and words in step.error


def test_errors_grow_more_explicit_until_the_last() -> None:
    session, form = start(max_errors=6), "BLEU: Ava Li\nElectra: Daniel Nguyen\nGloVe: Sofia Patel"
    seen = [take(session, "BLEU is for Ava").observations[0] for _ in range(5)]
    assert len(set(seen)) == 5
    assert [form in text for text in seen] == [False, True, True, True, True]
    assert ["the next one ends the dialogue" in text for text in seen] == [False] * 4 + [True]
    example = seen[1][seen[1].rindex("[propose]") : seen[1].index("(or")]
    assert read(example) == ("propose", MATCHING)


def test_the_example_of_an_answer_is_shown_where_an_answer_is_due() -> None:
    session = start()
    take(session, f"[propose] {THREE}")
    first, second = (take(session, "hm").observations[1] for _ in range(2))
    assert "[accept]\n[reject]" in second and "[accept]\n[reject]" not in first


# --- what the partner hears ---------------------------------------------------------------------------------

PROPOSED = format_proposal(MATCHING, BOARDS["3"].papers, BOARDS["3"].reviewers)


def heard(session: MatchingSession, text: str) -> str:
    listener, step = 1 - session.seats[0], take(session, text)
    assert step.error is None, step.error
    text = session.known_history(listener)[-1][1]
    assert text in step.observations[listener]
    return text


@pytest.mark.parametrize("mute", [False, True])
@pytest.mark.parametrize("answer", ["[accept]", "[reject]"])
@pytest.mark.parametrize("secret", [" My Ava scores 88 on BLEU.", "\nAva BLEU 88?", ": 88", "**88**"])
def test_an_answer_reaches_the_partner_without_a_word(mute: bool, answer: str, secret: str) -> None:
    session = start(mute=mute)
    take(session, f"[propose] {THREE}")
    refused = take(session, answer + secret)
    assert refused.error_kind == ErrorKind.MALFORMED and refused.observations[0] == ""
    assert refused.error is not None and f"write {answer} alone" in refused.error
    step = take(session, f"My Ava scores 88.\n{answer} Thanks!")
    assert step.error is None
    assert session.history[-1] == (1, answer)
    assert step.observations[0] == f"The other player said: {answer}"


@pytest.mark.parametrize("mute", [False, True])
def test_a_proposal_reaches_the_partner_in_its_canonical_form_alone(mute: bool) -> None:
    lines = "GloVe -> Sofia\nElectra -> Daniel\nBLEU -> Ava"
    assert heard(start(mute=mute), f"Ava scores 88.\n**[proposal]** I suggest\n{lines}\n\nThanks!") == PROPOSED


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[message] hello", "hello"),
        ("[message]  two  spaces \n", "two  spaces"),
        ("I have 88 for Ava.\n\n[message] hello", "hello"),
        ("**[Message]** hello", "hello"),
        ("**[message] hello**", "hello"),
        ("**[message]:** hello", "hello"),
        ("[ MESSAGE ]: hello", "hello"),
        ("```\n[message] hello\n```", "hello"),
        ("[message] *smiles* **hello**", "*smiles* **hello**"),
        ("[message] <br/>hello", "<br/>hello"),
    ],
)
def test_a_message_reaches_the_partner_without_what_stands_around_it_and_empty_if_muted(text: str, words: str) -> None:
    assert heard(start(), text) == f"[message] {words}"
    assert untagged(text) == words
    assert heard(start(mute=True), text) == "[message]"


def test_in_the_tiny_models_dialect_every_action_is_heard_as_it_was_said() -> None:
    for turn in ("[message] Ava BLEU 5 Daniel GloVe 3", "[propose] Proposal: BLEU: Sofia\nElectra: Ava\nGloVe: Daniel"):
        session = start(prompts="compact")
        assert take(session, turn).observations == ("", turn)
    assert take(session, "[reject]").observations == ("[reject]", "again")


def test_what_stands_before_the_tag_is_neither_asked_nor_told() -> None:
    state = start().state
    view, papers, reviewers = state.view(1), state.papers, state.reviewers
    told = next((r, p, score) for r, row in enumerate(view) for p, score in enumerate(row) if score is not None)
    text = f"{reviewers[told[0]]} {short(papers[told[1]])} {told[2]}. Shall I ask?\n[message] hello"
    turns = [TurnRecord(seat=seat, text=text, action=ActionKind.MESSAGE, finish_reason="stop") for seat in (1, 0)]
    counts = asking(turns, state, 0)
    assert (counts.leaks, counts.questions, counts.facts) == (0, 0, 0)


# --- names --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("papers", "reviewers", "lines"),
    [
        (("Paper 1", "Paper 2"), ("Reviewer 1", "Reviewer 2"), "1. Paper 1: Reviewer 2\n2. Paper 2: Reviewer 1"),
        (("A", "B"), ("X", "Y"), "A: Y\nB: X"),
        (("论文一: 甲", "论文二: 乙"), ("李雷", "韩梅梅"), "论文一：韩梅梅\n论文二：李雷"),
        (("snake_case", "kebab-case"), ("O’Neil", "Zoë"), "snake_case: Zoë\nkebab-case: O'Neil"),
        (("BERT", "RoBERTa"), ("Will Reed", "May Will-Li"), "BERT: May\nRoBERTa: Will Reed"),
    ],
)
def test_boards_of_other_names(papers: tuple[str, ...], reviewers: tuple[str, ...], lines: str) -> None:
    assert read(f"[propose] Proposal:\n{lines}", Board(papers, reviewers)) == ("propose", ((0, 1), (1, 0)))


@given(st.permutations(range(8)))
def test_every_canonical_proposal_is_read_back(reviewers: list[int]) -> None:
    board, matching = BOARDS["8"], tuple(sorted((r, p) for p, r in enumerate(reviewers)))
    assert read(format_proposal(matching, board.papers, board.reviewers), board) == ("propose", matching)
