#!/usr/bin/env python3
"""Writes sluice/bindings.py, the ctypes declarations of everything that src/sluice.h declares, from that header.

    python3 examples/python-host/generate.py            writes the file anew
    python3 examples/python-host/generate.py --check    ends with 1 where the file is not what the header says

Wants a C preprocessor (cc). What the header says in a form that is not known here is an error, never left out.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
HEADER = ROOT / "src" / "sluice.h"
OUTPUT = HERE / "sluice" / "bindings.py"

SCALARS = {
    "bool": "c_bool", "char": "c_char", "double": "c_double", "int": "c_int", "size_t": "c_size_t",
    "int32_t": "c_int32", "uint32_t": "c_uint32", "int64_t": "c_int64", "uint64_t": "c_uint64",
}
# What Python code reads from, and gives to, a field of that type.
PYTHON = {"c_bool": "bool", "c_double": "float", "c_char_p": "bytes | None", "c_void_p": "int | None"}


def preprocess(extra: str = "", *flags: str) -> str:
    """The header behind the preprocessor, without what it includes; `extra` stands behind it."""
    source = f'#include "{HEADER}"\n{extra}\n'
    includes = ROOT / "spec" / "support" / "cdef"
    command = ["cc", "-E", "-nostdinc", f"-I{includes}", "-DSLUICE_API=", *flags, "-x", "c", "-"]
    text = subprocess.run(command, input=source, capture_output=True, text=True, check=True).stdout
    kept, here = [], flags != ()
    for line in text.splitlines():
        marker = re.match(r'# \d+ "([^"]+)"', line)
        if marker:
            here = marker[1] in (str(HEADER), "<stdin>")
        elif here:
            kept.append(line)
    return "\n".join(kept)


def declarations(text: str) -> list[str]:
    """The text cut at each semicolon outside of braces, white space made single."""
    found, depth, start = [], 0, 0
    for at, char in enumerate(text):
        depth += (char == "{") - (char == "}")
        if char == ";" and depth == 0:
            found.append(" ".join(text[start:at].split()))
            start = at + 1
    if text[start:].strip():
        raise SystemExit(f"generate: not understood: {text[start:].strip()!r}")
    return [one for one in found if one]


class Header:
    """What the header declares, by kind, each in its order."""

    def __init__(self) -> None:
        self.opaque: list[str] = []
        self.scalars = dict(SCALARS)
        self.enums: dict[str, list[tuple[str, int]]] = {}
        self.structs: dict[str, list[tuple[str, str]]] = {}
        self.functions: dict[str, tuple[str, list[str]]] = {}
        for one in declarations(preprocess()):
            self.read(one)
        macros = dict(re.findall(r"^#define (SLUICE_\w+) (.+)$", preprocess("", "-dM"), re.M))
        self.numbers = {name: int(value) for name, value in sorted(macros.items()) if value.isdigit()}
        initialised = [macro.removesuffix("_INIT").lower() for macro in macros if macro.endswith("_INIT")]
        self.initialisers = {name: self.initialiser(name) for name in self.structs if name in initialised}

    def read(self, text: str) -> None:
        if match := re.fullmatch(r"typedef struct (\w+) (\w+)", text):
            self.opaque.append(match[2])
        elif match := re.fullmatch(r"typedef (\w+) (\w+)", text):
            self.scalars[match[2]] = self.type(match[1])
        elif match := re.fullmatch(r"typedef enum \w+ \{(.*)\} (\w+)", text):
            self.enums[match[2]] = self.members(match[1])
        elif match := re.fullmatch(r"typedef struct \w+ \{(.*)\} (\w+)", text):
            fields = [field for line in match[1].split(";") if line.strip() for field in self.fields(line.strip())]
            self.structs[match[2]] = fields
        elif match := re.fullmatch(r"([\w ]+[ *]+)(sluice_\w+)\((.*)\)", text):
            self.functions[match[2]] = (self.type(match[1]), self.parameters(match[3]))
        else:
            raise SystemExit(f"generate: not understood: {text!r}")

    @staticmethod
    def members(text: str) -> list[tuple[str, int]]:
        """An enum's names, without the words that all of them begin with, and their numbers."""
        values: dict[str, int] = {}
        for item in filter(None, map(str.strip, text.split(","))):
            match = re.fullmatch(r"(\w+)(?: = \(?(\d+)\)?)?", item)
            if not match:
                raise SystemExit(f"generate: member not understood: {item!r}")
            values[match[1]] = int(match[2]) if match[2] else max(values.values(), default=-1) + 1
        common = os.path.commonprefix(list(values)).rpartition("_")[0]
        return [(name[len(common) + 1 :], value) for name, value in values.items()]

    def fields(self, text: str) -> list[tuple[str, str]]:
        if match := re.fullmatch(r"(.+?)\(\*(\w+)(?:\[(\d+)\])?\)\((.*)\)", text):
            function = "CFUNCTYPE(" + ", ".join([self.type(match[1]), *self.parameters(match[4])]) + ")"
            return [(match[2], f"{function} * {match[3]}" if match[3] else function)]
        if match := re.fullmatch(r"(.+?)(\w+)\[(\d+)\]", text):
            return [(match[2], f"{self.type(match[1])} * {match[3]}")]
        match = re.fullmatch(r"(.+?[ *])(\w+(?:, \w+)*)", text)
        if not match:
            raise SystemExit(f"generate: field not understood: {text!r}")
        return [(name, self.type(match[1])) for name in match[2].split(", ")]

    def parameters(self, text: str) -> list[str]:
        if text == "void":
            return []
        return [self.type(re.sub(r"\w+$", "", one.strip())) for one in text.split(",")]

    def type(self, text: str) -> str:
        """The ctypes type of a C type without its name."""
        stars = text.count("*")
        name = re.sub(r"\bconst\b|\*", " ", text).strip()
        if name in ("char", "void") or name in self.opaque:
            if stars == 0 and name == "void":
                return "None"
            if stars > 0:
                inner, stars = "c_char_p" if name == "char" else "c_void_p", stars - 1
            else:
                inner = "c_char"
        elif name in self.enums:
            inner = "c_int"
        elif name in self.structs:
            inner = name
        elif name in self.scalars:
            inner = self.scalars[name]
        else:
            raise SystemExit(f"generate: type not understood: {text!r}")
        return "POINTER(" * stars + inner + ")" * stars

    def initialiser(self, name: str) -> str:
        """What NAME_INIT sets of a struct, as a call of its class: what is not null, zero or empty."""
        text = preprocess(f"@ {name.upper()}_INIT").rpartition("@")[2]
        for pattern, value in (
            (r"sizeof\s*\(\s*(\w+)\s*\)", r'"sizeof(\1)"'), (r"\(\(void \*\)0\)|\bNULL\b", "0"), (r"\bfalse\b", "0"),
            (r"\btrue\b", "1"), (r"\bSLUICE_OK\b", "0"), (r"\{", "["), (r"\}", "]"),
        ):
            text = re.sub(pattern, value, text)
        return self.call(name, ast.literal_eval(text.strip()))

    def call(self, name: str, values: list[Any]) -> str:
        fields = self.structs[name]
        if len(fields) != len(values):
            raise SystemExit(f"generate: {name} has {len(fields)} fields, its initialiser {len(values)} values")
        given = []
        for (field, ctype), value in zip(fields, values):
            if isinstance(value, list) and ctype in self.structs:
                nested = self.call(ctype, value)
                given += [f"{field}={nested}"] if "=" in nested else []
            elif isinstance(value, list):
                given += [f"{field}={value}"] if any(value) else []
            elif value:
                given.append(f"{field}={value}")
        return f"{name}({', '.join(given)})"


