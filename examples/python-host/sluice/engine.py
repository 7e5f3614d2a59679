"""One engine of libsluice: what sluice.h offers a host, with Python's types, exceptions and context managers.

Every method is one call of the C library, whose header is the manual. What is added here: exceptions for statuses, the
memory that is registered stays alive, and callbacks are Python functions whose exceptions fail the update with their text.
Calls release the GIL. An engine is used by one thread at a time; only cancel may come from another one.
"""

from __future__ import annotations

import ctypes
import functools
import json
import logging
import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from ctypes import POINTER, byref, c_bool, c_char_p, c_int64, c_uint64, c_void_p, sizeof
from typing import Any, Generic, Self, TypeVar, Unpack

from . import bindings
from .bindings import Options, sluice_error, sluice_state, sluice_status, sluice_tensor
from .interrupts import holding, letting
from .memory import Memory
from .texts import c_names, fits, option, text, told

T = TypeVar("T")
State = sluice_state
Status = sluice_status
log = logging.getLogger("sluice")

LOG_LEVELS = [logging.ERROR, logging.WARNING, logging.INFO, logging.DEBUG]


class SluiceError(Exception):
    """A call that failed. The text names the place, what was found and what the rule is."""

    def __init__(self, error: sluice_error) -> None:
        super().__init__(error.text.decode(errors="replace"))
        self.status = Status(error.status)
        self.rank = error.rank
        self.stage = error.stage.decode()


@functools.cache
def library() -> ctypes.CDLL:
    """libsluice: the file that SLUICE_LIBRARY names, else the one that the system's loader finds."""
    version = f"{bindings.SLUICE_VERSION_MAJOR}.{bindings.SLUICE_VERSION_MINOR}"
    path = os.environ.get("SLUICE_LIBRARY") or f"libsluice.so.{version}"
    try:
        return bindings.load(path)
    except OSError as error:
        raise ImportError(f"sluice: {error}; install libsluice, or name its file in SLUICE_LIBRARY") from error


def check(call: Any, *arguments: Any) -> None:
    for kind, value in zip(call.argtypes, arguments):
        if isinstance(value, int) or kind is c_bool:
            fits(kind, value)
    error = bindings.new_sluice_error()
    if call(*arguments, byref(error)) != Status.OK:
        raise SluiceError(error)


def take_text(call: Callable[..., int], *arguments: Any) -> str:
    """The text that a call hands out, which is then freed."""
    out = c_char_p()
    check(call, *arguments, byref(out))
    try:
        return (out.value or b"").decode()
    finally:
        library().sluice_free(out)


class Weights(Iterator[tuple[str, T]]):
    """What load_weights gets: the full tensors of one batch, in the order asked, each pulled when the host wants it.

    A tensor is the library's memory, not a copy, and is valid until the next one is pulled; that one moves meanwhile.
    `keep` holds it for longer, at most until load_weights returns.
    """

    def __init__(self, handle: int, lend: Callable[[Memory], T]) -> None:
        self._handle: int | None = handle
        self._lend = lend
        self._last: tuple[str, Any] = ("", None)
        self._kept: dict[str, Any] = {}

    def __next__(self) -> tuple[str, T]:
        out = POINTER(sluice_tensor)()
        holding(lambda: check(library().sluice_weights_next, self._open(), byref(out)))
        if not out:
            raise StopIteration
        tensor: sluice_tensor = out.contents
        name, dtype = (tensor.name or b"").decode(), (tensor.dtype or b"").decode()
        self._last = (name, out)
        return name, self._lend(Memory(tensor.data or 0, dtype, tuple(tensor.shape[: tensor.ndim]), tensor.bytes))

    def keep(self, name: str) -> None:
        """Keeps the tensor that was pulled last. Another staging slot must be left to go on with (options.staging_slots)."""
        if name != self._last[0]:
            raise ValueError(f"keep wants the tensor that was pulled last ({self._last[0]!r}), not {name!r}")
        holding(lambda: check(library().sluice_weights_keep, self._open(), self._last[1]))
        self._kept[name] = self._last[1]

    def release(self, name: str) -> None:
        """Gives a tensor that was kept back, so that another one can move into its memory."""
        kept = self._kept.pop(name)
        holding(lambda: library().sluice_weights_release(self._open(), kept))

    def _open(self) -> int:
        if self._handle is None:
            raise RuntimeError("weights can only be used within load_weights")
        return self._handle

    def _end(self) -> None:
        self._handle = None


