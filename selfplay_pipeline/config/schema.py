"""The sections and keys of a configuration, but those of games."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from selfplay_pipeline.config.online import OnlineOptions
from selfplay_pipeline.config.partner import PartnerConfig
from selfplay_pipeline.config.training import SUPERVISED, TrainOptions
from selfplay_pipeline.config.uses import MEASURING, PLAYING
from selfplay_pipeline.core.addresses import checked_address
from selfplay_pipeline.core.keys import SERVER_KEY
from selfplay_pipeline.core.sections import FREE, Identity, Option, Section, UsedBy
from selfplay_pipeline.games.registry import GameConfig, first_game_config


class EngineConfig(Section):
    """The engine, which turns prompts into sampled tokens."""

    kind: Annotated[Literal["sglang", "transformers"], Option("--engine"), Identity("generate", "evaluate")] = "sglang"
    """What samples: `sglang`, a server, or `transformers`, in this process.

    `transformers` is slow, and meant for machines where SGLang cannot run.
    """
    device: Annotated[
        Literal["auto", "cpu", "cuda"], UsedBy(*PLAYING, instead={"train-online": "train.device"}), FREE
    ] = "auto"
    """Where the model runs; `auto` is cuda where a GPU is visible, else cpu."""
    server_url: Annotated[list[str], FREE] = []
    """Attach to the SGLang servers at these addresses, instead of launching one."""
    tensor_parallel: Annotated[int, Field(ge=1), UsedBy(*PLAYING, "train-online"), FREE] = 1
    """GPUs that share one copy of the model."""
    data_parallel: Annotated[int, Field(ge=1), UsedBy(*PLAYING, "train-online"), FREE] = 1
    """Copies of the model, each on GPUs of its own.

    `train-online` has as many as fit on the GPUs that it trains on, and refuses any other number but 1.
    """
    memory_fraction: Annotated[
        float, Field(gt=0, lt=1), UsedBy(*PLAYING, instead={"train-online": "a key of verl's"}), FREE
    ] = 0.8
    """Share of the GPU's memory that the server takes for weights and cache."""
    context_length: Annotated[int | None, UsedBy(*PLAYING, "train-online", "imitate")] = None
    """Longest trajectory in tokens; by default as long as the model allows."""
    startup_timeout: Annotated[float, Field(gt=0), FREE] = 900
    """Seconds to wait for a launched server to answer, or for an attached one that another command uses."""
    request_timeout: Annotated[float, Field(gt=0), FREE] = 600
    """Seconds to wait for one turn."""
    hang_timeout: Annotated[float, Field(gt=0), FREE] = 60
    """Seconds without a sign of life after which a server that is asked something counts as hanging.

    Signs of life are an answer, a health check, and work of its processes where they can be seen. A launched server
    that hangs is started again.
    """
    reconnect_timeout: Annotated[float, Field(ge=0), FREE] = 120
    """Seconds to wait for an attached server (`server_url`) that is gone, before its episodes are lost.

    With several servers its episodes go on at the others, and it is used again if it is back within this time.
    """
    extra_args: Annotated[list[str], FREE] = []
    """Further arguments for the SGLang server."""

    @field_validator("server_url")
    @classmethod
    def _addresses(cls, urls: list[str]) -> list[str]:
        return [checked_address(url, "http://localhost:30000", SERVER_KEY) for url in urls]


