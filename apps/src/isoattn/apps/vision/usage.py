"""The short help of the vision app; imports nothing heavy."""

from __future__ import annotations

from isoattn.apps.base.shipped import shipped

_USAGE = """\
usage: isoattn vision fit|validate|test|predict [options]

  isoattn vision fit                                  XCiT on MNIST, the default config
  isoattn vision fit --model.attention=Softmax        the same with softmax attention
  isoattn vision fit --config xcit_folder --data.root PHOTOS
  isoattn vision fit --ckpt_path RUN/checkpoints/last.ckpt      go on with a run
  isoattn vision fit --init_from RUN/checkpoints/best.ckpt --model.attention=Softmax
  isoattn vision test --ckpt_path RUN/checkpoints/best.ckpt
  isoattn vision predict DIR --ckpt_path RUN/checkpoints/best.ckpt

  isoattn vision fit --import my_module --model.attention=my_module.Mine

shipped configs: {configs}
attention presets: {presets}

isoattn vision fit --help lists every option; --model.attention.help Linear those of a class.
"""


def usage() -> str:
    """What the app does, by example."""
    return _USAGE.format(
        configs=", ".join(shipped("vision", "configs")),
        presets=", ".join(shipped("vision", "configs/attention")),
    )
