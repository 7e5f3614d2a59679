"""Placements are read as PyTorch means them: held against the shards that PyTorch itself makes, on process groups that only
pretend to have ranks."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist
from sluice import Mesh, Pin, Shard
from sluice.torch import WeightSource
from sluice.torch.placements import Axis, place
from sluice.torch.source import Group, Said
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, distribute_tensor
from torch.distributed.tensor import Shard as Cut
from torch.distributed.tensor.placement_types import _StridedShard
from torch.testing._internal.distributed.fake_pg import FakeStore


@contextmanager
def rank_of(rank: int, size: int) -> Iterator[None]:
    dist.init_process_group("fake", rank=rank, world_size=size, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


class Source(WeightSource):
    """On ranks that all say the same, as those of a mesh do; a pretended group would not carry what they say."""

    def _hear(self, mine: Any, problem: str) -> list[Group]:
        if problem:
            raise ValueError(problem)
        return [Group(list(range(self.trainers)), mine)]


def shard_of(whole: torch.Tensor, mesh: Mesh, placements: tuple[Shard | Pin, ...], rank: int) -> torch.Tensor:
    """What a rank holds, by the meaning of sluice/1: each placement cuts what those before it left."""
    coordinates = {}
    for name, size in reversed(mesh.axes):
        rank, coordinates[name] = divmod(rank, size)
    sizes = dict(mesh.axes)
    for placement in placements:
        assert isinstance(placement, Shard)
        pieces = whole.chunk(sizes[placement.axis], placement.dim)
        at = coordinates[placement.axis]
        whole = pieces[at] if at < len(pieces) else whole.narrow(placement.dim, 0, 0)
    return whole


def both(sizes: tuple[int, ...], names: tuple[str, ...], placements: list[Placement], shape: tuple[int, ...]) -> None:
    """Every rank's shard as PyTorch cuts it, and by what WeightSource says of it."""
    ranks = int(torch.tensor(sizes).prod())
    whole = torch.arange(int(torch.tensor(shape).prod())).reshape(shape)
    for rank in range(ranks):
        with rank_of(rank, ranks):
            tensor = distribute_tensor(whole, init_device_mesh("cpu", sizes, mesh_dim_names=names), placements, src_data_rank=None)
            param = Source({"w": tensor}).params[0]
            assert torch.equal(tensor.to_local(), shard_of(whole, param.mesh, param.placements, rank)), (placements, shape, rank)


CASES: list[tuple[tuple[int, ...], list[Placement], tuple[int, ...]]] = [
    ((4,), [Cut(0)], (10, 3)),
    ((4,), [Cut(0)], (2, 3)),
    ((4,), [Cut(1)], (3, 7)),
    ((2, 3), [Replicate(), Cut(0)], (7, 2)),
    ((2, 3), [Cut(0), Replicate()], (7, 2)),
    ((2, 3), [Cut(1), Cut(0)], (5, 5)),
    ((2, 3), [Cut(0), Cut(0)], (11, 2)),
    ((3, 2), [_StridedShard(0, split_factor=2), Cut(0)], (12, 2)),
    ((2, 2, 2), [_StridedShard(0, split_factor=4), Cut(0), Cut(0)], (16,)),
    ((2, 3, 2), [_StridedShard(0, split_factor=2), _StridedShard(0, split_factor=2), Cut(0)], (24,)),
    ((2, 3, 2), [_StridedShard(0, split_factor=2), Cut(1), Cut(0)], (8, 7)),
    ((2, 2, 2), [Cut(0), _StridedShard(0, split_factor=2), Cut(0)], (16, 2)),
    ((1, 4), [Cut(0), Cut(0)], (9,)),
]


@pytest.mark.parametrize(("sizes", "placements", "shape"), CASES)
def test_a_placement_means_what_pytorch_means(sizes: tuple[int, ...], placements: list[Placement], shape: tuple[int, ...]) -> None:
    both(sizes, ("dp", "fsdp", "tp")[-len(sizes) :], placements, shape)


def test_placements_taken_at_random_mean_what_pytorch_means() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    random.seed(seed)
    for _ in range(40):
        sizes = tuple(random.choice((1, 2, 3)) for _ in range(random.randint(1, 3)))
        shape = tuple(random.randint(1, 13) for _ in range(random.randint(1, 3)))
        placements: list[Placement] = [random.choice([Replicate(), Cut(random.randrange(len(shape)))]) for _ in sizes]
        both(sizes, ("a", "b", "c")[: len(sizes)], placements, shape)


def test_fsdp_lies_inside_tp() -> None:
    with rank_of(0, 6):
        mesh = init_device_mesh("cpu", (3, 2), mesh_dim_names=("fsdp", "tp"))
        tensor = distribute_tensor(torch.zeros(12), mesh, [_StridedShard(0, split_factor=2), Cut(0)], src_data_rank=None)
        param = Source({"w": tensor}).params[0]
    assert param.placements == (Shard("tp", 0), Shard("fsdp", 0)) and param.mesh.axes == (("fsdp", 3), ("tp", 2))