class GenerateConfig(Section):
    """How many episodes are played, and how the policy samples."""

    num_episodes: Annotated[
        int,
        Field(ge=1),
        UsedBy(
            "generate",
            "iterate",
            instead={"train-online": "online.steps", **dict.fromkeys(MEASURING, "evaluate.num_states")},
        ),
    ] = 100
    """Episodes to play, rounded up to whole groups; each seat of the policy's gives a row an episode."""
    episodes_per_state: Annotated[
        int,
        Field(ge=1),
        UsedBy(
            "generate",
            "iterate",
            "train-online",
            instead={"evaluate": "evaluate.episodes", "crossplay": "--episodes", "listen": "one episode a state"},
        ),
    ] = 8
    """G: episodes of one state, which form one group."""
    temperature: Annotated[
        float,
        Field(ge=0),
        UsedBy("generate", "iterate", "train-online", "evaluate", "crossplay", instead={"listen": "greedy play"}),
    ] = 0.7
    """Sampling temperature; 0 plays greedily, and such episodes cannot be trained on."""
    max_new_tokens: Annotated[int, Field(ge=1)] = 256
    """Token limit of one turn, its thoughts included; a longer turn is cut and counts as an error."""
    thinking: Annotated[bool, UsedBy(*PLAYING, "train-online", "imitate", "convert")] = False
    """Let the model think before each action; needs a larger `max_new_tokens`.

    Only models whose chat template has the switch `enable_thinking` can (Qwen3, SmolLM3). The thoughts are trained on;
    the partner does not read them.
    """
    max_concurrency: Annotated[
        int, Field(ge=1), UsedBy(*PLAYING, instead={"train-online": "all episodes of a step"}), FREE
    ] = 256
    """Episodes that are played at a time. A server queues what it cannot take."""
    max_failures: Annotated[int, Field(ge=0), FREE] = 16
    """Episodes that may be lost to the server or the partner, after a second try at the end of the run.

    With more the command stops, and `iterate` does not train on what is left. The same command plays what was lost.
    `train-online` counts the lost episodes of each step.
    """


class ConvertConfig(Section):
    """How episodes become rows."""

    val_fraction: Annotated[
        float,
        Field(ge=0, lt=1),
        UsedBy("convert", "iterate", instead={"imitate": "imitate.held_out", "train-online": "online.held_out_states"}),
    ] = 0.0
    """Share of groups that is set aside in val.parquet; with 0 all are trained on, and that file is not written.

    val.parquet is for tools of your own: nothing here reads it.
    """
    credit: Annotated[Literal["episode", "turn"], UsedBy("convert", "iterate", instead=SUPERVISED)] = "episode"
    """What GRPO compares: the reward of the whole `episode`, or the credit of each `turn`.

    A turn's credit is the reward minus what could be reached before it: by the best plan on what its seat knew, or by
    the proposal that it answers. It is compared with that of the same turn of the same seat in the group's other
    episodes. In self-play only, and in games that know such credits.
    """
    placebo: bool = False
    """Permute the rewards within each group: a control, from which nothing about the game can be learned.

    The file of episodes keeps the true rewards, and all figures of episodes are of these.
    """


class ImitateConfig(Section):
    """How `imitate` chooses among episodes, and trains on their turns."""

    seats: Annotated[list[Annotated[int, Field(ge=0)]], Option("--seat")] = []
    """Seats whose turns are imitated; by default all."""
    min_reward: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Least reward that a seat must have reached in an episode for its turns to be imitated."""
    best_of_group: Annotated[int, Field(ge=0)] = 0
    """Episodes of each state that are imitated, those with the highest reward; 0 is all."""
    held_out: Annotated[float, Field(ge=0, lt=1)] = 0.05
    """Share of the states that is not trained on; their loss is measured before, after each epoch, and so at the end.

    It is the mean negative log-probability of their own tokens, in nats.
    """
    epochs: Annotated[int, Field(ge=1)] = 1
    """Passes over the data."""
    train_batch_size: Annotated[int, Field(ge=2)] = 64
    """Rows of one optimizer step; a row is one seat's part of an episode."""
    learning_rate: Annotated[float | None, Field(gt=0)] = None
    """AdamW's learning rate at its highest; by default 1 / √(number of trained weights), at most 3e-3.

    That is 1.0e-3 for a million weights, 8.6e-5 for 135 million and 1.1e-5 for 7.6 billion; with LoRA the adapter's
    weights count.
    """
    schedule: Literal["constant", "cosine"] = "cosine"
    """Whether the learning rate stays, or goes down to 0 along a cosine."""


class EvaluateConfig(Section):
    """How a checkpoint is evaluated."""

    num_states: Annotated[
        int,
        Field(ge=2),
        UsedBy(*MEASURING, instead={"iterate": "iterate.evaluate_states", "train-online": "online.held_out_states"}),
        FREE,
    ] = 500
    """Held-out states to play."""
    episodes: Annotated[
        int,
        Field(ge=1),
        UsedBy(
            "evaluate",
            instead={
                "crossplay": "--episodes",
                "listen": "one episode a state",
                "iterate": "one episode a state",
                "train-online": "one episode a state",
            },
        ),
        FREE,
    ] = 2
    """Sampled episodes of each state; with another player as partner, of each seating."""
    state_seed: Annotated[
        int, Field(ge=0), UsedBy(*MEASURING, "iterate", "train-online", "games"), Identity("iterate")
    ] = 0
    """Seeds the held-out states; apart from `seed`, so that runs of all seeds are measured on the same states."""


