# An image for GPUs; docs/gpus.md says how to build and run it.
# CUDA's compiler is part of it, since SGLang compiles kernels when it first runs.
FROM nvidia/cuda:13.0.1-devel-ubuntu24.04
RUN apt-get update && apt-get install -y --no-install-recommends g++-13 git libnuma1 make python3-dev python3-venv && rm -rf /var/lib/apt/lists/*
ENV CUDA_HOME=/usr/local/cuda CXX=g++-13 NVCC_CCBIN=g++-13
WORKDIR /selfplay-pipeline
COPY . .
RUN --mount=type=cache,target=/root/.cache/pip make setup DEVICE=gpu VENV=/opt/selfplay
# Models and compiled kernels lie in one folder; docs/gpus.md mounts a volume there.
ENV HF_HOME=/root/.cache/huggingface TRITON_CACHE_DIR=/root/.cache/triton TORCHINDUCTOR_CACHE_DIR=/root/.cache/inductor
ENV PATH=/opt/selfplay/bin:$PATH
WORKDIR /work
ENTRYPOINT ["selfplay"]