@pytest.mark.parametrize(
    ("sizes", "dims", "axes"),
    [
        ((2, 3, 2), ("tp",), (("others0", 6), ("tp", 2))),
        ((2, 3, 2), ("dp",), (("dp", 2), ("others1", 6))),
        ((2, 3, 2), ("fsdp",), (("others0", 2), ("fsdp", 3), ("others2", 2))),
        ((2, 3, 2), ("dp", "tp"), (("dp", 2), ("others1", 3), ("tp", 2))),
    ],
)
def test_ranks_that_a_mesh_does_not_reach_are_replicas(sizes: tuple[int, ...], dims: tuple[str, ...], axes: Any) -> None:
    with rank_of(7, 12):
        mesh = init_device_mesh("cpu", sizes, mesh_dim_names=("dp", "fsdp", "tp"))[dims]
        tensor = distribute_tensor(torch.zeros(12), mesh, [Cut(0)] * len(dims), src_data_rank=None)
        param = Source({"w": tensor}).params[0]
    assert param.mesh.axes == axes and param.placements == tuple(Shard(name, 0) for name in dims)


def test_axes_of_a_mesh_may_stand_in_any_order() -> None:
    with rank_of(0, 6):
        mesh = DeviceMesh("cpu", torch.arange(6).reshape(3, 2).T, mesh_dim_names=("tp", "fsdp"))
        tensor = distribute_tensor(torch.zeros(12), mesh, [Cut(0), Cut(0)], src_data_rank=None)
        param = Source({"w": tensor}).params[0]
    assert param.mesh.axes == (("fsdp", 3), ("tp", 2)) and param.placements == (Shard("tp", 0), Shard("fsdp", 0))


@pytest.mark.parametrize(
    ("axes", "holders", "mesh", "pins"),
    [
        ((), range(8), Mesh(("others0", 8)), ()),
        ((), range(4, 8), Mesh(("others0", 2), ("others1", 4)), (Pin("others0", 1),)),
        ((), (1, 3, 5, 7), Mesh(("others0", 4), ("others1", 2)), (Pin("others1", 1),)),
        ((), (2, 3, 6, 7), Mesh(("others0", 2), ("others1", 2), ("others2", 2)), (Pin("others1", 1),)),
        ((), (5,), Mesh(("others0", 8)), (Pin("others0", 5),)),
        ((Axis("tp", 2, 1),), (4, 5, 6, 7), Mesh(("others0", 2), ("others1", 2), ("tp", 2)), (Pin("others0", 1),)),
        ((Axis("tp", 2, 2),), (1, 3), Mesh(("others0", 2), ("tp", 2), ("others2", 2)), (Pin("others0", 0), Pin("others2", 1))),
    ],
)
def test_ranks_that_alone_hold_a_parameter_are_pinned(axes: tuple[Axis, ...], holders: Any, mesh: Mesh, pins: Any) -> None:
    assert place(axes, list(holders), 8) == (mesh, pins)


@pytest.mark.parametrize("holders", [(0, 1, 2), (1, 2), (0, 3, 4, 7), (0, 1, 3), (0, 7), (1, 4, 7)])
def test_ranks_that_no_pin_says_are_refused(holders: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="hold it, which are no coordinate of a mesh"):
        place((), list(holders), 8)


def test_what_cannot_be_said_names_the_parameter() -> None:
    with rank_of(1, 4):
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        summed = DTensor.from_local(torch.zeros(4), mesh, [Replicate(), Partial()])
        with pytest.raises(ValueError, match=r"rank 1: parameter w: its placement P\w*(\(sum\))? on axis tp is neither a shard nor"):
            Source({"w": summed})
        strided = DTensor.from_local(torch.zeros(4), mesh, [_StridedShard(0, split_factor=3), Cut(0)], run_check=False)
        with pytest.raises(ValueError, match="parameter w: its placement .* on axis dp fits no order of its axes"):
            Source({"w": strided})
        crooked = DTensor.from_local(torch.zeros(4), DeviceMesh("cpu", [[0, 1], [3, 2]]), [Cut(0), Replicate()], run_check=False)
        with pytest.raises(ValueError, match="parameter w: its mesh .* is no grid of ranks with even steps"):
            Source({"w": crooked})


def test_ranks_that_say_different_things_of_a_parameter_are_named() -> None:
    class Differ(WeightSource):
        def _hear(self, mine: Any, problem: str) -> list[Group]:
            return [Group([0, 2], mine), Group([1, 3], {"w": Said("float32", (5,), mine["w"].cut)})]

    with rank_of(0, 4), pytest.raises(ValueError, match=r"parameter w: rank 1 holds .*\(5,\).*, rank 0 .*\(4,\)"):
        Differ({"w": torch.zeros(4)})
