"""A tensor's memory, as libsluice sees it: where it lies, its dtype, shape and strides."""

from __future__ import annotations

import ctypes
import math
import re
from dataclasses import dataclass, field
from typing import Any


def item_size(dtype: str) -> int:
    """The bytes of one element; a dtype says its bits in its name, those of less than a byte stand for one ("bool")."""
    if "." in dtype:
        raise ValueError(f"dtype ({dtype}) must be a torch name without prefix, as {dtype.rsplit('.')[-1]}")
    bits = re.match(r"[a-z]+(\d+)", dtype)
    return max(1, int(bits[1]) // 8) if bits else 1


@dataclass(frozen=True)
class Memory:
    """`strides` are in elements, None for row-major contiguous. `owner` is what keeps the memory alive."""

    address: int
    dtype: str  # a torch name without prefix, as "bfloat16"
    shape: tuple[int, ...]
    nbytes: int  # of its elements
    strides: tuple[int, ...] | None = None
    owner: Any = field(default=None, repr=False, compare=False)

    @classmethod
    def of(cls, buffer: Any, dtype: str, shape: tuple[int, ...]) -> Memory:
        """The memory of a writable buffer: a bytearray, an array of array, ctypes or NumPy. It is not copied."""
        view = memoryview(buffer).cast("B")
        wanted = math.prod(shape) * item_size(dtype)
        if view.nbytes != wanted:
            raise ValueError(f"a {dtype} tensor of shape {shape} has {wanted} bytes; the buffer has {view.nbytes}")
        owner = (ctypes.c_char * view.nbytes).from_buffer(buffer)
        return cls(ctypes.addressof(owner), dtype, shape, view.nbytes, owner=owner)

    def is_contiguous(self) -> bool:
        if self.strides is None or 0 in self.shape:
            return True
        expected = [math.prod(self.shape[dim + 1 :]) for dim in range(len(self.shape))]
        return all(size == 1 or stride == want for size, stride, want in zip(self.shape, self.strides, expected))

    def view(self) -> memoryview:
        """The bytes themselves; not valid for longer than the memory is."""
        return memoryview((ctypes.c_char * self.nbytes).from_address(self.address)).cast("B")
