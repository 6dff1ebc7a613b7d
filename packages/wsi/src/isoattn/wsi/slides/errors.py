"""What can be wrong with a slide, each as a type; every message names the slide and the remedy.

The message is the only argument, so that a worker process can hand the error over.
"""

from __future__ import annotations


class SlideError(ValueError):
    """Something is wrong with a slide or with what was asked of it."""


class UnreadableSlide(SlideError):
    """A file that is missing, empty, cut short, or of a format that OpenSlide does not know."""


class MissingMpp(SlideError):
    """The metadata do not tell how large a pixel is."""


class ImplausibleMpp(SlideError):
    """A pixel size that no slide scanner produces, or one that differs between x and y."""


class TooFine(SlideError):
    """A resolution was asked for that the slide was not scanned at."""


class DamagedRegion(SlideError):
    """A region whose pixels cannot be decoded; the rest of the slide may be fine."""


class DamagedSlide(SlideError):
    """More of a slide is damaged than is allowed."""


class NoTissue(SlideError):
    """No tile of the slide shows enough tissue."""
