"""The isoattn command: one folder an app."""
