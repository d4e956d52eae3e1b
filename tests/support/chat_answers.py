"""Answers of a real model to chats, as an OpenAI-compatible endpoint gives them."""

from __future__ import annotations

from collections.abc import Sequence

from selfplay_pipeline.engines.transformers_engine import TransformersEngine
from selfplay_pipeline.engines.types import Completion, FinishReason, SamplingParams
from selfplay_pipeline.generate.trajectory import ChatTokenizer


class ChatModel:
    """A model of this machine."""

    def __init__(self, model: str) -> None:
        self.engine, self.chat = TransformersEngine(model), ChatTokenizer.load(model)

    async def answer(
        self, messages: Sequence[dict[str, str]], temperature: float = 0.0, max_tokens: int = 64
    ) -> tuple[str, Completion]:
        """The text of the answer to a chat, without the end of its turn, and the completion."""
        prompt = self.chat.tokenizer.apply_chat_template([*messages], tokenize=False, add_generation_prompt=True)
        ids = self.chat.tokenizer.encode(prompt, add_special_tokens=False)
        params = SamplingParams(temperature=temperature, max_new_tokens=max_tokens, stop_token_ids=self.chat.stops)
        done = await self.engine.generate(ids, params)
        tokens = done.token_ids if is_cut(done) else done.token_ids[:-1]
        return self.chat.tokenizer.decode(tokens), done


def is_cut(completion: Completion) -> bool:
    """Whether the token limit cut a completion."""
    return completion.finish_reason is FinishReason.LENGTH
