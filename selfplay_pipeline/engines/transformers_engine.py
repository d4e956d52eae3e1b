"""The fallback engine: transformers in this process, one request at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.stopping import stop
from selfplay_pipeline.engines.types import Completion, EngineError, SamplingParams, finish_reason


class TransformersEngine:
    """Slow and simple: no batching, no cache between requests. Float32 on a CPU, bfloat16 on a GPU."""

    def __init__(self, model: str, device: str = "cpu", seed: int = 0) -> None:
        import torch

        self.device = device
        self.dtype = torch.float32 if device == "cpu" else torch.bfloat16
        self._generator = torch.Generator(device).manual_seed(seed)
        self._lock = asyncio.Lock()
        self._model = self._load(model)

    async def generate(self, prompt_ids: Sequence[int], params: SamplingParams, *, session: str = "") -> Completion:
        async with self._lock:
            return await asyncio.to_thread(self._generate, list(prompt_ids), params)

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

        loaded = AutoModelForCausalLM.from_pretrained(model, dtype=self.dtype).to(self.device).eval()
        for name, weights in loaded.named_parameters():
            if not torch.isfinite(weights).all():
                raise UserError(f"{model}: {name} holds NaN or infinite weights; copy the model anew")
        for tensor in (*loaded.parameters(), *loaded.buffers()):
            tensor.data = tensor.data.clone()  # on a CPU it may still map the file, which may be overwritten
        return loaded

    def _generate(self, prompt_ids: list[int], params: SamplingParams) -> Completion:
        import torch

        generator = self._generator
        if params.seed is not None:
            generator = torch.Generator(self.device).manual_seed(params.seed)
        token_ids: list[int] = []
        logprobs: list[float] = []
        cache = None
        inputs = torch.tensor([prompt_ids], device=self.device)
        with torch.inference_mode():
            while len(token_ids) < params.max_new_tokens and stop.asked is None:
                output = self._model(input_ids=inputs, past_key_values=cache, use_cache=True)
                cache = output.past_key_values
                logits = output.logits[0, -1].float()
                scaled = torch.log_softmax(logits / (params.temperature or 1.0), dim=-1)
                if scaled.isnan().any():
                    raise EngineError(f"{self._model.name_or_path} gives log-probs that are not numbers")
                if params.temperature == 0:
                    token = int(scaled.argmax())
                else:
                    token = int(torch.multinomial(scaled.exp(), 1, generator=generator))
                token_ids.append(token)
                logprobs.append(float(scaled[token]))
                if token in params.stop_token_ids:
                    break
                inputs = torch.tensor([[token]], device=self.device)
        reason = finish_reason(None, token_ids, params)
        return Completion(token_ids, logprobs, reason, prompt_tokens=len(prompt_ids), cached_tokens=0)
