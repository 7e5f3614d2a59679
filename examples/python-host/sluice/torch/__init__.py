"""Sluice for PyTorch: an engine whose tensors are torch.Tensor, and a trainer's weights with their placements read off them."""

from .engine import Engine
from .source import WeightSource

__all__ = ["Engine", "WeightSource"]
