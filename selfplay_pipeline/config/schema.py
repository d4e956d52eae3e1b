"""The sections and keys of the configuration, except those of games."""

from __future__ import annotations

from datetime import date
from math import isfinite
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from selfplay_pipeline.config.partner import PartnerConfig
from selfplay_pipeline.config.training import TrainOptions
from selfplay_pipeline.config.used_keys import MEASURING, PLAYING, TRAINING
from selfplay_pipeline.core.addresses import checked_address
from selfplay_pipeline.core.sections import Option, Section, UsedBy
from selfplay_pipeline.core.server_keys import SERVER_KEY
from selfplay_pipeline.games.registry import GameConfig, first_game_config

DATE = "2024-07-26"
"""Date of chat templates' clock, unless one is given: the day that Llama's templates name without a clock."""
History = Literal["appended", "rendered"]
"""What a prompt holds of the model's own earlier turns: the sampled tokens, or what the chat template shows of them."""
SWITCHES = ("enable_thinking", "thinking")
"""Arguments with which chat templates are told whether to think; a template without them ignores them."""


class EngineConfig(Section):
    """The engine, which samples completions from the model."""

    kind: Annotated[Literal["sglang", "transformers"], Option("--engine")] = "sglang"
    """Engine that runs the model: `sglang` is a server, `transformers` runs in the command's own process.

    `transformers` is slow, and meant for machines where SGLang cannot run.
    """
    server_url: list[str] = []
    """Addresses of running SGLang servers to play with, instead of launching one."""
    tensor_parallel: Annotated[int, Field(ge=1), UsedBy(*PLAYING, "train-online")] = 1
    """Number of GPUs that share one copy of the model."""
    data_parallel: Annotated[int, Field(ge=1), UsedBy(*PLAYING, "train-online")] = 1
    """Number of copies of the model, each on GPUs of its own; by default as many as the visible GPUs hold.

    `train-online` runs as many copies as fit on the GPUs that it trains on; it accepts only this number or 1.
    """
    memory_fraction: Annotated[float, Field(gt=0, lt=1), UsedBy(*PLAYING)] = 0.8
    """Share of the GPU's memory that the server uses for weights and key-value cache."""
    context_length: Annotated[int | None, UsedBy(*PLAYING, "train-online", "imitate")] = None
    """Longest trajectory in tokens; by default the model's own limit."""
    hang_timeout: Annotated[float, Field(gt=0)] = 60
    """Seconds without a sign of life after which a server with open requests counts as hung.

    Signs of life are an answer, a passed health check, and work of the server's processes if these are visible. A
    launched server that hangs is restarted. An attached server (`server_url`) that is gone is waited for twice as long,
    before its episodes are lost. With several servers, its episodes go on at the others, and the server is used again
    if it is back within this time.
    """
    extra_args: list[str] = []
    """Further command-line arguments for the SGLang server."""

    @property
    def attached(self) -> bool:
        """Whether the engine uses servers that another program runs."""
        return self.kind == "sglang" and bool(self.server_url)

    @field_validator("server_url")
    @classmethod
    def _addresses(cls, urls: list[str]) -> list[str]:
        return [checked_address(url, "http://localhost:30000", SERVER_KEY) for url in urls]


