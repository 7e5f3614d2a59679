"""What stands in for vLLM around the backend on a machine without a GPU: its configuration, and its worker.

The engine's base class, the factories and WeightTransferConfig are vLLM's own. vLLM's GPU worker cannot be imported there
(README.md); this one makes the calls that it makes to a weight transfer engine, in its order, and fails as it does.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from sluice.vllm import register
from sluice.vllm.worker import SluiceWeightTransferEngine
from vllm.config import WeightTransferConfig
from vllm.distributed.weight_transfer import WeightTransferEngineFactory


def vllm_config(hf_config: Any, rank: int, tp: int, **sluice: Any) -> Any:
    """The parts of VllmConfig that the backend reads."""
    return SimpleNamespace(
        parallel_config=SimpleNamespace(
            rank=rank, world_size=tp, tensor_parallel_size=tp, pipeline_parallel_size=1, data_parallel_index=0
        ),
        model_config=SimpleNamespace(hf_config=hf_config, quantization=None, dtype=torch.float32),
        weight_transfer_config=WeightTransferConfig(backend="sluice"),
        additional_config={"sluice": sluice},
    )


def recorded(model: torch.nn.Module, device: torch.device) -> None:
    """What vLLM's loader does for a model that it has made. Only layerwise reload wants it, whose import takes seconds."""
    from vllm.model_executor.model_loader.reload import record_metadata_for_reloading

    with device:
        record_metadata_for_reloading(model)


class Worker:
    def __init__(self, config: Any, model: torch.nn.Module, device: torch.device = torch.device("cpu")) -> None:
        register()
        made = WeightTransferEngineFactory.create_engine(config.weight_transfer_config, config, device, model)
        assert isinstance(made, SluiceWeightTransferEngine)
        self.transfer = made
        self.active = False

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self.transfer.init_transfer_engine(self.transfer.parse_init_info(init_info))

    def start_weight_update(self) -> None:
        if self.active:
            raise RuntimeError("a weight update is active already")
        self.transfer.start_weight_update()
        self.active = True

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self._within(self.transfer.update_weights, update_info)

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        if not self.active:
            raise RuntimeError("no weight update is active")
        self.transfer.finish_weight_update()
        self.transfer.reset_weight_update_target()
        self.active = False

    def shutdown_weight_transfer_engine(self) -> None:
        if self.active:
            raise RuntimeError("a weight update is active")
        self.transfer.shutdown()

    def _within(self, call: Callable[[dict[str, Any]], None], update_info: dict[str, Any]) -> None:
        if not self.active:
            raise RuntimeError("no weight update is active")
        try:
            call(update_info)
        except BaseException:
            self.active = False
            self.transfer.reset_weight_update_target()
            raise


class WorkerTarget:
    """One such worker behind the control plane."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker

    def init(self, init_info: dict[str, Any]) -> None:
        self.worker.init_weight_transfer_engine(init_info)

    def start(self) -> None:
        self.worker.start_weight_update()

    def update(self, names: list[str]) -> None:
        self.worker.update_weights({"names": names})

    def finish(self, version: str) -> None:
        self.worker.update_weights({"names": [], "version": version})
        self.worker.finish_weight_update(version)

    def shutdown(self) -> None:
        self.worker.active = False
        self.worker.shutdown_weight_transfer_engine()

    def cancel(self) -> None:
        if self.worker.transfer.engine is not None:
            self.worker.transfer.engine.cancel()

    @property
    def phase(self) -> str:
        engine = self.worker.transfer.engine
        return engine.state.name.lower() if engine is not None else "new"

    @property
    def version(self) -> str:
        engine = self.worker.transfer.engine
        return engine.version if engine is not None else ""


class Direct:
    """vLLM's client, which calls a worker of this process, and notes what it was told."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.told: list[Any] = []
        self.breaks = ""

    def _tell(self, name: str, *given: Any) -> None:
        self.told.append((name, *given))
        if self.breaks == name:
            raise ConnectionError(f"{name} was lost")
        getattr(self.worker, name)(*given)

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self._tell("init_weight_transfer_engine", json.loads(json.dumps(init_info)))

    def start_weight_update(self) -> None:
        self._tell("start_weight_update")

    def update_weights(self, update_info: Any) -> None:
        self._tell("update_weights", json.loads(json.dumps(update_info)))

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self._tell("finish_weight_update", weight_version)
