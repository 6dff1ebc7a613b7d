"""What every app shares: the command, the run folder, trackers, checkpoints and guards."""