def hint(ctype: str) -> str:
    if ctype.startswith("c_char *"):
        return "bytes"
    if ctype.startswith(("POINTER", "CFUNCTYPE")) or " * " in ctype:
        return "Any"
    return PYTHON.get(ctype, ctype if ctype.startswith("sluice_") else "int")


def option(ctype: str) -> str:
    if ctype == "c_char_p":
        return "str | os.PathLike[str] | None"
    if ctype == "c_void_p":
        return "Any"
    return "Timeouts" if ctype == "sluice_timeouts" else hint(ctype)


def typed_dict(name: str, text: str, fields: list[tuple[str, str]]) -> list[str]:
    lines = [f"class {name}(TypedDict, total=False):", f'    """{text}"""', ""]
    chosen = [field for field in fields if field[0] not in ("size", "rank", "callbacks", "reserved")]
    return lines + [f"    {field}: {option(ctype)}" for field, ctype in chosen] + ["", ""]


def write(header: Header) -> str:
    lines = [
        '"""What src/sluice.h declares, for ctypes. Written by generate.py, which checks it too: change the header, not this."""',
        "", "from __future__ import annotations", "", "import enum", "import os",
        "from ctypes import CDLL, CFUNCTYPE, POINTER, Structure, c_bool, c_char, c_char_p, c_double, c_int, c_int32, c_int64",
        "from ctypes import c_size_t, c_uint32, c_uint64, c_void_p, sizeof", "from typing import Any, TypedDict", "",
    ]
    lines += [f"{name} = {value}" for name, value in header.numbers.items()] + ["", ""]
    for name, values in header.enums.items():
        lines += [f"class {name}(enum.IntEnum):"] + [f"    {member} = {value}" for member, value in values] + ["", ""]
    for name, fields in header.structs.items():
        lines += [f"class {name}(Structure):"] + [f"    {field}: {hint(ctype)}" for field, ctype in fields]
        lines += ["    _fields_ = ["] + [f'        ("{field}", {ctype}),' for field, ctype in fields] + ["    ]", "", ""]
    for name, call in header.initialisers.items():
        lines += [f"def new_{name}() -> {name}:", f'    """As {name.upper()}_INIT."""', f"    return {call}", "", ""]
    lines += typed_dict("Timeouts", "The fields of sluice_timeouts.", header.structs["sluice_timeouts"])
    lines += typed_dict("Options", "The fields of sluice_options that a caller chooses.", header.structs["sluice_options"])
    lines += ["FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {"]
    for name, (result, parameters) in header.functions.items():
        lines.append(f'    "{name}": ({result}, [{", ".join(parameters)}]),')
    lines += [
        "}", "", "", "def load(path: str) -> CDLL:",
        '    """Opens the library and types its functions. A library that lacks one is another version: AttributeError."""',
        "    library = CDLL(path)", "    for name, (result, parameters) in FUNCTIONS.items():",
        "        function = getattr(library, name)", "        function.restype, function.argtypes = result, parameters",
        "    return library",
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="writes nothing")
    text = write(Header())
    if not parser.parse_args().check:
        OUTPUT.write_text(text)
        return 0
    found = OUTPUT.read_text() if OUTPUT.exists() else ""
    file, header = str(OUTPUT.relative_to(ROOT)), "what src/sluice.h says"
    sys.stderr.writelines(difflib.unified_diff(found.splitlines(True), text.splitlines(True), file, header, n=1))
    if found != text:
        print(f"generate: {file} is not {header}; run python3 {HERE.relative_to(ROOT)}/generate.py", file=sys.stderr)
    return int(found != text)


if __name__ == "__main__":
    sys.exit(main())
