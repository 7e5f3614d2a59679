"""The engine without PyTorch: moving, callbacks and their exceptions, threads, lifetimes."""

from __future__ import annotations

import array
import gc
import logging
import os
import random
import signal
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sluice import Engine, Memory, Progress, SluiceError, State, Status, Weights
from sluice.interrupts import holding, letting
from world import REPLICATED, Plain, World, floats, held_port, values


def test_moves_a_tensor_in_place_and_tells_its_version() -> None:
    with World() as world:
        source, live = floats(1, 2, 3), floats(0, 0, 0)
        world.announce(w=source)
        world.worker.register_live("w", live, REPLICATED)
        world.init()
        assert world.update() == ["step-1", "step-1"]
        assert values(live) == [1, 2, 3]
        source.view().cast("f")[1] = 7
        assert world.update("step-2") == ["step-2", "step-2"]
        assert values(live) == [1, 7, 3]

        def replay(engine: Plain) -> None:
            recording = engine.record(world.names)
            for value in (4, 5):
                source.view().cast("f")[2] = value
                with engine.updating(f"step-{value}"):
                    engine.replay(recording)
            engine.forget_recording(recording)

        assert world.both(replay) == [None, None]
        assert values(live) == [1, 7, 5] and world.trainer.version == "step-5"
        assert world.worker.plan()["direct"] == {"parameters": 1, "bytes": 12}
        assert "replicated" in str(world.worker.explain("w"))


def test_writes_into_strides(tmp_path: Path) -> None:
    rules = tmp_path / "same.lua"
    rules.write_text('return { name = "same", rules = { rule "w" {} } }')
    held = array.array("f", [0] * 12)
    whole = Memory.of(held, "float32", (12,))
    with World(rules=rules) as world:
        world.announce(w=Memory.of(array.array("f", range(6)), "float32", (3, 2)))
        world.worker.register_live("w", Memory(whole.address, "float32", (3, 2), 24, strides=(4, 2), owner=whole))
        world.init()
        assert world.update() == ["step-1", "step-1"]
    assert held.tolist() == [0, 0, 1, 0, 2, 0, 3, 0, 4, 0, 5, 0]


def test_a_buffer_of_another_size_is_refused_and_what_is_no_memory() -> None:
    for dtype, size in (("float32", 4), ("bfloat16", 2), ("float8_e4m3fn", 1), ("float4_e2m1fn_x2", 1), ("bool", 1), ("int64", 8)):
        assert Memory.of(bytearray(6 * size), dtype, (3, 2)).nbytes == 6 * size
        with pytest.raises(ValueError) as refused:
            Memory.of(bytearray(6 * size - 1), dtype, (3, 2))
        assert str(refused.value) == f"a {dtype} tensor of shape (3, 2) has {6 * size} bytes; the buffer has {6 * size - 1}"
    with pytest.raises(ValueError, match=r"^dtype \(torch\.int8\) must be a torch name without prefix, as int8$"):
        Memory.of(bytearray(6), "torch.int8", (6,))
    with Engine[Any](0) as engine, pytest.raises(TypeError) as wrong:
        engine.register_live("w", bytearray(4))
    assert str(wrong.value) == (
        "a tensor is sluice.Memory.of(buffer, dtype, shape) here, not bytearray; sluice.torch.Engine takes PyTorch's"
    )


def test_a_source_that_is_not_contiguous_is_refused() -> None:
    with Engine[Memory](0) as engine:
        memory = floats(1, 2, 3, 4)
        turned = Memory(memory.address, "float32", (2, 2), 16, strides=(1, 2), owner=memory)
        with pytest.raises(ValueError, match=r"source 'w' must be contiguous; its shape is \(2, 2\), its strides are \(1, 2\)"):
            engine.register_source("w", turned)


def test_an_error_carries_its_status_rank_and_stage() -> None:
    with World() as world:
        world.announce(w=floats(1))
        with pytest.raises(SluiceError) as refused:
            world.worker.register_live("w", Memory(8, "float33", (1,), 4))
        assert refused.value.status is Status.INVALID
        answers = world.both(lambda engine: engine.init(world.info))
        assert [(answer.status, answer.rank, answer.stage) for answer in answers] == [(Status.INVALID, 1, "source")] * 2
        assert "float33" in str(answers[0]) and str(answers[0]) == str(answers[1])
        assert world.worker.state is State.NEW


