"""The short help of the graph app; imports nothing heavy."""

from __future__ import annotations

from isoattn.apps.base.shipped import shipped

_USAGE = """\
usage: isoattn graph fit|validate|test|predict|inspect|latent-graph [options]

  isoattn graph fit                                   NodeFormer on a kNN graph, the default config
  isoattn graph fit --model.attention=Softmax         the same with exact softmax attention
  isoattn graph fit --config cora --data.source.root FOLDER
  isoattn graph fit nodes.csv edges.csv               your own graph; also a folder, .graphml, .npz
  isoattn graph fit --ckpt_path RUN/checkpoints/last.ckpt      go on to the end of a run
  isoattn graph fit --init_from RUN/checkpoints/last.ckpt --trainer.max_epochs=500
                                                      a new run from its weights, on its data:
                                                      longer, or with another attention
  isoattn graph test --ckpt_path RUN/checkpoints/best.ckpt
  isoattn graph predict --ckpt_path RUN/checkpoints/best.ckpt --output nodes.parquet
  isoattn graph predict NEW_FOLDER --ckpt_path RUN/checkpoints/best.ckpt     another graph
  isoattn graph test MOVED_FOLDER --ckpt_path RUN/checkpoints/best.ckpt     files that moved
  isoattn graph inspect nodes.csv edges.csv           what is odd about a graph, before training
  isoattn graph latent-graph --ckpt_path RUN/checkpoints/best.ckpt --top_k 5

shipped configs: {configs}
attention presets: {presets}

isoattn graph fit --help lists every option; --model.attention.help GumbelFavor those of a class,
--data.source.help Planetoid those of a source.
"""


def usage() -> str:
    """What the app does, by example."""
    return _USAGE.format(
        configs=", ".join(shipped("graph", "configs")),
        presets=", ".join(shipped("graph", "configs/attention")),
    )
