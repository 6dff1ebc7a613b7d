"""The vision app: LightningCLI wiring for image classifiers."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import lightning.pytorch as L
from lightning.pytorch.cli import LightningArgumentParser

from isoattn.apps.base.cli import AppCLI, say, say_metrics
from isoattn.apps.base.errors import UserError
from isoattn.apps.vision.outputs import write_predictions, write_test_outputs
from isoattn.core.training.checkpoint import read_checkpoint
from isoattn.vision import ImageDataModule, count_flops
from isoattn.vision.classifier import ImageClassifier
from isoattn.vision.data.decode import DecodeError
from isoattn.vision.models import ImageNetwork, load_weights


class VisionCLI(AppCLI):
    """fit, validate, test and predict for image classifiers."""

    app: ClassVar[str] = "vision"
    default_config: ClassVar[str] = "xcit_mnist"
    model_type: ClassVar[type[L.LightningModule]] = ImageClassifier
    data_type: ClassVar[type[L.LightningDataModule]] = ImageDataModule
    user_errors: ClassVar[tuple[type[Exception], ...]] = (DecodeError, ValueError)
    kinds: ClassVar[Mapping[str, type]] = {"model.network": ImageNetwork}

    @staticmethod
    def explain(error: Exception) -> str:
        """An unreadable image can be left out."""
        if isinstance(error, DecodeError):
            return f"{error}\nTo leave such files out and count them: --data.on_bad_image skip"
        return str(error)

    @staticmethod
    def rewrite(argv: list[str]) -> list[str]:
        """``predict DIR`` is ``predict --data.init_args.predict_dir=DIR``."""
        if argv[0] != "predict" or len(argv) < 2 or argv[1].startswith("-"):
            return argv
        if not Path(argv[1]).is_dir():
            raise UserError(f"predict takes a folder of images; {argv[1]} is none.")
        return [argv[0], *argv[2:], f"--data.init_args.predict_dir={argv[1]}"]

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """What the data tell the model: classes, channels, size."""
        super().add_arguments_to_parser(parser)
        link = parser.link_arguments
        link("data", "model.class_names", compute_fn=self._class_names, apply_on="instantiate")
        link("data", "model.num_classes", compute_fn=self._num_classes, apply_on="instantiate")
        link("data.in_chans", "model.in_chans", apply_on="instantiate")
        link("data.image_size", "model.image_size", apply_on="instantiate")

    def _class_names(self, data: ImageDataModule) -> list[str]:
        """The checkpoint's class list where there is one; the data are mapped to it by name."""
        if self.arguments.checkpoint is not None:
            hparams = read_checkpoint(self.arguments.checkpoint).get("hyper_parameters", {})
            if hparams.get("class_names"):
                data.check_classes(hparams["class_names"])
        return data.class_names

    def _num_classes(self, data: ImageDataModule) -> int:
        return len(self._class_names(data))

    def initialise(self) -> None:
        """Take the weights of ``--init_from``, and say what fitted."""
        source = self._option("init_from")
        if source is not None and self.arguments.checkpoint is None:
            report = load_weights(self.model.network, Path(source), allow_attention_change=True)
            sys.stderr.write(f"{report}\n")

    def facts(self) -> dict[str, Any]:
        """Cost of the network at the data's image size."""
        flops = count_flops(self.model.network, self.datamodule.image_size)
        return {"forward_flops": flops.total, "attention_flops": flops.attention}

    def after_test(self) -> None:
        """Write per-class accuracy, confusion matrix and predictions."""
        folder, facts = self.test_folder(), self.test_facts()
        write_test_outputs(folder, self.model.test_outputs, self.model.class_names, facts)
        say_metrics(facts["metrics"])
        say(f"written {folder}: predictions.csv, per_class.csv, confusion.csv, confusion.png")

    def predict(self, **kwargs: Any) -> None:
        """Predict a folder of images into a CSV."""
        outputs: Any = self.trainer.predict(**kwargs)
        folder = self.datamodule.predict_dir
        name = Path(folder).resolve().name if folder else "test"
        file = Path(self._option("output") or self.run.path / "predict" / f"{name}.csv")
        count = write_predictions(file, outputs or [], self.model.class_names)
        say(f"{count} images predicted: {file}")
        for reason, number in self.datamodule.skipped().items():
            say(f"  skipped: {number} ({reason})")
