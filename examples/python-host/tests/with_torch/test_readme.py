"""The two functions of README.md, as they stand there."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path
from typing import Any

import torch
from models import Config, ServedModel, TrainedModel
from world import held_port

README = Path(__file__).resolve().parents[2] / "README.md"


def test_what_the_readme_trains_is_what_it_serves() -> None:
    functions: dict[str, Any] = {}
    for block in re.findall(r"^```python\n(.*?)^```", README.read_text(), re.M | re.S):
        exec(compile(block, str(README), "exec"), functions)
    config = Config()
    trained, served = TrainedModel(config), ServedModel(config)
    told: list[str] = []
    ready = threading.Event()

    def tell(info: str) -> None:
        told.append(info)
        ready.set()

    batches = [torch.arange(8).reshape(1, 8), torch.arange(8, 16).reshape(1, 8)]
    optimizer = torch.optim.AdamW(trained.parameters())
    with held_port() as port:
        trainer = threading.Thread(target=functions["train"], args=(trained, optimizer, batches, "127.0.0.1", port, tell))
        trainer.start()
        assert ready.wait(30) and json.loads(told[0])["world_size"] == 2
        functions["serve"](served, config.to_dict(), 1, told[0], ["step-0", "step-1"], rules="llama")
        trainer.join(30)
    expected = ServedModel(config)
    expected.load_weights(trained.state_dict().items())
    for name, tensor in served.state_dict().items():
        assert torch.equal(tensor, expected.state_dict()[name]), name
