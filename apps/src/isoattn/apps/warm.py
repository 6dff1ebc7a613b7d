"""What a cell needs, imported once by the fork server that all cells are forked from."""

import isoattn.ablate.worker
import isoattn.apps.base.run
import isoattn.apps.graph.study
import isoattn.apps.matching.study
import isoattn.apps.vision.study
import isoattn.apps.wsi.study  # noqa: F401
