"""What the study engine asks of an app, and the apps there are."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

from isoattn.ablate.records import ArmCost, Strata
from isoattn.ablate.study import StudyError


@dataclass(frozen=True)
class Weights:
    """Initial weights of a built model.

    Args:
        parameters: trainable parameters.
        outside: name -> hash, of every weight outside the attention cores.
    """

    parameters: int
    outside: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Scores:
    """A trained run, scored.

    Args:
        metrics: ``val/...``, and for confirmation runs ``test/...`` and ``test/..._replaced``.
        replaced_by: the attention used for ``*_replaced``, None where the question does not arise.
        predictions: npz beside the record, or None.
        strata: test scores by stratum and group, where the domain has such.
    """

    metrics: dict[str, float]
    replaced_by: str | None
    predictions: Path | None
    strata: Strata = field(default_factory=dict)


class StudyApp(Protocol):
    """An app as the engine sees it. Implemented once a domain, in ``isoattn.apps.DOMAIN.study``."""

    @property
    def name(self) -> str:
        """Of the app."""

    metrics: ClassVar[tuple[str, ...]]
    """What ``score`` reports, and so what a study can judge."""

    def resolve(self, argv: list[str]) -> dict[str, Any]:
        """The complete config of a command line."""

    def weights(self, config: dict[str, Any]) -> Weights:
        """Build the model of a config at its seed and hash its weights."""

    def attention_shape(self, config: dict[str, Any]) -> tuple[int, int, int]:
        """(heads, head_dim, tokens) of the attention at the study's own size, for the gate."""

    def train(self, argv: list[str]) -> tuple[int, Any]:
        """Run ``fit``; the exit status and the app object with model and data."""

    def training(self, config: dict[str, Any]) -> dict[str, Any]:
        """What of a config decides the training; equal where two configs are the same run."""

    def built(self, config: dict[str, Any]) -> Any:
        """The app object that :meth:`train` returns, with nothing trained."""

    def score(
        self,
        app: Any,
        folder: Path,
        *,
        test: bool,
        control: bool,
        swaps: Mapping[str, dict[str, Any]],
    ) -> Scores:
        """Score the selected checkpoint of a run on validation and, if asked, on test.

        Args:
            app: of :meth:`train`.
            folder: of the run.
            test: whether test is scored.
            control: the arm mixes nothing, so it is not asked whether its attention is used.
            swaps: arm -> ``{class_path, init_args}``; with the attention of each in its place, the
                same weights are scored as ``test/METRIC@ARM``.
        """

    def swapped_scores(
        self, config: dict[str, Any], folder: Path, swaps: Mapping[str, dict[str, Any]]
    ) -> dict[str, float]:
        """Score the selected checkpoint of a run that has ended, as trained and with swaps.

        Args:
            config: of the run.
            folder: of the run.
            swaps: as in :meth:`score`.

        Returns:
            ``test/METRIC`` and ``test/METRIC@ARM``.
        """

    def baselines(self, config: dict[str, Any]) -> dict[str, float]:
        """Simple references of the domain on the test split: name -> score."""

    def costs(
        self,
        cases: list[tuple[str, dict[str, str], dict[str, Any]]],
        *,
        warmup: int = 10,
        repeats: int = 15,
    ) -> list[ArmCost]:
        """Measure arms, interleaved: (arm, levels, config) each.

        Args:
            cases: what is measured.
            warmup: rounds that do not count.
            repeats: rounds that do.

        Raises:
            RuntimeError: an arm failed at it, or the measuring process was lost.
        """

    def estimate(self, configs: list[dict[str, Any]]) -> list[float]:
        """Seconds that a run of each config takes, from a few timed steps."""


_APPS = {
    "vision": "isoattn.apps.vision.study:VisionStudy",
    "graph": "isoattn.apps.graph.study:GraphStudy",
    "matching": "isoattn.apps.matching.study:MatchingStudy",
    "wsi": "isoattn.apps.wsi.study:WsiStudy",
}


def study_app(name: str) -> StudyApp:
    """The app of a study.

    Raises:
        StudyError: there is none of that name.
    """
    if name not in _APPS:
        raise StudyError(f"No app {name!r} can run a study. There are: {', '.join(_APPS)}.")
    module, _, attribute = _APPS[name].partition(":")
    app: StudyApp = getattr(importlib.import_module(module), attribute)()
    return app


def shipped_studies() -> dict[str, Path]:
    """Every shipped study, by name."""
    from isoattn.apps.base.shipped import shipped

    return {name: path for app in _APPS for name, path in shipped(app, "studies").items()}
