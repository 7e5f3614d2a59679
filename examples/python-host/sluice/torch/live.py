"""What a serving model's loaders know of its tensors, as the default resolver reads it (sluice.h: sluice_live).

Words are vLLM's: a parameter has output_dim, input_dim and a weight_loader, its module a tp_size, and the model a
packed_modules_mapping. A loader counts as a plain copy only where the class that defines it is known to make one, so a
fused module's (QKVParallelLinear) never does, whatever it inherits.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.distributed.tensor import DTensor

ATTRIBUTES = (
    "output_dim", "input_dim", "packed_dim", "packed_factor", "marlin_tile_size", "needs_scalar_to_array", "is_sharded_weight",
    "is_transposed",
)
PLAIN_COPIES = {"ColumnParallelLinear": "column", "RowParallelLinear": "row", "ReplicatedLinear": "replicated"}


def live_tensors(model: torch.nn.Module, tp_size: int | None) -> Iterator[tuple[str, torch.Tensor, dict[str, Any]]]:
    """Parameters and persistent buffers by name, with their attributes. A tied one comes once, by its first name."""
    packed = getattr(model, "packed_modules_mapping", {})
    modules = dict(model.named_modules())
    seen: set[int] = set()
    for name, tensor in model.state_dict(keep_vars=True).items():
        if not isinstance(tensor, torch.Tensor) or tensor.numel() == 0 or id(tensor) in seen:
            continue
        seen.add(id(tensor))
        path = name.rpartition(".")[0]
        attributes = attributes_of(tensor, getattr(modules.get(path), "tp_size", tp_size))
        if parts := packed.get(path.rpartition(".")[2]):
            attributes["packed_modules"] = list(parts)
        yield name, tensor, attributes


def attributes_of(tensor: torch.Tensor, tp_size: int | None) -> dict[str, Any]:
    if isinstance(tensor, DTensor):
        return cut_of(tensor)
    given = {key: getattr(tensor, key, None) for key in ATTRIBUTES}
    said = {key: value if isinstance(value, (bool, int)) else str(value) for key, value in given.items() if value is not None}
    if loader := loader_of(tensor, said):
        said["loader"] = loader
    if tp_size is not None:
        said["tp_size"] = tp_size
    return said


def loader_of(tensor: torch.Tensor, said: dict[str, Any]) -> str | None:
    function = getattr(tensor, "weight_loader", None)
    if function is None:  # loaded by default: a copy of the whole, unless something cuts it that says no loader
        return None if "output_dim" in said or "input_dim" in said else "replicated"
    owner = str(getattr(function, "__qualname__", type(function).__name__)).split(".")[0]
    kind = "replicated" if owner == "default_weight_loader" else PLAIN_COPIES.get(owner, owner)
    if (kind, "output_dim" in said) == ("column", False) or (kind, "input_dim" in said) == ("row", False):
        return "replicated"
    return kind


def cut_of(tensor: DTensor) -> dict[str, Any]:
    """A DTensor over one mesh axis says itself how it is cut; over several it says nothing that the default resolver knows."""
    if tensor.device_mesh.ndim != 1:
        return {}
    placement = tensor.placements[0]
    if placement.is_replicate():
        return {"loader": "replicated"}
    dim = getattr(placement, "dim", None)
    return {} if dim is None else {"loader": "column", "output_dim": dim, "tp_size": tensor.device_mesh.size()}
