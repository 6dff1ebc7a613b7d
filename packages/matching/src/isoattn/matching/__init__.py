"""LoFTR-style matching of image pairs."""