class GenerateConfig(Section):
    """Number of episodes, and sampling of the policy."""

    num_episodes: Annotated[int, Field(ge=1), UsedBy("generate", "iterate")] = 100
    """Number of episodes to play, rounded up to whole groups; each gives at least one row per seat of the policy."""
    episodes_per_state: Annotated[int, Field(ge=1), UsedBy("generate", "iterate", "train-online")] = 8
    """Number of episodes per game state (GRPO's group size G); they form one group."""
    temperature: Annotated[
        float, Field(ge=0), UsedBy("generate", "play", "iterate", "train-online", "evaluate", "crossplay")
    ] = 0.7
    """Sampling temperature; 0 plays greedily, and greedy episodes cannot be trained on.

    `listen` and `benchmark` always play greedily.
    """
    max_new_tokens: Annotated[int, Field(ge=1)] = 256
    """Token limit of one turn, thoughts included; a longer turn is cut and counts as an error."""
    thinking: Annotated[bool, UsedBy(*PLAYING, "train-online", "imitate")] = False
    """Let the model think before each action; needs a larger `max_new_tokens`.

    The model's chat template must know thoughts; docs/chat-models.md lists the families, and the models that always
    think. The thoughts are trained on; the partner does not read them.
    """
    template_args: Annotated[dict[str, Any], UsedBy(*PLAYING, "train-online", "imitate")] = {}
    """Further arguments of the model's chat template, such as `{reasoning_effort: low}`.

    Values are texts, numbers, true or false. An argument that the template does not read is refused.
    """
    date: Annotated[str, UsedBy(*PLAYING, "train-online", "imitate")] = DATE
    """Date that the chat template writes, if it writes one; the same every day, so that prompts stay the same."""
    history: Annotated[History, UsedBy(*PLAYING, "train-online", "imitate")] = "appended"
    """What a prompt holds of the model's own earlier turns: the sampled tokens, or what the chat template shows.

    `appended` keeps all tokens, thoughts included, so that a seat's part of an episode is one training row. `rendered`
    renders the conversation again before each turn, as a chat server does: most templates drop earlier thoughts. Each
    turn is then a row of its own. By default `rendered` with `thinking`, and `appended` without.
    """
    max_concurrency: Annotated[int, Field(ge=1), UsedBy("generate", "iterate", *MEASURING, "benchmark")] = 256
    """Number of episodes that are played at the same time, by default 256 for each copy of the model.

    The server queues requests that it cannot process yet.
    """

    @field_validator("template_args")
    @classmethod
    def _plain_values(cls, args: dict[str, Any]) -> dict[str, Any]:
        for name, value in args.items():
            if name in SWITCHES:
                raise ValueError(f"{name}: generate.thinking sets it; give that key in its place")
            if not isinstance(value, str | int | float) or (isinstance(value, float) and not isfinite(value)):
                raise ValueError(f"{name}: expected a text, a number, true or false, found {value!r}")
        return args

    @field_validator("date")
    @classmethod
    def _is_a_date(cls, text: str) -> str:
        try:
            return date.fromisoformat(text).isoformat()
        except ValueError:
            raise ValueError(f"expected a date such as {DATE}, found {text!r}") from None

    @model_validator(mode="after")
    def _thoughts_are_not_shown_again(self) -> GenerateConfig:
        """Sets the default of models that think; the stored configuration of a run then has the value that was used."""
        if self.thinking and "history" not in self.model_fields_set:
            object.__setattr__(self, "history", "rendered")
        return self

    @property
    def num_groups(self) -> int:
        """Number of game states for `num_episodes` episodes, rounded up."""
        return -(-self.num_episodes // self.episodes_per_state)


class ConvertConfig(Section):
    """Conversion of episodes to training rows."""

    val_fraction: Annotated[float, Field(ge=0, lt=1), UsedBy("convert", "iterate")] = 0.0
    """Share of groups to set aside in val.parquet, at least one group; with 0, the file is not written.

    val.parquet is for tools of your own: no command here reads it.
    """
    placebo: bool = False
    """Permute the rewards within each group: a control run, in which nothing about the game can be learned.

    The file of episodes keeps the true rewards, and all figures about episodes use them.
    """


class RewardConfig(Section):
    """Reward that the policy is trained on. Episodes and figures keep the game's own reward; evaluations show both."""

    path: Annotated[str | None, Option("--reward")] = None
    """Python file with a function `reward(state, turns, outcome)`, whose code is run; by default the game's reward.

    The function returns one number for each seat.
    """

    @property
    def changes(self) -> bool:
        """Whether the policy is trained on another reward than the game's own."""
        return self.path is not None


class ImitateConfig(Section):
    """Choice of the episodes that `imitate` trains on, and the training on their turns."""

    seats: Annotated[list[Annotated[int, Field(ge=0)]], Option("--seat")] = []
    """Seats whose turns are imitated; all seats by default."""
    min_reward: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Smallest reward of a seat in an episode for its turns to be imitated."""
    held_out: Annotated[float, Field(ge=0, lt=1)] = 0.05
    """Share of states to hold out; their loss is measured before training and after each epoch.

    No row of a held-out state is trained on. The loss is the mean negative log-probability of the imitated tokens, in
    nats.
    """
    train_batch_size: Annotated[int, Field(ge=2)] = 64
    """Number of rows per optimizer step; a row is one seat's part of an episode."""
    learning_rate: Annotated[float | None, Field(gt=0)] = None
    """AdamW's peak learning rate; by default 1 / √(number of trained weights), at most 3e-3.

    The rate rises linearly to it over the first 5 % of the steps, and falls to 0 along a cosine. The default is 1.0e-3
    for a million weights, 8.6e-5 for 135 million and 1.1e-5 for 7.6 billion; with LoRA only the adapter's weights
    count.
    """


class EvaluateConfig(Section):
    """Evaluation of a checkpoint on held-out states."""

    monitor_states: Annotated[int, Field(ge=2), UsedBy("iterate", "train-online")] = 100
    """Number of states in each evaluation of `iterate`, and in each validation of `train-online`.

    `iterate` plays each state once sampled and once greedily, `train-online` once sampled. Neither training nor
    `selfplay evaluate` plays these states, so that the best checkpoint can still be evaluated on others.
    """
    swap_messages: Annotated[bool, UsedBy("evaluate", "iterate")] = False
    """Play all episodes again with swapped messages, to measure the worth of words.

    Each message that a player hears is replaced by a message of the same partner in another state, in which everything
    hidden from the hearer is resampled. The worth of words is the reward minus the reward with swapped messages.
    """
    state_seed: Annotated[int, Field(ge=0), UsedBy(*MEASURING, "iterate", "train-online", "game states")] = 0
    """Seed of the held-out states; separate from `seed`, so that runs of all seeds are measured on the same states."""


SELF, PAST, MEMBERS = "self", "past", "members"
"""Partners that are not players of their own: the policy in all seats, earlier checkpoints of the run, and the other
members of a population.
"""


class PartnerShare(Section):
    """A partner of the policy in training, and its share of the groups of episodes."""

    player: Annotated[str, Field(min_length=1)]
    """Partner: `self`, `past`, a scripted player, `chat`, or a checkpoint; in a population also `members`."""
    share: Annotated[float, Field(gt=0, le=1)]
    """Share of the groups."""
    last: Annotated[int, Field(ge=1)] = 5
    """Number of newest earlier checkpoints that `past` draws from."""

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, given: Any) -> Any:
        """Reads PLAYER=SHARE, the form of the option."""
        if not isinstance(given, str):
            return given
        player, _, share = given.rpartition("=")
        try:
            return {"player": player, "share": float(share)}
        except ValueError:
            raise ValueError(f"expected PLAYER=SHARE, such as self=0.5, found {given!r}") from None

    @model_validator(mode="after")
    def _last_is_of_past(self) -> PartnerShare:
        usual = type(self).model_fields["last"].default  # a printed configuration and a manifest hold it for everyone
        if self.last != usual and self.player != PAST:
            raise ValueError(f"last: {self.last} is for the partner `{PAST}`, not for {self.player!r}; leave it out")
        return self


