"""The matching app: matchers of image pairs."""
