"""vLLM's worker side: the class that vLLM makes in each worker for `--weight-transfer-config '{"backend": "sluice"}'`.

The model's tensors are registered as they lie, but for those that vLLM computes itself. What rules place is written there in
place; the rest goes whole through the model's load_weights, within vLLM's layerwise reload, which runs only where the plan has
such a parameter.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

import torch
from vllm.config.weight_transfer import WeightTransferConfig
from vllm.distributed.weight_transfer.base import WeightTransferEngine, WeightTransferInitInfo, WeightTransferUpdateInfo

from ..engine import State, Weights
from ..torch import Engine
from ..torch.live import live_tensors
from ..torch.tensors import memory_of
from . import BACKEND
from .updates import Updates, join

if TYPE_CHECKING:
    from vllm.config import VllmConfig


# Of vLLM's layers, what no checkpoint has: scales of attention, parts of kv_b_proj that MLA keeps, tables of expert parallelism.
COMPUTED = re.compile(r"(^|\.)(_\w+|W_[A-Z]\w*|expert_(mask|global_to_physical|physical_to_global|local_to_global))$")
OURS = ("attach", "host", "token_file")  # what the configuration says beside the engine's options


@dataclass(kw_only=True)
class SluiceInitInfo(WeightTransferInitInfo):
    """The init info (lua/INIT_INFO.md), in either form, as the keys of a JSON object. The library checks it, on every rank, and
    tells every rank what is wrong; here only what this rank is must be known."""

    master_address: Any
    master_port: Any
    rank_offset: int
    world_size: Any
    source_digest: Any
    params: Any = field(repr=False)
    schema: Any = None
    src_meshes: Any = field(default=None, repr=False)
    dst_meshes: Any = None
    schema_version: Any = None
    dst_mesh_dims: Any = None
    nccl_unique_id_b64: Any = field(default=None, repr=False)
    max_cta: Any = None

    def __post_init__(self) -> None:
        if type(self.rank_offset) is not int:
            raise ValueError(f"rank_offset must be an integer, not {self.rank_offset!r}")

    def json(self) -> str:
        given = {one.name: getattr(self, one.name) for one in fields(self)}
        return json.dumps({name: value for name, value in given.items() if value is not None}, allow_nan=False)


@dataclass
class SluiceUpdateInfo(WeightTransferUpdateInfo):
    """One batch: names of parameters, in order. `version` labels the update, in any of its batches or in one without names;
    without it the label is update-1, update-2, ... `abort` gives the update up on every rank."""

    names: list[str]
    version: str | None = None
    abort: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.names, list) or any(not isinstance(name, str) for name in self.names):
            raise TypeError("names must be a list of strings")
        if self.version is not None and not isinstance(self.version, str):
            raise TypeError("version must be a string")


class SluiceWeightTransferEngine(WeightTransferEngine[SluiceInitInfo, SluiceUpdateInfo]):
    """What vLLM's configuration says in `additional_config["sluice"]` are the options of sluice.torch.Engine (`rules`,
    `key_file`, `timeout_s`, ...), with `host`, keys that are told to the rules beside the model's config, and `attach`."""

    init_info_cls = SluiceInitInfo
    update_info_cls = SluiceUpdateInfo
    supports_draft_weight_update = False  # the plan is of the model that was registered

    def __init__(
        self, config: WeightTransferConfig, vllm_config: VllmConfig, device: torch.device, model: torch.nn.Module
    ) -> None:
        super().__init__(config, vllm_config, device, model)
        self._engine: Engine | None = None
        self._updates: Updates | None = None
        self._registered: dict[str, int] = {}
        self._reloading = False

    @property
    def engine(self) -> Engine | None:
        """For what vLLM's interface has no words for: plan(), explain(name), failure()."""
        return self._engine

    def init_transfer_engine(self, init_info: SluiceInitInfo) -> None:
        parallel = self.parallel_config
        rank = init_info.rank_offset + parallel.data_parallel_index * parallel.world_size + parallel.rank
        if self._engine is not None and self._engine.state is not State.NEW:
            raise RuntimeError("weight transfer is initialized already; shut it down before it is initialized again")
        if self._engine is None or self._engine.rank != rank:
            self._close()
            self._engine = self._new_engine(rank)
        engine = self._engine

        def register() -> None:
            self._register(engine)
            if (path := sluice_config(self.vllm_config).get("attach")) is not None:
                engine.allow_attach(path.replace("{rank}", str(rank)))

        join(engine, register, init_info.json())
        self._updates = Updates(self._engine)

    def _new_engine(self, rank: int) -> Engine:
        options = sluice_config(self.vllm_config)
        options.setdefault("transport", "host" if self.device.type == "cpu" else "nccl")
        hooks: dict[str, Any] = {"load_weights": self._load, "reload_begin": self._reload_begin, "reload_end": self._reload_end}
        return Engine(rank, **hooks, **{key: value for key, value in options.items() if key not in OURS})

    def _register(self, engine: Engine) -> None:
        """The same tensors at the same addresses stay registered, and with them what version they hold."""
        tensors = live_tensors(self.model, self.parallel_config.tensor_parallel_size)
        lives = [live for live in tensors if not COMPUTED.search(live[0])]
        found = {name: memory_of(tensor).address for name, tensor, _ in lives}
        if found != self._registered:
            self._registered = {}
            engine.forget()
            for live in lives:
                engine.register_live(*live)
            self._registered = found
        engine.describe_host(host_of(self.vllm_config))

    def start_weight_update(self) -> None:
        self._open().start()

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """As the base class'. The model must be at rest when it is written, and whatever thread or stream computes next finds the
        new weights: the worker's device is waited for around it."""
        typed = self.parse_update_info(update_info)
        self._wait()
        self.receive_weights(typed)
        self._wait()

    def receive_weights(self, update_info: SluiceUpdateInfo) -> None:
        updates = self._open()
        if update_info.abort:
            updates.give_up()
            raise RuntimeError("the update was given up")
        if update_info.version is not None:
            updates.name(update_info.version)
            if not update_info.names:
                return
        updates.move(update_info.names)

    def finish_weight_update(self) -> None:
        reloaded = self._reloading  # and has computed then what follows from weights
        self._open().finish()
        if not reloaded:
            compute_again(self.model, self.model_config)
        self._wait()

    def shutdown(self) -> None:
        """The engine stays, and with it what is known of the weights, for a next init. So do the model's tensors, which an update
        that failed left to the reload."""
        self._updates = None
        if self._engine is not None:
            self._engine.shutdown()
        if self._reloading:
            self._reload_end()

    def _close(self) -> None:
        if self._engine is not None:
            self._engine.close()
        self._engine, self._registered = None, {}

    def _open(self) -> Updates:
        if self._updates is None:
            raise RuntimeError("weight transfer is not initialized; init_weight_transfer_engine comes first")
        return self._updates

    def _wait(self) -> None:
        if self.device.type != "cpu":
            torch.accelerator.synchronize(self.device)

    # ---- what is not placed by rules ----

    def _reload_begin(self) -> None:
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        self._reloading = True
        initialize_layerwise_reload(self.model)

    def _load(self, weights: Weights[torch.Tensor]) -> None:
        from vllm.model_executor.model_loader.mtp_validation import disable_mtp_completeness_check

        with disable_mtp_completeness_check():
            self.model.load_weights(owned(weights))  # type: ignore[operator]

    def _reload_end(self) -> None:
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        self._reloading = False
        finalize_layerwise_reload(self.model, self.model_config)