class IterateConfig(Section):
    """The loop of playing, converting and training."""

    num_iterations: Annotated[int, Field(ge=1), UsedBy("iterate")] = 3
    """Number of iterations, each of which generates, converts and trains."""
    partner: str = SELF
    """The policy's partner: `self`, or a player that is not trained: a script, `chat`, or another checkpoint.

    With another player as partner, the policy plays only `seat`. A wrong name lists the scripts of the game; `chat` is
    the model of the section `partner`.
    """
    seat: Annotated[int, Field(ge=0)] = 0
    """Seat of the policy opposite another player; this partner holds all other seats."""
    partners: list[PartnerShare] = []
    """Several partners, each with its share of the groups of training episodes; options as PLAYER=SHARE.

    A list such as `[{player: self, share: 0.5}, {player: past, share: 0.3, last: 5}, {player: speaking, share: 0.2}]`.
    `past` is one of the `last` newest earlier checkpoints of the run, drawn for each group. Opposite another player,
    the policy holds one seat, each in turn. Evaluations play the policy with itself.
    """
    foreign: Annotated[str, Field(min_length=1)] | None = None
    """Fixed player that each evaluation also plays with: a script, `chat`, or a checkpoint of another training.

    Each state is played with the policy in each seat, sampled; with `partner`, in `seat` only. A reward that rises
    while the one with this player falls is a sign of a private code; `selfplay_pipeline/iterate/history.py` has the
    rule.
    """
    other_play: bool = False
    """Show each seat its own random renaming of the state's names in training, the same in all episodes of a state.

    What a seat says is retold in the names of the others, so that a code that depends on names does not help. Games
    whose names cannot be exchanged refuse it; evaluations keep the names.
    """
    keep_processes: bool = True
    """Keep the server running while training, and the trainer while playing, instead of restarting them.

    On a GPU that both use, the one that waits releases its memory; the trainer's state is then in host memory.
    """
    ahead: Annotated[int, Field(ge=0, le=1), UsedBy("iterate")] = 0
    """Number of iterations that playing is ahead: 1 plays each iteration while the one before is trained.

    The checkpoint with which a training begins plays the next iteration's episodes meanwhile, and is evaluated. So
    iteration k trains on episodes of the checkpoint before the newest one. Their stored log-probs correct for the
    difference, as `train.old_log_probs` says, and `metrics.jsonl` gives it as `staleness`. A server and a trainer on
    the same GPUs are refused, since only one of them has memory there at a time.
    """
    state_every: Annotated[int, Field(ge=1), UsedBy("iterate")] = 1
    """Number of iterations between saved states of the trainer (`trainer_state/`); the last iteration saves one too.

    Each iteration saves its checkpoint. A run that was killed trains the iterations since the last saved state again,
    from their stored rows. With `keep_processes: false`, and in a population, each iteration saves a state.
    """
    evaluate_every: Annotated[int, Field(ge=0), UsedBy("iterate")] = 1
    """Number of iterations between evaluations on held-out states, the first before iteration 1; 0 never evaluates."""
    decay_iterations: Annotated[int, Field(ge=0)] = 0
    """Number of iterations over which the learning rate falls linearly from `train.learning_rate` to 0; 0 keeps it
    constant.

    Iteration i of D is trained with the share 1 - (i - 1) / D: the first with all of it, the last with 1 / D. D must be
    at least `num_iterations`.
    """

    @model_validator(mode="after")
    def _server_stays_while_it_plays(self) -> IterateConfig:
        if self.ahead and not self.keep_processes:
            raise ValueError(
                f"ahead: {self.ahead} plays while it trains, and keep_processes: false stops the server for each "
                "training; leave out one of them"
            )
        return self

    @field_validator("partner", "foreign")
    @classmethod
    def _past_is_one_of_several(cls, player: str | None) -> str | None:
        if player == PAST:
            raise ValueError(f"`{PAST}` stands only in `partners`, as in iterate.partners=[{SELF}=0.5, {PAST}=0.5]")
        return player

    @model_validator(mode="after")
    def _foreign_player_plays(self) -> IterateConfig:
        if self.foreign and not self.evaluate_every:
            raise ValueError(
                f"foreign: {self.foreign} plays in evaluations, and evaluate_every: 0 makes none; leave out one of them"
            )
        return self

    @field_validator("partners")
    @classmethod
    def _share_all_groups(cls, partners: list[PartnerShare]) -> list[PartnerShare]:
        if len({one.player for one in partners}) < len(partners):
            raise ValueError("a player is named twice; give it one share")
        if partners and abs((total := sum(one.share for one in partners)) - 1) > 1e-6:
            raise ValueError(f"the shares add up to {total:g}; they must add up to 1")
        return partners

    @model_validator(mode="after")
    def _one_form_of_partners(self) -> IterateConfig:
        if self.partners and (self.partner != SELF or self.seat):
            key = f"partner: {self.partner}" if self.partner != SELF else f"seat: {self.seat}"
            raise ValueError(f"partners: cannot be combined with {key}; name every partner in `partners`, with a share")
        return self

    @model_validator(mode="after")
    def _rate_is_above_zero(self) -> IterateConfig:
        if 0 < self.decay_iterations < self.num_iterations:
            raise ValueError(
                f"decay_iterations: {self.decay_iterations} leaves a learning rate of 0 for the rest of "
                f"num_iterations: {self.num_iterations}; give at least as many, or 0"
            )
        return self

    def rate_share(self, number: int) -> float:
        """Returns the share of `train.learning_rate` for iteration `number`, counted from 1."""
        return 1 - (number - 1) / self.decay_iterations if self.decay_iterations else 1.0


