"""SGLang's native HTTP API as an engine: token ids in, token ids and log-probs out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from selfplay_pipeline.engines.answers import completion_of
from selfplay_pipeline.engines.attached import AttachedServer
from selfplay_pipeline.engines.http import LONGEST_ANSWER
from selfplay_pipeline.engines.line import Line, Server, retrying
from selfplay_pipeline.engines.places import Places
from selfplay_pipeline.engines.requests import request_of
from selfplay_pipeline.engines.types import Completion, EngineError, FinishReason, SamplingParams


class SGLangEngine:
    """One or many servers, each with one or many copies of the model. An episode stays at one of them (`Places`).

    What a server that is gone was asked is asked of another one, with the same tokens so far; if there is no other one,
    it is waited for.
    """

    def __init__(
        self,
        servers: Sequence[str | Server],
        *,
        key: str = "",
        request_timeout: float = 600,
        hang_timeout: float | None = None,
        attempts: int = 6,
        vocabulary: int | None = None,
        tell: Callable[[str], None] = lambda text: None,
    ) -> None:
        """Args:
        servers: a bare address is of a server that nobody waits for beyond the attempts.
        key: sent to servers of bare addresses with each request; empty where they ask for none.
        request_timeout: seconds for one completion.
        hang_timeout: seconds without a sign of life after which a server hangs; None leaves that to `request_timeout`.
        attempts: how often a request is sent before it fails; waits double from 0.5 s to 8 s.
        vocabulary: number of tokens that the model knows; answers with others are refused.
        tell: takes one line for people when a server hangs.
        """
        known = [AttachedServer(server, key=key) if isinstance(server, str) else server for server in servers]
        self.lines = [Line(server, request_timeout, hang_timeout, attempts, tell) for server in known]
        self._places, self._attempts = Places(self.lines), attempts
        self.vocabulary = vocabulary

    @property
    def urls(self) -> list[str]:
        return [line.url for line in self.lines]

    async def generate(self, prompt_ids: Sequence[int], params: SamplingParams, *, session: str = "") -> Completion:
        line, answer = await self._answer(request_of(prompt_ids, params), session)
        completion = completion_of(answer, params, len(prompt_ids), f"{line.url}/generate", self.vocabulary)
        if completion.finish_reason is FinishReason.ABORT:
            raise EngineError(f"{line.url}/generate broke the request off")
        weights = answer["meta_info"].get("weight_version")
        if line.weights is not None and weights != line.weights:
            raise EngineError(f"{line.url} answers with weights {weights!r:.200}, not {line.weights!r}")
        return completion

    async def ask(
        self,
        request: dict[str, Any],
        session: str = "",
        headers: Mapping[str, str] | None = None,
        longest: int = LONGEST_ANSWER,
    ) -> dict[str, Any]:
        """Send a whole request of `/generate` and return the whole answer, a JSON object of any content.

        Args:
            headers: for routers.
            longest: bytes of an answer.

        Raises:
            EngineError: no answer after all retries.
        """
        return (await self._answer(request, session, headers, longest))[1]

    async def _answer(
        self,
        request: dict[str, Any],
        session: str,
        headers: Mapping[str, str] | None = None,
        longest: int = LONGEST_ANSWER,
    ) -> tuple[Line, dict[str, Any]]:
        place = None
        async for attempt in retrying(self._attempts):
            with attempt:
                place = await self._places.of(session, failed=place)
                with place.asked():
                    routed = request | place.line.route(place.rank)
                    return place.line, await place.line.generate(routed, headers, longest)
        raise AssertionError("unreachable")

    async def served_models(self) -> list[str]:
        """What each server says it serves; asked once, so that a wrong address is noticed at once.

        Raises:
            EngineError: a server does not answer.
        """
        return [(await line.info(attempts=1)).model_path for line in self.lines]

    async def reload(self, checkpoint: Path) -> None:
        """Load a checkpoint's weights from disk into every server, and prove that they answer.

        One of several that is gone is waited for while the others play, and loads them when it is back.

        Raises:
            EngineError: a server refused, or answers with other weights, or all are gone for good.
        """
        self._places.forget()
        await asyncio.gather(*(line.reload(checkpoint.resolve()) for line in self.lines))
        await self._places.there()

    async def find_ranks(self) -> None:
        """Ask each server how many copies of the model it has; else one is taken for granted.

        Raises:
            EngineError: a server does not answer.
        """
        await asyncio.gather(*(line.find_ranks() for line in self.lines))

    async def release(self) -> None:
        for line in self.lines:
            await line.release()

    async def close(self) -> None:
        for line in self.lines:
            await line.close()

    async def __aenter__(self) -> SGLangEngine:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()
