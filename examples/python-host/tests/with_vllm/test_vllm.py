"""The backend against vLLM's own base classes, factories, configuration and plugin loader, on the host transport."""

from __future__ import annotations

import importlib.util
import inspect
import json
import re
import socket
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not there: scripts/fetch-vllm brings it")

import torch
import vllm.plugins
from models import Config, ServedModel, TrainedModel
from sluice import Options, SluiceError, State, seal
from sluice.torch import Engine
from sluice.vllm import register
from sluice.vllm.routes import Endpoints
from sluice.vllm.trainer import SluiceTrainerInitInfo, SluiceTrainerWeightTransferEngine
from sluice.vllm.worker import OURS, SluiceInitInfo, SluiceWeightTransferEngine
from standin import Direct, Worker, WorkerTarget, vllm_config
from vllm.config import WeightTransferConfig
from vllm.distributed.weight_transfer import (
    ModuleSource, TrainerWeightTransferEngine, VLLMWeightSyncClient, WeightTransferEngine, WeightTransferEngineFactory,
    WeightTransferTrainerFactory,
)
from vllm.distributed.weight_transfer.m2n_common import M2NWireParam, source_plan_digest
from vllm.distributed.weight_transfer.m2n_engine import M2NWeightTransferInitInfo

EXAMPLE = Path(__file__).resolve().parents[2]
CONFIG = Config()


# ---- the interface ----


def unused_engine() -> Any:
    register()
    config = WeightTransferConfig(**json.loads('{"backend": "sluice"}'))
    given = vllm_config(CONFIG, 0, 1)
    return WeightTransferEngineFactory.create_engine(config, given, torch.device("cpu"), torch.nn.Linear(2, 2))


@pytest.fixture
def plugged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This package's entry points as an installation records them, found and called by vLLM's own loader."""
    register()  # once this process has it, and gets it back
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    lines = []
    for group, points in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in points.items())]
    folder = tmp_path / f"sluice-{project['version']}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: sluice\nVersion: {project['version']}\n")
    (folder / "entry_points.txt").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()


def test_vllm_finds_the_backend_by_its_entry_point_and_makes_it(plugged: None, monkeypatch: pytest.MonkeyPatch) -> None:
    for factory in (WeightTransferEngineFactory, WeightTransferTrainerFactory):
        others = {name: made for name, made in factory._registry.items() if name != "sluice"}
        monkeypatch.setattr(factory, "_registry", others)
    register.cache_clear()
    monkeypatch.setenv("VLLM_PLUGINS", "sluice")
    monkeypatch.setattr(vllm.plugins, "plugins_loaded", False)
    vllm.plugins.load_general_plugins()
    assert type(unused_engine()) is SluiceWeightTransferEngine
    assert WeightTransferTrainerFactory._registry["sluice"]() is SluiceTrainerWeightTransferEngine
    (endpoints,) = vllm.plugins.load_endpoint_plugins()
    assert isinstance(endpoints, Endpoints)


@pytest.mark.parametrize(
    ("ours", "base"),
    [(SluiceWeightTransferEngine, WeightTransferEngine), (SluiceTrainerWeightTransferEngine, TrainerWeightTransferEngine)],
)
def test_what_vllm_may_call_can_be_called_as_it_calls_it(ours: Any, base: Any) -> None:
    assert base.__abstractmethods__ and not ours.__abstractmethods__
    for name, theirs in inspect.getmembers(base, inspect.isroutine):
        if name.startswith("_"):
            continue
        wanted, found = (list(inspect.signature(getattr(one, name)).parameters.values()) for one in (base, ours))
        assert [(one.name, one.kind) for one in found[: len(wanted)]] == [(one.name, one.kind) for one in wanted], name
        assert all(one.default is not one.empty for one in found[len(wanted) :]), name
        assert all(one.default == two.default for one, two in zip(wanted, found)), name
    assert not inspect.signature(base.__init__).parameters.keys() - inspect.signature(ours.__init__).parameters.keys()


def test_infos_are_parsed_by_vllm_or_refused() -> None:
    engine = unused_engine()
    given = {"master_address": "a", "master_port": 1, "rank_offset": 1, "world_size": 2, "source_digest": "d", "params": []}
    info = engine.parse_init_info({**given, "schema_version": 2, "dst_mesh_dims": [1, 1], "nccl_unique_id_b64": "SECRET"})
    assert json.loads(info.json()) == {**given, "schema_version": 2, "dst_mesh_dims": [1, 1], "nccl_unique_id_b64": "SECRET"}
    assert "SECRET" not in repr(info)
    for wrong, text in (
        ({**given, "more": 1}, "Invalid init_info for SluiceWeightTransferEngine: .*unexpected keyword argument 'more'"),
        ({}, "Invalid init_info for SluiceWeightTransferEngine: .*missing"),
        ({**given, "rank_offset": True}, "^rank_offset must be an integer, not True$"),
    ):
        with pytest.raises(ValueError, match=text):
            engine.parse_init_info(wrong)
    assert engine.parse_update_info({"names": ["a"]}).names == ["a"]
    for names in ("a", ["a", 1], None):
        with pytest.raises(ValueError, match="names must be a list of strings$"):
            engine.parse_update_info({"names": names})
    for call in (engine.start_weight_update, engine.finish_weight_update, lambda: engine.update_weights({"names": []})):
        with pytest.raises(RuntimeError, match="^weight transfer is not initialized; init_weight_transfer_engine comes first$"):
            call()
    engine.shutdown()
    engine.shutdown()


def test_the_stand_in_makes_the_calls_that_vllms_worker_makes() -> None:
    """vLLM's worker is read, not imported."""
    found = importlib.util.find_spec("vllm")
    assert found is not None and found.origin is not None
    made = re.findall(r"\bweight_transfer_engine\.(\w+)\(", (Path(found.origin).parent / "v1" / "worker" / "gpu_worker.py").read_text())
    mine = re.findall(r"\btransfer\.(\w+)[(,]", (EXAMPLE.parent / "vllm-host" / "standin.py").read_text())
    assert set(made) - {"set_weight_update_target"} == set(mine)  # that one is for draft models, which the backend declines
    assert SluiceWeightTransferEngine.supports_draft_weight_update is False


