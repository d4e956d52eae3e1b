"""What stands in for packages that SGLang imports on a CPU."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


def imported(site: Path, code: str) -> str:
    """What the code prints in a process like the server's, with `site` before everything that is installed."""
    for package in ("transformers", "sglang"):
        (site / f"{package}.py").write_text("AutoImageProcessor = 'their own'\n")
    env = {**os.environ, "SGLANG_USE_CPU_ENGINE": "1", "PYTHONPATH": f"{site}:{Path.cwd()}"}
    code = f"import selfplay_pipeline.engines.sglang_launch, transformers; {code}"
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True).stdout


def test_packages_that_can_be_imported_are_left_alone(tmp_path):
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "__init__.py").write_text("real = 'torchvision'\n")
    (tmp_path / "sgl_kernel.py").write_text("real = 'sgl_kernel'\n")
    code = "import torchvision, sgl_kernel; print(torchvision.real, sgl_kernel.real, transformers.AutoImageProcessor)"
    assert imported(tmp_path, code) == "torchvision sgl_kernel their own\n"


@pytest.mark.parametrize("package", ["torchvision", "sgl_kernel"])
def test_a_package_that_cannot_be_imported_gets_a_stand_in(tmp_path, package):
    (tmp_path / "torchvision.py").write_text("real = 'torchvision'\n")
    (tmp_path / "sgl_kernel.py").write_text("real = 'sgl_kernel'\n")
    (tmp_path / f"{package}.py").write_text("raise ImportError('libcuda.so.1: cannot open shared object file')\n")
    code = "import torchvision, sgl_kernel; print([isinstance(p.real, str) for p in (torchvision, sgl_kernel)])"
    assert imported(tmp_path, code) == f"{[package != name for name in ('torchvision', 'sgl_kernel')]}\n"
