"""Swapped words: what each seat hears, independence of the truth, and the worth of words of scripted players."""

import asyncio
import re
from collections import Counter, defaultdict
from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pytest
from command import selfplay
from factories import byte_chat, completion
from quick import long_but
from test_protocol import MASKS, boards

from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.convert.stage import convert_episodes
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.evaluate.run import EvaluationJob, run_evaluate, swaps_of
from selfplay_pipeline.evaluate.states import held_out_states
from selfplay_pipeline.evaluate.worth_of_words import SwappedRewards, rise_of, worth_of_words
from selfplay_pipeline.games import registry
from selfplay_pipeline.games.bargaining.rules import possible_values
from selfplay_pipeline.games.base import MESSAGE, Game, state_rng
from selfplay_pipeline.games.matching.game import SCRIPTED, MatchingGame
from selfplay_pipeline.games.matching.mentions import mentions
from selfplay_pipeline.games.matching.rules import VISIBLE, MatchingConfig, best_matching
from selfplay_pipeline.games.matching.scripted import Sharing, estimate, heard_cells, own_cells, propose, tell
from selfplay_pipeline.games.matching.wordless import passes_filter
from selfplay_pipeline.games.measured import heard_of
from selfplay_pipeline.games.mediation import scripted as mediation
from selfplay_pipeline.games.mediation.game import MediationGame
from selfplay_pipeline.games.mediation.rules import AGENT
from selfplay_pipeline.games.registry import make_game
from selfplay_pipeline.games.tags import ActionKind
from selfplay_pipeline.generate.episode import Episode
from selfplay_pipeline.generate.episode_wrappers import TRIES, Draws, Swapped, check_swap, swap_of
from selfplay_pipeline.generate.players import policy_player, script_player
from selfplay_pipeline.generate.read_records import parse_episode, read_episodes
from selfplay_pipeline.generate.records import PolicyRecord
from selfplay_pipeline.metrics.bootstrap import Totals

POLICY = PolicyRecord(checkpoint="", iteration=0, engine="", temperature=1, max_new_tokens=1)


class Coded:
    """Talks as `sharing`, but in a private code: the reviewers' names are permuted."""

    def act(self, view, rng):
        names = [name.split()[0] for name in view.reviewers]
        code = dict(zip(names, names[1:] + names[:1], strict=True))
        spoken = {coded: name for name, coded in code.items()}
        history = tuple((seat, text if seat == view.seat else recoded(text, spoken)) for seat, text in view.history)
        text = Sharing().act(replace(view, history=history), rng)
        return recoded(text, code) if text.startswith("[message]") else text


def recoded(text, code):
    return re.sub("|".join(code), lambda name: code[name[0]], text)


class Naming:
    """Names the three largest cells that it sees, without their scores; trusts that named cells are large."""

    def act(self, view, rng):
        if view.due is ActionKind.MESSAGE:
            cells = sorted(own_cells(view).items(), key=lambda cell: -cell[1])[:3]
            words = [
                f"{view.reviewers[row].split()[0]} {view.papers[column].split(':')[0]}" for (row, column), _ in cells
            ]
            return f"[message] {' '.join(words) or 'none'}"
        said = " ".join(view.said(1 - view.seat))
        named = {cell for mention in mentions(said, view.papers, view.reviewers) for cell in mention.cells}
        return propose(view, best_matching(estimate(view, dict.fromkeys(named, 6)))[0])


class Eager:
    """Proposes at once if it sees a score of 0, and otherwise tells its cells; accepts any proposal."""

    def act(self, view, rng):
        if view.pending is not None:
            return "[accept]"
        if 0 not in own_cells(view).values() and not heard_cells(view):
            return tell(view, own_cells(view))
        return propose(view, best_matching(estimate(view, heard_cells(view)))[0])


@pytest.fixture(autouse=True)
def players(monkeypatch):
    own = {"coded": Coded(), "naming": Naming(), "eager": Eager()}
    monkeypatch.setattr(MatchingGame, "players", {**SCRIPTED, **own})


class WithoutRedraw(MatchingGame):
    """A game that cannot draw a state anew."""

    redraw = Game.redraw


def configured(messages: int = 1):
    return load_config("tiny_honest", {"game.protocol": "fixed", "game.messages": messages})


def evaluated(config, player: str, folder: Path, count: int):
    game = make_game(config.game)
    job = EvaluationJob(player, held_out_states(game, count), folder, episodes=1, swaps=swaps_of(game))
    return asyncio.run(run_evaluate(config, job)).modes["scripted"], job


