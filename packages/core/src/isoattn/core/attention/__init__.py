"""The attentions: thin modules that own parameters and options; the mathematics is in ``ops``."""
