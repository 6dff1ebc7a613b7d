"""The graph app: LightningCLI wiring for node classifiers."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import lightning.pytorch as L
from lightning.pytorch.cli import LightningArgumentParser

from isoattn.apps.base.cli import AppCLI, say, say_metrics
from isoattn.apps.base.errors import UserError
from isoattn.apps.graph.sources import FEATURES, source_spec
from isoattn.core.training.checkpoint import CheckpointError, read_checkpoint
from isoattn.graph.classifier import NodeClassifier
from isoattn.graph.data import NodeData, TaskSource
from isoattn.graph.data.files import data_name
from isoattn.graph.models import KeyReport, NodeNetwork, count_flops, load_weights

_STARTS = ("--config", "-c", "--ckpt_path", "--init_from")
"""Options that say what a run starts from."""


class GraphCLI(AppCLI):
    """fit, validate, test and predict for node classifiers."""

    app: ClassVar[str] = "graph"
    default_config: ClassVar[str] = "knn"
    model_type: ClassVar[type[L.LightningModule]] = NodeClassifier
    data_type: ClassVar[type[L.LightningDataModule]] = NodeData
    user_errors: ClassVar[tuple[type[Exception], ...]] = (ValueError, FileNotFoundError)
    kinds: ClassVar[Mapping[str, type]] = {
        "model.network": NodeNetwork,
        "data.source": TaskSource,
        "data.predict_source": TaskSource,
    }

    @staticmethod
    def rewrite(argv: list[str]) -> list[str]:
        """``fit FILES`` and ``predict FILES`` take the user's own graph.

        ``fit FILES`` with no config starts from the one for own files.
        """
        paths = []
        for token in argv[1:]:
            if token.startswith("-"):
                break
            paths.append(token)
        if not paths:
            return argv
        given = argv[1 + len(paths) :]
        if argv[0] == "predict":
            spec = source_spec(paths, like=_trained_source(given))
            return [argv[0], f"--data.init_args.predict_source={json.dumps(spec)}", *given]
        start = [] if _value(given, _STARTS) else ["--config=files"]
        own = f"--data.init_args.source={json.dumps(source_spec(paths))}"
        return [argv[0], *start, own, *given]

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """What the data tell the model: classes, features, kind of labels, metric."""
        super().add_arguments_to_parser(parser)
        parser.add_argument(
            "--embeddings",
            type=str | None,
            default=None,
            help="predict: also write the embeddings of the nodes to this .csv, .parquet or .npz.",
        )
        link = parser.link_arguments
        link("data", "model.class_names", compute_fn=self._class_names, apply_on="instantiate")
        link("data", "model.num_classes", compute_fn=self._num_classes, apply_on="instantiate")
        link("data.in_dim", "model.in_dim", apply_on="instantiate")
        link("data", "model.kind", compute_fn=_kind, apply_on="instantiate")
        link("data", "model.metric", compute_fn=_metric, apply_on="instantiate")
        link("data", "model.class_counts", compute_fn=_counts, apply_on="instantiate")

    def _class_names(self, data: NodeData) -> list[str]:
        """The checkpoint's class list where there is one; the data are mapped to it by name."""
        if self.arguments.checkpoint is not None:
            hparams = read_checkpoint(self.arguments.checkpoint).get("hyper_parameters", {})
            names = hparams.get("class_names")
            if names and names != data.class_names:  # asked twice, and said once
                data.check_classes(names)
        return data.class_names

    def _num_classes(self, data: NodeData) -> int:
        return len(self._class_names(data))

    def kept(self) -> dict[str, Any]:
        """What tells whether other files hold the same data: feature names and a digest."""
        return {
            "features": self.datamodule.task.facts.get("features"),
            "data_fingerprint": self.datamodule.fingerprint(),
        }

    def monitored(self) -> str:
        """The metric of the task."""
        return f"val/{self.datamodule.task.metric}"

    def before_fit(self) -> None:
        """Say what is trained on, and what is odd about it."""
        task = self.datamodule.task
        graph, parts = task.graph, ", ".join(f"{len(n)} {part}" for part, n in task.split.items())
        sys.stderr.write(
            f"{task.name}: {graph.num_nodes:,} nodes ({parts}), {graph.num_edges:,} edge entries, "
            f"{graph.x.shape[1]:,} features, {task.out_dim} classes\n"
        )
        for finding in self.datamodule.report.warnings:
            sys.stderr.write(f"  {finding.kind}: {finding.text}\n")
        if self._other_data():
            raise UserError(
                f"{task.name} is not what {self.arguments.checkpoint} was trained on: features, "
                "edges, labels or split differ. Going on needs the same data; to start on these "
                "from its weights: --init_from instead of --ckpt_path."
            )
        super().before_fit()

    def before_validate(self) -> None:
        """Weights of ``--init_from``; say so where the data are not those of training."""
        super().before_validate()
        if self._other_data():
            sys.stderr.write(
                f"{self.datamodule.task.name} is not what the model was trained on: features, "
                "edges, labels or split differ\n"
            )

    before_test = before_validate

    def _other_data(self) -> bool:
        """Whether the checkpoint was trained on data of another content.

        Raises:
            UserError: features of other names, or in another order.
        """
        if self.arguments.checkpoint is None:
            return False
        kept = read_checkpoint(self.arguments.checkpoint).get("isoattn", {})
        known, own = kept.get("features"), self.datamodule.task.facts.get("features")
        if known and own and known != own:
            raise UserError(
                f"{self.datamodule.task.name} has the features {_first(own)}; the model was "
                f"trained on {_first(known)}: give the same columns in the same order."
            )
        digest = kept.get("data_fingerprint")  # of older checkpoints not known
        return digest is not None and digest != self.datamodule.fingerprint()

    def _default_name(self, config: dict[str, Any]) -> str:
        """With the source of the data, which tells more than the class that holds it."""
        source = config["data"]["init_args"].get("source") or {}
        options = source.get("init_args", {})
        leaf = str(source.get("class_path", "KnnGraph")).rsplit(".", 1)[-1]
        file = options.get("path") or (options.get("nodes") if leaf == "TableFiles" else None)
        if file is not None:
            name = data_name(Path(file))
        else:
            name = str(options.get("name") or options.get("dataset") or leaf).lower()
        return super()._default_name({**config, "data": {"class_path": name}})

    def initialise(self) -> None:
        """Take the weights of ``--init_from``, and say what fitted."""
        source = self._option("init_from")
        if source is not None and self.arguments.checkpoint is None:
            checkpoint = read_checkpoint(Path(source), require_checksum=False)
            weights = checkpoint.get("state_dict", checkpoint)
            report = load_weights(self.model.network, weights, strict=False)
            sys.stderr.write(f"{_key_report(report, source)}\n")

    def instantiate_classes(self) -> None:
        """Build; where the files of a checkpoint are gone, say how to name them anew."""
        try:
            super().instantiate_classes()
        except UserError as error:
            if _file_is_gone(error) and self.arguments.checkpoint is not None:
                raise UserError(
                    f"{error}. Where the data were moved, name them first: isoattn graph "
                    f"{self.config.subcommand} FOLDER --ckpt_path {self.arguments.checkpoint}"
                ) from error
            raise

    def before_predict(self) -> None:
        """Weights of ``--init_from``; the graph to predict has to have the model's features."""
        from isoattn.apps.graph.outputs import EMBEDDINGS, TABLES, check_suffix

        for option, allowed in (("output", TABLES), ("embeddings", EMBEDDINGS)):
            if self._option(option) is not None:
                check_suffix(Path(self._option(option)), allowed)
        self.initialise()
        self.datamodule.check_features(self.model.in_dim)

    def facts(self) -> dict[str, Any]:
        """The data in numbers, and what a forward pass of the whole graph costs."""
        task = self.datamodule.task
        flops = count_flops(self.model.network, task.graph)
        return {
            "data": task.name,
            "nodes": task.graph.num_nodes,
            "edges": task.graph.num_edges,
            "forward_flops": flops.total,
            "attention_flops": flops.attention,
        }

    def after_test(self) -> None:
        """Write per-class scores, confusion matrix and predictions."""
        from isoattn.apps.graph.outputs import write_test_outputs

        folder, facts = self.test_folder(), self.test_facts()
        written = write_test_outputs(folder, self.model.test_outputs, self.datamodule.task, facts)
        say_metrics(facts["metrics"])
        nodes = sum(len(o["index"]) for o in self.model.test_outputs)
        say(f"of {nodes:,} nodes; written {folder}: {', '.join(written)}")

    def predict(self, **kwargs: Any) -> None:
        """Predict all nodes of a graph into a table."""
        from isoattn.apps.graph.outputs import write_embeddings, write_predictions

        outputs: Any = self.trainer.predict(**kwargs) or []
        task = self.datamodule.predict_task
        file = Path(self._option("output") or self.run.path / "predict" / f"{task.name}.csv")
        count = write_predictions(file, outputs, task, self.model.class_names, self.model.kind)
        say(f"{count} nodes predicted: {file}")
        embeddings = self._option("embeddings")
        if embeddings is not None:
            write_embeddings(Path(embeddings), outputs, task)
            say(f"embeddings: {embeddings}")


