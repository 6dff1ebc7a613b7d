"""Studies: one difference, paired, budgeted, registered beforehand."""
