"""The `partner:` section of the configuration: the chat model that holds the seat of player `chat`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from pydantic import Field, field_validator

from selfplay_pipeline.core.addresses import checked_address
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.keys import key_from_environment
from selfplay_pipeline.core.sections import FREE, Section

OPENAI_URL = "https://api.openai.com/v1"


class PartnerConfig(Section):
    """The chat model and how it is asked. Its key comes from the environment variable OPENAI_API_KEY alone."""

    # What decides is the `endpoint`, which the environment may give too.
    base_url: Annotated[str | None, FREE] = None
    """Address of an OpenAI-compatible endpoint, such as http://localhost:30000/v1.

    By default it is the one in the environment variable OPENAI_BASE_URL, else OpenAI's own.
    """
    model: str = "gpt-4.1"
    """Name of the model at the endpoint."""
    temperature: Annotated[float, Field(ge=0)] = 0.7
    """The partner's sampling temperature."""
    max_tokens: Annotated[int, Field(ge=1)] = 256
    """Token limit of one reply; a longer one is cut and counts as an error, as for the policy."""
    prompt: str = "shy"
    """Name of a built-in system prompt (shy), or a template file, in which `rules` is the game's own system prompt."""
    timeout: Annotated[float, Field(gt=0), FREE] = 60
    """Seconds for one request, from sending it to the last byte of its answer."""
    max_retries: Annotated[int, Field(ge=0), FREE] = 6
    """Number of times that a request is sent again after a failure that may pass; pauses double from about a second."""
    max_concurrency: Annotated[int, Field(ge=1), FREE] = 16
    """Requests under way at a time."""
    max_requests: Annotated[Annotated[int, Field(ge=1)] | None, FREE] = None
    """Requests that one command may send, repeated ones included, before it stops; null is no limit.

    Episodes that are cut so are played again by the next command, for nothing as far as `cache` has their answers.
    """
    cache: Annotated[Path | None, FREE] = None
    """File, or folder for one, that keeps all answers, so that the same questions of a repeated run cost nothing."""
    prompt_price: Annotated[float, Field(ge=0), FREE] = 2.0
    """US dollars for a million prompt tokens.

    The default is gpt-4.1's list price (openai.com/api/pricing, unchanged since April 2025), without the discount for
    cached input.
    """
    completion_price: Annotated[float, Field(ge=0), FREE] = 8.0
    """US dollars for a million tokens of answers, from the same source."""

    @field_validator("base_url")
    @classmethod
    def _address(cls, url: str | None) -> str | None:
        return url if url is None else _checked(url)

    @property
    def endpoint(self) -> str:
        """The address that requests go to.

        Raises:
            UserError: the one in OPENAI_BASE_URL is none.
        """
        try:
            return self.base_url or _checked(os.environ.get("OPENAI_BASE_URL") or OPENAI_URL)
        except ValueError as error:
            raise UserError(f"OPENAI_BASE_URL: {error}") from None

    def key(self) -> str:
        """Returns the key for the endpoint; empty for a server of your own that needs none.

        Raises:
            UserError: the key is missing or cannot be a key.
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
