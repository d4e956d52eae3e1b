"""The environment: the game's own rewards and observations, and nothing of the partner's table."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest
from chat_endpoint import ChatEndpoint, body
from factories import BOARD, Habits, make_episode
from hypothesis import given
from hypothesis import strategies as st
from quick import examples
from slime_contract import NewSample, arguments, sample_of

from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.games import registry
from selfplay_pipeline.games.bargaining.game import BargainingGame
from selfplay_pipeline.games.bargaining.rules import BargainingConfig
from selfplay_pipeline.games.base import state_rng
from selfplay_pipeline.games.matching.game import SCRIPTED
from selfplay_pipeline.games.matching.proposals import format_proposal
from selfplay_pipeline.games.matching.rules import MatchingConfig, MatchingState, best_matching
from selfplay_pipeline.generate.episode import Reply
from selfplay_pipeline.generate.records import SeatRecord
from selfplay_pipeline.slime import env as env_module
from selfplay_pipeline.slime.data import game_of, game_row
from selfplay_pipeline.slime.env import EpisodeEnv, build_env
from selfplay_pipeline.slime.hooks import post_process_rewards

LONG = BOARD.model_copy(update={"size": 4, "max_length": 30, "max_errors": 4, "prompts": "default"})


def env_of(partner: str = "sharing", board: MatchingConfig = BOARD, number: int = 0, **fields) -> EpisodeEnv:
    """The environment of a policy and this partner, before the first observation."""
    sample = sample_of(NewSample, board, number, **fields)
    return build_env(sample, arguments(hf_checkpoint=None, selfplay={"partner": partner}))


def optimum(env: EpisodeEnv) -> str:
    return format_proposal(best_matching(env.state.table)[0], env.state.papers, env.state.reviewers)


def info(**changes) -> dict:
    """What is said of a turn that ended an agreed episode."""
    return {"status": "agreed", "reward": 1.0, "action": "propose", "error": None, "failure": None} | changes


def words(number: int, share: float) -> list[str]:
    """What a player may say, sense and nonsense, in no order."""
    habits = Habits(spoil=share, cut=0, reject=0.5)
    return [
        turn.text for episode in range(6) for turn in make_episode(number, episode, config=LONG, habits=habits).turns
    ]


@pytest.mark.long
@examples(40)
@given(st.sampled_from(sorted(SCRIPTED)), st.integers(0, 30), st.floats(0, 1))
def test_rewards_turns_and_ends_are_those_of_the_game(partner, number, share):
    env = env_of(partner, LONG, number)
    env.reset()
    for text in words(number, share):
        observation, done, said = env.step(text)
        assert done == (observation == "")
        if done:
            break
        assert env.sample.reward == 0.0
    game, state = game_of(env.sample.metadata)
    session = game.start(state)
    for turn in env.sample.metadata["episode"]["turns"]:
        assert session.seats == (turn["seat"],)
        session.step(turn["seat"], turn["text"])
    assert done == (session.status is not None)
    if done:
        assert said["status"] == session.status == env.sample.metadata["episode"]["status"]
        assert said["reward"] == env.reward == env.sample.reward == session.outcome().rewards[0]


def twin(state: MatchingState, seed: int) -> MatchingState:
    """Another state that looks the same to seat 0."""
    rng = np.random.default_rng(seed)
    table = np.where(state.masks[0], state.table, rng.integers(1, LONG.max_score + 1, state.table.shape))
    masks = (state.masks[0], rng.random(table.shape) < 0.5)
    return replace(state, table=table, masks=masks, scales=(state.scales[0], 5.0), best=int(best_matching(table)[1]))


@examples(30)
@given(st.integers(0, 30), st.integers(0, 2**16), st.floats(0, 1))
def test_the_policy_never_reads_what_only_its_partner_sees(number, seed, share):
    """With a partner that knows nothing, games that look the same at first stay the same to the last word."""
    one = env_of("random", LONG, number)
    metadata = one.sample.metadata | {"game_state": twin(one.state, seed).to_dict()}
    other = env_of("random", LONG, number, metadata=metadata)
    assert one.reset() == other.reset()
    for text in words(number, share):
        heard = [env.step(text)[:2] for env in (one, other)]
        assert heard[0] == heard[1]
        if heard[0][1]:
            break


@pytest.mark.parametrize("end", ["", "<|im_end|>"], ids=["text", "text with the end of the turn, as a server sends it"])
def test_the_best_matching_agreed_on_is_worth_1(end):
    env = build_env(sample_of(NewSample, BOARD), arguments(selfplay={"partner": "random"}))
    env.reset()
    assert env.step(optimum(env) + end)[1:] == (True, info())


def test_a_reset_begins_anew_and_an_observation_is_a_message_of_the_user():
    env = env_of("sharing")
    first = env.reset()
    env.step("[message] hello")
    assert env.reset() == first
    assert env.sample.metadata["episode"] == {"status": None, "turns": [], "usage": None, "failure": None}
    assert env.episode.turns == []
    assert env.sample.prompt[1] == env.format_observation(first[0]) and env.sample.prompt[1]["role"] == "user"


class Broken:
    """A partner whose client raises what nobody foresaw."""

    record = SeatRecord(kind="chat", name="broken")
    prompt_tokens = cached_tokens = 0
    usage = None

    def sit(self, place):
        return self

    def observe(self, text: str) -> None: ...

    def __init__(self, error: Exception) -> None:
        self.error = error

    async def act(self) -> Reply:
        raise self.error


def test_whatever_a_partners_client_raises_ends_the_episode_and_tells_no_secret(monkeypatch, caplog):
    monkeypatch.setattr(env_module, "_partner", lambda config, game, loop: Broken(KeyError("Bearer sk-secret")))
    env = env_of()
    asyncio.run(env.start())
    observation, done, said = asyncio.run(env.answer("[message] hello"))
    assert (observation, done, said["status"], said["reward"]) == ("", True, "engine_failure", 0.0)
    assert env.sample.remove_sample
    assert env.sample.metadata["episode"]["failure"] == said["failure"] == "the partner raised KeyError"
    assert "sk-secret" not in caplog.text + str(env.sample)


def test_a_missing_module_would_end_every_episode_and_ends_the_run(monkeypatch):
    missing = Broken(ModuleNotFoundError("No module named 'openai'"))
    monkeypatch.setattr(env_module, "_partner", lambda config, game, loop: missing)
    env = env_of()
    env.reset()
    with pytest.raises(ImportError, match="openai"):
        env.step("[message] hello")


UNBILLED = body({"choices": [{"message": {"content": "[message] hm"}, "finish_reason": "stop"}]})


@pytest.mark.parametrize(
    ("limit", "answers", "words"),
    [
        ({"max_dollars": 1e-6}, [], r"\$0\.00 of selfplay\.chat\.max_dollars 1e-06 are spent"),
        ({"max_dollars": 1}, [UNBILLED], r"reports no tokens, so selfplay\.chat\.max_dollars cannot be kept"),
    ],
)
def test_a_limit_of_the_chat_model_ends_the_run_and_is_named_as_slimes_file_names_it(limit, answers, words):
    with ChatEndpoint(answers) as endpoint:
        chat = {"base_url": endpoint.url, "prompt": "plain", **limit}
        env = build_env(
            sample_of(NewSample, BOARD), arguments(hf_checkpoint=None, selfplay={"partner": "chat", "chat": chat})
        )
        env.reset()

        def talk():
            for _ in range(2):
                env.step("[message] hello")

        with pytest.raises(UserError, match=words + r".*; training stops here, and .* from the last save"):
            talk()


@pytest.mark.parametrize("blocked", [False, True])
def test_steps_can_be_awaited_or_waited_for(blocked):
    """The generic loops of slime call `step` inside a running event loop."""

    async def play() -> float:
        env = env_of("random")
        await env.start()
        return (env.step(optimum(env)) if blocked else await env.answer(optimum(env)))[2]["reward"]

    assert asyncio.run(play()) == 1.0


def selfish(seed: int) -> EpisodeEnv:
    """An episode of one state, in which the policy proposes at random what the partner accepts."""
    game = BargainingGame(BargainingConfig(reward="selfish"))
    row = game_row(game, game.sample_state(state_rng(0, 0)), "train-s0-g000000")
    sample = NewSample(prompt=row["prompt"], metadata=row["metadata"], group_index=0, index=seed)
    env = build_env(sample, arguments(hf_checkpoint=None, selfplay={"partner": "random"}))
    env.reset()
    rng, over = np.random.default_rng(seed), env.status is not None
    while not over:
        _, over, _ = env.step(game.players["random"].act(game.view(env.episode.session, 0), rng))
    return env


def test_where_seats_have_rewards_of_their_own_the_policys_is_compared_with_the_policys_in_other_episodes():
    envs = [selfish(seed) for seed in range(8)]
    mine, partners = np.array([env.episode.session.outcome().rewards for env in envs]).T
    assert (mine != partners).any()
    raw, normalised = post_process_rewards(arguments(), [env.sample for env in envs])
    assert raw == mine.tolist()
    assert normalised == pytest.approx((mine - mine.mean()) / (mine.std(ddof=1) + 1e-6))


def test_the_partner_holds_all_seats_but_the_policys(monkeypatch):
    game = registry.find("examples/relay.py")()
    monkeypatch.setattr(env_module, "game_of", lambda metadata: (game, game.state(letters=("a", "b"))))
    env = env_of("exact")
    assert env.reset()[0] == "Your letter is a."
    assert env.step("[message] a")[1:] == (True, info(action="message"))
    assert [turn["seat"] for turn in env.sample.metadata["episode"]["turns"]] == [0, 1, 2]
