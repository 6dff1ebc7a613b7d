"""The slide app: LightningCLI wiring for bag classifiers."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import lightning.pytorch as L
from lightning.pytorch.cli import LightningArgumentParser

from isoattn.apps.base.cli import AppCLI, say, say_metrics
from isoattn.apps.base.errors import UserError
from isoattn.apps.wsi.sources import source_spec
from isoattn.core.training.checkpoint import read_checkpoint
from isoattn.wsi.bags import BagData, BagSource
from isoattn.wsi.classifier import BagClassifier
from isoattn.wsi.models import BagNetwork, count_flops, load_weights

_STARTS = ("--config", "-c", "--ckpt_path", "--init_from")
"""Options that say what a run starts from."""


class WsiCLI(AppCLI):
    """fit, validate, test and predict for bag classifiers."""

    app: ClassVar[str] = "wsi"
    default_config: ClassVar[str] = "needle"
    model_type: ClassVar[type[L.LightningModule]] = BagClassifier
    data_type: ClassVar[type[L.LightningDataModule]] = BagData
    user_errors: ClassVar[tuple[type[Exception], ...]] = (ValueError, FileNotFoundError)
    kinds: ClassVar[Mapping[str, type]] = {
        "model.network": BagNetwork,
        "data.source": BagSource,
        "data.predict_source": BagSource,
    }

    @staticmethod
    def rewrite(argv: list[str]) -> list[str]:
        """``fit FEATURES [LABELS]`` and ``predict FEATURES`` take the user's own features.

        ``fit FEATURES`` with no config starts from the one for own features.
        """
        paths: list[str] = []
        for token in argv[1:]:
            if token.startswith("-"):
                break
            paths.append(token)
        if not paths:
            return argv
        given = argv[1 + len(paths) :]
        if argv[0] == "predict":
            spec = source_spec(paths[:1], labels=False)
            return [argv[0], f"--data.init_args.predict_source={json.dumps(spec)}", *given]
        own = f"--data.init_args.source={json.dumps(source_spec(paths))}"
        start = [] if any(t.partition("=")[0] in _STARTS for t in given) else ["--config=features"]
        return [argv[0], *start, own, *given]

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """What the data tell the model: classes and features."""
        super().add_arguments_to_parser(parser)
        parser.add_argument(
            "--fresh_head",
            type=bool,
            default=False,
            help="With --init_from: leave the head as drawn, for another number of classes.",
        )
        link = parser.link_arguments
        link("data", "model.class_names", compute_fn=self._class_names, apply_on="instantiate")
        link("data", "model.num_classes", compute_fn=self._num_classes, apply_on="instantiate")
        link("data.in_dim", "model.in_dim", apply_on="instantiate")

    def _class_names(self, data: BagData) -> list[str]:
        """The checkpoint's class list where there is one; the data are mapped to it by name."""
        if self.arguments.checkpoint is not None:
            hparams = read_checkpoint(self.arguments.checkpoint).get("hyper_parameters", {})
            if hparams.get("class_names"):
                data.check_classes(hparams["class_names"])
        return data.class_names

    def _num_classes(self, data: BagData) -> int:
        return len(self._class_names(data))

    @staticmethod
    def explain(error: Exception) -> str:
        """With the options of this command where a message names those of a function."""
        return str(error).replace("set fresh_head=True", "--fresh_head=true")

    def monitored(self) -> str:
        """Area under the ROC curve over bags."""
        return "val/auc"

    def kept(self) -> dict[str, Any]:
        """The encoder of the features, so that other features are not taken for them."""
        return {"features": feature_facts(self.datamodule)}

    def before_fit(self) -> None:
        """Say what is trained on."""
        task = self.datamodule.task
        parts = ", ".join(f"{len(members)} {part}" for part, members in task.split.items())
        sizes = sorted(self._sizes("train"))
        sys.stderr.write(
            f"{task.name}: {len(task.ids)} bags ({parts}), {sizes[0]:,} to {sizes[-1]:,} tiles, "
            f"{task.in_dim:,} features, classes {', '.join(task.classes)}\n"
        )
        super().before_fit()

    def _sizes(self, part: str) -> list[int]:
        """Tiles of the bags of a part, as training sees them."""
        task, most = self.datamodule.task, self.datamodule.max_tokens
        sizes = [task.reader.shape(i)[0] for i in getattr(task.split, part).tolist()]
        return [size if most is None else min(size, most) for size in sizes]

    def _default_name(self, config: dict[str, Any]) -> str:
        """With the source of the data, which tells more than the class that holds it."""
        source = config["data"]["init_args"].get("source") or {}
        leaf = str(source.get("class_path", "NeedleBags")).rsplit(".", 1)[-1].lower()
        return super()._default_name({**config, "data": {"class_path": leaf}})

    def initialise(self) -> None:
        """Take the weights of ``--init_from``, ours or the released ones, and say what fitted."""
        source = self._option("init_from")
        if source is None or self.arguments.checkpoint is not None:
            return
        report = load_weights(
            self.model.network,
            Path(source),
            allow_attention_change=True,
            fresh_head=self._option("fresh_head"),
        )
        sys.stderr.write(f"{report}\n")

    def before_predict(self) -> None:
        """Weights of ``--init_from``; the bags have to have the model's features."""
        from isoattn.apps.wsi.outputs import check_table

        if self._option("output") is not None:
            check_table(Path(self._option("output")))
        self.initialise()
        self.datamodule.check_features(self.model.in_dim)
        self._check_encoder()

    def _check_encoder(self) -> None:
        """Stop where the bags to predict are known to come from another encoder."""
        if self.arguments.checkpoint is None:
            return
        kept = read_checkpoint(self.arguments.checkpoint).get("isoattn", {})
        trained = (kept.get("features") or {}).get("encoder")
        found = feature_facts(self.datamodule, predict=True).get("encoder")
        if trained and found and trained != found:
            raise UserError(
                f"The model was trained on features of {trained}, these are of {found}: encode the "
                f"slides with --encoder {trained}"
            )

    def facts(self) -> dict[str, Any]:
        """The data in numbers, and what a forward pass over a bag of the median size costs."""
        sizes = self._sizes("train")
        tiles = int(statistics.median_low(sizes))
        flops = count_flops(self.model.network, tiles)
        return {
            "data": self.datamodule.task.name,
            "bags": len(self.datamodule.task.ids),
            "tiles": {"fewest": min(sizes), "median": tiles, "most": max(sizes)},
            "features": feature_facts(self.datamodule),
            "forward_flops": flops.total,
            "attention_flops": flops.attention,
        }

    def after_test(self) -> None:
        """Write scores per class, confusion matrix and predictions."""
        from isoattn.apps.wsi.outputs import write_test_outputs

        folder, facts = self.test_folder(), self.test_facts()
        written = write_test_outputs(folder, self.model.test_outputs, self.model.class_names, facts)
        say_metrics(facts["metrics"])
        slides = sum(len(o["label"]) for o in self.model.test_outputs)
        say(f"of {slides} slides; written {folder}: {', '.join(written)}")

    def predict(self, **kwargs: Any) -> None:
        """Predict bags into a table, a row a slide."""
        from isoattn.apps.wsi.outputs import write_predictions

        outputs: Any = self.trainer.predict(**kwargs) or []
        task = self.datamodule.predict_task
        file = Path(self._option("output") or self.run.path / "predict" / f"{task.name}.csv")
        count = write_predictions(file, outputs, self.model.class_names, task.reader)
        say(f"{count} slides predicted: {file}")


def feature_facts(data: BagData, *, predict: bool = False) -> dict[str, Any]:
    """What the first feature file says of its encoder; empty for bags that are made."""
    from isoattn.wsi.bags.files import FeatureReader
    from isoattn.wsi.features import FeatureFileError, read_features

    task = data.predict_task if predict else data.task
    if not isinstance(task.reader, FeatureReader) or not task.reader.paths:
        return {}
    try:
        found = read_features(task.reader.paths[0])
    except FeatureFileError:
        return {}
    known = ("encoder", "mpp", "patch_size", "config_hash")
    return {k: v for k in known if (v := found.attributes.get(k)) is not None}
