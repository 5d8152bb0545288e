# megatron.cpp in a container. On CPUs:
#
#   docker build -t megatron .
#   docker run --rm -v "$PWD:/data" -w /data megatron pretrain-gpt ...
#
# On NVIDIA GPUs (docker run then needs --gpus all --shm-size 1g):
#
#   docker build -t megatron-cuda --build-arg PRESET=cuda \
#     --build-arg BASE=nvidia/cuda:13.0.1-cudnn-devel-ubuntu24.04 .
#
# The program runs on every x86-64 processor with AVX2 (docs/packages.md).
ARG BASE=debian:12
FROM ${BASE}
ARG PRESET=cpu
ARG MG_CPU_ARCH=portable
WORKDIR /source
COPY scripts/bootstrap.sh scripts/
RUN scripts/bootstrap.sh python3-pip
COPY . .
RUN if [ "$PRESET" = cuda ]; then scripts/fetch_cudnn_frontend.sh; fi \
    && cmake --preset "$PRESET" -DMG_CPU_ARCH="$MG_CPU_ARCH" \
    && cmake --build "build/$PRESET" --target megatron \
    && install --strip "build/$PRESET/bin/megatron" /usr/local/bin \
    && rm -rf /source/*
WORKDIR /
ENTRYPOINT ["megatron"]