def measured(player: str, folder: Path, messages: int = 1, count: int = 120):
    return evaluated(configured(messages), player, folder, count)


def sit(game: Game, state, player: str, number: int = 0, states=(), swap="swapped"):
    """Returns the record of one episode of a scripted player with itself, or with `shy`, with swapped messages."""
    players = [script_player(player), script_player("shy" if player == "asker" else player)]
    seated = Episode(game, state, players, f"e{number}", (0, 0, number), Swapped(swap, states or [state]))
    seated.play_out()
    return seated.record(POLICY)


# --- states drawn anew


def exact(config: MatchingConfig, seat: int, mask, shown) -> dict:
    """Returns the chance of each table, partner's mask given one view of a 2×2 board, by enumeration of the rules."""
    edges = {1.0, config.scale_max}
    scores = range(config.max_score + 1)
    for score in scores[1:]:
        edges |= {k / score for k in range(1, int(config.scale_max * score) + 1) if 1.0 < k / score < config.scale_max}
    ordered = sorted(edges)
    pieces = [(low, high) for low, high in pairwise(ordered)] or [(1.0, config.scale_max)]
    chances: dict = defaultdict(float)
    masks = [np.array(cells).reshape(2, 2) for cells in product((False, True), repeat=4)]
    apart = config.visibility != "independent"
    for partner in [~mask] if apart else masks:
        seen = mask | partner
        for drawn in product(scores, repeat=4):
            table = np.where(seen, np.array(drawn).reshape(2, 2), round(config.mean_score))
            passed = passes_filter(table[None].astype(float), (mask[None], partner[None]), config)[1][0]
            if not passed:
                continue
            p = VISIBLE
            chance = 1.0 if apart else p ** partner.sum() * (1 - p) ** (~partner).sum()
            for low, high in pieces:
                if all(
                    int(table[cell] * (low + high) / 2) == shown[cell[0]][cell[1]]
                    for cell in zip(*np.nonzero(mask), strict=True)
                ):
                    chances[table.tobytes(), partner.tobytes()] += chance * ((high - low) or 1)
    total = sum(chances.values())
    return {key: chance / total for key, chance in chances.items()}


@pytest.mark.parametrize("seat", [0, 1])
@pytest.mark.parametrize(
    "changes",
    [
        {"visibility": "complementary", "hard_factor": 0},
        {"visibility": "one_sided", "hard_factor": 0, "protocol": "fixed", "score_power": 1},
        {"visibility": "independent", "hard_factor": 0, "scale_max": 3},
        pytest.param({"visibility": "independent", "hard_factor": 1.1}, marks=pytest.mark.long),
        pytest.param(
            {"visibility": "independent", "hard_factor": 1.1, "score_power": 2, "scale_max": 2.5},
            marks=pytest.mark.long,
        ),
    ],
)  # fmt: skip
def test_a_board_is_drawn_anew_from_the_exact_distribution_given_one_view(changes, seat):
    config = MatchingConfig(**{"size": 2, "max_score": 2, "scale_max": 1, "prompts": "compact", **changes})
    game = MatchingGame(config)
    for number in range(2):
        state = game.sample_state(state_rng(7, number))
        expected = exact(config, seat, state.masks[seat], state.view(seat))
        rng, draws = np.random.default_rng(number), 300
        found: Counter = Counter()
        for _ in range(draws):
            drawn = game.redraw(state, seat, rng)
            assert drawn.view(seat) == state.view(seat) and (drawn.masks[seat] == state.masks[seat]).all()
            game.check_fits(game.state_from_json(game.state_to_json(drawn)))
            found[drawn.table.tobytes(), drawn.masks[1 - seat].tobytes()] += 1
        assert found.keys() <= expected.keys()
        spread = sum(chance * (1 - chance) for chance in expected.values()) / draws
        distance = sum((found[key] / draws - chance) ** 2 for key, chance in expected.items())
        assert distance <= 6 * spread


@pytest.mark.parametrize("seat", [0, 1])
def test_values_of_a_bargain_are_drawn_anew_from_all_that_are_possible(seat):
    game = make_game(load_config("tiny_bargaining", {}).game)
    state, rng = game.sample_state(state_rng(0, 3)), np.random.default_rng(0)
    possible = possible_values(state.counts, state.values[seat])
    found = Counter(game.redraw(state, seat, rng).values for _ in range(100 * len(possible)))
    pairs = {(state.values[0], other) if seat == 0 else (other, state.values[1]) for other in possible}
    assert found.keys() == pairs and all(55 < count < 150 for count in found.values())


