"""The heat maps of a trained model: scores, files, a summary.

Shape suffixes: N tiles.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from isoattn.apps.base.class_tables import write_csv
from isoattn.apps.base.errors import UserError
from isoattn.apps.base.files import write_json
from isoattn.apps.wsi.heatmap import target_of
from isoattn.apps.wsi.truths import find_truths
from isoattn.wsi.bags import Bag, BagData
from isoattn.wsi.classifier import BagClassifier
from isoattn.wsi.heatmap import TileScores, compare_with_truth, tile_evidence, write_heat_map
from isoattn.wsi.models import TransMIL
from isoattn.wsi.slides import Slide, SlideError

CANDIDATES = 60
"""Thresholds that are tried on validation slides."""
SHOWN = 12

Row = dict[str, Any]


class HeatMaps:
    """Makes the heat map of one bag after the other.

    Args:
        model: trained.
        data: whose bags.
        folder: for the files.
        options: of the command.
    """

    def __init__(
        self, model: BagClassifier, data: BagData, folder: Path, options: argparse.Namespace
    ) -> None:
        self.model, self.data, self.folder, self.options = model, data, folder, options
        self.target = target_of(options, model.class_names)
        self.other = data.predict_source is not None
        self.task = data.predict_task if self.other else data.task
        labels = getattr(data.predict_source if self.other else data.source, "labels", None)
        self.truths = find_truths(
            self.task,
            labels,
            slides=options.slides,
            masks=options.masks,
            values=options.mask_values,
        )
        self.threshold: float | None = options.threshold
        self.threshold_from = "given" if options.threshold is not None else "none"

    def chosen(self) -> list[int]:
        """Numbers of the bags, as asked for.

        Raises:
            UserError: a name that no bag has.
        """
        names = {name: i for i, name in enumerate(self.task.ids)}
        unknown = [name for name in self.options.only if name not in names]
        if unknown:
            known = ", ".join(list(names)[:4])
            raise UserError(f"--only: there is no bag {unknown[0]!r}; there are {known}, ...")
        if self.options.only:
            found = [names[name] for name in self.options.only]
        elif self.options.part == "all" or self.other:
            found = list(range(len(names)))
        else:
            found = getattr(self.task.split, self.options.part).tolist()
        return found[: self.options.most]

    def choose_threshold(self) -> None:
        """Of the scores, by the mean IoU over the validation slides that have something to find."""
        if self.threshold is not None or self.other:
            return
        known = []
        for index in self.task.split.val.tolist():
            mask = self.truths.mask(self.task.ids[index], index)
            if mask is not None and mask.any():
                scores, size, _ = self._scores(index)
                known.append((scores, mask, size[0] / mask.shape[1]))
        if not known:
            return
        pooled = np.concatenate([scores.values_N for scores, _, _ in known])
        candidates = np.quantile(pooled, np.linspace(0.5, 0.999, CANDIDATES))
        means = []
        for value in candidates:
            each = [compare_with_truth(s, m, d, threshold=float(value)).iou for s, m, d in known]
            means.append(statistics.fmean(iou for iou in each if iou is not None))
        self.threshold = float(candidates[int(np.argmax(means))])
        self.threshold_from = f"{len(known)} validation slides"

    def write(self, index: int, advance: Callable[[str], None]) -> Row:
        """The files of a bag, and its row of the summary."""
        name = self.task.ids[index]
        scores, size, bag = self._scores(index)
        probability = self._probability(bag)
        best = int(probability.argmax())
        guess = f"{self.model.class_names[best]} {float(probability[best]):.2f}"
        label = int(self.task.labels[index])
        truth = f"label {self.task.classes[label]}, " if label >= 0 and self.task.classes else ""
        found = write_heat_map(
            self.folder,
            self._slide(name),
            scores,
            truth_HW=self.truths.mask(name, index),
            threshold=self.threshold,
            scale=self.options.scale,
            extent=size,
            heading=f"{truth}predicted {guess}",
        )
        tiles = zip(scores.coords_N2.tolist(), scores.values_N.tolist(), strict=True)
        rows = [[x, y, f"{value:.6g}"] for (x, y), value in tiles]
        write_csv(self.folder / f"{name}.csv", ["x", "y", "score"], rows)
        advance(name)
        return {
            "slide": name,
            "label": self.task.classes[label] if label >= 0 and self.task.classes else "",
            "predicted": self.model.class_names[best],
            "probability": float(probability[best]),
            "tiles": len(rows),
            "negative_share": float((scores.values_N < 0).mean()),
            **self._rest(bag),
            "true_tiles": None if found is None else found.true_tiles,
            "tile_auc": None if found is None else found.auc,
            "iou": None if found is None else found.iou,
            "best_iou": None if found is None else found.best_iou,
        }

    def _rest(self, bag: Bag) -> Row:
        """What the class token of a TransMIL gives to no tile, and Nystrom's residual."""
        network, cells = self.model.network, bag.cells()
        if not isinstance(network, TransMIL) or self.options.score != "attention":
            return {}
        rows = network.class_rows(bag.features, cells)
        return {
            "on_itself": float(rows.itself.mean()),
            "on_zero_tokens": float(rows.pads.mean()),
            "on_repeated_tiles": float(rows.repeated.mean()),
            "inverse_residual": network.inverse_residual(bag.features, cells),
        }

    def _scores(self, index: int) -> tuple[TileScores, tuple[int, int], Bag]:
        """Scores, width and height of the slide, and the bag."""
        name, bag = self.task.ids[index], self.task.reader.read(index)
        if bag.coords is None:
            raise UserError(
                f"The features of {name} have no coordinates, so there is nothing to draw: put "
                "CLAM's h5_files beside its pt_files, or encode the slides with isoattn wsi encode"
            )
        values, what = tile_evidence(
            self.model.network,
            bag.features,
            bag.cells(),
            kind=self.options.score,
            target=self.target,
        )
        side = bag.side or bag.step or 1.0
        coords = bag.coords.numpy()
        scores = TileScores(name, coords, values.float().numpy(), side, what)
        slide = self._slide(name)
        try:
            size = slide.dimensions if slide is not None else self._extent(name, scores, index)
        except SlideError as error:
            raise UserError(str(error)) from error
        return scores, size, bag

    def _extent(self, name: str, scores: TileScores, index: int) -> tuple[int, int]:
        """Of a slide that is not there: as its features say, or up to the last tile."""
        from isoattn.wsi.bags.files import FeatureReader
        from isoattn.wsi.features import read_features

        if isinstance(self.task.reader, FeatureReader):
            known = read_features(self.task.reader.paths[index]).attributes
            if "level0_width" in known:
                return int(known["level0_width"]), int(known["level0_height"])
        side = int(np.ceil(scores.coords_N2.max() + scores.side))
        return side, side

    def _slide(self, name: str) -> Slide | None:
        path = self.truths.slides.get(name)
        return None if path is None else Slide(path)

    @torch.no_grad()
    def _probability(self, bag: Bag) -> torch.Tensor:
        cells = bag.cells()
        logits_1C: torch.Tensor = self.model.network(
            bag.features[None], None if cells is None else cells[None]
        )
        return logits_1C[0].double().softmax(0)


