"""Check that SGLang can compile its CUDA kernels on this machine.

SGLang 0.5.12 compiles a kernel when it is first needed, minutes after the start, with nvcc and a C++ compiler, which no
Python package contains. Run as a program, this module compiles a small program in the same way: through `tvm_ffi`.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile

from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.processes import environment

PROGRAM = """
#include <string>
#if defined(__GNUC__) && !defined(__clang__) && __GNUC__ < 13
#error g++ 13 or newer is needed
#endif
__global__ void nothing() {}
"""
"""CUDA program that refuses g++ older than 13. With g++ 12, nvcc 13.0 refuses the activation kernel of SGLang 0.5.12
(`jit_kernel/csrc/elementwise`).
"""

REASON = re.compile("error|fatal|not f(ound|ind)|cannot find|No (such|module)")
"""Pattern of the line with the reason of a failure, in the output of Python, ninja, nvcc, the C++ compiler or the
linker.
"""


def check_compiler() -> None:
    """Compile a small program in the way that SGLang compiles its kernels.

    Raises:
        UserError: The compilation failed; the message gives the reason.
    """
    done = subprocess.run([sys.executable, "-m", __name__], env=environment(), capture_output=True, text=True)
    if done.returncode == 0:
        return
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    reasons = [line for line in lines if REASON.search(line)]
    raise UserError(
        f"SGLang compiles CUDA kernels when it runs, which fails here: {(reasons or lines[-1:])[0]}; install the CUDA "
        "toolkit 13.0 (CUDA_HOME says where) and g++ 13 or newer (as c++ and gcc, or by CXX and NVCC_CCBIN)"
    )


def _compile() -> None:
    from tvm_ffi.cpp import build_inline

    with tempfile.TemporaryDirectory() as folder:
        build_inline("selfplay", cuda_sources=PROGRAM, extra_cuda_cflags=["-std=c++20"], build_directory=folder)


if __name__ == "__main__":
    _compile()