@pytest.mark.parametrize("filtered", [True, False])
def test_a_board_that_keeps_some_unfiltered_states_is_refused(filtered):
    hard = {} if filtered else {"game.hard_factor": 0}
    game = make_game(load_config("tiny", {"game.unfiltered_after": 10001} | hard).game)
    state = game.sample_state(state_rng(0, 0))
    with pytest.raises(UserError, match=r"game.unfiltered_after: .*set 0") if filtered else nullcontext():
        game.redraw(state, 0, np.random.default_rng(0))


# --- what is heard: the second theorem of `tagged_session.py`


def test_each_hearer_and_each_attempt_has_a_state_of_its_own():
    game = make_game(load_config("tiny_honest", {}).game)
    draws = Draws(game, held_out_states(game, 1).states, (0, 0, 0))
    assert len({str(draws.state(hearer, attempt)) for hearer in (0, 1) for attempt in (0, 1)}) == 4
    assert str(draws.state(1, 0)) == str(draws.state(1, 0))


@pytest.mark.long
@pytest.mark.parametrize("messages", [1, 2])
@pytest.mark.parametrize("mask", MASKS)
def test_a_heard_message_is_independent_of_the_truth_given_the_hearers_view(mask, messages):
    """On 2×2 boards, each state with the same view of the hearer hears all messages equally often, as enumerated."""
    game = MatchingGame(
        MatchingConfig(
            size=2, max_score=1, scale_max=1, hard_factor=0, visibility="complementary",
            protocol="fixed", messages=messages, prompts="compact",
        )
    )  # fmt: skip
    states, hearer, draws = boards(mask), messages % 2, 60
    by_view: dict = defaultdict(list)
    for state in states:
        by_view[str(state.view(hearer))].append(state)
    for alike in by_view.values():
        expected = Counter(str(state.view(1 - hearer)) for state in alike)
        for state in alike:
            views = {said(game, other, 1 - hearer, messages): str(other.view(1 - hearer)) for other in alike}
            found = Counter(
                views[heard_of(record.turns[messages - 1])[hearer]]
                for number in range(draws)
                for record in [sit(game, state, "sharing", number)]
            )
            for view, count in expected.items():
                assert abs(found[view] / draws - count / len(alike)) < 0.25


def said(game: Game, state, seat: int, messages: int) -> str:
    """Returns the message of `sharing` with the cells of a seat; it does not depend on what was heard."""
    session = game.start(state)
    if seat == 1:
        session.step(0, "[message] none")
    return game.players["sharing"].act(game.view(session, seat), np.random.default_rng(0))


def test_the_player_hears_the_counterfactual_message_and_the_record_has_both():
    game = make_game(configured().game)
    state = game.sample_state(state_rng(0, 0))
    record = sit(game, state, "sharing")
    first, last = record.turns
    assert swap_of(record) == "swapped" and [*heard_of(first)] == [1] and heard_of(first)[1] != first.text
    assert last.action == ActionKind.PROPOSE and (not heard_of(last))
    assert parse_episode(record.model_dump_json().encode()) == record
    heard = replace(game.view(game.start(state), 1), history=((0, heard_of(first)[1]),), due=ActionKind.PROPOSE)
    assert last.text == Sharing().act(heard, None), "the proposal follows what was heard"
    named = sit(game, state, "sharing", swap="named").turns[0]
    assert re.sub(r"\d+", "_", heard_of(named)[1]) == re.sub(r"\d+", "_", named.text), "only the scores change"
    assert heard_of(named)[1] != named.text
    scoreless = sit(game, state, "naming", swap="named").turns[0]
    assert heard_of(scoreless)[1] == scoreless.text


def test_the_counterfactual_speaker_answers_what_the_hearer_really_said():
    """`asker` asks for cells, and the answer tells these cells as they are in the drawn state."""
    game = make_game(load_config("tiny_honest", {"game.protocol": "free"}).game)
    asked = 0
    for number in range(10):
        record = sit(game, game.sample_state(state_rng(0, number)), "asker", number)
        for question, answer in zip(record.turns, record.turns[1:], strict=False):
            if heard_of(answer) and "?" in question.text and question.action == answer.action == MESSAGE:
                cells = set(re.findall(r"(\w+ \w+)\?", question.text))
                assert set(re.findall(r"(\w+ \w+) (?:\d+|none)", heard_of(answer)[question.seat])) == cells
                asked += 1
    assert asked > 5