@pytest.mark.parametrize("document", ["README.md", "MIGRATING.md"])
def test_what_the_documents_configure_and_define_is_taken(document: str) -> None:
    text = (EXAMPLE.parent / "vllm-host" / document).read_text()
    config = WeightTransferConfig(**json.loads(re.findall(r"--weight-transfer-config '(.*?)'", text)[-1]))
    register()
    assert config.backend in WeightTransferEngineFactory._registry
    for given in re.findall(r"--additional-config '(.*?)'", text):
        sluice = json.loads(given)["sluice"]
        assert sluice.keys() - set(OURS) <= Options.__annotations__.keys()
    for _, block in re.findall(r"^( *)```python\n(.*?)^\1```", text, re.M | re.S):
        exec(compile(textwrap.dedent(block), document, "exec"), {})


# ---- a trainer and a worker ----


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """vLLM's loader is not imported here, since it wants the GPU's kernels: these stand in for its three functions."""
    noted: list[Any] = []

    class Within:
        def __enter__(self) -> None:
            noted.append("unchecked")

        def __exit__(self, *_: object) -> None:
            noted.append("checked")

    loader, reload, mtp = (ModuleType(name) for name in ("model_loader", "reload", "mtp_validation"))
    reload.initialize_layerwise_reload = lambda model: noted.append(("begin", model))  # type: ignore[attr-defined]
    reload.finalize_layerwise_reload = lambda model, config: noted.append(("end", model, config))  # type: ignore[attr-defined]
    mtp.disable_mtp_completeness_check = Within  # type: ignore[attr-defined]
    for name, module in (("", loader), (".reload", reload), (".mtp_validation", mtp)):
        monkeypatch.setitem(sys.modules, f"vllm.model_executor.model_loader{name}", module)
    return noted


