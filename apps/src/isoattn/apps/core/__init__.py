"""Commands on ``isoattn.core`` alone: what an attention costs, how far it is from softmax."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from isoattn.apps.core.meter_log import MeterLog

__all__ = ["MeterLog"]


def __getattr__(name: str) -> Any:
    """``MeterLog`` when it is asked for: it needs Lightning, which the commands do without."""
    if name == "MeterLog":
        from isoattn.apps.core.meter_log import MeterLog

        return MeterLog
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
