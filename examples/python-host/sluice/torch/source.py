"""A trainer's weights: what they are called, how they are cut, and where this rank's shards lie."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from ..engine import SluiceError, State
from ..init_info import Mesh, Param, Pin, init_info
from .engine import Engine
from .placements import Axis, Cut, axes_of, cut_of, place
from .tensors import dtype_name, local, memory_of


@dataclass(frozen=True)
class Said:
    """What one rank says of a parameter that it holds."""

    dtype: str
    shape: tuple[int, ...]
    cut: Cut


@dataclass(frozen=True)
class Group:
    """Ranks that hold the same."""

    ranks: list[int]
    said: Mapping[str, Said]


class WeightSource:
    """The parameters of a model that trains, plain or as DTensors (FSDP2, tensor parallel, both), for the workers.

        source = WeightSource(model)
        info = source.init_info(Mesh(("tp", 8)), address, port)     # for every rank, trainers and workers
        source.register(engine); engine.init(info)
        with engine.updating("step-1"):
            source.register(engine); engine.update(source.names)

    Making one is collective over `group` (the default process group; no group: one trainer): ranks may hold different
    parameters, as pipeline stages do, and learn of each other's. A trainer's rank in Sluice is its rank in the group.

    weights  a module: its parameters and persistent buffers, a tied one once, by its first name; or tensors by name
    rename   gives a parameter the name that it is announced by, or None, and it is left out
    """

    def __init__(
        self,
        weights: torch.nn.Module | Mapping[str, torch.Tensor],
        *,
        rename: Callable[[str], str | None] = lambda name: name,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        self._group = group
        self._meshes: dict[DeviceMesh, tuple[Axis, ...]] = {}
        self.rank = dist.get_rank(group) if dist.is_initialized() else 0
        self.trainers = dist.get_world_size(group) if dist.is_initialized() else 1
        said, problem = {}, ""
        try:
            self._tensors = tensors_of(weights, rename)
            said = {name: self._say(name, tensor) for name, tensor in self._tensors.items()}
        except Exception as error:  # also what rename raises: no rank may stay away from what is collective
            problem = f"rank {self.rank}: {error if isinstance(error, ValueError) else f'{type(error).__name__}: {error}'}"
        self.params: tuple[Param, ...] = self._params(self._hear(said, problem))
        self.names: tuple[str, ...] = tuple(param.name for param in self.params)

    def init_info(
        self, workers: Mesh | Sequence[Mesh], master_address: str, master_port: int, **optional: str | int
    ) -> str:
        """The sealed init info, the same on every trainer rank."""
        return init_info(self.params, workers, master_address, master_port, **optional)

    def register(self, engine: Engine) -> None:
        """Gives the engine this rank's shards, where they lie now. Before every update it costs little, and is needed where an
        optimizer or a wrapper may have given a parameter other memory."""
        give(engine, self._tensors.items())

    def _say(self, name: str, tensor: torch.Tensor) -> Said:
        try:
            held = local(tensor)
            if held.device.type != "meta" and held.numel() > 0 and not memory_of(held).is_contiguous():
                raise ValueError(f"it must be contiguous; its shape is {tuple(held.shape)}, its strides are {held.stride()}")
            return Said(dtype_name(tensor.dtype), tuple(tensor.shape), self._cut(tensor))
        except ValueError as error:
            raise ValueError(f"parameter {name}: {error}") from error

    def _cut(self, tensor: torch.Tensor) -> Cut:
        if not isinstance(tensor, DTensor):
            return Cut()
        mesh = tensor.device_mesh
        if mesh not in self._meshes:
            self._meshes[mesh] = axes_of(mesh, self._rank_of)
        return cut_of(tensor, self._meshes[mesh])

    def _rank_of(self, rank: int) -> int:
        return dist.get_group_rank(self._group, rank) if self._group is not None else rank

    def _hear(self, mine: Mapping[str, Said], problem: str) -> list[Group]:
        """What all ranks hold. Ranks that say the same, most often all, are heard once; a problem of one is every rank's."""
        told = [(hashlib.sha256(repr(mine).encode()).hexdigest(), problem)] * self.trainers
        if self.trainers > 1:
            dist.all_gather_object(told, told[0], group=self._group)
        if problems := list(filter(None, (problem for _, problem in told))):
            raise ValueError("; ".join(problems))
        groups = []
        for digest in dict.fromkeys(digest for digest, _ in told):
            ranks = [rank for rank, (other, _) in enumerate(told) if other == digest]
            box = [mine if self.rank == ranks[0] else None]
            if len(ranks) < self.trainers:
                first = dist.get_global_rank(self._group, ranks[0]) if self._group is not None else ranks[0]
                dist.broadcast_object_list(box, src=first, group=self._group)
            groups.append(Group(ranks, mine if box[0] is None else box[0]))
        return groups

    def _params(self, groups: Sequence[Group]) -> tuple[Param, ...]:
        holders: dict[str, list[int]] = {}  # which groups
        for number, group in enumerate(groups):
            for name, said in group.said.items():
                first = groups[holders.setdefault(name, [number])[0]]
                if said != first.said[name]:
                    theirs = f"rank {first.ranks[0]} {first.said[name]}"
                    raise ValueError(f"parameter {name}: rank {group.ranks[0]} holds {said}, {theirs}")
                if number not in holders[name]:
                    holders[name].append(number)
        placed: dict[tuple[object, ...], tuple[Mesh, tuple[Pin, ...]]] = {}
        params = []
        for name, numbers in holders.items():
            said = groups[numbers[0]].said[name]
            key = (said.cut.axes, *numbers)
            try:
                if key not in placed:
                    ranks = sorted(rank for number in numbers for rank in groups[number].ranks)
                    placed[key] = place(said.cut.axes, ranks, self.trainers)
            except ValueError as error:
                raise ValueError(f"parameter {name}: {error}") from error
            mesh, pins = placed[key]
            params.append(Param(name, said.dtype, said.shape, mesh, (*pins, *said.cut.shards)))
        return tuple(params)


def give(engine: Engine, shards: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Registers shards. In an update the others, who wait in a batch of it, hear what is wrong with one, or with all."""
    where = ""
    try:
        for name, tensor in shards:
            where = f"parameter {name}: "
            held = local(tensor)
            engine.register_source(name, held if held.numel() > 0 else None)
            where = ""
    except Exception as error:
        why = where + (str(error) if isinstance(error, (ValueError, SluiceError)) else f"{type(error).__name__}: {error}")
        if engine.state is State.UPDATING:
            engine.refuse_update(why)
        if where and isinstance(error, ValueError):
            raise ValueError(why) from error
        raise


def tensors_of(
    weights: torch.nn.Module | Mapping[str, torch.Tensor], rename: Callable[[str], str | None]
) -> dict[str, torch.Tensor]:
    """By the names that they are announced by; of several names of one tensor the first."""
    named = weights.state_dict(keep_vars=True) if isinstance(weights, torch.nn.Module) else weights
    tensors: dict[str, torch.Tensor] = {}
    seen: set[int] = set()
    for name, tensor in named.items():
        announced = rename(name)
        if announced is None or not isinstance(tensor, torch.Tensor) or id(tensor) in seen:
            continue
        if announced in tensors:
            raise ValueError(f"parameter {name}: renamed to {announced}, as another one is")
        seen.add(id(tensor))
        tensors[announced] = tensor
    return tensors