class Pair:
    def __init__(self, model: torch.nn.Module, trained: Any, **sluice: Any) -> None:
        self.config = vllm_config(CONFIG, 0, 1, beat_s=0.2, timeout_s=30.0, **sluice)
        self.worker = Worker(self.config, model)
        self.client = Direct(self.worker)
        self.trained = trained
        assert isinstance(self.client, VLLMWeightSyncClient)

    def trainer(self) -> Any:
        listener = socket.create_server(("127.0.0.1", 0))
        address, port = listener.getsockname()
        info = SluiceTrainerInitInfo(
            rank=0, master_address=address, master_port=port, world_size=2, listen_socket=listener,
            options={"beat_s": 0.2, "timeout_s": 30.0},
        )
        return WeightTransferTrainerFactory.trainer_init(info, client=self.client, source=ModuleSource(self.trained))


def test_updates_by_names_alone_land_in_place(calls: list[Any], tmp_path: Path) -> None:
    served, trained = ServedModel(CONFIG), TrainedModel(CONFIG)
    pair = Pair(served, trained, rules="llama", attach=f"{tmp_path}/worker-{{rank}}")
    trainer = pair.trainer()
    assert (tmp_path / "worker-1").is_socket()
    names = [name for name, _ in trained.named_parameters()]
    for version, label in ((None, "update-1"), (None, "update-2"), ("step-3", "step-3"), (None, "update-1")):
        with torch.no_grad():
            for parameter in trained.parameters():
                parameter.add_(1)
        trainer.send_weights(*([version] if version else []))
        expected = ServedModel(CONFIG)
        expected.load_weights(trained.state_dict().items())
        for name, tensor in served.state_dict().items():
            assert torch.equal(tensor, expected.state_dict()[name]), name
        assert pair.worker.transfer.engine is not None and pair.worker.transfer.engine.version == label == trainer.engine.version
        assert pair.client.told[-3:] == [
            ("start_weight_update",), ("update_weights", {"names": names, "version": label}), ("finish_weight_update", label)
        ]
    assert calls == []  # nothing is reloaded where all is in place
    with pytest.raises(RuntimeError, match="^weight transfer is initialized already; shut it down before it is initialized again$"):
        pair.worker.init_weight_transfer_engine(pair.client.told[0][1])
    trainer.shutdown()
    pair.worker.shutdown_weight_transfer_engine()
    trainer = pair.trainer()  # a trainer that was started again, and a worker that was not
    assert trainer.engine.version == "update-1"
    for label in ("update-2", "update-3"):  # names alone, as a trainer of somebody else's sends them
        trainer._updates.start()
        pair.client.start_weight_update()
        session(trainer, pair, names)
        assert trainer.engine.version == label
    trainer.shutdown()


def session(trainer: Any, pair: Pair, names: list[str]) -> None:
    with trainer._telling(pair.client.update_weights, {"names": names}):
        trainer._updates.move(names)
    with trainer._telling(pair.client.finish_weight_update):
        trainer._updates.finish()


class Computes(torch.nn.Module):
    """As vLLM's attention: has a scale of its own, and, with MLA, what it makes of another layer's weight."""

    def __init__(self, other: Any) -> None:
        super().__init__()
        self.others = [other]  # no child
        self.register_buffer("_k_scale", torch.ones(()))
        self.W_UV = torch.nn.Parameter(torch.zeros_like(other.weight), requires_grad=False)

    def process_weights_after_loading(self, dtype: torch.dtype) -> None:
        self.W_UV.copy_(self.others[0].weight.to(dtype) * 2)