def test_load_weights_pulls_full_tensors_in_the_order_asked() -> None:
    seen: list[tuple[str, str, tuple[int, ...], list[float]]] = []
    held: list[Weights[Memory]] = []
    calls: list[str] = []

    def load_weights(weights: Weights[Memory]) -> None:
        for name, memory in weights:
            seen.append((name, memory.dtype, memory.shape, values(memory)))
        held.append(weights)

    hooks = {"reload_begin": lambda: calls.append("begin"), "reload_end": lambda: calls.append("end")}
    with World(load_weights=load_weights, **hooks) as world:
        world.announce(a=floats(1, 2), b=floats(3), c=floats(4, 5))
        world.names.reverse()
        world.init()
        assert world.update() == ["step-1", "step-1"]
        assert seen == [("c", "float32", (2,), [4, 5]), ("b", "float32", (1,), [3]), ("a", "float32", (2,), [1, 2])]
        assert calls == ["begin", "end"]
        with pytest.raises(RuntimeError, match="weights can only be used within load_weights"):
            next(held[0])


def test_a_tensor_that_is_kept_stays_as_it_is_until_it_is_released() -> None:
    seen: list[Any] = []

    def load_weights(weights: Weights[Memory]) -> None:
        first = next(weights)
        weights.keep("a")
        with pytest.raises(ValueError, match="keep wants the tensor that was pulled last \\('a'\\), not 'b'"):
            weights.keep("b")
        second = next(weights)
        with pytest.raises(SluiceError, match="1 of 2 staging slots are kept; release one"):
            weights.keep("b")
        seen.append((values(first[1]), values(second[1])))
        weights.release("a")
        seen.extend((name, values(memory)) for name, memory in weights)

    with World(load_weights=load_weights) as world:
        world.announce(a=floats(1), b=floats(2), c=floats(3), d=floats(4))
        world.init()
        assert world.update() == ["step-1", "step-1"]
        assert seen == [([1], [2]), ("c", [3]), ("d", [4])]


def test_an_exception_of_a_callback_is_every_ranks_error_with_its_text() -> None:
    mine = LookupError("no head for caf\u00e9")

    def load_weights(weights: Weights[Memory]) -> None:
        raise mine

    with World(load_weights=load_weights) as world:
        world.announce(w=floats(1))
        world.init()
        told, own = world.update()
        assert (own.status, own.__cause__) == (Status.CALLBACK, mine)
        assert str(own) == "update: load_weights failed: LookupError: no head for caf\u00e9"
        assert told.status is Status.PEER and told.rank == 1
        assert "load_weights failed: LookupError: no head for caf\u00e9" in str(told)
        assert world.trainer.state is world.worker.state is State.FAILED
        assert world.worker.failure() == {"complete": [], "torn": ["w"], "untouched": []}
        world.both(lambda engine: engine.shutdown())
        assert world.worker.version == "dirty"


def test_what_ends_a_program_passes_through_a_callback() -> None:
    def reload_begin() -> None:
        raise KeyboardInterrupt

    with World(reload_begin=reload_begin, load_weights=lambda weights: None) as world:
        world.announce(w=floats(1))
        world.init()
        told, own = world.update()
        assert isinstance(own, KeyboardInterrupt) and isinstance(own.__cause__, SluiceError)
        assert "reload_begin failed: KeyboardInterrupt" in str(told)


def test_what_ends_a_program_passes_through_progress_and_cancels_the_engine() -> None:
    def progress(now: Progress) -> None:
        raise KeyboardInterrupt

    with World(progress=progress) as world:
        world.announce(w=floats(1))
        world.worker.register_live("w", floats(0), REPLICATED)
        world.init()
        told, own = world.update()
        assert isinstance(own, KeyboardInterrupt) and isinstance(told, SluiceError)
        with pytest.raises(SluiceError) as later:
            world.worker.start_update()
        assert later.value.status in (Status.CANCELLED, Status.STATE)


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Python's own handler, which a process that a shell began in the background has not."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_ends_a_call_that_waits(ctrl_c: None) -> None:
    with World() as world, Engine[Memory](0, timeout_s=60) as lonely, held_port() as port:
        world.announce(w=floats(1))
        info = world.info.replace(str(world.port), str(port))
        lonely.register_source("w", floats(1))
        for _ in range(2):
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
            with pytest.raises(KeyboardInterrupt):
                lonely.init(info)
            lonely.shutdown()


def test_ctrl_c_is_raised_once_and_by_whoever_it_is_raised_for(ctrl_c: None) -> None:
    """Where it came within a callback's own steps, ctypes would drop it, and a hook would count as done."""
    steps: list[str] = []

    def interrupt() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        steps.append("goes on")

    with pytest.raises(KeyboardInterrupt):
        holding(interrupt)
    assert steps == ["goes on"]
    assert holding(lambda: [type(letting(interrupt)), letting(lambda: None)]) == [KeyboardInterrupt, None] and steps == ["goes on"]
    assert type(letting(lambda: holding(interrupt))) is KeyboardInterrupt and steps == ["goes on"] * 2
    assert holding(lambda: type(letting(lambda: holding(interrupt)))) is KeyboardInterrupt and steps == ["goes on"] * 3
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler and signal.set_wakeup_fd(-1) == -1