def _value(argv: list[str], options: tuple[str, ...]) -> str | None:
    """What the first of these options is given."""
    for number, token in enumerate(argv):
        name, equals, value = token.partition("=")
        if name in options:
            return value if equals else next(iter(argv[number + 1 :]), "")
    return None


def _trained_source(argv: list[str]) -> dict[str, Any] | None:
    """The source that the checkpoint on a command line was trained on, if it can be read."""
    file = _value(argv, ("--ckpt_path",))
    if file is None or not Path(file).is_file():
        return None
    try:
        kept = read_checkpoint(Path(file)).get("isoattn", {})
    except CheckpointError:  # said where it is opened to be used
        return None
    data = kept.get("config", {}).get("data", {})
    source: dict[str, Any] | None = data.get("init_args", {}).get("source")
    if source is not None and kept.get("features"):
        source["init_args"][FEATURES[str(source["class_path"]).rsplit(".", 1)[-1]]] = kept[
            "features"
        ]
    return source


def _file_is_gone(error: BaseException | None) -> bool:
    """Whether a missing file lies behind an error; the parser wraps it."""
    while error is not None and not isinstance(error, FileNotFoundError):
        error = error.__cause__ or error.__context__
    return error is not None


def _first(names: list[str]) -> str:
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")


def _kind(data: NodeData) -> str:
    return data.task.kind


def _metric(data: NodeData) -> str:
    return data.task.metric


def _counts(data: NodeData) -> list[int] | None:
    return data.class_counts()


def _key_report(report: KeyReport, source: str) -> str:
    lines = [f"loaded {len(report.loaded)} tensors from {source}"]
    for title, names in (("fresh", report.fresh), ("unused", report.unused)):
        if names:
            lines.append(f"  {title:<7} {', '.join(names)}")
    return "\n".join(lines)
