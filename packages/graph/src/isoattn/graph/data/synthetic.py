"""Graphs made from a seed: blocks with a chosen homophily, and a task that only far nodes solve.

Shape suffixes: N nodes, C classes, F features, G graphs, P pairs, D key numbers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from isoattn.core.training import derive_seed
from isoattn.graph.data.source import TaskSource
from isoattn.graph.data.split import SplitOptions, draw_split, split_from_masks
from isoattn.graph.graph import Graph, tidy_edges
from isoattn.graph.task import UNLABELLED, NodeTask


class BlockModel(TaskSource):
    """A stochastic block model with Gaussian features around class means.

    Args:
        nodes: N, shared out evenly over the classes.
        classes: C.
        degree: mean number of neighbours (a little less after duplicates are dropped).
        homophily: share of edges inside a class; 1/C of them would be chance.
        features: F.
        noise: deviation of the features around their class mean, whose numbers have deviation 1;
            large: only the graph tells the class.
        seed: of graph and features.
        split: drawn.
    """

    def __init__(
        self,
        nodes: int = 1000,
        classes: int = 4,
        degree: float = 10.0,
        homophily: float = 0.8,
        features: int = 16,
        noise: float = 2.0,
        seed: int = 0,
        split: SplitOptions = SplitOptions("random"),  # noqa: B008 - frozen
    ) -> None:
        if not 0 <= homophily <= 1 or classes < 2 or nodes < classes or degree < 0 or features < 1:
            raise ValueError(
                "A block model needs homophily in [0, 1], 2 or more classes, a node for each, "
                f"degree 0 or more and a feature; got homophily={homophily}, classes={classes}, "
                f"nodes={nodes}, degree={degree}, features={features}"
            )
        self.nodes = nodes
        self.classes = classes
        self.degree = degree
        self.homophily = homophily
        self.features = features
        self.noise = noise
        self.seed = seed
        self.split = split.only("a block model")

    def load(self) -> NodeTask:
        """The task; undirected."""
        generator = torch.Generator().manual_seed(derive_seed(self.seed, "block model"))
        y = torch.arange(self.nodes) % self.classes
        mean = torch.randn(self.classes, self.features, generator=generator)
        x = mean[y] + self.noise * torch.randn(self.nodes, self.features, generator=generator)
        pairs = self._pairs(y, generator)
        edges, counts = tidy_edges(pairs, self.nodes)
        return NodeTask(
            name="block_model",
            graph=Graph(x, edges),
            y=y,
            kind="multiclass",
            classes=tuple(str(c) for c in range(self.classes)),
            metric="accuracy",
            split=draw_split(y, "multiclass", self.split),
            facts={"source": "synthetic", "edges": counts, "undirected": True, "seed": self.seed},
        )

    def _pairs(self, y: Tensor, generator: torch.Generator) -> Tensor:
        """Sources at random; targets in the same class with the chance that homophily is."""
        number = round(self.nodes * self.degree / 2)
        source = torch.randint(self.nodes, (number,), generator=generator)
        same = torch.rand(number, generator=generator) < self.homophily
        other = torch.randint(1, self.classes, (number,), generator=generator)
        label = torch.where(same, y[source], (y[source] + other) % self.classes)
        # Class c has the nodes c, c + C, c + 2C, ...
        members = (self.nodes - 1 - label) // self.classes + 1
        place = (torch.rand(number, generator=generator, dtype=torch.float64) * members).long()
        return torch.stack([source, label + self.classes * place])


class FarRecall(TaskSource):
    """Positive control for all-pair attention: the answer lies exactly P hops away.

    Each graph is a path of P *carriers* and then P *askers*. A carrier has a random key and a bit;
    asker i has the key of carrier i and no bit, and its label is that carrier's bit. Keys are never
    repeated between graphs, so nothing can be memorised: a node's own features (no attention) and
    the mean over all nodes tell nothing about the label, and message passing needs P layers.
    Content-based attention solves it. Carriers have no label.

    Measured, NodeFormer of 2 layers, 2 heads and width 32, 120 steps, test accuracy at the best
    validation: Softmax 0.96, Mean 0.48, Zero 0.47, and a GCN of 2 layers 0.53.

    Args:
        graphs: G, each with its own keys; whole graphs go to train, val or test (half, a quarter,
            a quarter).
        pairs: P.
        key_dim: D, numbers of a key, a random direction of length sqrt(D).
        seed: of keys, bits and split.

    Features: the key (D), the bit as -1 or 1 (0 for askers), and 1 for askers.
    """

    def __init__(self, graphs: int = 64, pairs: int = 8, key_dim: int = 8, seed: int = 0) -> None:
        if graphs < 4 or pairs < 2 or key_dim < 2:
            raise ValueError(
                "FarRecall needs 4 graphs, 2 pairs and 2 key numbers at least; got "
                f"graphs={graphs}, pairs={pairs}, key_dim={key_dim}"
            )
        self.graphs = graphs
        self.pairs = pairs
        self.key_dim = key_dim
        self.seed = seed

    def load(self) -> NodeTask:
        """The task: several graphs side by side, told apart by ``segments``."""
        generator = torch.Generator().manual_seed(derive_seed(self.seed, "far recall"))
        key_GPD = torch.randn(self.graphs, self.pairs, self.key_dim, generator=generator)
        key_GPD = key_GPD / key_GPD.norm(dim=-1, keepdim=True) * self.key_dim**0.5
        bit_GP = torch.randint(2, (self.graphs, self.pairs), generator=generator)
        sign_GP1 = (2 * bit_GP - 1)[..., None].float()
        zero_GP1 = torch.zeros_like(sign_GP1)
        carriers = torch.cat([key_GPD, sign_GP1, zero_GP1], -1)
        askers = torch.cat([key_GPD, zero_GP1, zero_GP1 + 1], -1)
        x = torch.cat([carriers, askers], 1).flatten(0, 1)
        y = torch.cat([torch.full_like(bit_GP, UNLABELLED), bit_GP], 1).flatten()
        size = 2 * self.pairs
        node = torch.arange(self.graphs * size)
        path = node[node % size < size - 1]
        edges, counts = tidy_edges(torch.stack([path, path + 1]), len(node))
        order = torch.randperm(self.graphs, generator=generator)
        half, quarter = self.graphs // 2, self.graphs // 4
        part_G = torch.full((self.graphs,), 2)
        part_G[order[:half]] = 0
        part_G[order[half : half + quarter]] = 1
        part = torch.where(y == UNLABELLED, -1, part_G.repeat_interleave(size))
        return NodeTask(
            name="far_recall",
            graph=Graph(x, edges, segments=node // size),
            y=y,
            kind="multiclass",
            classes=("0", "1"),
            metric="accuracy",
            split=split_from_masks(part == 0, part == 1, part == 2),
            facts={"source": "synthetic", "edges": counts, "undirected": True, "seed": self.seed},
        )
