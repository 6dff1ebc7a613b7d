"""Token mixers x -> y: blocks that own the projections around an attention or a recurrence."""