@torch.no_grad()
def compute_again(model: torch.nn.Module, model_config: Any) -> None:
    """What attention makes of weights once they are loaded, as MLA of kv_b_proj's. A model with such layers has imported them."""
    attention: Any = sys.modules.get("vllm.model_executor.layers.attention")
    layers: list[Any] = [] if attention is None else [*filter(attention.is_deferred_attention_layer, model.modules())]
    for layer in layers:
        layer.process_weights_after_loading(model_config.dtype)


def owned(weights: Weights[torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    """Copies: layerwise reload keeps what it is given until a whole layer has come, and Sluice lends one tensor at a time, whose
    memory is the next one's when that is asked for."""
    for name, tensor in weights:
        copy = tensor.clone()
        if copy.device.type != "cpu":
            torch.accelerator.current_stream(copy.device).synchronize()
        yield name, copy


def sluice_config(vllm_config: VllmConfig) -> dict[str, Any]:
    given = vllm_config.additional_config.get(BACKEND, {}) if isinstance(vllm_config.additional_config, Mapping) else {}
    if not isinstance(given, Mapping):
        raise ValueError(f"additional_config[{BACKEND!r}] must be an object, not {given!r}")
    return dict(given)


def host_of(vllm_config: VllmConfig) -> dict[str, Any]:
    """The model's config.json and how it is served, in the words that rule files read (lua/README.md)."""
    model, parallel = vllm_config.model_config, vllm_config.parallel_config
    said: dict[str, Any] = json.loads(json.dumps(model.hf_config.to_dict(), default=str))
    said["pipeline_parallel_size"] = parallel.pipeline_parallel_size
    with suppress(AttributeError):
        if model.quantization is not None:
            said["quantization"] = model.quantization
    return said | dict(sluice_config(vllm_config).get("host", {}))
