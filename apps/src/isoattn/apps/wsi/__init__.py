"""The slide app: whole-slide classifiers over bags of tiles, from slide files to heat maps."""
