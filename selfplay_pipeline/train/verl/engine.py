"""verl's training engine, with less work; registered by `train/verl/patches.py`."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn.functional import pad
from verl.utils import tensordict_utils as tu
from verl.utils.device import get_device_name
from verl.utils.torch_dtypes import PrecisionType
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead


def dtype_of_passes(model: torch.nn.Module) -> torch.dtype:
    """Returns the dtype in which a model of `Engine` computes; its weights are held in float32."""
    if not isinstance(model, FSDPModule):
        return torch.float32
    return model._get_fsdp_state()._mp_policy.param_dtype or torch.float32


class Engine(FSDPEngineWithLMHead):  # type: ignore[misc]
    """verl's FSDP engine without the logits of prompts, and without FSDP for one float32 worker on a CPU.

    The logits of prompts take much memory, and nothing reads them. With sequence packing, the logits of each row start
    at the last token of its own prompt. With padding, the logits of all rows start at the last token of the shortest
    prompt.

    One worker on a CPU has nothing to shard or to offload, and in float32 nothing to cast. FSDP's hooks around every
    layer took a sixth of a step of the tiny models.
    """

    largest_pass = 0
    """Tokens of the largest pass, padding included, since a worker set it to 0."""

    def _build_fsdp_module(self, module: torch.nn.Module) -> torch.nn.Module:
        options = self.engine_config.mixed_precision or {}
        in_float32 = PrecisionType.to_dtype(options.get("param_dtype", "bf16")) == torch.float32
        in_float32 = in_float32 and all(one.dtype == torch.float32 for one in module.parameters())
        if not in_float32 or torch.distributed.get_world_size() > 1 or get_device_name() != "cpu":
            return super()._build_fsdp_module(module)  # type: ignore[no-any-return]
        self._autocast_dtype, self.scaler = torch.float32, None
        self._is_offload_param = self._is_offload_optimizer = False
        module.register_load_state_dict_pre_hook(_take_whole_weights)
        return module

    def _build_optimizer(self, module: torch.nn.Module) -> torch.optim.Optimizer:
        optimizer: torch.optim.Optimizer = super()._build_optimizer(module)
        if not isinstance(module, FSDPModule):
            optimizer.register_load_state_dict_pre_hook(_take_whole_moments)
        return optimizer

    def prepare_model_inputs(self, micro_batch: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        inputs, arguments = super().prepare_model_inputs(micro_batch)
        self.largest_pass = max(self.largest_pass, inputs["input_ids"].numel())
        if (
            self.use_ulysses_sp
            or arguments.get("pad_size")
            or tu.get_non_tensor_data(micro_batch, "use_fused_kernels", default=False)
        ):
            return inputs, arguments
        packed, offsets = "temperature_rmpad" in arguments, micro_batch["input_ids"].offsets()
        firsts = (offsets.diff() - micro_batch["response_mask"].offsets().diff() - 1).tolist()
        if not packed:
            firsts = [min(firsts)] * len(firsts)

        def own(values: torch.Tensor) -> torch.Tensor:
            rows = torch.nested.nested_tensor_from_jagged(values, offsets).unbind()
            return torch.cat([row[first:] for row, first in zip(rows, firsts, strict=True)])

        names = ("input_ids_rmpad_rolled", "temperature_rmpad")
        arguments |= {name: own(arguments[name]) for name in names if name in arguments} | {"firsts": firsts}
        length = inputs["input_ids"].shape[1]
        kept = own(torch.arange(length, device=offsets.device)) if packed else length - firsts[0]
        return inputs | {"logits_to_keep": kept}, arguments

    def prepare_model_outputs(
        self, output: Any, output_args: dict[str, Any], micro_batch: Any, logits_processor_func: Any
    ) -> dict[str, torch.Tensor]:
        """Compute verl's outputs on rows cut to `firsts`, then left-pad them with zeros to the full length."""
        if "firsts" not in output_args:
            return super().prepare_model_outputs(output, output_args, micro_batch, logits_processor_func)  # type: ignore[no-any-return]
        firsts, whole, short = output_args["firsts"], micro_batch["input_ids"], micro_batch.copy()
        rows = [row[first:] for row, first in zip(whole.unbind(), firsts, strict=True)]
        short["input_ids"] = torch.nested.as_nested_tensor(rows, layout=torch.jagged)
        found = super().prepare_model_outputs(output, output_args, short, logits_processor_func)
        return {
            name: torch.nested.nested_tensor_from_jagged(
                torch.cat([pad(row, (first, 0)) for row, first in zip(values.unbind(), firsts, strict=True)]),
                whole.offsets(),
            )
            for name, values in found.items()
        }


def _take_whole_weights(module: torch.nn.Module, state: dict[str, Any], *_: Any) -> None:
    """Replace the weights of a save that FSDP wrote on one worker by plain tensors."""
    state |= {name: _whole(value) for name, value in state.items()}


def _take_whole_moments(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> dict[str, Any]:
    """Returns the state of an optimizer, which FSDP may have written on one worker, with plain tensors."""
    moments = {at: {name: _whole(value) for name, value in of.items()} for at, of in state["state"].items()}
    return state | {"state": moments}


def _whole(value: Any) -> Any:
    return value.to_local() if isinstance(value, DTensor) else value
