"""The result of a conversion."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class Converted(BaseModel):
    """Counts of a conversion; `to_text` is also written next to the data."""

    model_config = ConfigDict(extra="allow", allow_inf_nan=False)

    episodes: int = 0
    """Number of episodes read."""
    bad_lines: list[str] = []
    """File, line number and reason of each skipped line."""
    without_turn: int = Field(default=0, exclude_if=lambda count: count == 0)
    """Number of episodes without a turn of the policy, which have no row and no group."""
    groups: int = 0
    """Number of groups whose episodes are compared with each other."""
    single_episode_groups_dropped: int = 0
    groups_without_signal: int = 0
    train_groups: int = 0
    """Number of states whose rows are in train.parquet; if `several_in_a_state`, each has more than one group."""
    val_groups: int = 0
    train_rows: int = 0
    val_rows: int = 0
    tokens: int = 0
    """Number of tokens of all rows, including prompts."""
    trained_tokens: int = 0
    episodes_per_state: int = 0
    temperature: float = 0.0
    placebo: bool = False
    """Whether rewards were permuted within groups."""
    partners: int = Field(default=0, exclude_if=lambda count: count == 0)
    """Number of partners whose episodes form separate groups; 0 if no state was played with several partners."""

    trained_reward: float | None = Field(default=None, exclude_if=lambda mean: mean is None)
    """Mean trained reward over all episodes and their trained seats; None if it is the game's own reward."""

    @property
    def masked_share(self) -> float:
        """Share of all tokens, including prompts, that are not trained on."""
        return 1 - self.trained_tokens / self.tokens if self.tokens else 0.0

    @property
    def several_in_a_state(self) -> bool:
        """Whether the episodes of a state form several groups, such as one of each seat for a reward of its own."""
        return self.groups - self.single_episode_groups_dropped > self.train_groups + self.val_groups

    def to_text(self) -> str:
        apart, whole = (", several in a state", "states") if self.several_in_a_state else ("", "groups")
        lines = [
            f"episodes read               {self.episodes}",
            f"bad lines left out          {len(self.bad_lines)}",
            *(f"  {line}" for line in self.bad_lines),
            *([f"without a turn, left out    {self.without_turn}"] if self.without_turn else []),
            f"groups                      {self.groups} of up to {self.episodes_per_state} episodes{apart}",
            f"  without signal            {self.groups_without_signal}",
            f"    of one episode          {self.single_episode_groups_dropped}",
            f"train                       {self.train_rows} rows of {self.train_groups} {whole}",
            f"val                         {self.val_rows} rows of {self.val_groups} {whole}",
            f"tokens                      {self.tokens}, {self.trained_tokens} of them trained on",
            f"masked share                {self.masked_share:.4f}",
            f"sampling temperature        {self.temperature}",
            *([f"partners                    {self.partners}, compared apart"] if self.partners else []),
            *([f"trained reward              {self.trained_reward:.4f}"] if self.trained_reward is not None else []),
            *(["rewards                     permuted within groups: a placebo"] if self.placebo else []),
        ]
        return "\n".join(lines) + "\n"
