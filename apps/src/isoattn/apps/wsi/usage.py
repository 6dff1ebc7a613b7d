"""The short help of the slide app; imports nothing heavy."""

from __future__ import annotations

from isoattn.apps.base.shipped import shipped

_USAGE = """\
usage: isoattn wsi demo|synthesize|tile|encode|fit|validate|test|predict|heatmap [options]

  isoattn wsi demo OUT                                from made slides to a heat map in one go
  isoattn wsi synthesize OUT/cohort                   slides with known tumour, masks and labels
  isoattn wsi tile SLIDES --out DIR                   which tiles would be read, as pictures
  isoattn wsi encode SLIDES --out DIR --encoder uni   features; goes on where it stopped

  isoattn wsi fit                                     TransMIL on made bags, the default config
  isoattn wsi fit DIR labels.csv                      on your own features (also CLAM's, TRIDENT's)
  isoattn wsi fit DIR labels.csv --model.attention=softmax
  isoattn wsi fit --ckpt_path RUN/checkpoints/last.ckpt       go on with a run
  isoattn wsi fit --init_from RUN/checkpoints/best.ckpt --model.attention=linear
  isoattn wsi test --ckpt_path RUN/checkpoints/best.ckpt      per class, confusion matrix, AUC
  isoattn wsi predict DIR --ckpt_path RUN/checkpoints/best.ckpt --output slides.csv
  isoattn wsi heatmap --ckpt_path RUN/checkpoints/best.ckpt --slides SLIDES

shipped configs: {configs}
attention presets: {presets}

isoattn wsi fit --help lists every option; --model.attention.help Nystrom those of a class,
--data.source.help FeatureFolder those of a source.
"""


def usage() -> str:
    """What the app does, by example."""
    return _USAGE.format(
        configs=", ".join(shipped("wsi", "configs")),
        presets=", ".join(shipped("wsi", "configs/attention")),
    )