def test_what_vllms_attention_computes_from_weights_follows_them(calls: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    attention = ModuleType("attention")
    attention.is_deferred_attention_layer = lambda layer: isinstance(layer, Computes)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm.model_executor.layers.attention", attention)
    served, trained = ServedModel(CONFIG), TrainedModel(CONFIG)
    served.model.attn = Computes(served.lm_head)
    pair = Pair(served, trained, rules="llama")
    trainer = pair.trainer()
    trainer.send_weights()
    assert served.lm_head.weight.any() and torch.equal(served.model.attn.W_UV, served.lm_head.weight * 2)
    assert calls == []
    trainer.shutdown()


class Loads(torch.nn.Module):
    """A model that no rule places, whose loader keeps what it was given until the end, as layerwise reload does."""

    def __init__(self) -> None:
        super().__init__()
        self.fused = torch.nn.Parameter(torch.zeros(4, 2))
        self.fails = False

    def load_weights(self, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
        given = list(weights)
        if self.fails:
            raise RuntimeError("the loader is out of order")
        with torch.no_grad():
            self.fused.copy_(torch.cat([tensor for _, tensor in given]))


class Halves(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.upper, self.lower = (torch.nn.Parameter(torch.randn(2, 2)) for _ in range(2))


def test_what_no_rule_places_is_reloaded_whole(calls: list[Any]) -> None:
    served, trained = Loads(), Halves()
    pair = Pair(served, trained)
    trainer = pair.trainer()
    trainer.send_weights("step-1")
    assert torch.equal(served.fused, torch.cat([trained.upper, trained.lower]))
    assert calls == [("begin", served), "unchecked", "checked", ("end", served, pair.config.model_config)]
    trainer.shutdown()


def test_an_init_info_as_vllms_m2n_trainer_makes_it_is_taken_as_it_is(calls: list[Any]) -> None:
    served, trained = Loads(), Halves()
    worker = Worker(vllm_config(CONFIG, 0, 1, beat_s=0.2, timeout_s=30.0), served)
    params = [
        M2NWireParam(name=name, dtype_name="float32", shape=(2, 2), src_mesh_dims=(1, 1), src_placements=placements)
        for name, placements in (("upper", None), ("lower", (0, -1)))
    ]
    listener = socket.create_server(("127.0.0.1", 0))
    address, port = listener.getsockname()
    info = {
        "schema_version": 2, "master_address": address, "master_port": port, "rank_offset": 1, "world_size": 2,
        "dst_mesh_dims": [1, 1], "source_digest": source_plan_digest(params), "params": [param.to_dict() for param in params],
    }
    M2NWeightTransferInitInfo(**info).parse_wire_params()
    assert json.loads(seal(json.dumps(info)))["source_digest"] == info["source_digest"]
    with Engine(0, listen_fd=listener.detach(), beat_s=0.2, timeout_s=30.0) as trainer, ThreadPoolExecutor(1) as pool:
        for name, parameter in trained.named_parameters():
            trainer.register_source(name, parameter)
        told = pool.submit(worker.init_weight_transfer_engine, info)
        trainer.init(json.dumps(info))
        told.result(30)
        worker.start_weight_update()
        told = pool.submit(worker.update_weights, {"names": ["upper", "lower"]})
        trainer.start_update()
        trainer.update(["upper", "lower"])
        told.result(30)
        told = pool.submit(worker.finish_weight_update)
        trainer.finish_update("update-1")
        told.result(30)
    assert torch.equal(served.fused, torch.cat([trained.upper, trained.lower]))


def test_a_loader_that_fails_fails_the_update_and_a_new_init_mends_it(calls: list[Any]) -> None:
    served, trained = Loads(), Halves()
    pair = Pair(served, trained)
    trainer = pair.trainer()
    served.fails = True
    with pytest.raises(SluiceError, match="rank 1.*RuntimeError: the loader is out of order"):
        trainer.send_weights("step-1")
    assert not pair.worker.active and trainer.engine.state is State.FAILED
    trainer.shutdown()
    assert calls == [("begin", served), "unchecked", "checked"]
    pair.worker.shutdown_weight_transfer_engine()
    assert calls[3:] == [("end", served, pair.config.model_config)]  # the model has its tensors again
    pair.worker.shutdown_weight_transfer_engine()
    assert len(calls) == 4
    served.fails = False
    trainer = pair.trainer()
    assert trainer.engine.version == "dirty"
    trainer.send_weights("step-2")
    assert torch.equal(served.fused, torch.cat([trained.upper, trained.lower])) and trainer.engine.version == "step-2"
    trainer.shutdown()


def test_a_call_that_never_reaches_the_workers_ends_the_trainers_wait(calls: list[Any]) -> None:
    pair = Pair(Loads(), Halves())
    pair.client.breaks = "init_weight_transfer_engine"
    with pytest.raises(ConnectionError, match="^init_weight_transfer_engine was lost$"):
        pair.trainer()
    pair.client.breaks = ""
    trainer = pair.trainer()
    pair.client.breaks = "update_weights"
    with pytest.raises(ConnectionError, match="^update_weights was lost$"):
        trainer.send_weights()
    trainer.shutdown()


def test_a_source_gives_each_shard_once_in_every_update(calls: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.ones(2, 2)
    wrongs: dict[str, list[tuple[str, torch.Tensor]]] = {
        "lower: iter_local gave it at init and does not give it now": [("upper", weight)],
        "upper: iter_local gave it twice": [("upper", weight), ("lower", weight), ("upper", weight)],
        "middle: iter_local gave it and this rank was to have none of it": [("middle", weight)],
    }
    for wrong, given in wrongs.items():
        pair = Pair(Loads(), Halves())
        trainer = pair.trainer()
        trainer.send_weights("step-1")
        monkeypatch.setattr(trainer.source, "iter_local", lambda given=given: iter(given))
        with pytest.raises(SluiceError, match=f"^update: parameter {wrong}$"):
            trainer.send_weights("step-2")
        assert trainer.engine.version == "step-1" and not pair.worker.active
        trainer.shutdown()


def test_what_cannot_begin_says_why_and_takes_nothing(calls: list[Any]) -> None:
    trained = Halves()
    trained.upper = torch.nn.Parameter(torch.ones(4, 2).t()[:, :2])
    pair = Pair(Loads(), trained)
    with pytest.raises(ValueError, match="^parameter upper: source 'upper' must be contiguous"):
        pair.trainer()
    assert len(pair.client.told) == 1 and WorkerTarget(pair.worker).phase == "new"  # which heard of it
    with socket.create_server(("127.0.0.1", 0)) as listener:
        place: Any = {"master_address": "", "master_port": 1, "world_size": 2, "listen_socket": listener}
        info = SluiceTrainerInitInfo(rank=0, options={"road": "\0"}, **place)
        with pytest.raises(ValueError, match="zero byte"):
            SluiceTrainerWeightTransferEngine.trainer_init(info, client=pair.client, source=ModuleSource(trained))
        assert info.listen_socket is listener and listener.fileno() >= 0


def test_an_end_that_is_refused_ends_the_workers_session(calls: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair(Loads(), Halves())
    trainer = pair.trainer()
    with pytest.raises(SluiceError, match="^finish: version must be a label of 1 to 255 bytes"):
        trainer.send_weights("v" * 256)
    assert not pair.worker.active and trainer.engine.state is State.FAILED
    trainer.shutdown()
    pair.worker.shutdown_weight_transfer_engine()
    trainer = pair.trainer()
    monkeypatch.setattr(pair.client, "start_weight_update", trainer.send_weights)
    with pytest.raises(RuntimeError, match="^send_weights is under way on another thread$"):
        trainer.send_weights()
    trainer.shutdown()


def test_a_trainer_that_fails_before_its_first_batch_leaves_no_session_open(calls: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair(Loads(), Halves())
    trainer = pair.trainer()

    def fail() -> None:
        raise ValueError("no shard today")

    monkeypatch.setattr(trainer, "_register", fail)
    with pytest.raises(ValueError, match="^no shard today$"):
        trainer.send_weights()
    assert pair.client.told[-1] == ("update_weights", {"names": []}) and not pair.worker.active
    trainer.shutdown()


def test_a_batch_that_is_refused_leaves_the_update_open_until_something_moved(calls: list[Any]) -> None:
    pair = Pair(Loads(), Halves())
    trainer = pair.trainer()
    pair.worker.start_weight_update()
    with pytest.raises(SluiceError, match="'middle'. was not announced at init$"):
        pair.worker.update_weights({"names": ["middle"]})
    assert not pair.worker.active and WorkerTarget(pair.worker).phase == "updating"
    trainer._updates.start()
    with pytest.raises(SluiceError, match="rank 1.*'middle'"):  # whose call it was, too
        trainer._updates.move(["upper", "lower"])
    pair.worker.start_weight_update()
    session(trainer, pair, ["lower", "upper"])
    assert WorkerTarget(pair.worker).version == trainer.engine.version == "update-1"
    pair.worker.start_weight_update()
    with pytest.raises(RuntimeError, match="^the update was given up$"):
        pair.worker.update_weights({"names": [], "abort": True})
    assert WorkerTarget(pair.worker).phase == "failed"
    trainer.shutdown()


# ---- vLLM's API server ----
