#!/usr/bin/env python3
"""Models of Hugging Face's transformers train on GPUs and are served on GPUs, and both compute the same after each update.

    SLUICE_LIBRARY=build/libsluice.so python3 examples/python-host/gpu_check.py [--cases llama,qwen3_moe,...] [--steps 3]

Weights are random bfloat16. Of the GPUs that there are, trainers take the first and servers the next ones. The cases:

    llama, qwen2, qwen3, qwen3_moe  one trainer, one server, each with the whole model: logits are the same bits
    tp                              a Llama by two trainers with FSDP2, served by two with tensor parallelism: shards are the
                                    same bytes, logits close, since row-parallel layers add up in two parts. Ranks that share
                                    a GPU talk by gloo, which PyTorch 2.11 has no gathering DTensors for: none is gathered

No rank waits for its GPU around an update: trainers call it while a long kernel is queued before the optimizer's step,
servers while their old logits are still to be computed; Sluice orders all that on the stream that it was given. Updates
after the first are replays of a recording; the last one of a single server goes through load_weights. Ends with status 1
where anything differs. Needs PyTorch and transformers; with --device cpu no GPU, on the host transport.
"""

from __future__ import annotations

import argparse
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import transformers
from processes import CONTEXT, device_of, gathered, join, keep_busy, leave, local, run
from sluice import Mesh, names
from sluice.torch import Engine, WeightSource
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from transformers import AutoModelForCausalLM

SIZE = {
    "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 3, "num_attention_heads": 8, "num_key_value_heads": 2,
    "head_dim": 32, "vocab_size": 1000, "max_position_embeddings": 64,
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {}),
    "qwen2": ("Qwen2Config", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3Config", {}),
    "qwen3_moe": ("Qwen3MoeConfig", {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 128}),
    "tp": ("LlamaConfig", {}),
}
CLOSE = 0.02  # of the largest logit: bfloat16 has 8 bits, and parts of sums are rounded before they are added
IDS = torch.arange(48).reshape(2, 24) * 37 % SIZE["vocab_size"]
PRELOAD = ["torch.distributed.fsdp", "torch.distributed.tensor.parallel", "transformers.modeling_utils"]
WHOLE = 'return { name = "whole", rules = { rule "**" { full = "the server loads all of it" } } }'


@dataclass(frozen=True)
class Rank:
    """What a process is told. `number` is the rank in Sluice, `role` what its process group is called."""

    case: str
    device: str
    steps: int
    folder: Path
    number: int
    role: str
    at: int  # in its role
    size: int  # of its role
    told: list[SimpleQueue[Any]]  # a server's own, or a trainer's all

    @property
    def gpu(self) -> torch.device:
        return device_of(self.device, self.number)

    @property
    def on_gpu(self) -> bool:
        return self.device == "cuda"

    def engine(self, **options: Any) -> Engine:
        if self.on_gpu:
            options |= {"transport": "nccl", "stream": torch.cuda.current_stream()}
        return Engine(self.number, timeout_s=60, **options)

    def model(self, seed: int) -> torch.nn.Module:
        torch.manual_seed(seed)
        config, more = MODELS[self.case]
        made = getattr(transformers, config)(**SIZE | more)
        model: torch.nn.Module = AutoModelForCausalLM.from_config(made, dtype=torch.bfloat16, attn_implementation="eager")
        return model.to(self.gpu)

    def mesh(self, name: str) -> DeviceMesh:
        return init_device_mesh(self.device, (self.size,), mesh_dim_names=(name,))

    def say(self, text: str) -> None:
        print(f"{self.case}: {text}", flush=True)


@contextmanager
def joined(rank: Rank) -> Iterator[None]:
    """On its GPU, and with the ranks of its role."""
    join(rank.folder / f"{rank.case}-{rank.role}", rank.at, rank.size, rank.gpu)
    yield
    leave()


def logits(model: torch.nn.Module, ids: Tensor) -> Tensor:
    with torch.no_grad():
        out: Tensor = model(ids, use_cache=False).logits
    return out


def mine(whole: Tensor, tensor: Tensor) -> Tensor:
    """The part of `whole` that this rank should hold in `tensor`."""
    if not isinstance(tensor, DTensor) or tensor.placements[0].is_replicate():
        return whole
    return whole.chunk(tensor.device_mesh.size(), tensor.placements[0].dim)[tensor.device_mesh.get_local_rank()]


def update(engine: Engine, version: str, weights: tuple[str, ...], recording: int) -> None:
    with engine.updating(version):
        engine.replay(recording) if recording else engine.update(weights)


# ---- ranks that train ----


def train(rank: Rank) -> None:
    with joined(rank):
        model = rank.model(seed=1)
        if rank.size > 1:
            mesh = rank.mesh("fsdp")
            for layer in model.model.layers:
                fully_shard(layer, mesh=mesh)
            fully_shard(model, mesh=mesh)
            model.set_force_sum_reduction_for_comms(True)  # gloo takes no average of GPUs' tensors
        source = WeightSource(model)
        listener = socket.create_server(("127.0.0.1", 0)) if rank.at == 0 else None
        box = [source.init_info(Mesh(("tp", len(rank.told))), *listener.getsockname()) if listener else ""]
        if rank.size > 1:
            dist.broadcast_object_list(box)
        if rank.at == 0:
            for queue in rank.told:
                queue.put(box[0])
        with rank.engine(listen_fd=listener.detach() if listener else -1) as engine:
            source.register(engine)
            engine.init(box[0])
            steps(rank, model, source, engine)


