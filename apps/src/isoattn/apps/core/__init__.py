"""Commands on ``isoattn.core`` alone: what an attention costs, how far it is from softmax."""
