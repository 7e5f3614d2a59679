"""The control plane over HTTP: a trainer tells a serving host to init, start, update and finish. Needs nothing but Python.

A host mounts `Asgi` in its own web application, or runs a `Server`; a trainer has a `Client`. Bytes of tensors never come
this way: it carries the init info once, and then names.
"""

from .asgi import Asgi
from .client import Client, ControlError
from .phases import Control, EngineTarget, Target
from .server import Server
from .token import read_token

__all__ = ["Asgi", "Client", "Control", "ControlError", "EngineTarget", "Server", "Target", "read_token"]
