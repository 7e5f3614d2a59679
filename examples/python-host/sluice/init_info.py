"""Init info: what a trainer sends to every worker, schema "sluice/1" (lua/INIT_INFO.md)."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from .engine import library, take_text


@dataclass(frozen=True)
class Mesh:
    """Consecutive ranks as a grid of named axes, the last one fastest: `Mesh(("dp", 2), ("tp", 4))`."""

    axes: tuple[tuple[str, int], ...]
    name: str

    def __init__(self, *axes: tuple[str, int], name: str | None = None) -> None:
        for axis in axes:
            if not isinstance(axis, (tuple, list)) or len(axis) != 2:
                raise TypeError(f'each axis of a Mesh is a name and a size, as ("tp", 4), not {axis!r}')
        object.__setattr__(self, "axes", tuple((axis, size) for axis, size in axes))
        object.__setattr__(self, "name", name or ",".join(f"{axis}={size}" for axis, size in axes))

    @property
    def size(self) -> int:
        return math.prod(size for _, size in self.axes)

    def json(self) -> dict[str, Any]:
        return {"name": self.name, "axes": [list(axis) for axis in self.axes]}


@dataclass(frozen=True)
class Shard:
    """An axis cuts a dim, as torch.chunk does; `chunk`: into pieces of that size; `parts`: into fewer than it has ranks."""

    axis: str
    dim: int
    chunk: int | None = None
    split: Literal["ceil", "balanced"] | None = None
    parts: int | None = None

    def json(self) -> dict[str, Any]:
        chosen = {"chunk": self.chunk, "split": self.split, "parts": self.parts}
        return {"axis": self.axis, "shard": self.dim} | {key: value for key, value in chosen.items() if value is not None}


@dataclass(frozen=True)
class Pin:
    """Only the ranks at that coordinate of the axis hold the parameter: a pipeline stage, an expert's rank."""

    axis: str
    coordinate: int

    def json(self) -> dict[str, Any]:
        return {"axis": self.axis, "pin": self.coordinate}


@dataclass(frozen=True)
class Param:
    """A parameter that the trainer announces. Of placements that shard one dim the first is the outermost; axes that none
    names replicate."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    mesh: Mesh
    placements: tuple[Shard | Pin, ...] = ()
    allow_full_fallback: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.mesh, Mesh):
            raise TypeError(f'{self.name}: mesh must be a Mesh, as Mesh(("dp", 1)) of one rank that holds all, not {self.mesh!r}')

    def json(self) -> dict[str, Any]:
        placements = [placement.json() for placement in self.placements] or None
        said: dict[str, Any] = {"name": self.name, "dtype_name": self.dtype, "shape": list(self.shape)}
        said |= {"src_mesh": self.mesh.name, "src_placements": placements}
        return said if self.allow_full_fallback else said | {"allow_full_fallback": False}


def init_info(
    params: Sequence[Param],
    workers: Mesh | Sequence[Mesh],
    master_address: str,
    master_port: int,
    **optional: str | int,
) -> str:
    """The sealed init info of these parameters, for every rank's `init`. Rank 0 listens at the address.

    `workers` is the mesh that rule files place by, or several of the same ranks; `optional` are fields as max_cta.
    """
    sources = list(dict.fromkeys(param.mesh for param in params))
    targets = [workers] if isinstance(workers, Mesh) else list(workers)
    if not sources or not targets:
        raise ValueError("an init info needs at least one parameter and one mesh of workers")
    return seal(
        json.dumps(
            {
                "schema": "sluice/1",
                "master_address": master_address,
                "master_port": master_port,
                "rank_offset": sources[0].size,
                "world_size": sources[0].size + targets[0].size,
                "src_meshes": [mesh.json() for mesh in sources],
                "dst_meshes": [mesh.json() for mesh in targets],
                "params": [param.json() for param in params],
                **optional,
            }
        )
    )


def names(info: str | bytes) -> tuple[str, ...]:
    """The parameters that an init info announces, in its order."""
    return tuple(param["name"] for param in json.loads(info)["params"])


def seal(text: str) -> str:
    """An init info, of either schema, with its source_digest filled in."""
    data = text.encode()
    return take_text(library().sluice_seal_init_info, data, len(data))