class OnlineOptions(Section):
    """Amount of play and training in online training. Sampling is in the section `generate`, the loss in `train`."""

    mode: Literal["sync", "colocate_async"] = "sync"
    """Time at which episodes are played: `sync` plays all of a step's episodes with its weights, and then trains.

    `colocate_async` plays the next step's states as well, and trains as soon as one step's states are finished. The
    other episodes are broken off, and go on after the update with the new weights, so no step waits for its longest
    episode. Their tokens and log-probs are kept.
    """
    steps: Annotated[int, Field(ge=1)] = 50
    """Number of training steps; each makes one update."""
    states_per_step: Annotated[int, Field(ge=1)] = 8
    """Number of states per step, each with `generate.episodes_per_state` episodes; an episode gives one row per seat.
    """
    validate_every: Annotated[int, Field(ge=0)] = 0
    """Number of steps between validations; 0 validates only before the first step and after the last."""


class Config(Section):
    """The configuration of a whole run."""

    model: str | None = None
    """The policy: a folder or a hub name.

    By default `train` takes the model that the rows name. For other commands the default is Qwen2.5-7B-Instruct with a
    GPU, and the packaged tiny model without one.
    """
    seed: Annotated[
        int,
        Field(ge=0),
        UsedBy(
            "generate", "play", "convert", "train", "imitate", "iterate", "game states", "train-online", "game silence"
        ),
    ] = 0
    """Seed of states, scripted players, the split of the data and the trainer; a policy's sampled turns are not seeded.

    So two runs with one seed play the same states, but a policy's episodes differ. SGLang 0.5.12 uses the seed of a
    request only in its deterministic mode, which has no attention backend for CPUs.
    """
    device: Annotated[Literal["auto", "cpu", "cuda"], UsedBy(*PLAYING, *TRAINING)] = "auto"
    """Device that the model plays and is trained on; `auto` is cuda if a GPU is visible, else cpu."""
    game: GameConfig = Field(default_factory=first_game_config)
    engine: Annotated[EngineConfig, UsedBy(*PLAYING, refused_by=["train-online"])] = EngineConfig()
    generate: Annotated[GenerateConfig, UsedBy(*PLAYING, "train-online")] = GenerateConfig()
    convert: Annotated[ConvertConfig, UsedBy("convert", "iterate", refused_by=["imitate", "train-online"])] = (
        ConvertConfig()
    )
    reward: Annotated[RewardConfig, UsedBy("convert", "iterate", "evaluate", refused_by=["train-online"])] = (
        RewardConfig()
    )
    imitate: Annotated[ImitateConfig, UsedBy("imitate")] = ImitateConfig()
    train: Annotated[TrainOptions, UsedBy(*TRAINING)] = TrainOptions()
    evaluate: Annotated[EvaluateConfig, UsedBy(*MEASURING, "iterate")] = EvaluateConfig()
    iterate: Annotated[IterateConfig, UsedBy("iterate", refused_by=["train-online"])] = IterateConfig()
    online: Annotated[OnlineOptions, UsedBy("train-online")] = OnlineOptions()
    partner: Annotated[PartnerConfig, UsedBy(*PLAYING)] = PartnerConfig()
