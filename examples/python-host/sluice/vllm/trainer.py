"""A trainer's side: what vLLM's trainer factory makes for `SluiceTrainerInitInfo`, on every trainer rank.

Rank 0 tells the workers, by vLLM's client, what all ranks then do together. Shards go from where they lie; nothing is gathered
unless the source's iter_local gathers.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import torch
from vllm.distributed.weight_transfer import Shard as VllmShard
from vllm.distributed.weight_transfer.base import (
    ParamMeta, TrainerInitInfo, TrainerWeightTransferEngine, VLLMWeightSyncClient, WeightSource,
)

from ..control import Client
from ..control.beside import begun
from ..engine import SluiceError, Status
from ..init_info import Mesh, Param, Shard, init_info
from ..torch import Engine
from ..torch import WeightSource as PlacedSource
from ..torch.placements import Axis, grid_axes, place
from ..torch.source import give
from ..torch.tensors import dtype_name
from . import BACKEND
from .updates import Updates, following, join


GRACE_S = 3.0  # between the failure of a call to the workers and the end of what waits for them, and the other way round


@dataclass(kw_only=True)
class SluiceTrainerInitInfo(TrainerInitInfo):
    """
    rank           of this trainer, which is also its rank in Sluice
    world_size     trainers and all workers
    workers        the workers' mesh by named axes, in the order of their ranks; None: one axis, tp
    listen_socket  rank 0 only: listens at the address already; the engine takes it over
    options        of sluice.torch.Engine, as key_file and timeout_s; without any, memory of this machine's processes
    """

    backend: ClassVar[str] = BACKEND

    master_address: str
    master_port: int
    world_size: int
    num_trainer_ranks: int = 1
    workers: tuple[tuple[str, int], ...] | None = None
    listen_socket: socket.socket | None = field(default=None, repr=False, compare=False)
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def mesh(self) -> Mesh:
        return Mesh(*(self.workers or (("tp", self.world_size - self.num_trainer_ranks),)))


class SluiceTrainerWeightTransferEngine(TrainerWeightTransferEngine[SluiceTrainerInitInfo]):
    """
    source  one of vLLM's whose iter_local gives shards as its metadata says, or a sluice.torch.WeightSource, which also reads
            placements that vLLM has no words for: FSDP2 over tensor parallelism, pipeline stages, experts
    client  vLLM's, or a SyncClient
    """

    init_info_cls = SluiceTrainerInitInfo

    def __init__(
        self,
        *,
        client: VLLMWeightSyncClient,
        source: WeightSource | PlacedSource,
        is_sender: bool = True,
        rank: int = 0,
        engine: Engine,
    ) -> None:
        super().__init__(client=client, source=source, is_sender=is_sender, rank=rank)  # type: ignore[arg-type]
        self.engine = engine
        self._updates = Updates(engine)
        self._names: list[str] = []
        self._held: list[str] | None = None  # of these, by this rank
        self._turn = threading.Lock()

    @classmethod
    def trainer_init(
        cls,
        init_info: SluiceTrainerInitInfo,
        *,
        client: VLLMWeightSyncClient,
        source: WeightSource | PlacedSource | None = None,
    ) -> Self:
        if source is None:
            raise ValueError("weight transfer by sluice needs a source")
        listener = init_info.listen_socket
        options: dict[str, Any] = dict(init_info.options)
        if listener is not None:
            options["listen_fd"] = listener.fileno()
        engine = Engine(init_info.rank, **options)
        if listener is not None:  # the engine's from here on
            init_info.listen_socket = None
            listener.detach()
        made = cls(client=client, source=source, is_sender=init_info.is_sender, rank=init_info.rank, engine=engine)
        try:
            made._init(init_info)
        except BaseException:
            made.shutdown()
            raise
        return made

    def _init(self, given: SluiceTrainerInitInfo) -> None:
        params = params_of(self.source, given.num_trainer_ranks)
        self._names = [param.name for param in params]
        info = init_info(params, given.mesh, given.master_address, given.master_port)
        with self._telling(self.client.init_weight_transfer_engine, json.loads(info)):
            join(self.engine, self._register, info)

    def send_weights(self, version: str | None = None) -> None:
        """One update, on every trainer rank. `version` is the same on all; without it the label is update-1, update-2, ... Shards
        are read when what the caller's current stream has queued is done."""
        if not self._turn.acquire(blocking=False):
            raise RuntimeError("send_weights is under way on another thread")
        try:
            self._send(version or following(self.engine.version))
        finally:
            self._turn.release()

    def _send(self, label: str) -> None:
        self._updates.start()
        try:
            if self.is_sender:
                self.client.start_weight_update()
            self._register()
            self._wait()
            with self._telling(self.client.update_weights, {"names": self._names, "version": label}):
                self._updates.move(self._names)
            self._updates.name(label)
            with self._telling(self.client.finish_weight_update, label):
                self._updates.finish()
        except BaseException:
            with suppress(SluiceError):
                self._updates.give_up()
            if self.is_sender:  # the workers' session ends with finish, or with a batch that fails, as this one does
                wait([begun(self.client.update_weights, {"names": []})], GRACE_S)
            raise

    def shutdown(self) -> None:
        self.engine.close()

    def _register(self) -> None:
        if isinstance(self.source, PlacedSource):
            self.source.register(self.engine)
            return
        give(self.engine, self._shards(self.source))

    def _shards(self, source: WeightSource) -> Iterator[tuple[str, torch.Tensor]]:
        """Each of this rank's parameters once: one that did not come would go with the values that it had the time before."""
        mine = self._names if self._held is None else self._held
        left = dict.fromkeys(mine)
        for name, tensor in source.iter_local():
            if name not in left:
                wrong = "twice" if name in mine else "and this rank was to have none of it"
                raise ValueError(f"parameter {name}: iter_local gave it {wrong}")
            del left[name]
            yield name, tensor
        if self._held is None:
            self._held = [name for name in self._names if name not in left]  # init refuses where one has not come
        elif left:
            raise ValueError(f"parameter {next(iter(left))}: iter_local gave it at init and does not give it now")

    def _wait(self) -> None:
        for device in self.engine.devices:
            if device.type != "cpu":
                torch.accelerator.current_stream(device).synchronize()

    @contextmanager
    def _telling(self, call: Callable[..., None], *given: Any) -> Iterator[None]:
        """Rank 0 tells the workers beside what the block does with them. Where that fails, Sluice's own word of it, which names a
        rank, comes first; where none comes, since a worker never took part, the block is ended."""
        if not self.is_sender:
            yield
            return
        ended = threading.Event()
        broken: list[BaseException] = []

        def tell() -> None:
            try:
                call(*given)
            except BaseException as raised:
                if not ended.wait(GRACE_S):
                    broken.append(raised)
                    self.engine.cancel()
                raise

        said = begun(tell)
        try:
            yield
        except SluiceError as error:
            if error.status is Status.CANCELLED and broken:
                raise broken[0] from error
            raise
        finally:
            ended.set()
            wait([said], GRACE_S)  # the workers' session ends with it, also where it failed
        said.result()