def test_in_free_play_a_speaker_that_proposes_instead_is_drawn_again_and_at_last_says_nothing():
    game = make_game(load_config("tiny_honest", {"game.protocol": "free"}).game)
    heard = Counter()
    for number in range(60):
        record = sit(game, game.sample_state(state_rng(1, number)), "eager", number)
        for turn in record.turns:
            assert (bool(heard_of(turn))) <= (turn.action == MESSAGE)
            heard.update("empty" if text == "" else "drawn" for text in heard_of(turn).values())
            assert all("0" not in re.findall(r"\d+", text) for text in heard_of(turn).values())
    assert heard["drawn"] and heard["empty"], f"{TRIES} tries do not always suffice"


class Speaking:
    """An engine of one model: it tells which episode it is in, and proposes once it has heard that."""

    async def generate(self, prompt, params, *, session=""):
        chat = byte_chat()
        read = chat.tokenizer.decode(prompt)
        text = PLAN if "[message] told" in read else f"[message] told {session}"
        return completion(chat, text, read=len(prompt))


PLAN = "[propose] Proposal: BLEU: Ava\nElectra: Daniel\nGloVe: Sofia"


def test_a_policys_tokens_hold_what_it_heard_and_the_record_counts_the_counterfactual_prompts():
    game, chat = make_game(configured().game), byte_chat()
    state = game.sample_state(state_rng(0, 0))
    player = policy_player(Speaking(), chat, POLICY, 100_000)
    seated = Episode(game, state, [player] * 2, "e", (0, 0, 0), Swapped("swapped", [state]))
    asyncio.run(seated.run())
    record = seated.record(POLICY)
    first, last = record.turns
    assert first.text.startswith("[message] told e-0") and heard_of(first)[1].startswith("[message] told e-h1-0-0")
    stream = record.trajectories[1]
    tokens = chat.tokenizer.decode(stream.prompt_ids + stream.response_ids)
    assert heard_of(first)[1] in tokens and first.text not in tokens
    own = [token for token, mask in zip(stream.response_ids, stream.response_mask, strict=True) if mask]
    assert chat.decode_reply(own) == last.text == PLAN
    assert [one.seat for one in record.trajectories] == [0, 1], "counterfactual turns leave no trajectory"
    prompts = [len(chat.rendered_prompt(one.messages[: one.num_prompt_messages])) for one in record.trajectories]
    assert record.prompt_tokens > sum(prompts)


class Insisting:
    """An engine of one model: each seat takes these turns, by the number of its own that it reads."""

    turns = {"0": ("[message] one", "[reject]", "[message] two", PLAN), "1": (PLAN, "[message] three", "[accept]")}

    async def generate(self, prompt, params, *, session=""):
        chat, seat = byte_chat(), session.rpartition("-")[2]
        text = self.turns[seat][chat.tokenizer.decode(prompt).count("assistant\n") - 1]
        text += f" {session}" if text.startswith("[message]") else ""
        return completion(chat, text, read=len(prompt))


def test_a_counterfactual_policy_remembers_the_proposals_and_answers_of_the_real_one():
    game = make_game(load_config("tiny_honest", {"game.protocol": "free"}).game)
    state = game.sample_state(state_rng(0, 0))
    player = policy_player(Insisting(), byte_chat(), POLICY, 100_000)
    seated = Episode(game, state, [player] * 2, "e", (0, 0, 0), Swapped("swapped", [state]))
    asyncio.run(seated.run())
    heard = [heard_of(turn) for turn in seated.record(POLICY).turns]
    one, two, three = {1: "[message] one e-h1-0-0"}, {1: "[message] two e-h1-0-0"}, {0: "[message] three e-h0-0-1"}
    assert heard == [one, {}, {}, two, three, {}, {}]


@pytest.mark.parametrize("swapped", [True, False])
def test_a_rise_is_of_the_reward_and_of_the_worth_of_words_where_messages_were_swapped(swapped):
    later, earlier, *heard = (
        Totals.of({"reward": (mean + np.linspace(-0.1, 0.1, 20), np.ones(20))}) for mean in (0.9, 0.7, 0.6, 0.65)
    )
    rise = rise_of([later, earlier], heard if swapped else [])
    assert rise.reward.value == pytest.approx(0.2)
    assert rise.worth is None if not swapped else rise.worth.value == pytest.approx(0.3 - 0.05)


