"""The bindings are what the header says, and lie in memory as the C compiler lays them."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import generate
import pytest
from sluice import bindings
from sluice.engine import library

ROOT = Path(__file__).resolve().parents[4]


def test_the_bindings_are_what_the_header_says() -> None:
    assert generate.OUTPUT.read_text() == generate.write(generate.Header())


@pytest.mark.parametrize(
    ("old", "new", "seen"),
    [
        ("double beat_s;", "double beat_s, pulse_s;", "sluice_options has .* fields, its initialiser .* values"),
        ("sluice_weights *weights, const sluice_tensor **tensor,", "sluice_weights *weights, sluice_tensor *tensor,", None),
        ("X(INTERNAL, 12,", "X(INTERNAL, 13,", None),
        ("uint32_t staging_slots;", "uint64_t staging_slots;", None),
        ("SLUICE_API void sluice_free(void *memory);", "SLUICE_API void sluice_free(long double memory);", "type not understood"),
        ("SLUICE_API void sluice_free(void *memory);", "SLUICE_API void (*sluice_free)(void *memory);", "not understood"),
    ],
)
def test_a_header_that_changed_is_seen(
    old: str, new: str, seen: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = generate.HEADER.read_text()
    assert old in text
    changed = tmp_path / "sluice.h"
    changed.write_text(text.replace(old, new))
    monkeypatch.setattr(generate, "HEADER", changed)
    if seen is None:
        assert generate.OUTPUT.read_text() != generate.write(generate.Header())
    else:
        with pytest.raises(SystemExit, match=seen):
            generate.Header()


def test_structures_lie_as_the_compiler_lays_them(tmp_path: Path) -> None:
    lines = ["#include <stdio.h>", "#include <sluice.h>", "int main(void) {"]
    expected = []
    for name, fields in generate.Header().structs.items():
        struct = getattr(bindings, name)
        lines.append(f'printf("{name} %zu\\n", sizeof({name}));')
        expected.append(f"{name} {ctypes.sizeof(struct)}")
        for field, _ in fields:
            at = getattr(struct, field)
            lines.append(f'printf("{field} %zu %zu\\n", offsetof({name}, {field}), sizeof((({name} *)0)->{field}));')
            expected.append(f"{field} {at.offset} {at.size}")
    (tmp_path / "layout.c").write_text("\n".join([*lines, "}"]))
    command = ["cc", "-std=c11", "-I", str(ROOT / "src"), "-o", str(tmp_path / "layout"), str(tmp_path / "layout.c")]
    subprocess.run(command, check=True)
    assert subprocess.run([tmp_path / "layout"], capture_output=True, text=True, check=True).stdout.splitlines() == expected


def test_statuses_and_states_have_the_librarys_numbers() -> None:
    statuses = [library().sluice_status_text(status).decode() for status in bindings.sluice_status]
    states = [library().sluice_state_text(state).decode() for state in bindings.sluice_state]
    assert "unknown status" not in statuses and statuses[0] == "ok" and statuses[-1] == "internal error"
    assert library().sluice_status_text(len(statuses)) == b"unknown status"
    assert states == ["new", "ready", "updating", "failed"]
