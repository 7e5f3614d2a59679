"""Tests run on the library of this tree's build, unless SLUICE_LIBRARY names another."""

import os
from pathlib import Path

os.environ.setdefault("SLUICE_LIBRARY", str(Path(__file__).resolve().parents[3] / "build" / "libsluice.so"))