def test_ctrl_c_at_any_moment_ends_a_call_or_comes_after_it(ctrl_c: None) -> None:
    seed = int(os.environ.get("SLUICE_SEED", time.time_ns() % 1000))
    moments = random.Random(seed)
    for _ in range(20):
        loaded: list[str] = []
        with World(load_weights=lambda weights: loaded.extend(name for name, _ in weights)) as world:
            world.announce(w=floats(1))

            def run(engine: Plain) -> None:
                engine.init(world.info)
                with engine.updating("v"):
                    engine.update(["w"])

            other = threading.Thread(target=lambda: world.both(run, lambda _: None))
            other.start()
            timer = threading.Timer(moments.uniform(0, 0.04), os.kill, (os.getpid(), signal.SIGINT))
            try:
                timer.start()
                run(world.worker)
                timer.join()
                signal.getsignal(signal.SIGINT)  # a step, in which Python comes to it
            except KeyboardInterrupt:
                pass
            else:
                pytest.fail(f"seed {seed}: Ctrl-C was lost")
            assert world.worker.version != "v" or loaded == ["w"], f"seed {seed}"
            world.worker.shutdown()
            timer.join()
            other.join()


def test_names_and_labels_that_c_cannot_be_told_are_refused_and_every_rank_hears_it() -> None:
    with World() as world:
        world.announce(w=floats(1))
        world.worker.register_live("w", floats(0), REPLICATED)
        world.init()
        world.both(lambda engine: engine.start_update())
        for name in ("a\0b", "a\ud800b"):
            own, told = world.both(lambda engine: engine.update([name]), lambda engine: engine.update(["w"]))
            assert own.status is Status.INVALID and "was not announced at init" in str(own)
            assert str(told) == str(own).replace("update: ", "update: refused: rank 0: ")
        assert world.both(lambda engine: engine.update(["w"])) == [None, None]
        own, told = world.both(lambda engine: engine.finish_update("a\0b"), lambda engine: engine.finish_update("v"))
        assert own.status is Status.INVALID and str(told) == str(own).replace("finish: ", "finish: refused: rank 0: ")
        assert world.both(lambda engine: engine.finish_update("v")) == [None, None]


def test_cancel_from_another_thread_ends_a_call() -> None:
    with World() as world:
        world.announce(w=floats(1))
        threading.Timer(0.2, world.worker.cancel).start()
        with pytest.raises(SluiceError) as ended:
            world.worker.init(world.info)
        assert ended.value.status is Status.CANCELLED


def test_calls_of_two_threads_at_once_are_refused_and_change_nothing() -> None:
    engine: Plain = Engine(0)
    within = "within another call of the same engine: a callback must not make it, nor a second thread"

    def use(number: int) -> tuple[int, list[str]]:
        good, told = 0, []
        for index in range(400):
            try:
                engine.register_live(f"{number}.{index}", floats(1), REPLICATED)
                good += 1
                engine.describe_host({"hidden": index})
                engine.allocate(64)
                engine.explain("*")
            except SluiceError as error:
                told.append(str(error))
        return good, told

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(use, range(4)))
    assert sum(good for good, _ in found) > 0
    assert {text for _, told in found for text in told if within not in text} <= {
        "explain: there is a plan only between init and shutdown; the engine is new"
    }
    engine.close()


def test_a_block_that_fails_gives_the_update_up_on_every_rank() -> None:
    with World() as world:
        world.announce(w=floats(1))
        world.worker.register_live("w", floats(0), REPLICATED)
        world.init()

        def give_up(engine: Plain) -> None:
            with engine.updating("step-1"):
                raise ArithmeticError("loss is nan")

        def wait(engine: Plain) -> None:
            with engine.updating("step-1"):
                engine.update(world.names)

        own, told = world.both(give_up, wait)
        assert isinstance(own, ArithmeticError)
        assert told.status is Status.CANCELLED and world.worker.state is State.FAILED


