"""``isoattn graph latent-graph``: the attention between all pairs that a run has learned."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from isoattn.apps.base.errors import UserError
from isoattn.apps.base.run_folder import run_of_checkpoint
from isoattn.apps.core.arguments import Parser, at_least_one, new_folder
from isoattn.apps.core.progress import progress
from isoattn.apps.graph.latent_edges import Latent, check_network, latent_graphs, steps
from isoattn.apps.graph.latent_summary import effective_keys
from isoattn.apps.graph.outputs import TABLES, check_suffix
from isoattn.graph.classifier import NodeClassifier
from isoattn.graph.task import NodeTask

_DESCRIPTION = """\
The strongest nodes of each node in the attention that a NodeFormer has learned, edges of the input
graph or not: an edge list, how much weight goes from class to class, and a picture of both graphs.

  isoattn graph latent-graph --ckpt_path RUN/checkpoints/best.ckpt
  isoattn graph latent-graph --ckpt_path RUN/checkpoints/last.ckpt --layer all --heads each
  isoattn graph latent-graph --ckpt_path RUN/checkpoints/best.ckpt --top_k 5 --edges latent.parquet

Weights are those of the trained attention in evaluation, without noise; those of a node to all
nodes sum to 1. It never holds N x N numbers. Further options go to the app (--data.source.root
FOLDER; --data.predict_source for another graph).
"""


def run_latent_graph(argv: list[str]) -> int:
    """Run ``isoattn graph latent-graph``; returns the exit status."""
    options, rest = _parser().parse_known_args(argv)
    if options.edges is not None:
        check_suffix(options.edges, TABLES)
    from isoattn.apps.graph.latent_model import trained  # the app is slow to import

    model, task = trained(options.ckpt_path, rest)
    network = check_network(model.network)
    layers = chosen_layers(options.layer, len(network.layers))
    nodes = task.graph.num_nodes
    if options.top_k > nodes:
        raise UserError(f"--top_k must be from 1 to the {nodes:,} nodes, got {options.top_k}.")
    with progress(steps(network, task.graph, layers)) as advance:
        found = latent_graphs(
            network,
            task,
            top_k=options.top_k,
            layers=layers,
            heads=options.heads,
            advance=advance,
        )
        latents = list(found)
    _finish(options, model, task, latents)
    return 0


def chosen_layers(text: str, count: int) -> list[int]:
    """``last``, ``all`` or a number from 0, as numbers of layers.

    Raises:
        UserError: there is no such layer.
    """
    if text in ("last", "all"):
        return list(range(count)) if text == "all" else [count - 1]
    if text.isdigit() and int(text) < count:
        return [int(text)]
    raise UserError(
        f"--layer {text}: the model has the layers {', '.join(map(str, range(count)))}; "
        "give one of them, last or all."
    )


def _parser() -> Parser:
    parser = Parser("isoattn graph latent-graph", _DESCRIPTION)
    parser.add_argument("--ckpt_path", type=Path, required=True, help="of a run")
    parser.add_argument(
        "--top_k", type=at_least_one, default=10, help="nodes for each node (default 10)"
    )
    parser.add_argument("--layer", default="last", help="last (default), all, or a number from 0")
    parser.add_argument(
        "--heads", choices=("mean", "each"), default="mean", help="mean of their weights (default)"
    )
    parser.add_argument("--out", type=Path, help="folder; default latent_graph in the run's")
    parser.add_argument(
        "--edges", type=Path, help="the edge list, .csv or .parquet; default OUT/edges.csv"
    )
    parser.add_argument(
        "--draw", type=int, default=300, help="nodes drawn at most (default 300); 0: no picture"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the nodes drawn and measured")
    return parser


def _finish(
    options: argparse.Namespace, model: NodeClassifier, task: NodeTask, latents: list[Latent]
) -> None:
    from isoattn.apps.graph.latent_report import print_latent, write_latent

    run = run_of_checkpoint(options.ckpt_path)
    folder = options.out or (run.path / "latent_graph" if run is not None else None)
    folder = new_folder(folder, "latent_graph", options.ckpt_path.stem)
    edges = options.edges or folder / "edges.csv"
    meter = effective_keys(check_network(model.network), task.graph, seed=options.seed)
    facts = {
        "checkpoint": str(options.ckpt_path),
        "attention": model.hparams["attention"],
        "data": task.name,
        "top_k": options.top_k,
    }
    written = write_latent(folder, edges, latents, task, facts=facts, meter=meter)
    if options.draw:
        from isoattn.apps.graph.picture_latent import draw_latents  # and so is matplotlib

        written += draw_latents(folder, latents, task, most=options.draw, seed=options.seed)
    print_latent(latents, task, meter)
    sys.stdout.write("written " + "\n        ".join(map(str, written)) + "\n")
