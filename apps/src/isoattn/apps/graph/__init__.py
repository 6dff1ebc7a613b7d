"""The graph app: node classifiers."""
