"""The fallback engine: transformers in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from selfplay_pipeline.core.checkpoints import weight_files
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.hub import only_attention
from selfplay_pipeline.core.stopping import stop
from selfplay_pipeline.engines.types import Completion, EngineError, SamplingParams, finish_reason

BATCH = 64
"""Largest number of requests that are answered together."""


@dataclass
class _Request:
    prompt_ids: list[int]
    params: SamplingParams
    generator: Any
    """torch.Generator of the request's own seed, or None."""
    answer: asyncio.Future[Completion]
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """Whether the last token is a stop token, or the token limit is reached."""
        at_stop = self.token_ids and self.token_ids[-1] in self.params.stop_token_ids
        return bool(at_stop) or len(self.token_ids) >= self.params.max_new_tokens


class TransformersEngine:
    """Answers the waiting requests in batches, each until its last request is complete.

    There is no cache between requests. An error fails the whole batch. Models compute in float32 on a CPU and in
    bfloat16 on a GPU.
    """

    def __init__(self, model: str, device: str = "cpu") -> None:
        import torch

        self.device = device
        self.dtype = torch.float32 if device == "cpu" else torch.bfloat16
        self._generator = torch.Generator(device).manual_seed(0)
        self._lock = asyncio.Lock()
        self._waiting: list[_Request] = []
        self._answering: asyncio.Task[None] | None = None
        self._model = self._load(model)

    async def generate(self, prompt_ids: Sequence[int], params: SamplingParams, *, session: str = "") -> Completion:
        import torch

        generator = None if params.seed is None else torch.Generator(self.device).manual_seed(params.seed)
        request = _Request(list(prompt_ids), params, generator, asyncio.get_running_loop().create_future())
        self._waiting.append(request)
        if self._answering is None or self._answering.done():
            self._answering = asyncio.create_task(self._answer_all())
        return await request.answer

    async def reload(self, checkpoint: Path) -> None:
        async with self._lock:
            self._model = await asyncio.to_thread(self._load, str(checkpoint))

    async def release(self) -> None:
        import torch

        async with self._lock:
            self._model = None
            torch.cuda.empty_cache()

    async def close(self) -> None:
        return None

    def _load(self, model: str) -> Any:
        import torch
        from transformers import AutoModelForCausalLM

        if Path(model).is_dir():
            weight_files(Path(model))  # it may have changed since it was checked
        loaded = AutoModelForCausalLM.from_pretrained(model, dtype=self.dtype).to(self.device).eval()
        for name, weights in loaded.named_parameters():
            if not torch.isfinite(weights).all():
                raise UserError(f"{model}: {name} holds NaN or infinite weights; copy the model anew")
        for tensor in (*loaded.parameters(), *loaded.buffers()):
            tensor.data = tensor.data.clone()  # on a CPU it may still map the file, which may be overwritten
        return loaded

    async def _answer_all(self) -> None:
        """Answer the waiting requests until there are none."""
        while self._waiting:
            async with self._lock:
                # The lock keeps `reload` from exchanging the model within a batch.
                batch = self._next_batch()
                try:
                    await asyncio.to_thread(self._generate, batch)
                except Exception as error:
                    for request in batch:
                        if not request.answer.done():
                            request.answer.set_exception(error)
            for request in batch:
                if stop.asked is not None:
                    request.answer.cancel()  # its tokens may be incomplete
                elif not request.answer.done():  # the caller may have been cancelled meanwhile
                    request.answer.set_result(_completion(request))

    def _next_batch(self) -> list[_Request]:
        """Take the first requests from the queue; return those whose callers still wait."""
        # A recurrent layer would read the padding.
        size = BATCH if self._model is not None and only_attention(self._model.config) else 1
        batch, self._waiting = self._waiting[:size], self._waiting[size:]
        return [request for request in batch if not request.answer.done()]

    def _generate(self, batch: list[_Request]) -> None:
        """Sample the tokens of each request."""
        import torch

        longest = max((len(request.prompt_ids) for request in batch), default=0)
        padding = [longest - len(request.prompt_ids) for request in batch]
        inputs = self._tensor([[0] * pad + request.prompt_ids for pad, request in zip(padding, batch, strict=True)])
        mask = self._tensor([[0] * pad + [1] * (longest - pad) for pad in padding])
        rows, cache = batch, None
        with torch.inference_mode():
            while stop.asked is None and not all(request.complete for request in rows):
                output = self._model(
                    input_ids=inputs, attention_mask=mask, past_key_values=cache, use_cache=True, logits_to_keep=1,
                    position_ids=(mask.cumsum(-1) - 1).clamp(min=0)[:, -inputs.shape[1] :],
                )  # fmt: skip
                cache = output.past_key_values
                inputs = self._sample(rows, output.logits[:, -1].float())
                mask = torch.cat([mask, torch.ones_like(inputs)], dim=1)
                left = [row for row, request in enumerate(rows) if not request.complete]
                # Copying the cache at every completion would cost more than it saves.
                if left and 2 * len(left) <= len(rows):
                    kept = torch.tensor(left, device=self.device)
                    cache.batch_select_indices(kept)
                    inputs, mask, rows = inputs[kept], mask[kept], [rows[row] for row in left]

    def _sample(self, rows: list[_Request], logits: Any) -> Any:
        """Add a token to each request that is not complete.

        Args:
            logits: Shape (requests, vocabulary).

        Returns:
            The tokens, shape (requests, 1); those of complete requests mean nothing.
        """
        import torch

        temperatures = [[request.params.temperature or 1.0] for request in rows]
        scaled = torch.log_softmax(logits / torch.tensor(temperatures, device=self.device), dim=-1)
        if scaled.isnan().any():
            raise EngineError(f"{self._model.name_or_path} gives log-probs that are not numbers")
        tokens = scaled.argmax(-1, keepdim=True)
        for row, request in enumerate(rows):
            if request.params.temperature and not request.complete:
                tokens[row] = torch.multinomial(scaled[row].exp(), 1, generator=request.generator or self._generator)
        logprobs = scaled.gather(1, tokens)
        for request, token, logprob in zip(rows, tokens[:, 0].tolist(), logprobs[:, 0].tolist(), strict=True):
            if not request.complete:
                request.token_ids.append(token)
                request.logprobs.append(logprob)
        return tokens

    def _tensor(self, values: list[list[int]]) -> Any:
        import torch

        return torch.tensor(values, device=self.device)


def _completion(request: _Request) -> Completion:
    reason = finish_reason(None, request.token_ids, request.params)
    return Completion(
        request.token_ids, request.logprobs, reason, prompt_tokens=len(request.prompt_ids), cached_tokens=0
    )
