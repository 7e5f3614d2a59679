"""Tensors without a copy, a serving model's attributes, and a trainer and a worker in one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import sluice.torch
import torch
from models import Config, ServedModel, Tp, TrainedModel
from sluice import Mesh
from sluice.torch import WeightSource
from sluice.torch.live import live_tensors
from sluice.torch.tensors import memory_of, stream_of, tensor_of
from torch import nn
from world import World

NAMES = (
    "int8 uint8 bool float8_e4m3fn float8_e5m2 float8_e8m0fnu float16 bfloat16 int16 uint16 int32 uint32 float32 int64 uint64"
    " float64 float4_e2m1fn_x2"
)
Torch = sluice.torch.Engine


@pytest.mark.parametrize("name", NAMES.split())
def test_every_dtype_comes_and_goes_without_a_copy(name: str) -> None:
    if not hasattr(torch, name):
        pytest.skip(f"torch {torch.__version__} has no {name}")
    raw = torch.arange(48, dtype=torch.uint8) % 2
    tensor = raw.view(getattr(torch, name)).view(2, 3, -1)
    memory = memory_of(tensor)
    assert (memory.dtype, memory.address, memory.nbytes) == (name, raw.data_ptr(), 48)
    again = tensor_of(memory)
    assert again.dtype is tensor.dtype and again.shape == tensor.shape and again.data_ptr() == raw.data_ptr()
    assert torch.equal(again.view(torch.uint8), tensor.view(torch.uint8))


def test_strides_and_offsets_are_the_tensors_own() -> None:
    memory = memory_of(torch.arange(24.0).reshape(4, 6).T[2:4])
    assert (memory.shape, memory.strides, memory.is_contiguous()) == ((2, 4), (1, 6), False)
    with pytest.raises(ValueError, match="must lie in memory as its dtype says; this one is torch.sparse_coo on cpu"):
        memory_of(torch.zeros(3).to_sparse())
    with pytest.raises(ValueError, match="on meta"):
        memory_of(torch.zeros(3, device="meta"))


def test_a_loader_counts_as_a_plain_copy_only_by_the_class_that_defines_it() -> None:
    said = {name: attributes for name, _, attributes in live_tensors(ServedModel(Config(), Tp(1, 2)), None)}
    layer = "model.layers.0."
    assert said[layer + "self_attn.o_proj.weight"] == {"input_dim": 1, "loader": "row", "tp_size": 2}
    assert said[layer + "input_layernorm.weight"] == {"loader": "replicated"}
    assert said[layer + "self_attn.qkv_proj.weight"] == {
        "output_dim": 0, "loader": "MergedColumnParallelLinear", "tp_size": 2, "packed_modules": ["q_proj", "k_proj", "v_proj"],
    }
    assert said["lm_head.weight"]["loader"] == "VocabParallelEmbedding"


def test_attributes_of_packed_weights_are_told() -> None:
    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(4, 4))
            self.weight.packed_dim, self.weight.packed_factor, self.weight.is_transposed = 0, 8, True  # type: ignore[attr-defined]
            self.weight.output_dim = 1  # type: ignore[attr-defined]
            self.register_buffer("scale", torch.ones(1))
            self.register_buffer("cache", torch.ones(1), persistent=False)
            self.empty = nn.Parameter(torch.zeros(0))

    assert [(name, attributes) for name, _, attributes in live_tensors(Packed(), 4)] == [
        ("weight", {"output_dim": 1, "packed_dim": 0, "packed_factor": 8, "is_transposed": True, "tp_size": 4}),
        ("scale", {"loader": "replicated", "tp_size": 4}),
    ]


def world(trained: nn.Module, served: nn.Module, config: Config, **options: Any) -> World:
    """A trainer and a worker that have described and registered all that they have, init not called yet."""
    made = World(Torch, **options)
    source = WeightSource(trained)
    source.register(made.trainer)  # type: ignore[arg-type]
    made.names = list(source.names)
    made.info = source.init_info(Mesh(("tp", 1)), "127.0.0.1", made.port)
    made.worker.describe_host(config.to_dict())
    made.worker.register_module(served)  # type: ignore[attr-defined]
    return made


def expect(served: nn.Module, trained: TrainedModel, config: Config) -> None:
    expected = ServedModel(config)
    expected.load_weights(trained.state_dict().items())
    for name, tensor in served.state_dict().items():
        assert torch.equal(tensor, expected.state_dict()[name]), name


def test_tied_weights_move_once() -> None:
    config = Config(tie_word_embeddings=True)
    trained, served = TrainedModel(config), ServedModel(config)
    with world(trained, served, config, rules="llama") as both:
        assert "model.embed_tokens.weight" in both.names and "lm_head.weight" not in both.names
        both.init()
        assert both.update() == ["step-1", "step-1"]
        expect(served, trained, config)


def test_tied_weights_may_be_announced_twice() -> None:
    config = Config(tie_word_embeddings=True)
    trained, served = TrainedModel(config), ServedModel(config)
    names = {name: tensor.detach() for name, tensor in trained.state_dict().items()}
    source = WeightSource(names)
    assert {"model.embed_tokens.weight", "lm_head.weight"} <= set(source.names)
    with world(trained, served, config, rules="llama") as both:
        source.register(both.trainer)  # type: ignore[arg-type]
        both.names, both.info = list(source.names), source.init_info(Mesh(("tp", 1)), "127.0.0.1", both.port)
        both.init()
        assert both.update() == ["step-1", "step-1"]
        expect(served, trained, config)


def test_without_rules_fused_weights_go_through_load_weights() -> None:
    config = Config()
    trained, served = TrainedModel(config).to(torch.bfloat16), ServedModel(config).to(torch.bfloat16)
    with world(trained, served, config, load_weights=served.load_weights) as both:
        both.init()
        assert both.update() == ["step-1", "step-1"]
        assert both.worker.plan()["full"]["parameters"] > 0
        for (name, tensor), other in zip(served.state_dict().items(), reference(config, trained).state_dict().values()):
            assert torch.equal(tensor, other), name


def reference(config: Config, trained: nn.Module) -> ServedModel:
    made = ServedModel(config).to(torch.bfloat16)
    made.load_weights(trained.state_dict().items())
    return made


def test_a_loader_that_raises_is_the_error_of_both() -> None:
    class Strict(ServedModel):
        def load_weights(self, weights: Any) -> None:
            for name, _ in weights:
                raise KeyError(name)

    served = Strict(Config())
    with world(TrainedModel(Config()), served, Config(), load_weights=served.load_weights) as both:
        both.init()
        told, own = both.update()
        assert isinstance(own.__cause__, KeyError)
        assert str(own) == "update: load_weights failed: KeyError: 'model.embed_tokens.weight'"
        assert "load_weights failed: KeyError: 'model.embed_tokens.weight'" in str(told)


def test_a_view_with_strides_of_its_own_is_written_in_place(tmp_path: Path) -> None:
    rules = tmp_path / "turned.lua"
    rules.write_text('return { name = "turned", rules = { rule "w" { into = "v" } } }')
    weight, held = torch.randn(3, 5), torch.zeros(5, 3)
    with World(Torch, rules=rules) as both:
        both.announce(w=weight)
        both.worker.register_live("v", held.T)  # type: ignore[arg-type]
        both.init()
        assert both.update() == ["step-1", "step-1"]
    assert torch.equal(held, weight.T)


def test_memory_that_was_replaced_is_seen() -> None:
    trained, served = TrainedModel(Config()), ServedModel(Config())
    with world(trained, served, Config(), rules="llama") as both:
        both.init()
        trained.lm_head.weight.data = torch.randn(Config().vocab_size, Config().hidden_size)
        served.model.norm.weight.data = torch.zeros(Config().hidden_size)
        both.both(lambda engine: engine.start_update())
        told = both.both(lambda engine: engine.update(both.names))
        why = "live tensor model.norm.weight was given other memory since it was registered; write into it instead"
        assert list(map(str, told)) == [f"update: refused: rank 1: {why}", f"update: {why}"]
    with world(trained, served, Config(), rules="llama") as both:
        both.init()
        trained.lm_head.weight.data = torch.randn(Config().vocab_size, Config().hidden_size)
        WeightSource(trained).register(both.trainer)  # type: ignore[arg-type]
        assert both.update() == ["step-1", "step-1"]
        expect(served, trained, Config())


def test_a_source_whose_storage_was_freed_is_not_read() -> None:
    weight, served = torch.randn(64), torch.zeros(64)
    storage: Any = weight.untyped_storage()
    with World(Torch) as both:
        both.announce(w=weight)
        both.worker.register_live("w", served, {"loader": "replicated"})  # type: ignore[arg-type]
        both.init()
        recording = both.trainer.record(["w"])
        both.both(lambda engine: engine.start_update())
        storage.resize_(0)
        why = "the storage of source w was freed or resized since it was registered; register it anew"
        for call in (lambda engine: engine.update(["w"]), lambda engine: engine.replay(recording)):
            told = both.both(call, lambda engine: engine.update(["w"]))
            assert list(map(str, told)) == [f"update: {why}", f"update: refused: rank 0: {why}"]
        storage.resize_(256)
        both.trainer.register_source("w", weight.fill_(3))  # type: ignore[arg-type]
        assert both.both(lambda engine: engine.update(["w"])) == [None, None]
    assert served.tolist() == [3] * 64


def test_a_source_may_lie_where_one_lay_that_was_freed() -> None:
    buffer, served = bytearray(256), torch.zeros(64)
    with World(Torch) as both:
        both.announce(w=torch.frombuffer(buffer, dtype=torch.float32))
        both.worker.register_live("w", served, {"loader": "replicated"})  # type: ignore[arg-type]
        both.init()
        both.trainer._handle.sources["w"].owner.set_()  # its memory is the next one's
        both.trainer.register_source("w", torch.frombuffer(buffer, dtype=torch.float32).fill_(3))  # type: ignore[arg-type]
        assert both.update() == ["step-1", "step-1"]
    assert served.tolist() == [3] * 64


def test_a_source_that_is_not_contiguous_names_its_parameter() -> None:
    said = "^rank 0: parameter w: it must be contiguous; its shape is \\(6, 4\\), its strides are \\(1, 6\\)$"
    with pytest.raises(ValueError, match=said):
        WeightSource({"w": torch.zeros(4, 6).T})
    assert WeightSource({"w": torch.zeros(4, 6, device="meta").T}).names == ("w",)  # whose memory comes later


def test_a_source_that_cannot_be_given_anew_is_refused_on_every_rank() -> None:
    weight, served = torch.nn.Parameter(torch.zeros(4, 6)), torch.zeros(4, 6)
    source = WeightSource({"w": weight})
    with World(Torch) as both:
        both.announce(w=weight)
        both.worker.register_live("w", served, {"loader": "replicated"})  # type: ignore[arg-type]
        both.init()
        both.both(lambda engine: engine.start_update())
        for data, why in (
            (torch.zeros(6, 4).T, "source 'w' must be contiguous; its shape is (4, 6), its strides are (1, 4)"),
            (torch.zeros(5, 6), "register: source 'w' has 120 bytes on rank 0; its box under the announced layout has 96"),
        ):
            weight.data = data
            told = both.both(lambda engine: source.register(engine), lambda engine: engine.update(["w"]))  # type: ignore[arg-type]
            assert list(map(str, told)) == [f"update: parameter w: {why}", f"update: refused: rank 0: parameter w: {why}"]
        weight.data = torch.ones(4, 6)
        source.register(both.trainer)  # type: ignore[arg-type]
        assert both.both(lambda engine: engine.update(["w"])) == [None, None]
    assert torch.equal(served, torch.ones(4, 6))


def test_names_can_be_changed_and_left_out() -> None:
    def rename(name: str) -> str | None:
        return None if "layernorm" in name else "base." + name

    names = WeightSource(TrainedModel(Config()), rename=rename).names
    assert names[0] == "base.model.embed_tokens.weight" and not any("layernorm" in name for name in names)
    with pytest.raises(ValueError, match="renamed to x, as another one is"):
        WeightSource(TrainedModel(Config()), rename=lambda name: "x")


def test_a_stream_is_given_as_pytorch_has_it() -> None:
    class Default:
        cuda_stream = 0

    assert stream_of(Default()) == 1 and stream_of(94_000_000) == 94_000_000
    with pytest.raises(TypeError, match="stream must be a torch.cuda.Stream or a handle, not str"):
        Torch(1, transport="nccl", stream="0")
