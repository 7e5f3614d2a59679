"""torch.Tensor to Memory and back, without a copy."""

from __future__ import annotations

import ctypes

import torch
from torch.distributed.tensor import DTensor

from ..memory import Memory


def local(tensor: torch.Tensor) -> torch.Tensor:
    """What this rank holds of a tensor, outside of autograd. It shares the memory, and keeps it when .data is replaced."""
    with torch.no_grad():
        return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach()


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def memory_of(tensor: torch.Tensor) -> Memory:
    held = local(tensor)
    if held.layout is not torch.strided or held.device.type == "meta" or held.is_quantized or held.is_neg():
        raise ValueError(f"a tensor must lie in memory as its dtype says; this one is {held.layout} on {held.device}")
    nbytes = held.numel() * held.element_size()
    return Memory(held.data_ptr(), dtype_name(held.dtype), tuple(held.shape), nbytes, tuple(held.stride()), held)


def tensor_of(memory: Memory) -> torch.Tensor:
    """A tensor over memory of the CPU that somebody else keeps."""
    held = (ctypes.c_char * memory.nbytes).from_address(memory.address)
    return typed(torch.frombuffer(held, dtype=torch.uint8), memory)


class _OnGpu:
    """Bytes of a GPU as CUDA's Python packages hand them to each other."""

    def __init__(self, memory: Memory) -> None:
        self.__cuda_array_interface__ = {
            "shape": (memory.nbytes,), "typestr": "|u1", "data": (memory.address, False), "version": 3,
        }


def gpu_tensor_of(memory: Memory) -> torch.Tensor:
    """A tensor over memory of the GPU at whose address it is."""
    return typed(torch.as_tensor(_OnGpu(memory)), memory)


def typed(raw: torch.Tensor, memory: Memory) -> torch.Tensor:
    dtype: torch.dtype = getattr(torch, memory.dtype)
    return raw.view(dtype).view(memory.shape)


def stream_of(stream: object) -> int:
    """The handle of a torch.cuda.Stream, or a handle; PyTorch's default stream is 0 to PyTorch and 1 to CUDA, where 0 is none."""
    handle = getattr(stream, "cuda_stream", stream)
    if not isinstance(handle, int):
        raise TypeError(f"stream must be a torch.cuda.Stream or a handle, not {type(stream).__name__}")
    return handle or 1