def say_heat_maps(maps: HeatMaps, rows: Sequence[Row]) -> None:
    """Write ``heatmaps.csv`` and ``result.json``; print the scores of the slides."""
    header = list(rows[0])
    write_csv(
        maps.folder / "heatmaps.csv", header, [[_cell(row[key]) for key in header] for row in rows]
    )
    scored = [row for row in rows if row["best_iou"] is not None]
    means = {
        key: statistics.fmean(values)
        for key in ("tile_auc", "iou", "best_iou")
        if (values := [row[key] for row in scored if row[key] is not None])
    }
    result = {
        "score": maps.options.score,
        "target": maps.model.class_names[maps.target] if maps.options.score == "gradient" else None,
        "attention": maps.model.hparams["attention"],
        "checkpoint": str(maps.options.ckpt_path),
        "threshold": maps.threshold,
        "threshold_from": maps.threshold_from,
        "slides": len(rows),
        "slides_with_truth": len(scored),
        "mean": means,
    }
    write_json(maps.folder / "result.json", result)
    out = sys.stdout
    for row in (scored or list(rows))[:SHOWN]:
        numbers = [
            f"{title} {row[key]:.3f}"
            for key, title in (("tile_auc", "tile AUC"), ("iou", "IoU"), ("best_iou", "best IoU"))
            if row[key] is not None
        ]
        guess = f"{row['predicted']} {row['probability']:.2f}"
        out.write(
            f"  {row['slide']:12s} {guess:16s} {row['tiles']:6,} tiles  {'  '.join(numbers)}\n"
        )
    if scored:
        shown = ", ".join(
            f"{title} {means[key]:.3f}"
            for key, title in (("tile_auc", "tile AUC"), ("iou", "IoU"), ("best_iou", "best IoU"))
            if key in means
        )
        out.write(f"mean of {len(scored)} slides with something to find: {shown}\n")
    if maps.threshold is not None and scored:
        out.write(f"threshold {maps.threshold:.3g} ({maps.threshold_from})\n")
    bare = [row["slide"] for row in rows if row["slide"] not in maps.truths.slides]
    if bare and maps.truths.made is None:
        out.write(
            f"{len(bare)} of {len(rows)} drawn without a slide, such as {bare[0]}: give the folder "
            "with --slides\n"
        )
    out.write(f"written {maps.folder}: ID.png, ID.geojson, ID.csv, heatmaps.csv, result.json\n")


def _cell(value: Any) -> Any:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else value