# --- the worth of words


@pytest.mark.parametrize("whole", [True, False])
def test_a_reward_that_is_not_of_all_seats_has_no_gain_over_silence(whole):
    said, anew = (Totals.of({"reward": (np.full(5, mean), np.ones(5))}) for mean in (0.95, 0.9))
    found = worth_of_words(make_game(configured().game), said, {"swapped": SwappedRewards(anew, 1, 0)}, 0, whole=whole)
    assert found.worth.value == pytest.approx(0.05) and (found.gain is not None) == whole


@pytest.mark.long
@pytest.mark.parametrize("messages", [1, 2])
def test_a_talking_pair_is_worth_what_silence_lacks_and_a_private_code_is_worth_as_much(tmp_path, messages):
    plain, _ = measured("sharing", tmp_path / "plain", messages)
    coded, _ = measured("coded", tmp_path / "coded", messages)
    silence = make_game(configured().game).silence.value
    assert plain.figures["reward"].value > 0.99 and abs(silence - 0.840) < 0.001
    for mode in (plain, coded):
        assert mode.words.worth.low > 1 - silence, "a false message also harms"
        assert mode.words.gain.value == pytest.approx(1 - silence, abs=0.01)
        assert mode.words.swapped_reward.low <= silence
        assert mode.words.heard == 120 * messages and mode.words.empty == 0
    assert coded.words.worth.value == pytest.approx(plain.words.worth.value, abs=0.05)
    assert plain.words.which.value + plain.words.what.value == pytest.approx(plain.words.worth.value)


@pytest.mark.parametrize("messages", long_but({2}, [1, 2]))
def test_who_does_not_listen_has_words_worth_nothing(tmp_path, messages):
    mode, _ = measured("own-view", tmp_path, messages, count=60)
    assert mode.words.worth.low <= 0 <= mode.words.worth.high
    assert mode.words.swapped_reward.low <= 0.840


@pytest.mark.long
def test_who_only_names_its_largest_cells_has_worth_all_of_it_in_which(tmp_path):
    mode, _ = measured("naming", tmp_path, count=250)
    assert mode.words.which.low > 0.03
    assert mode.words.what.value == 0
    assert mode.words.swapped_reward.low <= 0.840


@pytest.mark.long
def test_a_bargain_without_names_to_keep_has_a_worth_alone(tmp_path):
    config = load_config("tiny_bargaining", {"game.protocol": "fixed", "game.messages": 1})
    words = evaluated(config, "sharing", tmp_path, 120)[0].words
    assert words.redrawn and words.named_reward is words.which is words.what is None
    assert words.worth.low > 0 and words.swapped_reward.low <= make_game(config.game).silence.value


def test_a_game_without_the_ability_takes_messages_of_other_states_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setitem(registry._found, "matching", WithoutRedraw)
    mode, job = measured("sharing", tmp_path, count=4)
    assert not mode.words.redrawn
    states = [job.states.states[(number + 1) % 4] for number in range(4)]
    game = make_game(configured().game)
    for record in read_episodes(job.file("scripted", "swapped")):
        assert heard_of(record.turns[0]) == {1: said(game, states[record.group_index], 0, 1)}
    check_swap(game, states[:2])
    with pytest.raises(UserError, match="give two states or more"):
        check_swap(game, states[:1])


class Chatty(mediation.Sharing):
    """An agent that first asks the user whose flights cost more, and then proposes."""

    def act(self, view, rng):
        if view.seat == AGENT and view.said < 1:
            user = max((0, 1), key=lambda each: sum(map(len, view.heard(each))))
            return f"[message] user {user}: which of your meetings can you miss?"
        return super().act(view, rng)


@pytest.mark.parametrize("protocol", [{"game.protocol": "free"}, {"game.protocol": "fixed", "game.messages": 2}])
def test_a_message_to_another_room_is_drawn_again_or_has_no_content_in_the_room_of_the_real_one(monkeypatch, protocol):
    monkeypatch.setattr(MediationGame, "players", {**MediationGame.players, "chatty": Chatty()})
    game = make_game(load_config("tiny_mediation", {"game.max_length": 40, **protocol}).game)
    statuses, heard = Counter(), Counter()
    for number in range(12):
        state = game.sample_state(state_rng(0, number))
        seated = Episode(game, state, [script_player("chatty")] * 3, "e", (0, 0, number), Swapped("swapped", [state]))
        seated.play_out()
        statuses[seated.session.status] += 1
        for turn in seated.record(POLICY).turns:
            if turn.seat == AGENT:
                heard.update(text.partition(":")[0] for text in heard_of(turn).values())
                assert all(text[:17] == turn.text[:17] for text in heard_of(turn).values() if text)
    assert statuses["agreed"] and heard


