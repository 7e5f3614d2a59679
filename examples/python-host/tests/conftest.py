"""Tests run on the library of this tree's build, unless SLUICE_LIBRARY names another, and on what was fetched into it."""

import os
import sys
from pathlib import Path

BUILD = Path(__file__).resolve().parents[3] / "build"
os.environ.setdefault("SLUICE_LIBRARY", str(BUILD / "libsluice.so"))
sys.path.append(str(BUILD / "vllm"))  # scripts/fetch-vllm
