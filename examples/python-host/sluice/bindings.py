"""What src/sluice.h declares, for ctypes. Written by generate.py, which checks it too: change the header, not this."""

from __future__ import annotations

import enum
import os
from ctypes import CDLL, CFUNCTYPE, POINTER, Structure, c_bool, c_char, c_char_p, c_double, c_int, c_int32, c_int64
from ctypes import c_size_t, c_uint32, c_uint64, c_void_p, sizeof
from typing import Any, TypedDict

SLUICE_ERROR_TEXT = 4096
SLUICE_LABEL_BYTES = 256
SLUICE_VERSION_MAJOR = 0
SLUICE_VERSION_MINOR = 1
SLUICE_VERSION_PATCH = 0


class sluice_status(enum.IntEnum):
    OK = 0
    INVALID = 1
    STATE = 2
    NO_MEMORY = 3
    SYSTEM = 4
    TIMEOUT = 5
    PEER = 6
    DISAGREE = 7
    SCRIPT = 8
    UNSUPPORTED = 9
    CANCELLED = 10
    CALLBACK = 11
    INTERNAL = 12


class sluice_log_level(enum.IntEnum):
    ERROR = 0
    WARN = 1
    INFO = 2
    DEBUG = 3


class sluice_state(enum.IntEnum):
    NEW = 0
    READY = 1
    UPDATING = 2
    FAILED = 3


class sluice_error(Structure):
    size: int
    status: int
    rank: int
    stage: bytes
    text: bytes
    _fields_ = [
        ("size", c_uint32),
        ("status", c_int),
        ("rank", c_int32),
        ("stage", c_char * 32),
        ("text", c_char * 4096),
    ]


class sluice_tensor(Structure):
    size: int
    name: bytes | None
    dtype: bytes | None
    ndim: int
    shape: Any
    data: int | None
    bytes: int
    _fields_ = [
        ("size", c_uint32),
        ("name", c_char_p),
        ("dtype", c_char_p),
        ("ndim", c_uint32),
        ("shape", POINTER(c_int64)),
        ("data", c_void_p),
        ("bytes", c_size_t),
    ]


class sluice_progress(Structure):
    bytes_done: int
    bytes_total: int
    params_done: int
    params_total: int
    _fields_ = [
        ("bytes_done", c_uint64),
        ("bytes_total", c_uint64),
        ("params_done", c_size_t),
        ("params_total", c_size_t),
    ]


class sluice_callbacks(Structure):
    size: int
    user: int | None
    log: Any
    progress: Any
    reload_begin: Any
    load_weights: Any
    reload_end: Any
    launch: Any
    reserved: Any
    _fields_ = [
        ("size", c_uint32),
        ("user", c_void_p),
        ("log", CFUNCTYPE(None, c_void_p, c_int, c_char_p)),
        ("progress", CFUNCTYPE(None, c_void_p, POINTER(sluice_progress))),
        ("reload_begin", CFUNCTYPE(c_int, c_void_p, POINTER(sluice_error))),
        ("load_weights", CFUNCTYPE(c_int, c_void_p, c_void_p, POINTER(sluice_error))),
        ("reload_end", CFUNCTYPE(c_int, c_void_p, POINTER(sluice_error))),
        ("launch", CFUNCTYPE(c_int, c_void_p, c_uint64, POINTER(sluice_error))),
        ("reserved", CFUNCTYPE(None) * 3),
    ]


class sluice_timeouts(Structure):
    connect: float
    agree: float
    update: float
    finish: float
    shutdown: float
    reserved: Any
    _fields_ = [
        ("connect", c_double),
        ("agree", c_double),
        ("update", c_double),
        ("finish", c_double),
        ("shutdown", c_double),
        ("reserved", c_double * 3),
    ]


class sluice_options(Structure):
    size: int
    rank: int
    rules: bytes | None
    transport: bytes | None
    road: bytes | None
    timeout_s: float
    listen_fd: int
    staging_slots: int
    callbacks: sluice_callbacks
    timeouts: sluice_timeouts
    beat_s: float
    key_file: bytes | None
    key_fd: int
    insecure_control: bool
    stream: int | None
    no_sm: int
    mix: int
    grouped: int
    _fields_ = [
        ("size", c_uint32),
        ("rank", c_int32),
        ("rules", c_char_p),
        ("transport", c_char_p),
        ("road", c_char_p),
        ("timeout_s", c_double),
        ("listen_fd", c_int),
        ("staging_slots", c_uint32),
        ("callbacks", sluice_callbacks),
        ("timeouts", sluice_timeouts),
        ("beat_s", c_double),
        ("key_file", c_char_p),
        ("key_fd", c_int),
        ("insecure_control", c_bool),
        ("stream", c_void_p),
        ("no_sm", c_int),
        ("mix", c_int),
        ("grouped", c_int),
    ]


class sluice_live(Structure):
    size: int
    name: bytes | None
    dtype: bytes | None
    ndim: int
    shape: Any
    strides: Any
    data: int | None
    attributes: bytes | None
    _fields_ = [
        ("size", c_uint32),
        ("name", c_char_p),
        ("dtype", c_char_p),
        ("ndim", c_uint32),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("data", c_void_p),
        ("attributes", c_char_p),
    ]


