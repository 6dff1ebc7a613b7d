"""P4: every arm must pass the conformance suite of the core on the study's own sizes."""

from __future__ import annotations

from isoattn.ablate.domain import StudyApp
from isoattn.ablate.plan import Plan
from isoattn.ablate.study import Study
from isoattn.core import attention_factory
from isoattn.core.testing import check_attention


def gate_failures(study: Study, plan: Plan, app: StudyApp) -> list[str]:
    """The laws that fail, as ``arm: law: detail``; empty where all is well."""
    failures = []
    for arm, spec in study.arms.items():
        heads, head_dim, tokens = app.attention_shape(plan.base(arm, study.level_sets[0]))
        for law in check_attention(attention_factory(spec), heads, head_dim, tokens):
            if not law.passed:
                failures.append(f"{arm}: {law.name}: {law.detail}")
    return failures