class _Host(Generic[T]):
    """The host's functions as C calls them. Holds no engine, so that an engine nobody uses any more is freed."""

    def __init__(self, lend: Callable[[Memory], T]) -> None:
        self.lend = lend
        self.raised: BaseException | None = None
        self.cancel: Callable[[], Callable[[], None] | None] = lambda: None  # a weak reference to the engine's

    def fail(self, error: Any, raised: BaseException) -> int:
        self.raised = raised
        said = f"{type(raised).__name__}: {raised}".encode(errors="replace").replace(b"\0", b" ")
        said = said[: bindings.SLUICE_ERROR_TEXT - 1].decode(errors="ignore").encode()
        error.contents.text = said
        return Status.CALLBACK

    def hook(self, call: Callable[[], object]) -> Callable[..., int]:
        def called(_user: int, error: Any) -> int:
            raised = letting(call)  # an exception cannot cross C: the update fails with it
            return Status.OK if raised is None else self.fail(error, raised)

        return called

    def load(self, call: Callable[[Weights[T]], object]) -> Callable[..., int]:
        def called(_user: int, handle: int, error: Any) -> int:
            weights = Weights(handle, self.lend)
            raised = letting(lambda: call(weights))
            weights._end()
            return Status.OK if raised is None else self.fail(error, raised)

        return called

    def progress(self, call: Callable[[bindings.sluice_progress], object]) -> Callable[..., None]:
        def called(_user: int, progress: Any) -> None:
            try:
                call(progress.contents)
            except Exception:
                log.exception("progress failed")
            except BaseException as raised:
                self.interrupt(raised)

        return called

    def write_log(self, _user: int, level: int, message: bytes) -> None:
        try:
            log.log(LOG_LEVELS[level], "%s", message.decode(errors="replace"))
        except BaseException as raised:
            self.interrupt(raised)

    def interrupt(self, raised: BaseException) -> None:
        """Where C asks for no status: the call under way is cancelled, and raises this."""
        self.raised = raised
        if (cancel := self.cancel()) is not None:
            cancel()


class _Handle:
    """The C engine and what it may use while it is there. It is destroyed when nobody holds this any more: neither its Engine
    nor memory that `allocate` gave out."""

    def __init__(self, options: bindings.sluice_options) -> None:
        engine = c_void_p()
        check(library().sluice_engine_create, byref(options), byref(engine))
        self._as_parameter_ = engine
        self.options = options
        self.lives: list[Memory] = []
        self.sources: dict[str, Memory] = {}
        self.allocated: list[c_void_p] = []
        weakref.finalize(self, _destroy, engine, self.allocated)


def _destroy(engine: c_void_p, allocated: list[c_void_p]) -> None:
    library().sluice_shutdown(engine, None)
    for address in allocated:
        library().sluice_memory_free(engine, address)
    library().sluice_engine_destroy(engine)


