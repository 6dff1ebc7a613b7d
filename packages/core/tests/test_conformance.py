"""Every attention, and every alternative its options offer, through every law."""

import pytest

from isoattn.core import attentions
from isoattn.core.testing import LAWS, NotApplicableError, Sizes, run_law, variants

FACTORIES = {
    name: factory
    for cls in attentions().values()
    if cls.__module__.startswith("isoattn.core.")
    for name, factory in variants(cls).items()
}
DEFAULTS = {name for name in FACTORIES if "(" not in name}
LONG = {"first_derivatives", "second_derivatives", "chunks"}
"""Laws that take seconds: among the default tests for each class as it is, else slow."""
EVERY = [
    pytest.param(
        factory,
        law,
        id=f"{law.name}-{name}",
        marks=[pytest.mark.slow] if law.slow or (law.name in LONG and name not in DEFAULTS) else [],
    )
    for law in LAWS.values()
    for name, factory in FACTORIES.items()
]


@pytest.mark.parametrize(("factory", "law"), EVERY)
def test_law(factory, law):
    try:
        law(factory, Sizes())
    except NotApplicableError as reason:
        assert str(reason)  # a form that is missing has a reason; no need to count it as skipped


@pytest.mark.slow
@pytest.mark.parametrize("factory", FACTORIES.values(), ids=FACTORIES.keys())
def test_half_precision_at_the_size_of_loftr(factory):
    # The size at which released linear attentions return zeros in float16.
    result = run_law(LAWS["long_dtypes"], factory, Sizes(heads=8, head_dim=32))
    assert result.passed, result.detail
