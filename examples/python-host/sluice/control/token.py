"""The secret that a client proves to be allowed by: one line of a file that only its owner can read."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import stat
from pathlib import Path

SHORTEST, LONGEST = 32, 4096


def read_token(path: str | os.PathLike[str]) -> str:
    """The token of a file (`openssl rand -hex 32`), under the rules of the library's key_file. Its text is in no error."""
    what = f"token_file ({os.fspath(path)})"
    with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise ValueError(f"{what} must be a regular file")
        if found.st_mode & 0o077:
            mode = stat.S_IMODE(found.st_mode)
            raise ValueError(f"{what} has mode {mode:04o}; only its owner may read or write it (chmod 600)")
        if found.st_uid not in (os.geteuid(), 0):
            raise ValueError(f"{what} belongs to user {found.st_uid}; it must be of user {os.geteuid()}, who runs this, or of root")
        token = file.read(LONGEST + 2).removesuffix(b"\n").removesuffix(b"\r")
    if not SHORTEST <= len(token) <= LONGEST:
        raise ValueError(f"{what} has {len(token)} bytes; a token must have {SHORTEST} to {LONGEST}")
    if not re.fullmatch(rb"[A-Za-z0-9._~+/-]+=*", token):
        raise ValueError(f"{what} must hold one line of letters, digits and - . _ ~ + /, perhaps with = at its end")
    return token.decode("ascii")


class Door:
    """Lets in who shows the token. It keeps a digest, not the token, and takes as long for any wrong one."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._wanted = self._digest(f"Bearer {read_token(Path(path))}")

    def admits(self, authorization: str | None) -> bool:
        scheme, _, token = (authorization or "").strip().partition(" ")
        return hmac.compare_digest(self._wanted, self._digest(f"{scheme.capitalize()} {token.strip()}"))

    @staticmethod
    def _digest(text: str) -> bytes:
        return hashlib.sha256(text.encode(errors="surrogateescape")).digest()
