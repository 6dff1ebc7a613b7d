"""Image classifiers with a swappable attention."""
