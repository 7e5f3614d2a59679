"""Init info as its text, sealed by the library."""

from __future__ import annotations

import json

import pytest
from sluice import Mesh, Param, Pin, Shard, SluiceError, init_info, seal

GRID = Mesh(("pp", 2), ("fsdp", 2))


def test_says_meshes_placements_and_ranks() -> None:
    params = [
        Param("a", "bfloat16", (8, 4), GRID, (Pin("pp", 1), Shard("fsdp", 0))),
        Param("b", "float32", (), GRID, allow_full_fallback=False),
        Param("c", "int8", (9,), Mesh(("ep", 4)), (Shard("ep", 0, chunk=3),)),
    ]
    said = json.loads(init_info(params, Mesh(("dp", 2), ("tp", 3), name="served"), "::1", 29500, max_cta=4))
    assert len(said.pop("source_digest")) == 64
    assert said == {
        "schema": "sluice/1", "master_address": "::1", "master_port": 29500, "rank_offset": 4, "world_size": 10, "max_cta": 4,
        "src_meshes": [
            {"name": "pp=2,fsdp=2", "axes": [["pp", 2], ["fsdp", 2]]}, {"name": "ep=4", "axes": [["ep", 4]]},
        ],
        "dst_meshes": [{"name": "served", "axes": [["dp", 2], ["tp", 3]]}],
        "params": [
            {"name": "a", "dtype_name": "bfloat16", "shape": [8, 4], "src_mesh": "pp=2,fsdp=2",
             "src_placements": [{"axis": "pp", "pin": 1}, {"axis": "fsdp", "shard": 0}]},
            {"name": "b", "dtype_name": "float32", "shape": [], "src_mesh": "pp=2,fsdp=2", "src_placements": None,
             "allow_full_fallback": False},
            {"name": "c", "dtype_name": "int8", "shape": [9], "src_mesh": "ep=4",
             "src_placements": [{"axis": "ep", "shard": 0, "chunk": 3}]},
        ],
    }


def test_what_the_library_refuses_is_an_error_with_its_path() -> None:
    with pytest.raises(SluiceError, match=r"params\[0\].dtype_name"):
        init_info([Param("a", "float33", (8,), GRID)], Mesh(("tp", 1)), "localhost", 29500)
    with pytest.raises(TypeError, match=r"^a: mesh must be a Mesh, as Mesh\(\(\"dp\", 1\)\) of one rank that holds all, not None$"):
        Param("a", "float32", (8,), None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^each axis of a Mesh is a name and a size, as \(\"tp\", 4\), not 'tp'$"):
        Mesh("tp", 4)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least one parameter"):
        init_info([], Mesh(("tp", 1)), "localhost", 29500)


def test_seals_the_form_with_two_axes() -> None:
    info = {
        "schema_version": 2, "master_address": "localhost", "master_port": 29500, "rank_offset": 2, "world_size": 3,
        "dst_mesh_dims": [1, 1], "params": [
            {"name": "model.norm.weight", "dtype_name": "bfloat16", "shape": [4096], "src_mesh_dims": [2, 1],
             "src_placements": [0, -1]},
            {"name": "model.layers.0.mlp.down_proj.weight", "dtype_name": "bfloat16", "shape": [4096, 14336],
             "src_mesh_dims": [2, 1], "src_placements": None},
        ],
    }
    digest = json.loads(seal(json.dumps(info)))["source_digest"]
    assert digest == "2b3067fa503b6088712cae53602d17482eeac1c4f79908dfbebf1ab0822ed7de"