def steps(rank: Rank, model: torch.nn.Module, source: WeightSource, engine: Engine) -> None:
    optimizer, recording, ids = torch.optim.AdamW(model.parameters(), lr=0.01), 0, IDS.to(rank.gpu)
    for step in range(1, rank.steps + 1):
        optimizer.zero_grad()
        out = model(ids, use_cache=False).logits[:, :-1].flatten(0, 1)
        torch.nn.functional.cross_entropy(out.float(), ids[:, 1:].flatten()).backward()
        keep_busy(rank.gpu)
        optimizer.step()
        if step == rank.steps and rank.size == 1:
            engine.reload_rules(None)  # the server's, from here on
            recording = 0
        update(engine, f"step-{step}", source.names, recording)
        recording = recording or engine.record(source.names)
        answer = (logits(model, ids).cpu(), {name: gathered(tensor) for name, tensor in model.state_dict().items()})
        if rank.at == 0:
            torch.save(answer, rank.folder / f"{rank.case}-{step}.pt")
            for queue in rank.told:
                queue.put(step)


# ---- ranks that serve ----


def serve(rank: Rank) -> None:
    with joined(rank):
        if rank.on_gpu:
            torch.cuda.set_stream(torch.cuda.Stream(rank.gpu))
        model = rank.model(seed=2)
        if rank.size > 1:
            cut(model, rank.mesh("tp"))

        @torch.no_grad()
        def load_weights(weights: Any) -> None:
            held = model.state_dict()
            for name, tensor in weights:
                held[name].copy_(tensor)

        with rank.engine(load_weights=load_weights) as engine:
            engine.register_module(model)
            info = rank.told[0].get()
            engine.init(info)
            take(rank, model, engine, names(info))


def take(rank: Rank, model: torch.nn.Module, engine: Engine, weights: tuple[str, ...]) -> None:
    before: Tensor | None = None
    recording, ids = 0, IDS.to(rank.gpu)
    for step in range(1, rank.steps + 1):
        if step == rank.steps and rank.size == 1:
            (rank.folder / "whole.lua").write_text(WHOLE)
            engine.reload_rules(rank.folder / "whole.lua")
            recording = 0
        keep_busy(rank.gpu)
        old = logits(model, ids)
        update(engine, f"step-{step}", weights, recording)
        new = logits(model, ids)
        recording = recording or engine.record(weights)
        assert rank.told[0].get() == step
        wanted, state = torch.load(rank.folder / f"{rank.case}-{step}.pt")
        if before is not None and not alike(rank, old, before):
            raise SystemExit(f"{rank.case}: what was queued before step-{step} computed with other weights than those before it")
        if not alike(rank, new, wanted):
            raise SystemExit(f"{rank.case}: step-{step}: logits differ by {(new.cpu() - wanted).abs().max():.2e}")
        for name, tensor in model.state_dict().items():
            if not torch.equal(local(tensor), mine(state[name], tensor)):
                raise SystemExit(f"{rank.case}: step-{step}: {name} differs")
        before = wanted
        if rank.at == 0:
            plan = engine.plan()
            counts = f"{plan['direct']['parameters']} parameters in place, {plan['full']['parameters']} through load_weights"
            off = (new.cpu() - wanted).abs().max() / wanted.abs().max()
            rank.say(f"step-{step}: {counts}, all the same bytes, logits " + (f"{off:.1e} off" if off else "the same bits"))


def alike(rank: Rank, found: Tensor, wanted: Tensor) -> bool:
    """One kernel on one shape gives one result; tensor parallelism has other shapes and adds up in another order."""
    found = found.cpu()
    if not found.isfinite().all():
        return False
    return torch.equal(found, wanted) if rank.size == 1 else bool((found - wanted).abs().max() <= CLOSE * wanted.abs().max())


def cut(model: torch.nn.Module, mesh: DeviceMesh) -> None:
    columns = {name: ColwiseParallel() for name in ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")}
    rows = {name: RowwiseParallel() for name in ("o_proj", "down_proj")}
    for layer in model.model.layers:
        for part in (layer.self_attn, layer.mlp):
            parallelize_module(part, mesh, {name: style for name, style in (columns | rows).items() if hasattr(part, name)})


# ---- the command line ----


def check(case: str, device: str, steps: int) -> None:
    size = 2 if case == "tp" else 1
    with tempfile.TemporaryDirectory() as name:
        told = [CONTEXT.SimpleQueue() for _ in range(size)]
        first = Rank(case, device, steps, Path(name), 0, "trainers", 0, size, told)
        trainers = [replace(first, number=at, at=at) for at in range(size)]
        servers = [replace(first, number=size + at, role="servers", at=at, told=[told[at]]) for at in range(size)]
        run(PRELOAD, [(train, (rank,)) for rank in trainers] + [(serve, (rank,)) for rank in servers])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join(MODELS))
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    options = parser.parse_args()
    if unknown := set(options.cases.split(",")) - set(MODELS):
        parser.error(f"unknown cases: {', '.join(sorted(unknown))}; there are {', '.join(MODELS)}")
    if options.device == "cuda" and not torch.cuda.is_available():
        sys.exit("gpu_check: PyTorch sees no GPU here; --device cpu runs it on processors")
    for case in options.cases.split(","):
        check(case, options.device, options.steps)


if __name__ == "__main__":
    main()
