"""How a DTensor is cut, in Sluice's words: its mesh's axes by their steps, and its shards from the outermost inwards."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, placement_types

from ..init_info import Mesh, Pin, Shard

SHARDS = (placement_types.Shard, getattr(placement_types, "_StridedShard", placement_types.Shard))


@dataclass(frozen=True)
class Axis:
    """Of a device mesh: neighbours along it are `step` ranks apart."""

    name: str
    size: int
    step: int


@dataclass(frozen=True)
class Cut:
    """How a tensor is cut, the same on every rank that holds it. No axes: each of them holds the whole."""

    axes: tuple[Axis, ...] = ()
    shards: tuple[Shard, ...] = ()


def cut_of(tensor: DTensor, axes: Sequence[Axis]) -> Cut:
    """`axes` are those of its mesh."""
    names = [axis.name for axis in axes]
    shards = [Shard(names[axis], dim) for axis, dim in nested(tensor) if axes[axis].size > 1]
    return Cut(tuple(axis for axis in axes if axis.size > 1), tuple(shards))


def axes_of(mesh: DeviceMesh, rank_of: Callable[[int], int]) -> tuple[Axis, ...]:
    """`rank_of` gives the trainer rank of a rank of the default process group."""
    ranks = [rank_of(rank) for rank in mesh.mesh.flatten().tolist()]
    sizes = tuple(mesh.mesh.shape)
    return grid_axes(ranks, sizes, mesh.mesh_dim_names or tuple(f"axis{dim}" for dim in range(len(sizes))), f"mesh {mesh}")


def grid_axes(ranks: Sequence[int], sizes: Sequence[int], names: Sequence[str], what: str) -> tuple[Axis, ...]:
    """The axes of a grid whose ranks are given in row-major order."""
    counts = [math.prod(sizes[dim + 1 :]) for dim in range(len(sizes))]  # what one step along a dim skips in the flat list
    axes = [
        Axis(name, size, ranks[count] - ranks[0] if size > 1 else 1) for name, size, count in zip(names, sizes, counts)
    ]
    for at, rank in enumerate(ranks):
        if rank != ranks[0] + sum(axis.step * (at // count % axis.size) for axis, count in zip(axes, counts)):
            raise ValueError(f"its {what} is no grid of ranks with even steps")
    if any(axis.size > 1 and (axis.step < 1 or ranks[0] // axis.step % axis.size) for axis in axes):
        raise ValueError(f"its {what} does not begin where a row of its ranks begins")
    return tuple(axes)


def nested(tensor: DTensor) -> list[tuple[int, int]]:
    """The mesh dims that shard, each with the tensor's dim, so that of those that share a dim the outermost comes first.

    Shard cuts what the mesh dims to its left have left, so it lies inside them. _StridedShard lies inside as many of the
    mesh dims to its right, too, as make its split_factor shards: FSDP2 over TP is tp first, then fsdp.
    """
    mesh = tensor.device_mesh
    order: dict[int, list[int]] = {}
    for axis in reversed(range(mesh.ndim)):
        placement = tensor.placements[axis]
        if placement.is_replicate():
            continue
        if not isinstance(placement, SHARDS):
            raise ValueError(f"its placement {placement} on axis {axis_name(mesh, axis)} is neither a shard nor a replica")
        inside = order.setdefault(placement.dim, [])
        factor, at = getattr(placement, "split_factor", 1), 0
        while at < len(inside) and math.prod(mesh.size(one) for one in inside[:at]) < factor:
            at += 1
        if math.prod(mesh.size(one) for one in inside[:at]) != factor:
            raise ValueError(f"its placement {placement} on axis {axis_name(mesh, axis)} fits no order of its axes")
        inside.insert(at, axis)
    return [(axis, dim) for dim, axes in sorted(stated_order(tensor, order).items()) for axis in axes]


def stated_order(tensor: DTensor, order: dict[int, list[int]]) -> dict[int, list[int]]:
    """From torch 2.10 on a DTensor may state its order beside its placements, which are all Shard then."""
    spec = tensor._spec
    if getattr(spec, "use_strided_shard_as_shard_order", True) or not getattr(spec, "shard_order", None):
        return order
    return {entry.tensor_dim: list(entry.mesh_dims) for entry in spec.shard_order}


def axis_name(mesh: DeviceMesh, axis: int) -> str:
    return mesh.mesh_dim_names[axis] if mesh.mesh_dim_names else str(axis)


def place(axes: Iterable[Axis], holders: Sequence[int], trainers: int) -> tuple[Mesh, tuple[Pin, ...]]:
    """All trainer ranks as one mesh that has these axes, and pins that leave exactly `holders`.

    Where the axes do not reach, between their steps and around them, ranks are replicas if all of them hold the tensor;
    else those that do must be one coordinate of an axis: a pipeline stage, the owner of an expert.
    """
    found: list[tuple[str, int]] = []
    pins: list[Pin] = []
    count = 1

    def add(name: str, size: int) -> str:
        name = name or f"others{len(found)}"
        found.append((name, size))
        return name

    def rest(size: int, step: int) -> None:
        """Ranks between axes: all, or, `repeats` times, one in `period // run` groups of `run` neighbours."""
        nonlocal count
        held = sorted({rank // step % size for rank in holders})
        count *= len(held)
        if len(held) == size:
            if size > 1:
                add("", size)
            return
        run = next((i for i in range(1, len(held)) if held[i] != held[i - 1] + 1), len(held))
        period = held[run] - held[0] if run < len(held) else size
        repeats = size // period
        if period % run or held != [held[0] // run * run + i * period + k for i in range(repeats) for k in range(run)]:
            raise ValueError(f"trainer ranks {list(holders)} hold it, which are no coordinate of a mesh")
        if repeats > 1:
            add("", repeats)
        pins.append(Pin(add("", period // run), held[0] // run))
        if run > 1:
            add("", run)

    outer = trainers
    for axis in sorted(axes, key=lambda axis: -axis.step):
        gap, odd = divmod(outer, axis.size * axis.step)
        if odd or gap == 0:
            raise ValueError(f"its mesh axis {axis.name} does not divide the {trainers} trainer ranks evenly")
        rest(gap, axis.size * axis.step)
        add(axis.name, axis.size)
        count *= axis.size
        outer = axis.step
    rest(outer, 1)
    if count != len(holders):
        raise ValueError(f"trainer ranks {list(holders)} hold it, which are no coordinate of a mesh")
    return Mesh(*(found or [("others0", 1)])), tuple(pins)
