#!/usr/bin/env python3
"""vLLM's own models on the CPU: what Sluice puts in place is, byte for byte, what vLLM's load_weights makes of the checkpoint.

    VLLM_TARGET_DEVICE=cpu PYTHONPATH=examples/python-host:examples/vllm-host:build/vllm SLUICE_LIBRARY=build/libsluice.so \\
        build/torch/bin/python examples/vllm-host/models_check.py [FAMILY ...]

A model of Hugging Face's transformers with random weights is the trainer; vLLM makes the same model from the same config, twice:
one is updated by the backend with the family's rules, one loads the checkpoint that the trainer saves. Nothing is computed with them: that
wants vLLM's extension modules. Ends with status 1 where anything differs.
"""

from __future__ import annotations

import socket
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file
from sluice.torch import WeightSource
from sluice.vllm import register
from sluice.vllm.trainer import SluiceTrainerInitInfo
from sluice.vllm.worker import COMPUTED
from standin import Direct, Worker
from vllm.config import DeviceConfig, ModelConfig, VllmConfig, WeightTransferConfig, set_current_vllm_config
from vllm.distributed import destroy_model_parallel, ensure_model_parallel_initialized, init_distributed_environment
from vllm.distributed.weight_transfer import WeightTransferTrainerFactory
from vllm.model_executor.model_loader.utils import initialize_model

SIZE = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 16, "vocab_size": 200, "max_position_embeddings": 64, "tie_word_embeddings": False,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
LATENT = {
    "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_shared_experts": 1, "n_group": 2,
    "topk_group": 1, "first_k_dense_replace": 1, "q_lora_rank": 32, "kv_lora_rank": 16, "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8, "v_head_dim": 16, "num_key_value_heads": 4, "head_dim": 8, "num_nextn_predict_layers": 0,
    "topk_method": "noaux_tc",
}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {}),
    "mistral": ("MistralConfig", {}),
    "qwen2": ("Qwen2Config", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3Config", {}),
    "gemma2": ("Gemma2Config", {"tie_word_embeddings": True}),
    "gemma3": ("Gemma3TextConfig", {"tie_word_embeddings": True}),
    "phi3": ("Phi3Config", {"pad_token_id": 0}),
    "qwen3_moe": ("Qwen3MoeConfig", EXPERTS),
    "mixtral": ("MixtralConfig", {"num_local_experts": 4}),
    "deepseek_v3": ("DeepseekV3Config", LATENT),
}


def check(family: str, folder: Path) -> str:
    name, more = FAMILIES[family]
    config = getattr(transformers, name)(**SIZE | more)
    torch.manual_seed(0)
    trained = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    for key, tensor in trained.named_buffers():
        if key.endswith("e_score_correction_bias"):  # float32 in every checkpoint
            tensor.data = torch.randn(tensor.shape, dtype=torch.float32)
    trained.save_pretrained(folder)  # by the names that checkpoints have, which a module's need not be
    vllm_config = VllmConfig(
        model_config=ModelConfig(
            model=str(folder), tokenizer=str(folder), skip_tokenizer_init=True, dtype="bfloat16", enforce_eager=True
        ),
        device_config=DeviceConfig(device="cpu"),
        weight_transfer_config=WeightTransferConfig(backend="sluice"),
        additional_config={"sluice": {"rules": family}},
    )
    with set_current_vllm_config(vllm_config):
        ensure_model_parallel_initialized(1, 1)
        served = initialize_model(vllm_config)
        vllm_config.compilation_config.static_forward_context.clear()  # so that layers may have the same names again
        loaded = initialize_model(vllm_config)
        for model in (served, loaded):
            for key, tensor in of_checkpoints(model):
                tensor.zero_()
        loaded.load_weights(iter(load_file(folder / "model.safetensors").items()))

        listener = socket.create_server(("127.0.0.1", 0))
        address, port = listener.getsockname()
        info = SluiceTrainerInitInfo(rank=0, master_address=address, master_port=port, world_size=2, listen_socket=listener)
        worker = Worker(vllm_config, served)
        trainer: Any = WeightTransferTrainerFactory.trainer_init(info, client=Direct(worker), source=WeightSource(trained))
        trainer.send_weights("step-1")
        assert worker.transfer.engine is not None
        plan = worker.transfer.engine.plan()
        trainer.shutdown()
        destroy_model_parallel()
    wanted = loaded.state_dict()
    for key, tensor in of_checkpoints(served):
        if not torch.equal(tensor.view(-1).view(torch.uint8), wanted[key].view(-1).view(torch.uint8)):
            raise AssertionError(f"{family}: {key} differs")
    return f"{plan['direct']['parameters']} parameters in place, {plan['full']['parameters']} through load_weights, all the same bytes"


def of_checkpoints(model: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    return [(key, tensor) for key, tensor in model.state_dict().items() if not COMPUTED.search(key)]


def main() -> None:
    families = sys.argv[1:] or list(FAMILIES)
    if unknown := set(families) - FAMILIES.keys():
        sys.exit(f"models_check: unknown families {', '.join(sorted(unknown))}; there are {', '.join(FAMILIES)}")
    register()
    torch.set_default_dtype(torch.bfloat16)
    failed = False
    with tempfile.TemporaryDirectory() as name:
        init_distributed_environment(1, 0, f"file://{name}/group", 0, "gloo")
        for family in families:
            try:
                print(f"{family}: {check(family, Path(name, family))}", flush=True)
            except Exception as raised:
                failed = True
                print(f"{family}: {type(raised).__name__}: {raised}", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