def new_sluice_error() -> sluice_error:
    """As SLUICE_ERROR_INIT."""
    return sluice_error(size=sizeof(sluice_error), rank=-1)


def new_sluice_callbacks() -> sluice_callbacks:
    """As SLUICE_CALLBACKS_INIT."""
    return sluice_callbacks(size=sizeof(sluice_callbacks))


def new_sluice_timeouts() -> sluice_timeouts:
    """As SLUICE_TIMEOUTS_INIT."""
    return sluice_timeouts()


def new_sluice_options() -> sluice_options:
    """As SLUICE_OPTIONS_INIT."""
    return sluice_options(size=sizeof(sluice_options), listen_fd=-1, callbacks=sluice_callbacks(size=sizeof(sluice_callbacks)), key_fd=-1)


class Timeouts(TypedDict, total=False):
    """The fields of sluice_timeouts."""

    connect: float
    agree: float
    update: float
    finish: float
    shutdown: float


class Options(TypedDict, total=False):
    """The fields of sluice_options that a caller chooses."""

    rules: str | os.PathLike[str] | None
    transport: str | os.PathLike[str] | None
    road: str | os.PathLike[str] | None
    timeout_s: float
    listen_fd: int
    staging_slots: int
    timeouts: Timeouts
    beat_s: float
    key_file: str | os.PathLike[str] | None
    key_fd: int
    insecure_control: bool
    stream: Any
    no_sm: int
    mix: int
    grouped: int


FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "sluice_library_version": (c_char_p, []),
    "sluice_status_text": (c_char_p, [c_int]),
    "sluice_engine_create": (c_int, [POINTER(sluice_options), POINTER(c_void_p), POINTER(sluice_error)]),
    "sluice_engine_destroy": (None, [c_void_p]),
    "sluice_engine_state": (c_int, [c_void_p]),
    "sluice_state_text": (c_char_p, [c_int]),
    "sluice_register_live": (c_int, [c_void_p, POINTER(sluice_live), POINTER(sluice_error)]),
    "sluice_describe_host": (c_int, [c_void_p, c_char_p, c_size_t, POINTER(sluice_error)]),
    "sluice_register_source": (c_int, [c_void_p, c_char_p, c_char_p, c_void_p, c_size_t, POINTER(sluice_error)]),
    "sluice_memory_alloc": (c_int, [c_void_p, c_size_t, POINTER(c_void_p), POINTER(sluice_error)]),
    "sluice_memory_free": (None, [c_void_p, c_void_p]),
    "sluice_allow_attach": (c_int, [c_void_p, c_char_p, c_int, POINTER(sluice_error)]),
    "sluice_refuse_attach": (c_int, [c_void_p, POINTER(sluice_error)]),
    "sluice_seal_init_info": (c_int, [c_char_p, c_size_t, POINTER(c_char_p), POINTER(sluice_error)]),
    "sluice_init": (c_int, [c_void_p, c_char_p, c_size_t, POINTER(sluice_error)]),
    "sluice_plan_json": (c_int, [c_void_p, c_bool, POINTER(c_char_p), POINTER(sluice_error)]),
    "sluice_reload_rules": (c_int, [c_void_p, c_char_p, POINTER(sluice_error)]),
    "sluice_explain_json": (c_int, [c_void_p, c_char_p, POINTER(c_char_p), POINTER(sluice_error)]),
    "sluice_free": (None, [c_void_p]),
    "sluice_start_update": (c_int, [c_void_p, c_bool, POINTER(sluice_error)]),
    "sluice_update": (c_int, [c_void_p, POINTER(c_char_p), c_size_t, POINTER(sluice_error)]),
    "sluice_record": (c_int, [c_void_p, POINTER(c_char_p), c_size_t, POINTER(c_uint64), POINTER(sluice_error)]),
    "sluice_replay": (c_int, [c_void_p, c_uint64, POINTER(sluice_error)]),
    "sluice_refuse_update": (c_int, [c_void_p, c_char_p, POINTER(sluice_error)]),
    "sluice_forget_recording": (c_int, [c_void_p, c_uint64, POINTER(sluice_error)]),
    "sluice_finish_update": (c_int, [c_void_p, c_char_p, POINTER(sluice_error)]),
    "sluice_abort_update": (c_int, [c_void_p, POINTER(sluice_error)]),
    "sluice_version": (c_char_p, [c_void_p]),
    "sluice_copy_version": (None, [c_void_p, c_char_p]),
    "sluice_failure_json": (c_int, [c_void_p, POINTER(c_char_p), POINTER(sluice_error)]),
    "sluice_weights_next": (c_int, [c_void_p, POINTER(POINTER(sluice_tensor)), POINTER(sluice_error)]),
    "sluice_weights_keep": (c_int, [c_void_p, POINTER(sluice_tensor), POINTER(sluice_error)]),
    "sluice_weights_release": (None, [c_void_p, POINTER(sluice_tensor)]),
    "sluice_cancel": (None, [c_void_p]),
    "sluice_shutdown": (c_int, [c_void_p, POINTER(sluice_error)]),
    "sluice_forget": (c_int, [c_void_p, POINTER(sluice_error)]),
}


def load(path: str) -> CDLL:
    """Opens the library and types its functions. A library that lacks one is another version: AttributeError."""
    library = CDLL(path)
    for name, (result, parameters) in FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, parameters
    return library
