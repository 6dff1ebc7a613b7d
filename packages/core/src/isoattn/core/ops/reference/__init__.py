"""Float64 oracles: every attention from its definition, dense and without any trick.

Nothing here is shared with the fast forms. All take q (B, H, N, D), k (B, G, M, D), v (B, G, M, E)
of any float dtype and return (B, H, N, E) in float64; gradients flow.
"""
