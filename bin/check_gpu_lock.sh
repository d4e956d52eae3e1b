#!/usr/bin/env bash
# Tests requirements/gpu.txt: installs it as `make setup DEVICE=gpu` does, imports the modules of a run, runs the fast
# tests, and plays and trains on the CPU (bench/smoke.py). Needs no GPU, but 11 GB and a quarter of an hour. On success
# the results go to requirements/gpu.checked.txt, with the lock's hash, which a test compares.
# GPU_ENV=FOLDER keeps the environment, or reuses it if it exists.
set -euo pipefail
cd "$(dirname "$0")/.."
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
env=${GPU_ENV:-$scratch/env}
found=$scratch/found

SECONDS=0
make --no-print-directory setup DEVICE=gpu VENV="$env"
sha256sum requirements/gpu.txt | tee "$found"
echo "installed: $(du -sh "$env" | cut -f1) in $SECONDS s"

# Without a driver, SGLang's kernels find a libcuda.so.1 whose functions all return 100: CUDA_ERROR_NO_DEVICE.
if ! "$env/bin/python" -c 'import ctypes; ctypes.CDLL("libcuda.so.1")' 2>/dev/null; then
  find "$env"/lib/python3*/site-packages/sgl_kernel -name '*.so' -exec nm -D --undefined-only {} + |
    sed -nE 's/^ +U (cu[A-Z]\w*)$/int \1(void) { return 100; }/p' | sort -u >"$scratch/libcuda.c"
  cc -shared -fPIC -Wl,-soname,libcuda.so.1 -o "$scratch/libcuda.so.1" "$scratch/libcuda.c"
  stub=$scratch${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  echo "no libcuda.so.1 here: a stand-in of $(wc -l <"$scratch/libcuda.c") functions that know no device" | tee -a "$found"
fi

LD_LIBRARY_PATH=${stub:-${LD_LIBRARY_PATH:-}} "$env/bin/python" -W ignore bin/check_gpu_imports.py | tee "$scratch/imports"
grep -E '^(versions|attention|all works)' "$scratch/imports" >>"$found"

stale=tests/unit/test_packaging.py::test_the_lock_for_gpus_is_the_one_that_was_installed_and_tried
make --no-print-directory test-fast DEVICE=gpu VENV="$env" ARGS="-q --deselect $stale" | tee "$scratch/tests"
echo "make test-fast: $(tail -1 "$scratch/tests")" >>"$found"

"$env/bin/python" -m bench.smoke --device cpu --output "$scratch" | tee "$scratch/smoke"
sed -n '/^\*\*Smoke test/p; /^|/p' "$scratch/smoke" >>"$found"

cp "$found" requirements/gpu.checked.txt
