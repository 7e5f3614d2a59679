"""Texts, names, numbers and options as C takes them. What C would misread is refused here: ctypes takes a number for an address, its
last bits for the whole of it, and any word for a truth."""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Sequence
from ctypes import c_bool, c_char_p
from typing import Any

from . import bindings

_KINDS: dict[str, Any] = {field[0]: field[1] for field in bindings.sluice_options._fields_}


def text(value: str | os.PathLike[str] | None) -> bytes | None:
    """A string for C; one that holds a zero byte is refused, since C would see its beginning."""
    if value is None:
        return None
    if not isinstance(value, (str, os.PathLike)):
        raise TypeError(f"a text or a path is wanted, not {value!r}")
    encoded = os.fsencode(value) if isinstance(value, os.PathLike) else value.encode()
    if b"\0" in encoded:
        raise ValueError(f"a text for libsluice must not hold a zero byte: {value!r}")
    return encoded


def told(value: str) -> bytes:
    """A name or label that other ranks wait for. What C could not be told becomes no UTF-8: refused there, it is heard by all."""
    return value.encode(errors="surrogatepass").replace(b"\0", b"\xc0\x80")


def c_names(names: Sequence[str]) -> ctypes.Array[c_char_p]:
    if isinstance(names, str):
        raise TypeError(f"names must be a list or tuple of names, not the text {names!r}")
    return _c_names(tuple(names))


@functools.lru_cache(maxsize=8)
def _c_names(names: tuple[str, ...]) -> ctypes.Array[c_char_p]:
    return (c_char_p * len(names))(*map(told, names))


def option(name: str, value: Any) -> Any:
    """The value of a field of sluice_options as C takes it."""
    if name == "timeouts":
        for phase in value:
            if phase not in bindings.Timeouts.__annotations__:
                raise TypeError(f"sluice_timeouts has no field {phase!r}")
        return bindings.sluice_timeouts(**value)
    if _KINDS[name] is c_char_p:
        return text(value)
    fits(_KINDS[name], value)
    return value


def fits(kind: Any, value: Any) -> None:
    """Raises where C would be given another number, or a truth that nobody said."""
    if kind is c_bool and not isinstance(value, bool):
        raise TypeError(f"True or False is wanted, not {value!r}")
    if isinstance(value, int) and (kind(value).value or 0) != value:
        raise ValueError(f"{value} does not fit {kind.__name__}")
