"""Whether the promised GPU is there, and if not, what to do about it."""

from __future__ import annotations

import os
from typing import Any

from dats_common.errors import ConfigurationError


def require_device(device: str) -> None:
    """Raises: ConfigurationError: PyTorch cannot compute on `device`; the message says why."""
    import torch

    if device.startswith("cuda"):
        trouble = missing_gpu(
            device,
            built_for=torch.version.cuda or torch.version.hip,
            seen=torch.cuda.device_count(),
            visible=os.environ.get("CUDA_VISIBLE_DEVICES"),
        )
        if trouble:
            raise ConfigurationError(f"the encoder's device {device!r} is not there: {trouble}")
    try:
        torch.empty(1, device=device)
    except (AssertionError, RuntimeError) as error:
        raise ConfigurationError(f"the encoder's device {device!r} does not answer: {error}") from error


def missing_gpu(device: str, *, built_for: str | None, seen: int, visible: str | None) -> str | None:
    """Why there is no such GPU; None when there is.

    Args:
        device: `cuda`, which is the first, or `cuda:N`.
        built_for: the CUDA version of this PyTorch; None: a build for the CPU.
        seen: GPUs that this process sees.
        visible: CUDA_VISIBLE_DEVICES; None: not set, so all are.
    """
    if built_for is None:
        return "this PyTorch is a build for the CPU; install one for CUDA, or set embedding.device to cpu"
    narrowed = "" if visible is None else f" with CUDA_VISIBLE_DEVICES={visible!r}"
    if seen == 0:
        return f"no GPU is seen{narrowed}; look at the driver (nvidia-smi), or set embedding.device to cpu"
    number = int(device.partition(":")[2] or 0)
    if number >= seen:
        others = "cuda:0" if seen == 1 else f"cuda:0 to cuda:{seen - 1}"
        return f"this process sees {others}{narrowed}, counted from 0 among the visible ones"
    return None


def free_bytes(device: str) -> int:
    """Memory of the GPU that nobody uses."""
    import torch

    free: int = torch.cuda.mem_get_info(torch.device(device))[0]
    return free


def ran_out_of_memory(error: Exception) -> bool:
    """Whether fewer texts at once may work: PyTorch's own error, or what CUDA and its libraries say instead."""
    import torch

    said = str(error)
    return isinstance(error, torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and ("out of memory" in said or "CUBLAS_STATUS_ALLOC_FAILED" in said)
    )


def number_bytes(transformer: Any) -> int:
    """Bytes of one of the model's numbers."""
    return int(next(transformer.parameters()).element_size())
