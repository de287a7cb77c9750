"""The native part: that of a wheel with devices of its own where one is installed, else this package's.

Such a wheel names its module as an entry point of the group `tracecast.native`.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from . import _native as native
else:
    _found = list(entry_points(group="tracecast.native"))
    if len(_found) > 1:
        raise ImportError(f"tracecast has one native part, found {', '.join(sorted(one.value for one in _found))}")
    if _found:
        native = _found[0].load()
    else:
        from . import _native as native

Error = native.Error
