"""The short help of the matching app; imports nothing heavy."""

from __future__ import annotations

from isoattn.apps.base.shipped import shipped

_USAGE = """\
usage: isoattn matching fit|validate|test|predict|match|profile [options]

  isoattn matching fit                                   a tiny matcher in minutes, no files needed
  isoattn matching fit --model.attention=Softmax         the same with exact softmax attention
  isoattn matching fit --model.attention_cross=Softmax   in cross layers alone (or _self, _fine)
  isoattn matching fit PHOTOS                            homography pairs of your own photographs
  isoattn matching match A.jpg B.jpg --ckpt_path RUN/checkpoints/best.ckpt
  isoattn matching match A.jpg B.jpg --ckpt_path outdoor_ds.ckpt --pe released    published weights
  isoattn matching test --ckpt_path RUN/checkpoints/best.ckpt
  isoattn matching test --config motorcycle --ckpt_path RUN/checkpoints/best.ckpt    real views
  isoattn matching test pairs.txt --ckpt_path RUN/checkpoints/best.ckpt          your own pairs
  isoattn matching predict pairs.txt --ckpt_path RUN/checkpoints/best.ckpt --output matches.h5
  isoattn matching fit --ckpt_path RUN/checkpoints/last.ckpt      go on with a run
  isoattn matching fit --init_from RUN/checkpoints/best.ckpt --model.attention=Softmax
  isoattn matching profile --sizes 240x320 480x640        time and memory of the modules

A line of pairs.txt is two names relative to its folder; to be scored, nine numbers of a homography
or K0, K1 and the pose follow (isoattn matching test --data.test_source.help PairsFile).

shipped configs: {configs}
attention presets: {presets}

isoattn matching fit --help lists every option; --model.attention.help Linear those of a class,
--data.source.help MegaDepth those of a source; isoattn matching match --help is its own.
"""


def usage() -> str:
    """What the app does, by example."""
    return _USAGE.format(
        configs=", ".join(shipped("matching", "configs")),
        presets=", ".join(shipped("matching", "configs/attention")),
    )
