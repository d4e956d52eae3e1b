"""Models of the hub: whether it can be reached is asked once, since its library tries each file for half a minute."""

from __future__ import annotations

from functools import cache

from selfplay_pipeline.core.errors import UserError, first_line
from selfplay_pipeline.core.terminal import say

PATIENCE_SECONDS = 10.0
"""Limits the wait for the answer whether there is such a model, not its download."""


class HubUnreachableError(UserError):
    """The hub does not answer, so that nothing is known of a model that is not on this machine."""


@cache
def look_for(name: str) -> None:
    """Whether the hub has a model, unless that is on this machine already.

    Raises:
        HubUnreachableError: The hub does not answer.
        UserError: The hub has no such model.
    """
    from huggingface_hub import HfApi, try_to_load_from_cache
    from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError

    try:
        if isinstance(try_to_load_from_cache(name, "config.json"), str):
            return
        say(f"looking for {name} on the hub")
        HfApi().model_info(name, timeout=PATIENCE_SECONDS)
    except RepositoryNotFoundError:
        raise UserError(
            f"model {name}: the hub has none of this name that you may read; give a folder or a hub name"
        ) from None
    except HfHubHTTPError:
        return  # it is there; loading the model says what is wrong
    except Exception as error:  # of whichever library carries the request
        raise HubUnreachableError(
            f"model {name}: no such folder, and the hub cannot be asked ({first_line(error)}); "
            "give a folder or a hub name"
        ) from None
