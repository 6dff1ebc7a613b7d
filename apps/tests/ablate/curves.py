"""An app whose costs are formulas, and a study of it: what is measured is known beforehand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from isoattn.ablate.cells import set_dotted
from isoattn.ablate.records import ArmCost
from isoattn.ablate.study import Study, study_from_dict

SECTION: dict[str, Any] = {
    "key": "data.nodes",
    "label": "nodes",
    "values": [500, 1000, 2000, 4000],
    "configs": ["block_model"],
}
ARMS = {
    "Softmax": "isoattn.core.Softmax",
    "Linear": "isoattn.core.Linear",
    "Zero": "isoattn.core.Zero",
}
MILLISECONDS: dict[str, Callable[[int], float]] = {
    "Softmax": lambda n: 1e-4 * n**2,
    "Linear": lambda n: 0.1 * n,  # level with softmax at 1,000
    "Zero": lambda n: 0.01 * n,
    "Again": lambda n: 1e-4 * n**2,
}


def study_raw(**changes: Any) -> dict[str, Any]:
    """A study as plain data."""
    return {
        "name": "curves",
        "app": "vision",
        "title": "Curves",
        "question": "What does it cost?",
        "configs": ["xcit_digits"],
        "overrides": {"data.shift": 1},
        "arms": ARMS,
        "baseline": "Softmax",
        "search": {"values": [0.001]},
        "confirm_seeds": [0],
        "claim": False,
        "cost": SECTION,
        **changes,
    }


def study_of(**changes: Any) -> Study:
    """The study, read."""
    return study_from_dict(study_raw(**changes), where="test")


def write_study(folder: Path, **changes: Any) -> Path:
    """The study as a file."""
    file = folder / "curves.yaml"
    file.write_text(yaml.safe_dump(study_raw(**changes), sort_keys=False), encoding="utf-8")
    return file


class Curves:
    """Stands for an app: resolves options literally, costs are ``MILLISECONDS``.

    Args:
        broken: (arm, size) that cannot take a step.
        own: nodes of the study itself.
    """

    name = "vision"
    metrics = ("accuracy",)

    def __init__(self, broken: set[tuple[str, int]] | None = None, own: int = 2708) -> None:
        self.broken = broken or set()
        self.own = own
        self.calls: list[tuple[int, list[str], int, int]] = []
        self.configs: list[dict[str, Any]] = []

    def resolve(self, argv: list[str]) -> dict[str, Any]:
        """Every ``--key=value``, and the names of the configs."""
        config: dict[str, Any] = {"model": {"optim": {"lr": 0.1}}, "configs": []}
        for token, following in zip(argv, [*argv[1:], ""], strict=True):
            if token == "--config":
                config["configs"].append(following)
            elif token.startswith("--"):
                key, _, value = token[2:].partition("=")
                set_dotted(config, key, yaml.safe_load(value))
        return config

    def attention_shape(self, config: dict[str, Any]) -> tuple[int, int, int]:
        """As many tokens as nodes."""
        return 4, 8, config.get("data", {}).get("nodes", self.own)

    def costs(self, cases: Any, *, warmup: int = 10, repeats: int = 15) -> list[ArmCost]:
        """From the formulas; all arms fail if one does, as a lost process takes all with it."""
        size = cases[0][2]["data"]["nodes"]
        self.calls.append((size, [arm for arm, _, _ in cases], warmup, repeats))
        self.configs += [config for _, _, config in cases]
        for arm, levels, _ in cases:
            assert levels == {"nodes": str(size)}
            if (arm, size) in self.broken:
                raise RuntimeError(f"OutOfMemoryError: {arm} wants too much\nand more lines")
        return [
            ArmCost(
                arm=arm,
                levels=levels,
                forward_flops=1000 * size,
                attention_flops=100 * size,
                step_ms=MILLISECONDS[arm](size),
                step_ms_iqr=0.1,
                forward_ms=MILLISECONDS[arm](size) / 3,
                peak_mib={"Linear": size / 50, "Zero": 0.0}.get(arm, size / 100),
                batch=1,
                note="fused" if arm == "Softmax" else "",
            )
            for arm, levels, _ in cases
        ]
