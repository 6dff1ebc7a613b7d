"""The look of a slide: its laboratory's dyes, its block's thickness, its scanner's white.

Shape suffixes: H, W pixels; 2 stains, 3 colours.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from isoattn.core.training import derive_seed

Floats = NDArray[np.float32]

UNIT = np.array([[0.65, 0.70, 0.29], [0.07, 0.99, 0.11]])
"""Optical density of haematoxylin and eosin in R, G, B (Ruifrok and Johnston, 2001)."""


@dataclass(frozen=True)
class Stain:
    """How concentrations become colours.

    Args:
        vectors_23: optical density of each stain, unit length.
        gain_2: strength of each stain.
        glass_3: colour of the empty slide, 0 to 255.
    """

    vectors_23: Floats
    gain_2: Floats
    glass_3: Floats

    def colour(self, stains_HW2: Floats, tissue_HW: Floats) -> NDArray[np.uint8]:
        """Beer-Lambert: uint8 RGB of concentrations, which the tissue's share scales."""
        density = (stains_HW2 * tissue_HW[..., None]) @ (self.vectors_23 * self.gain_2[:, None])
        np.exp(-density, out=density)
        density *= self.glass_3
        return np.asarray(density + 0.5, dtype=np.uint8)


def draw_stain(seed: int, site: int, patient: int, slide: int, shift: float) -> Stain:
    """The stain of a slide; slides of a site look alike, those of a patient even more.

    Args:
        seed: of the cohort.
        site, patient, slide: numbers; each adds its own deviation.
        shift: relative deviation of the sites' stain strength; patients deviate half as much,
            slides a quarter. 0: all slides look the same.
    """
    levels = (("site", site, 1.0), ("patient", patient, 0.5), ("slide", slide, 0.25))
    log_gain, turn, tint = np.zeros(2), np.zeros((2, 3)), np.zeros(3)
    for name, number, weight in levels:
        rng = np.random.default_rng(derive_seed(seed, "stain", name, number))
        log_gain += weight * shift * rng.standard_normal(2)
        turn += weight * shift * 0.25 * rng.standard_normal((2, 3))
        tint += weight * shift * 10 * rng.standard_normal(3)
    vectors = np.clip(UNIT + turn, 0.02, None)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    glass = np.clip(244 + tint, 225, 255)
    return Stain(
        vectors.astype(np.float32),
        np.exp(np.clip(log_gain, -0.7, 0.7)).astype(np.float32),
        glass.astype(np.float32),
    )