class Engine(Generic[T]):
    """One rank, trainer or worker. `with Engine(rank) as engine:` shuts down and frees it at the end.

    rank          of this process: trainers come first, then workers
    load_weights  called with Weights once a batch that has parameters for the host's own loader
    reload_begin, reload_end  around the updates of a plan with such parameters
    progress      called at most 20 times a second, perhaps on another thread
    options       the fields of sluice_options by their names: rules="llama", timeout_s=30, timeouts={"connect": 60}, ...

    What the library logs goes to the logger "sluice".
    """

    def __init__(
        self,
        rank: int,
        *,
        load_weights: Callable[[Weights[T]], object] | None = None,
        reload_begin: Callable[[], object] | None = None,
        reload_end: Callable[[], object] | None = None,
        progress: Callable[[bindings.sluice_progress], object] | None = None,
        **options: Unpack[Options],
    ) -> None:
        self.rank = rank
        self._host = host = _Host(self._lend)
        host.cancel = weakref.WeakMethod(self.cancel)
        self._open: _Handle | None = None
        given = bindings.new_sluice_options()
        for name, value in {"rank": rank, **options}.items():
            if name != "rank" and name not in Options.__annotations__:
                raise TypeError(f"sluice_options has no field {name!r}")
            try:
                setattr(given, name, option(name, value))
            except (TypeError, ValueError) as wrong:
                raise type(wrong)(f"option {name}: {wrong}") from None
        for name, function in (
            ("log", host.write_log),
            ("progress", progress and host.progress(progress)),
            ("reload_begin", reload_begin and host.hook(reload_begin)),
            ("load_weights", load_weights and host.load(load_weights)),
            ("reload_end", reload_end and host.hook(reload_end)),
        ):
            if function is not None:
                setattr(given.callbacks, name, type(getattr(given.callbacks, name))(function))
        self._open = _Handle(given)

    # What a tensor of the host is: Memory here, torch.Tensor in sluice.torch.

    @staticmethod
    def _memory(tensor: Any) -> Memory:
        if not isinstance(tensor, Memory):
            kind = type(tensor).__name__
            raise TypeError(f"a tensor is sluice.Memory.of(buffer, dtype, shape) here, not {kind}; sluice.torch.Engine takes PyTorch's")
        return tensor

    @staticmethod
    def _lend(memory: Memory) -> Any:
        return memory

    @property
    def _handle(self) -> _Handle:
        if self._open is None:
            raise ValueError(f"the engine of rank {self.rank} is closed")
        return self._open

    def _call(self, call: Callable[..., int], *arguments: Any) -> None:
        holding(lambda: self._made(call, *arguments))

    def _made(self, call: Callable[..., int], *arguments: Any) -> None:
        self._host.raised = None
        try:
            check(call, self._handle, *arguments)
        except SluiceError as error:
            raised, self._host.raised = self._host.raised, None
            if raised is None:
                raise
            if not isinstance(raised, Exception):  # KeyboardInterrupt, SystemExit
                raise raised from error
            raise error from raised
        if self._host.raised is not None:
            raise self._host.raised

    def _wait(self, call: Callable[..., int], *arguments: Any) -> None:
        """A call that waits for other ranks."""
        holding(lambda: self._made(call, *arguments), self.cancel)

    # ---- the life of an engine ----

    def close(self) -> None:
        """Shuts down if need be and frees the engine; memory from `allocate` stays until nobody uses it. Any number of times."""
        if self._open is None:
            return
        try:
            self.shutdown()
        except SluiceError as error:
            if error.status is Status.STATE:  # within another call of this engine
                raise
            log.warning("rank %d: %s", self.rank, error)
        self.forget()
        self._open = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def state(self) -> State:
        return State(library().sluice_engine_state(self._handle))

    @property
    def version(self) -> str:
        """What the live tensors of all workers hold: the label of the last update, "" before the first, or "dirty". From any thread."""
        text = ctypes.create_string_buffer(bindings.SLUICE_LABEL_BYTES)
        library().sluice_copy_version(self._handle, text)
        return text.value.decode()

    def cancel(self) -> None:
        """From any thread: makes the call under way, and every later one but shutdown, fail with CANCELLED."""
        if (handle := self._open) is not None:
            library().sluice_cancel(handle)

    def shutdown(self) -> None:
        """Leaves the group. What was registered stays so, and init may follow."""
        self._call(library().sluice_shutdown)

    def forget(self) -> None:
        """Drops what was registered."""
        self._call(library().sluice_forget)
        self._handle.lives.clear()
        self._handle.sources.clear()

    # ---- what this rank owns ----

    def describe_host(self, keys: Mapping[str, Any]) -> None:
        """What rule files see as `host`: the model's config and how it is served, of any keys (lua/README.md)."""
        data = json.dumps(dict(keys)).encode()
        self._call(library().sluice_describe_host, data, len(data))

    def register_live(self, name: str, tensor: T, attributes: Mapping[str, Any] | None = None) -> None:
        """Registers a tensor of the serving model, strides as they are, with what its loader knows of it (output_dim, ...).

        It stays alive until forget or close; its memory must not be replaced from init to shutdown.
        """
        memory = self._memory(tensor)
        live = bindings.sluice_live(size=sizeof(bindings.sluice_live), name=text(name), dtype=text(memory.dtype))
        live.ndim = len(memory.shape)
        live.shape = (c_int64 * live.ndim)(*memory.shape)
        live.strides = (c_int64 * live.ndim)(*memory.strides) if memory.strides is not None else None
        live.data = memory.address
        live.attributes = text(json.dumps(dict(attributes))) if attributes else None
        self._handle.lives.append(memory)  # first: Ctrl-C may come when the call has returned
        self._call(library().sluice_register_live, byref(live))

    def register_source(self, name: str, tensor: T | None) -> None:
        """Gives the shard of a parameter that this trainer holds, contiguous; None where it holds nothing of it.

        It stays alive until it is registered anew (between updates, too), forget or close. The same memory again is no call.
        """
        memory = self._memory(tensor) if tensor is not None else None
        before = self._handle.sources.get(name)
        if memory is None:
            if before is not None:
                self._give(name, Memory(0, before.dtype, (), 0))
                del self._handle.sources[name]
            return
        if before is not None and (before.address, before.nbytes, before.dtype) == (memory.address, memory.nbytes, memory.dtype):
            self._handle.sources[name] = memory  # whose memory it is now: that of who had it may have been freed
            return
        if not memory.is_contiguous():
            raise ValueError(f"source {name!r} must be contiguous; its shape is {memory.shape}, its strides are {memory.strides}")
        self._give(name, memory)

    def _give(self, name: str, memory: Memory) -> None:
        """Where Ctrl-C comes in between it is not known which memory is C's: both stay, and none is taken for given."""
        sources = self._handle.sources
        before = sources.get(name)
        try:
            self._call(library().sluice_register_source, text(name), text(memory.dtype), memory.address or None, memory.nbytes)
            sources[name] = memory
        except SluiceError:
            raise
        except BaseException:
            sources.pop(name, None)
            self._handle.lives += [memory] if before is None else [memory, before]
            raise

    def allocate(self, nbytes: int) -> memoryview:
        """Zeroed memory that the host transport's peers map, so that a source in it moves by one plain copy."""
        handle, address = self._handle, c_void_p()
        self._call(library().sluice_memory_alloc, nbytes, byref(address))
        handle.allocated.append(address)
        memory = (ctypes.c_char * nbytes).from_address(address.value or 0)
        memory.engine = handle  # type: ignore[attr-defined]  # whoever holds the memory holds the engine
        return memoryview(memory).cast("B")

    def allow_attach(self, path: str | os.PathLike[str] | None = None, fd: int = -1) -> None:
        """Lets `sluice repl --attach PATH` and the like look at this engine while it works; before init. Nothing can be changed."""
        self._call(library().sluice_allow_attach, text(path), fd)

    def refuse_attach(self) -> None:
        self._call(library().sluice_refuse_attach)

    # ---- init and questions ----

    def init(self, init_info: str | bytes) -> None:
        """Joins the other ranks and agrees with them on one plan. Succeeds on every rank, or on none, and then names who failed.

        A rank whose registrations failed must call this all the same: it is how the others hear of it.
        """
        if not isinstance(init_info, (str, bytes)):
            raise TypeError(f"init_info is the sealed JSON text, not {type(init_info).__name__}")
        data = init_info.encode() if isinstance(init_info, str) else init_info
        self._wait(library().sluice_init, data, len(data))

    def plan(self, full: bool = False) -> dict[str, Any]:
        """The plan: counts, bytes and coverage, and with `full` each parameter's destination and its reason (lua/PLAN.md)."""
        return self._json(library().sluice_plan_json, full)

    def explain(self, name: str = "") -> dict[str, Any]:
        """Why a parameter or live tensor is where it is; a pattern lists, "" lists all that is full or unwritten."""
        return self._json(library().sluice_explain_json, text(name))

    def failure(self) -> dict[str, Any]:
        """After a failed update: which parameters are complete, torn and untouched."""
        return self._json(library().sluice_failure_json)

    def _json(self, call: Callable[..., int], *arguments: Any) -> dict[str, Any]:
        told = holding(lambda: take_text(call, self._handle, *arguments))
        return json.loads(told)  # type: ignore[no-any-return]

    def reload_rules(self, rules: str | os.PathLike[str] | None) -> None:
        """Goes over to other rules between two updates, on every rank or on none."""
        self._wait(library().sluice_reload_rules, text(rules))

    # ---- updates: the same calls with the same arguments on every rank ----

    def start_update(self, partial: bool = False) -> None:
        self._call(library().sluice_start_update, partial)

    def update(self, names: Sequence[str]) -> None:
        """Moves these parameters, in this order. When it returns, live tensors hold the new values, and sources may change."""
        self._wait(library().sluice_update, c_names(names), len(names))

    def record(self, names: Sequence[str]) -> int:
        """Prepares `update` of these names, for `replay`, any number of times; forgotten at shutdown."""
        recording = c_uint64()
        self._call(library().sluice_record, c_names(names), len(names), byref(recording))
        return recording.value

    def replay(self, recording: int) -> None:
        """As `update` of the names that were recorded; other ranks may replay theirs or update."""
        self._wait(library().sluice_replay, recording)

    def refuse_update(self, why: str) -> None:
        """In place of `update` or `replay` on this rank: raises, and the other ranks' call does, too, with `why`; nothing has moved."""
        self._wait(library().sluice_refuse_update, why.replace("\0", " ").encode(errors="replace"))

    def forget_recording(self, recording: int) -> None:
        self._call(library().sluice_forget_recording, recording)

    def finish_update(self, version: str) -> None:
        self._wait(library().sluice_finish_update, told(version))

    def abort_update(self) -> None:
        self._call(library().sluice_abort_update)

    @contextmanager
    def updating(self, version: str, partial: bool = False) -> Iterator[None]:
        """start_update, what the block does, finish_update(version); a block that fails gives the update up on every rank."""
        self.start_update(partial)
        try:
            yield
            self.finish_update(version)
        except BaseException:
            if self.state is State.UPDATING:
                self.abort_update()
            raise