class IterateConfig(Section):
    """The loop of playing, converting and training."""

    num_iterations: Annotated[int, Field(ge=1), UsedBy("iterate", instead={"train-online": "online.steps"}), FREE] = 3
    """Rounds of generate, convert and train."""
    partner: str = "self"
    """The policy's partner: `self`, or a player who is not trained: a script, `chat`, or another checkpoint.

    With another player as partner the policy holds seat 0 alone. `selfplay generate --help` names the scripts; `chat`
    is the model of the section `partner`.
    """
    keep_processes: Annotated[bool, FREE] = True
    """Keep the server running while training, and the trainer while playing, instead of starting them anew.

    On a GPU that both use, the one that waits gives its memory back; the trainer's state is in host memory then.
    """
    evaluate_every: Annotated[
        int, Field(ge=0), UsedBy("iterate", instead={"train-online": "online.validate_every"}), FREE
    ] = 1
    """Evaluate on held-out states before the first and after every so many iterations; 0 is never."""
    evaluate_states: Annotated[
        int, Field(ge=2), UsedBy("iterate", instead={"train-online": "online.held_out_states"})
    ] = 100
    """Held-out states of these evaluations, each played once sampled and once greedily."""
    decay_iterations: Annotated[int, Field(ge=0)] = 0
    """Iterations over which the learning rate falls linearly, to 0 after the last of them; 0 keeps it as it is."""

    @model_validator(mode="after")
    def _rate_is_above_zero(self) -> IterateConfig:
        if 0 < self.decay_iterations < self.num_iterations:
            raise ValueError(
                f"decay_iterations: {self.decay_iterations} leaves a learning rate of 0 for the rest of "
                f"num_iterations: {self.num_iterations}; give at least as many, or 0"
            )
        return self

    def rate_share(self, number: int) -> float:
        """The share of `train.learning_rate` that iteration `number`, counted from 1, is trained with."""
        return 1 - (number - 1) / self.decay_iterations if self.decay_iterations else 1.0


class Config(Section):
    """A whole run."""

    model: str | None = None
    """The policy: a folder or a hub name; by default of `train` the model that the rows name.

    For other commands the default is Qwen2.5-7B-Instruct with a GPU, the shipped tiny model without.
    """
    seed: Annotated[
        int,
        Field(ge=0),
        UsedBy("generate", "convert", "train", "imitate", "iterate", "games", "train-online", "silence"),
    ] = 0
    """Seeds states, scripted players, the split of the data and the trainer; a policy's sampled turns are not seeded.

    So two runs with one seed play the same states, and a policy's episodes differ. SGLang 0.5.12 heeds the seed of a
    request only in its deterministic mode, which has no attention backend for CPUs.
    """
    game: GameConfig = Field(default_factory=first_game_config)
    engine: Annotated[EngineConfig, UsedBy(*PLAYING)] = EngineConfig()
    generate: Annotated[GenerateConfig, UsedBy(*PLAYING, "train-online")] = GenerateConfig()
    convert: Annotated[ConvertConfig, UsedBy("convert", "iterate")] = ConvertConfig()
    imitate: Annotated[ImitateConfig, UsedBy("imitate")] = ImitateConfig()
    train: Annotated[TrainOptions, UsedBy("train", "imitate", "iterate", "train-online")] = TrainOptions()
    evaluate: Annotated[EvaluateConfig, UsedBy(*MEASURING, "iterate")] = EvaluateConfig()
    iterate: Annotated[IterateConfig, UsedBy("iterate")] = IterateConfig()
    online: Annotated[OnlineOptions, UsedBy("train-online")] = OnlineOptions()
    # It decides where `chat` plays, which `partner_arguments` knows.
    partner: Annotated[PartnerConfig, UsedBy(*PLAYING), FREE] = PartnerConfig()
