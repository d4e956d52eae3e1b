"""Loads trainer states as data: a pickle that names anything but the parts of a tensor is refused.

verl asks torch for unrestricted pickles, and a pickle can run code. torch's environment variable overrules this in
every call of `torch.load` in this process. Importing this module is enough; all of verl's processes do.
"""

from __future__ import annotations

import os

import numpy as np
import torch.distributed.tensor  # noqa: F401  # lets torch load sharded tensors
from torch.serialization import add_safe_globals

os.environ["TORCH_FORCE_WEIGHTS_ONLY_LOAD"] = "1"
os.environ.pop("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", None)
# The state of numpy's random generator, which verl saves too.
_reconstruct = np.zeros(0).__reduce__()[0]
add_safe_globals([(_reconstruct, "numpy._core.multiarray._reconstruct"), np.ndarray, np.dtype, np.dtypes.UInt32DType])
