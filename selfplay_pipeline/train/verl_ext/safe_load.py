"""Trainer states are loaded as data: a pickle that names anything else than the parts of a tensor is refused.

verl asks torch for whole pickles, and a pickle can run code. torch's environment variable overrules that in every call
of `torch.load` in this process. Importing this module is enough; all of verl's processes do.
"""

from __future__ import annotations

import os
from importlib import import_module

from torch.serialization import add_safe_globals

PARTS = (
    "torch.distributed.tensor.DTensor",
    "torch.distributed.tensor._dtensor_spec.DTensorSpec",
    "torch.distributed.tensor._dtensor_spec.ShardOrderEntry",
    "torch.distributed.tensor._dtensor_spec.TensorMeta",
    "torch.distributed.tensor.placement_types.Partial",
    "torch.distributed.tensor.placement_types.Replicate",
    "torch.distributed.tensor.placement_types.Shard",
    "torch.distributed.tensor.placement_types._StridedShard",
    "torch.distributed.device_mesh.DeviceMesh",
    "torch.distributed._mesh_layout._MeshLayout",
    "numpy._core.multiarray._reconstruct",
    "numpy.ndarray",
    "numpy.dtype",
    "numpy.dtypes.UInt32DType",
)
"""What the shards that verl saves consist of: sharded tensors, and the state of numpy's random numbers. Some versions
of torch lack one or another."""


def allow_parts() -> None:
    """Let torch load what verl's shards hold, and nothing else."""
    os.environ["TORCH_FORCE_WEIGHTS_ONLY_LOAD"] = "1"
    os.environ.pop("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", None)
    for path in PARTS:
        module, name = path.rsplit(".", 1)
        try:
            add_safe_globals([(getattr(import_module(module), name), path)])
        except (ImportError, AttributeError):
            continue


allow_parts()
