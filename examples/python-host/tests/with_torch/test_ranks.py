"""Ranks as processes: what arrives is byte for byte what full_tensor() says, and a rank that is lost is named."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import Rank, run
from sluice import SluiceError, State
from sluice.torch import WeightSource
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import _StridedShard


def whole(name: str, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(name.encode())))


SHAPES = {
    "rows": (7, 3), "columns": (3, 5), "nested": (13, 2), "both": (5, 7), "strided": (8, 3), "copies": (2, 3), "short": (1, 4),
    "norm": (9,), "head": (5, 4), "stage0": (4, 4), "stage1": (6, 2), "expert": (3, 3),
}
CUTS: dict[str, list[Any]] = {
    "rows": [Shard(0), Replicate()], "columns": [Replicate(), Shard(1)], "nested": [Shard(0), Shard(0)],
    "both": [Shard(1), Shard(0)], "strided": [_StridedShard(0, split_factor=2), Shard(0)], "copies": [Replicate(), Replicate()],
    "short": [Shard(0), Shard(1)],
}


def mixed_trainer(rank: Rank) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "tp"))
    full = {name: whole(name, *shape) for name, shape in SHAPES.items()}
    held = {name: distribute_tensor(full[name], mesh, cut) for name, cut in CUTS.items()}
    for name, tensor in held.items():
        assert torch.equal(tensor.full_tensor(), full[name]), name

    model = torch.nn.Sequential(torch.nn.Linear(4, 5, bias=False))
    model.load_state_dict({"0.weight": full["head"]})
    fully_shard(model, mesh=init_device_mesh("cpu", (4,)), reshard_after_forward=False)
    model(torch.ones(1, 4))  # its parameters are whole now, until state_dict wants shards
    assert not isinstance(model[0].weight, DTensor)

    tensors: dict[str, torch.Tensor] = {**held, "norm": full["norm"], "head": model.state_dict(keep_vars=True)["0.weight"]}
    if rank.number < 2:
        tensors["stage0"] = full["stage0"]
    else:
        tensors["stage1"] = distribute_tensor(full["stage1"], mesh["tp"], [Shard(0)])
    if rank.number == 3:
        tensors["expert"] = full["expert"]
    source = WeightSource(tensors)
    with rank.engine(source) as engine, engine.updating("step-1"):
        engine.update(source.names)


def mixed_worker(rank: Rank) -> list[str]:
    lives = {name: torch.zeros(shape) for name, shape in SHAPES.items()}
    engine, names = rank.worker(lives)
    with engine, engine.updating("step-1"):
        engine.update(names)
    assert sorted(names) == sorted(SHAPES)
    return [name for name, tensor in lives.items() if not torch.equal(tensor, whole(name, *SHAPES[name]))]


def test_every_placement_stage_and_expert_arrives_whole(tmp_path: Path) -> None:
    assert run(mixed_trainer, mixed_worker, 4, tmp_path) == [None] * 4 + [[]]


def lost_trainer(rank: Rank) -> str:
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
    partial = DTensor.from_local(torch.zeros(3), mesh, [Partial() if rank.number == 1 else Replicate()])
    with pytest.raises(ValueError, match=r"^rank 1: parameter w: its placement .* on axis dp is neither a shard nor a replica$"):
        WeightSource({"w": partial})
    names = {"w": "w"} if rank.number == 0 else {}
    with pytest.raises(ValueError, match=r"^rank 1: KeyError: 'w'$"):
        WeightSource({"w": torch.zeros(3)}, rename=lambda name: names[name])

    source = WeightSource({"w": distribute_tensor(torch.arange(6.0), mesh, [Shard(0)])})
    with rank.engine(source) as engine:
        with engine.updating("step-1"):
            engine.update(source.names)
        if rank.number == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return failing(engine, source.names)


def failing(engine: Any, names: tuple[str, ...]) -> str:
    with pytest.raises(SluiceError) as failed, engine.updating("step-2"):
        engine.update(names)
    assert engine.state is State.FAILED
    engine.shutdown()
    return f"{failed.value.status.name} of rank {failed.value.rank}"


def lost_worker(rank: Rank) -> str:
    live = torch.zeros(6)
    engine, names = rank.worker({"w": live})
    with engine:
        with engine.updating("step-1"):
            engine.update(names)
        assert torch.equal(live, torch.arange(6.0))
        return failing(engine, names)


def test_a_trainer_that_is_killed_is_named_by_all_others(tmp_path: Path) -> None:
    assert run(lost_trainer, lost_worker, 2, tmp_path, killed=[1]) == ["PEER of rank 1", None, "PEER of rank 1"]
