"""The conformance suite: laws every attention keeps, generated from what it declares.

``check_attention(factory, heads, head_dim, tokens)`` runs the quick ones in a few seconds and can
stand as a gate before a study; :data:`LAWS` holds them all by name, for a test that is generated
from ``attentions()``. Needs torch alone.
"""

# The order of these imports is the order of LAWS.
from isoattn.core.testing.suite import (  # isort: skip
    LAWS,
    Law,
    LawResult,
    NotApplicableError,
    Sizes,
    check_attention,
    run_law,
    variants,
)
from isoattn.core.testing import construction, masks, algebra, recurrence, numerics, execution  # isort: skip
from isoattn.core.testing.measure import count_flops, saved_bytes  # isort: skip

__all__ = [
    "LAWS",
    "Law",
    "LawResult",
    "NotApplicableError",
    "Sizes",
    "algebra",
    "check_attention",
    "construction",
    "count_flops",
    "execution",
    "masks",
    "numerics",
    "recurrence",
    "run_law",
    "saved_bytes",
    "variants",
]
