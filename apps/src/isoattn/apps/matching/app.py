"""The matching app: LightningCLI wiring for matchers of image pairs."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import lightning.pytorch as L
from lightning.pytorch.cli import LightningArgumentParser

from isoattn.apps.base.cli import AppCLI, say, say_metrics
from isoattn.apps.matching.sources import evaluation_source, training_source
from isoattn.core import Attention
from isoattn.matching.data import PairData, PairSource
from isoattn.matching.matcher_module import MatcherModule
from isoattn.matching.models import count_flops
from isoattn.matching.models.network import MatchNetwork
from isoattn.matching.models.positions import PositionEncoding
from isoattn.matching.weights import WeightsError, load_weights

_SOURCE = {"fit": "source", "validate": "val_source", "test": "test_source"}
_MOST_NAMED = 4


class MatchingCLI(AppCLI):
    """fit, validate, test and predict for matchers of image pairs."""

    app: ClassVar[str] = "matching"
    default_config: ClassVar[str] = "tiny"
    model_type: ClassVar[type[L.LightningModule]] = MatcherModule
    data_type: ClassVar[type[L.LightningDataModule]] = PairData
    user_errors: ClassVar[tuple[type[Exception], ...]] = (ValueError, FileNotFoundError)
    kinds: ClassVar[Mapping[str, type]] = {
        "model.network": MatchNetwork,
        "model.attention_self": Attention,
        "model.attention_cross": Attention,
        "model.attention_fine": Attention,
        "data.source": PairSource,
        "data.val_source": PairSource,
        "data.test_source": PairSource,
        "data.predict_source": PairSource,
    }

    @staticmethod
    def explain(error: Exception) -> str:
        """Of weights that do not fit, the options of the command that make them fit."""
        return _explained(error) if isinstance(error, WeightsError) else str(error)

    @staticmethod
    def rewrite(argv: list[str]) -> list[str]:
        """``fit PHOTOS``, ``test PAIRS`` and ``predict PAIRS`` take the user's own files."""
        paths = []
        for token in argv[1:]:
            if token.startswith("-"):
                break
            paths.append(token)
        if not paths:
            return argv
        chosen = training_source if argv[0] == "fit" else evaluation_source
        option = _SOURCE.get(argv[0], "predict_source")
        own = f"--data.init_args.{option}={json.dumps(chosen(paths))}"
        return [argv[0], own, *argv[1 + len(paths) :]]

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Pictures, and what published weights do not say of themselves."""
        super().add_arguments_to_parser(parser)
        parser.add_argument(
            "--pictures",
            type=int,
            default=4,
            help="test and predict: pairs whose matches are drawn.",
        )
        parser.add_argument(
            "--weights_pe",
            type=PositionEncoding | None,
            default=None,
            help="Position encoding of published weights in --init_from, which do not say it: "
            "fixed for indoor_ds_new, released for outdoor_ds, indoor_ds and both _ot.",
        )

    def monitored(self) -> str:
        """A score that needs no threshold."""
        return "val/average_precision_1cell"

    def before_fit(self) -> None:
        """Say what is trained on."""
        data: PairData = self.datamodule
        source = data.source_of("train")
        count = len(source.pairs("train", 0))  # type: ignore[arg-type]
        parts = [f"{count} pairs an epoch", f"{len(data.dataset('val'))} to validate"]  # type: ignore[arg-type]
        sys.stderr.write(f"{type(source).__name__}: {', '.join(parts)}\n")
        super().before_fit()

    def initialise(self) -> None:
        """Take the weights of ``--init_from``, and say what fitted."""
        source = self._option("init_from")
        if source is not None and self.arguments.checkpoint is None:
            report = load_weights(
                self.model.network,
                Path(source),
                pe=self._option("weights_pe"),
                allow_attention_change=True,
            )
            sys.stderr.write(f"{report}\n")

    def facts(self) -> dict[str, Any]:
        """What matching the first validation pair costs; the fine part is left out."""
        pair = self.datamodule.dataset("val")[0]
        sizes = [tuple(image.shape) for image in (pair.image0, pair.image1)]
        flops = count_flops(self.model.network, *sizes)
        return {
            "image_sizes": [list(size) for size in sizes],
            "forward_flops": flops.total,
            "attention_flops": flops.attention,
        }

    def _default_name(self, config: dict[str, Any]) -> str:
        """With the stem and the source of the data, which tell more than the classes around."""
        data = config["data"].get("init_args", {})
        option = _SOURCE.get(self.config.subcommand, "predict_source")
        source = data.get(option) or data.get("source") or {}
        leaf = str(source.get("class_path", "BuiltinPairs")).rsplit(".", 1)[-1]
        model = dict(config["model"])
        stem = model["network"].get("init_args", {}).get("backbone", "resnet_fpn")
        model["network"] = {"class_path": str(stem)}
        own = {**config, "model": model, "data": {"class_path": leaf.removesuffix("Pairs").lower()}}
        places = [
            f"{place}{str(spec['class_path']).rsplit('.', 1)[-1]}"
            for place in ("self", "cross", "fine")
            if (spec := model.get(f"attention_{place}"))
        ]
        return "-".join([super()._default_name(own), *places])

    def after_test(self) -> None:
        """Write scores a pair and a stratum, and draw the first pairs."""
        from isoattn.apps.matching.outputs import write_test_outputs
        from isoattn.apps.matching.pictures import draw_pairs

        folder, facts = self.test_folder(), self.test_facts()
        places = ("attention", "attention_self", "attention_cross", "attention_fine")
        facts["attention"] = {name: self.model.hparams[name] for name in places}
        written = write_test_outputs(folder, self.model.scores["test"], facts)
        written += draw_pairs(
            folder / "matches",
            self.model,
            self.datamodule.test_dataloader(),
            self._option("pictures"),
        )
        say_metrics(facts["metrics"])
        say(f"written {folder}: {_named(written)}")

    def before_predict(self) -> None:
        """The name of the output has to be one that can be written."""
        from isoattn.apps.matching.outputs import check_output

        if self._option("output") is not None:
            check_output(Path(self._option("output")))
        self.initialise()

    def predict(self, **kwargs: Any) -> None:
        """Match listed pairs: an h5 file in hloc's layout and a table of the pairs."""
        from isoattn.apps.matching.outputs import write_predictions
        from isoattn.apps.matching.pictures import draw_pairs

        outputs: Any = self.trainer.predict(**kwargs) or []
        default = self.run.path / "predict" / "matches.h5"
        file = Path(self._option("output") or default)
        pairs, matches = write_predictions(file, outputs)
        say(f"{pairs} pairs, {matches} matches: {file} (hloc's layout), {file.with_suffix('.csv')}")
        loader = self.datamodule.predict_dataloader()
        drawn = draw_pairs(
            file.with_suffix(""), self.model, loader, self._option("pictures"), judge=False
        )
        if drawn:
            say(f"drawn {file.with_suffix('')}: {_named(drawn)}")


def _named(files: list[str]) -> str:
    more = len(files) - _MOST_NAMED
    return ", ".join(files[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _explained(error: WeightsError) -> str:
    """The remedies of the loader in words of the command line."""
    text = str(error)
    if "does not say which position encoding" in text:
        return text.partition(" Give pe=")[0] + (
            " Give --weights_pe fixed (indoor_ds_new) or --weights_pe released (outdoor_ds, "
            "indoor_ds, outdoor_ot, indoor_ot); --config loftr_outdoor and --config loftr_indoor "
            "say it."
        )
    if "build it with pe=" in text:
        return f"{text}: --model.network.pe"
    if "match kind differs" in text:
        return f"{text}\nHere: --model.network.match sinkhorn"
    if "options of the weights" in text:
        return f"{text}\nOf the published size: --config loftr_outdoor or --config loftr_indoor."
    return text
