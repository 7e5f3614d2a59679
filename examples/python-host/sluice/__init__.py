"""Sluice for Python: moves model weights from the ranks that train a model to the ranks that serve it.

This package is a thin layer over libsluice (src/sluice.h) and needs nothing but Python; sluice.torch is for PyTorch.
"""

from .bindings import Options, Timeouts
from .bindings import sluice_progress as Progress
from .engine import Engine, SluiceError, State, Status, Weights
from .init_info import Mesh, Param, Pin, Shard, init_info, names, seal
from .memory import Memory

__all__ = [
    "Engine", "Memory", "Mesh", "Options", "Param", "Pin", "Progress", "Shard", "SluiceError", "State", "Status", "Timeouts",
    "Weights", "init_info", "names", "seal",
]
