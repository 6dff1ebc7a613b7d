"""`isoattn vision`: image classifiers."""