def test_rules_can_be_changed_between_updates(tmp_path: Path) -> None:
    rules = tmp_path / "other.lua"
    rules.write_text('return { name = "other", unsourced = { "w" }, rules = { rule "w" { into = host.tensor } } }')
    with World() as world:
        lives = {"w": floats(0), "v": floats(0)}
        world.announce(w=floats(5))
        world.worker.describe_host({"tensor": "v"})
        for name, memory in lives.items():
            world.worker.register_live(name, memory, REPLICATED)
        world.init()
        assert world.both(lambda engine: engine.reload_rules(rules)) == [None, None]
        assert world.update() == ["step-1", "step-1"]
        assert (values(lives["w"]), values(lives["v"])) == ([0], [5])
        refused = world.both(lambda engine: engine.reload_rules("nobody"))
        assert [one.status for one in refused] == [Status.INVALID] * 2 and world.worker.state is State.READY


def test_registered_memory_stays_alive_until_it_is_forgotten() -> None:
    class Owner:
        pass

    owner = Owner()
    gone = weakref.ref(owner)
    with Engine[Memory](1) as engine:
        memory = floats(1)
        engine.register_live("w", Memory(memory.address, "float32", (1,), 4, owner=(memory, owner)))
        engine.register_source("s", Memory(memory.address, "float32", (1,), 4, owner=(memory, owner)))
        del memory, owner
        gc.collect()
        assert gone() is not None
        engine.register_source("s", floats(2))
        engine.forget()
        gc.collect()
        assert gone() is None


def test_memory_of_an_engine_outlives_its_close(caplog: pytest.LogCaptureFixture) -> None:
    engine: Plain = Engine(0)
    memory = engine.allocate(8)
    assert bytes(memory) == bytes(8)
    engine.close()
    engine.close()
    memory[7] = 9
    assert memory[7] == 9
    with pytest.raises(ValueError, match="the engine of rank 0 is closed"):
        engine.shutdown()


def test_an_engine_that_nobody_holds_is_freed() -> None:
    engine: Plain = Engine(0, reload_end=lambda: None)
    gone = weakref.ref(engine._handle)
    del engine
    gc.collect()
    assert gone() is None


def test_an_engine_cannot_be_closed_within_its_own_callback() -> None:
    def load_weights(weights: Weights[Memory]) -> None:
        world.worker.close()

    with World(load_weights=load_weights) as world:
        world.announce(w=floats(1))
        world.init()
        own = world.update()[1]
        assert "a callback must not make it" in str(own) and world.worker.state is State.FAILED


def test_log_and_progress_come_to_python(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[tuple[int, int]] = []

    def progress(now: Progress) -> None:
        seen.append((now.bytes_done, now.params_total))
        raise OSError("the terminal is gone")

    with caplog.at_level(logging.DEBUG, "sluice"), World(progress=progress) as world:
        world.announce(w=floats(1, 2))
        world.worker.register_live("w", floats(0, 0), REPLICATED)
        world.init()
        assert world.update() == ["step-1", "step-1"]
    assert seen[-1] == (8, 1)
    assert "progress failed" in caplog.text and "the terminal is gone" in caplog.text
    assert {record.levelname for record in caplog.records if record.name == "sluice"} >= {"DEBUG", "ERROR"}


def test_what_c_could_not_be_told_is_refused() -> None:
    with Engine[Memory](0, timeouts={"connect": 1}, rules="llama") as engine:
        with pytest.raises(ValueError, match="must not hold a zero byte: 'a\\\\x00b'"):
            engine.register_live("a\0b", floats(1))
        with pytest.raises(TypeError, match="sluice_options has no field 'timeout'"):
            Engine(0, timeout=3)  # type: ignore[call-arg]
        with pytest.raises(TypeError, match="option rules: a text or a path is wanted, not 3"):
            Engine(0, rules=3)  # type: ignore[arg-type]
        for wrong, said in (
            ({"staging_slots": 2**32 + 2}, "option staging_slots: 4294967298 does not fit c_u"),
            ({"key_fd": 2**32}, "option key_fd: 4294967296 does not fit c_int"),
            ({"insecure_control": "no"}, "option insecure_control: True or False is wanted, not 'no'"),
            ({"timeouts": {"conect": 1}}, "option timeouts: sluice_timeouts has no field 'conect'"),
        ):
            with pytest.raises((TypeError, ValueError), match=said):
                Engine(0, **wrong)
        with pytest.raises(ValueError, match="option rank: 4294967297 does not fit c_int"):
            Engine(2**32 + 1)
        with pytest.raises(ValueError, match="18446744073709551617 does not fit c_u"):
            engine.replay(2**64 + 1)
        with pytest.raises(TypeError, match="option timeout_s: "):
            Engine(0, timeout_s="3")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="init_info is the sealed JSON text, not dict"):
            engine.init({})  # type: ignore[arg-type]
        with pytest.raises(SluiceError, match="rank"):
            Engine(-1)
        with pytest.raises(TypeError, match="names must be a list or tuple of names, not the text 'w'"):
            engine.update("w")
