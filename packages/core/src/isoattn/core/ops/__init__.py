"""Pure functions of tensors, one file a mechanism, beside their equations."""