def params_of(source: Any, trainers: int) -> tuple[Param, ...]:
    if isinstance(source, PlacedSource):
        return source.params
    if not source.implements_iter_local():
        raise TypeError(f"{type(source).__name__} has no iter_local(), which gives each rank's own shards")
    return tuple(param_of(meta, trainers) for meta in source.metadata)


def param_of(meta: ParamMeta, trainers: int) -> Param:
    """vLLM's owners, mesh and placements in Sluice's words: a parameter is pinned to its owners where they are not all."""
    owners = meta.owners if meta.owners is not None else tuple(range(trainers))
    shape = meta.mesh_shape or (len(owners),)
    axes: tuple[Axis, ...] = ()
    try:
        if meta.placements is not None:
            names = [f"axis{at}" for at in range(len(shape))]
            axes = grid_axes(owners, shape, names, f"mesh {list(shape)} of ranks {list(owners)}")
        mesh, pins = place([axis for axis in axes if axis.size > 1], sorted(owners), trainers)
    except ValueError as error:
        raise ValueError(f"parameter {meta.name}: {error}") from error
    cuts = zip(axes, meta.placements or ())
    shards = tuple(Shard(axis.name, cut.dim) for axis, cut in cuts if isinstance(cut, VllmShard) and axis.size > 1)
    return Param(meta.name, dtype_name(meta.dtype), meta.shape, mesh, (*pins, *shards))


class SyncClient:
    """vLLM's client protocol over Sluice's own control plane, whose servers are told the label with finish."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self._client.init(init_info)

    def start_weight_update(self) -> None:
        self._client.start()

    def update_weights(self, update_info: Any) -> None:
        self._client.update(update_info["names"])

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self._client.finish(weight_version or "")

    def shutdown_weight_transfer_engine(self) -> None:
        self._client.shutdown()