def test_a_game_without_messages_is_refused():
    with pytest.raises(UserError, match=r"the game matching has no action 'message'"):
        check_swap(Silent(configured().game), [])


class Silent(MatchingGame):
    """A game whose players take only decisions."""

    actions = frozenset({"propose"})


# --- files


def test_a_killed_evaluation_goes_on_with_the_same_episodes(tmp_path):
    whole, job = measured("speaking", tmp_path / "whole", 2, count=6)
    lines = job.file("scripted", "swapped").read_bytes().splitlines(keepends=True)
    again = tmp_path / "again"
    again.mkdir()
    for name in ("scripted.jsonl", "scripted.args.json", "scripted_swapped.args.json"):
        (again / name).write_bytes((job.output / name).read_bytes())
    (again / "scripted_swapped.jsonl").write_bytes(b"".join(lines[:3]) + lines[3][:40])
    continued, _ = measured("speaking", again, 2, count=6)
    assert continued == whole
    assert sorted((again / "scripted_swapped.jsonl").read_bytes().splitlines(keepends=True)) == sorted(lines)


def test_swapped_episodes_are_shown_with_what_was_heard_and_never_become_rows(tmp_path):
    options = ("--config", "tiny_honest", "--num-states", "3", "--episodes", "1", "--output", str(tmp_path / "out"))
    printed = selfplay("evaluate", "sharing", *options, "--swap-messages").stdout
    assert "worth of words" in printed and "of this: which things are named" in printed
    games = tmp_path / "out" / "scripted_swapped.jsonl"
    shown = selfplay("show", str(games)).stdout
    assert "seat 1 heard:" in " ".join(shown.replace("│", "").split())
    with pytest.raises(UserError, match=r"swapped.jsonl:1: field 'extra.swap': .*not trained on"):
        convert_episodes(configured(), games, tmp_path / "rows")
    line = next(record for record in read_episodes(games) if any(heard_of(turn) for turn in record.turns))
    with pytest.raises(ValueError, match=r"field 'turns.\d.extra.heard': only other seats hear"):
        parse_episode(line.model_copy(update={"extra": {}}).model_dump_json().encode())


@pytest.mark.parametrize(
    ("of_episode", "of_turn", "field"),
    [
        ({"swap": "other"}, {}, r"extra.swap': 'other' is not one of swapped, named"),
        ({"swap": None}, {}, r"extra.swap': None"),
        ({"swap": "swapped"}, {"heard": {"0": "[message] x"}}, r"turns.0.extra.heard': only other seats"),
        ({"swap": "swapped"}, {"heard": {"2": "[message] x"}}, r"turns.0.extra.heard': only other seats"),
        ({"swap": "swapped"}, {"heard": {"x": "[message] x"}}, r"turns.0.extra.heard': only other seats"),
        ({"swap": "swapped"}, {"heard": {"1": None}}, r"turns.0.extra.heard': expected a text"),
        ({"swap": "swapped"}, {"heard": "[message] x"}, r"turns.0.extra.heard': expected a text"),
        ({"swaps": "swapped"}, {}, r"extra.swaps': not known"),
        ({"heard": {}}, {}, r"extra.heard': not known"),
        ({}, {"swap": "swapped"}, r"turns.0.extra.swap': not known"),
        ({}, {"as_said": 1}, r"turns.0.extra.as_said': expected a text"),
        ({"names": "Ava"}, {}, r"extra.names': Input should be a valid list"),
        ({"names": [{"reviewers": ["0"]}]}, {}, r"extra.names.0.reviewers.0': Input should be a valid integer"),
    ],
)
def test_an_episode_with_something_else_in_extra_is_refused(of_episode, of_turn, field):
    state = held_out_states(game := make_game(configured().game), 1).states[0]
    record = sit(game, state, "sharing")
    said = record.turns[0]
    assert said.seat == 0
    bare = record.model_copy(update={"extra": of_episode, "turns": [said.model_copy(update={"extra": of_turn})]})
    with pytest.raises(ValueError, match=rf"field '{field}"):
        parse_episode(bare.model_dump_json().encode())
    assert parse_episode(record.model_dump_json().encode()) == record
