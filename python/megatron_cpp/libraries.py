"""Where the libraries of GPUs are."""

import importlib.util
import os


def find_cuda_libraries():
    """Names the folders of NVIDIA's packages for CUDA 13, wherever this interpreter finds them, in
    MEGATRON_LIBRARY_PATH, for the engine in this process and for programs that it starts."""
    packages = importlib.util.find_spec("nvidia")
    if packages is None or "MEGATRON_LIBRARY_PATH" in os.environ:
        return
    folders = [os.path.join(place, name, "lib") for place in packages.submodule_search_locations
               for name in ("cu13", "cudnn", "nccl")]
    os.environ["MEGATRON_LIBRARY_PATH"] = ":".join(filter(os.path.isdir, folders))
