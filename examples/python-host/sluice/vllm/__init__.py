"""Sluice as a weight transfer backend of vLLM, called "sluice", for its workers and for trainers that it serves.

`register` is vLLM's general plugin (an entry point of this package), which vLLM calls in each of its processes; a trainer calls
it itself. Importing this package imports no vLLM.
"""

from __future__ import annotations

import functools

BACKEND = "sluice"


@functools.cache
def register() -> None:
    """Makes the backend known to vLLM's two factories, in this process; the classes are imported when they are used."""
    from vllm.distributed.weight_transfer import WeightTransferEngineFactory, WeightTransferTrainerFactory

    WeightTransferEngineFactory.register_engine(BACKEND, "sluice.vllm.worker", "SluiceWeightTransferEngine")
    WeightTransferTrainerFactory.register_engine(BACKEND, "sluice.vllm.trainer", "SluiceTrainerWeightTransferEngine")
