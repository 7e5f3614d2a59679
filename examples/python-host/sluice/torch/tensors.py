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
    dtype: torch.dtype = getattr(torch, memory.dtype)
    return torch.frombuffer(held, dtype=torch.uint8).view(dtype).view(memory.shape)
