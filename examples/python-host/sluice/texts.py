"""Texts, names and options as C takes them. What C would misread is refused here: ctypes takes a number for an address."""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Sequence
from ctypes import c_char_p
from typing import Any

from . import bindings

_TEXTS = {field[0] for field in bindings.sluice_options._fields_ if field[1] is c_char_p}  # a number there would be an address


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
        return bindings.sluice_timeouts(**value)
    return text(value) if name in _TEXTS else value
