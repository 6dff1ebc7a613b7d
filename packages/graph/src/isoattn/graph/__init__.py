"""NodeFormer and its node tasks."""
