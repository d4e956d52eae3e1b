#!/usr/bin/env bash
# Does requirements/gpu.txt work? Installs it as `make setup DEVICE=gpu` does, and imports what a run imports. Needs no
# GPU, but 11 GB and some minutes. GPU_ENV=FOLDER keeps the environment, and uses it again where it is there.
set -euo pipefail
cd "$(dirname "$0")/.."
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
env=${GPU_ENV:-$scratch/env}

SECONDS=0
make --no-print-directory setup DEVICE=gpu VENV="$env"
echo "requirements/gpu.txt: sha256 $(sha256sum requirements/gpu.txt | cut -c1-16), installed in $SECONDS s, $(du -sh "$env" | cut -f1)"

# Without a driver, SGLang's kernels find a libcuda.so.1 whose functions all return 100: CUDA_ERROR_NO_DEVICE.
if ! "$env/bin/python" -c 'import ctypes; ctypes.CDLL("libcuda.so.1")' 2>/dev/null; then
  find "$env"/lib/python3*/site-packages/sgl_kernel -name '*.so' -exec nm -D --undefined-only {} + |
    sed -nE 's/^ +U (cu[A-Z]\w*)$/int \1(void) { return 100; }/p' | sort -u >"$scratch/libcuda.c"
  cc -shared -fPIC -Wl,-soname,libcuda.so.1 -o "$scratch/libcuda.so.1" "$scratch/libcuda.c"
  export LD_LIBRARY_PATH=$scratch${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  echo "no libcuda.so.1 here: a stand-in of $(wc -l <"$scratch/libcuda.c") functions that know no device"
fi

"$env/bin/python" -W ignore bin/check_gpu_imports.py
