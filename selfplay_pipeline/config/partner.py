"""The `partner:` section of the configuration: the chat model that holds the seat of player `chat`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from pydantic import Field, field_validator

from selfplay_pipeline.core.addresses import checked_address
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.sections import Option, Section
from selfplay_pipeline.core.server_keys import key_from_environment

OPENAI_URL = "https://api.openai.com/v1"


class PartnerConfig(Section):
    """The chat model and its requests. Its key comes only from the environment variable OPENAI_API_KEY."""

    base_url: str | None = None
    """Address of an OpenAI-compatible endpoint, such as http://localhost:30000/v1.

    By default it is the address in the environment variable OPENAI_BASE_URL, else OpenAI's own.
    """
    model: str = "gpt-4.1"
    """Name of the model at the endpoint."""
    temperature: Annotated[float, Field(ge=0)] = 0.7
    """The partner's sampling temperature."""
    max_tokens: Annotated[int, Field(ge=1)] = 256
    """Token limit of one reply; a longer reply is cut and counts as an error, as for the policy."""
    prompt: str = "shy"
    """Name of a built-in system prompt, or a template file, in which `rules` stands for the game's own system prompt.

    Built in are `plain`, which is the game's own system prompt alone, and `shy`, in games that have it.
    """
    timeout: Annotated[float, Field(gt=0)] = 60
    """Seconds for one request, from sending it to the last byte of its answer."""
    max_concurrency: Annotated[int, Field(ge=1)] = 16
    """Number of requests under way at the same time."""
    max_dollars: Annotated[Annotated[float, Field(gt=0)] | None, Option("--budget")] = None
    """US dollars after which a command sends no further request, by `partner.prices`; null is no limit.

    Requests that are under way then are still paid for, and requests without an answer in time are not counted.
    The next command begins the interrupted episodes again; answers in `cache` cost nothing then. `benchmark` also
    counts what its stored episodes cost.
    """
    cache: Path | None = None
    """File, or folder for one, that stores all answers, so that a repeated run does not pay for the same requests
    again.
    """
    prices: Annotated[list[Annotated[float, Field(ge=0)]], Field(min_length=2, max_length=2)] = [2.0, 8.0]
    """Prices of a million prompt tokens and of a million completion tokens in US dollars.

    The default is gpt-4.1's list price (openai.com/api/pricing, unchanged since April 2025), without the discount for
    cached input.
    """

    @field_validator("base_url")
    @classmethod
    def _address(cls, url: str | None) -> str | None:
        return url if url is None else _checked(url)

    @property
    def endpoint(self) -> str:
        """Address that requests go to.

        Raises:
            UserError: The address in OPENAI_BASE_URL is invalid.
        """
        try:
            return self.base_url or _checked(os.environ.get("OPENAI_BASE_URL") or OPENAI_URL)
        except ValueError as error:
            raise UserError(f"OPENAI_BASE_URL: {error}") from None

    def key(self) -> str:
        """Returns the key for the endpoint; empty for a server of your own that needs none.

        Raises:
            UserError: The key is missing or malformed.
        """
        key = key_from_environment("OPENAI_API_KEY")
        if not key and self.endpoint == OPENAI_URL:
            raise UserError(
                "the partner `chat` needs a key: set the environment variable OPENAI_API_KEY, or partner.base_url to "
                "a server of your own"
            )
        return key


def _checked(url: str) -> str:
    return checked_address(url, "http://localhost:30000/v1", "OPENAI_API_KEY")
