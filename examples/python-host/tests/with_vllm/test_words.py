"""A trainer's layouts in Sluice's words, and labels that nobody gave."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not there: scripts/fetch-vllm brings it")

import torch
from sluice.vllm.trainer import param_of
from sluice.vllm.updates import following
from vllm.distributed.weight_transfer import ParamMeta, Replicate, Shard

META: list[tuple[dict[str, Any], int, str]] = [
    ({}, 4, "4 | "),
    ({"owners": (0, 1, 2, 3), "placements": (Shard(1),)}, 4, "4 | shard 1"),
    ({"owners": (0, 1, 2, 3), "mesh_shape": (2, 2), "placements": (Replicate(), Shard(0))}, 4, "2x2 | shard 0"),
    ({"owners": (0, 1, 2, 3), "mesh_shape": (2, 2), "placements": (Shard(0), Shard(0))}, 4, "2x2 | shard 0, shard 0"),
    ({"owners": (0, 2, 1, 3), "mesh_shape": (2, 2), "placements": (Shard(0), Shard(1))}, 4, "2x2 | shard 0, shard 1"),
    ({"owners": (2, 3), "placements": (Shard(0),)}, 4, "2x2 | pin 1, shard 0"),
    ({"owners": (1,)}, 4, "4 | pin 1"),
    ({"owners": (0, 3), "placements": (Shard(0),)}, 4, "parameter w: its mesh axis axis0 does not divide the 4 trainer ranks evenly"),
    ({"owners": (0, 1, 3, 2), "placements": (Shard(0),)}, 4, "parameter w: its mesh [4] of ranks [0, 1, 3, 2] is no grid of ranks with even steps"),
]


@pytest.mark.parametrize(("given", "trainers", "wanted"), META)
def test_owners_and_placements_are_told_as_they_are(given: dict[str, Any], trainers: int, wanted: str) -> None:
    meta = ParamMeta("w", torch.bfloat16, (8, 8), **given)
    try:
        param = param_of(meta, trainers).json()
    except ValueError as error:
        assert str(error) == wanted
        return
    said = [f"shard {one['shard']}" if "shard" in one else f"pin {one['pin']}" for one in param["src_placements"] or []]
    sizes = "x".join(str(size) for _, size in param_of(meta, trainers).mesh.axes)
    assert f"{sizes} | {', '.join(said)}" == wanted


def test_labels_that_nobody_gave_are_counted() -> None:
    given = ("", "dirty", "update-9", "update-09", "update-" + "9" * 18, "step-9")
    wanted = ["update-1", "update-1", "update-10", "update-10", "update-1" + "0" * 18, "update-1"]
    assert [following(version) for version in given] == wanted
