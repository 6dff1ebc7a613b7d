"""What a benchmark runs: an attention, a whole layer around it, or a peer, as one function x -> y.

An operator gets q, k, v as a projection leaves them: views of one tensor x (B, N, 3 H D). A layer
gets x (B, N, C) and has its projections.

Shape suffixes: as in :mod:`isoattn.core.contract`; C channels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from isoattn.core import Attention, Cost, Shape, attention_factory
from isoattn.core.factories import build_factory
from isoattn.core.mixers import Mixer, MultiHead

Run = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Sizes:
    """The sizes of one measurement.

    Args:
        tokens: N.
        heads: H.
        head_dim: D.
        batch: B.
        causal: which form.
        dtype: name of a torch dtype.
        device: name of a device.
        dim: channels C of a whole layer; None measures the operator.
        seed: of the input.
    """

    tokens: int
    heads: int = 4
    head_dim: int = 64
    batch: int = 1
    causal: bool = False
    dtype: str = "float32"
    device: str = "cpu"
    dim: int | None = None
    seed: int = 0

    def at(self, tokens: int) -> Sizes:
        """The same with another number of tokens."""
        return replace(self, tokens=tokens)

    @property
    def torch_dtype(self) -> torch.dtype:
        """As torch knows it."""
        dtype: torch.dtype = getattr(torch, self.dtype)
        return dtype

    def x(self) -> Tensor:
        """The input, standard normal: (B, N, 3 H D), or (B, N, C) of a layer."""
        width = self.dim or 3 * self.heads * self.head_dim
        generator = torch.Generator().manual_seed(self.seed)
        x = torch.randn(self.batch, self.tokens, width, generator=generator)
        return x.to(self.device, self.torch_dtype)

    def split(self, x_BNC: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Views q, k, v (B, H, N, D) of one projection."""
        heads = x_BNC.view(*x_BNC.shape[:2], 3, self.heads, self.head_dim)
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        return q, k, v


@dataclass(frozen=True)
class Method:
    """One row of a benchmark; plain data, so that a child process can build it.

    Args:
        label: how it is shown.
        kind: ``"attention"`` of isoattn or of the user, ``"mixer"`` or ``"peer"``.
        spec: of the attention or mixer, or the name of the peer.
        version: of the peer's package.
    """

    label: str
    kind: Literal["attention", "mixer", "peer"]
    spec: Mapping[str, Any] | str
    version: str = ""

    def build(self, sizes: Sizes) -> Run:
        """The function of x, its parameters at their initial values.

        Raises:
            ValueError: the attention refuses the sizes.
            UnsupportedAttention: it lacks the form.
        """
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(sizes.seed)
            if isinstance(self.spec, str):
                return PEERS[self.spec].build(sizes)
            if sizes.dim is None:
                return _operator(self.attention(sizes), sizes)
            layer = self.layer(sizes)
            return lambda x: layer(x, causal=sizes.causal)

    def layer(self, sizes: Sizes) -> Mixer:
        """The mixer, or the attention between projections, in evaluation mode."""
        assert not isinstance(self.spec, str) and sizes.dim is not None
        layer: Mixer
        if self.kind == "mixer":
            layer = build_factory(self.spec, Mixer, "mixer", 1)(sizes.dim)
        else:
            layer = MultiHead(sizes.dim, sizes.heads, self.spec, head_dim=sizes.head_dim)
        return layer.to(sizes.device, sizes.torch_dtype).eval()

    def attention(self, sizes: Sizes) -> Attention:
        """The attention by itself, in evaluation mode."""
        assert not isinstance(self.spec, str)
        module = attention_factory(self.spec)(sizes.heads, sizes.head_dim)
        return module.to(sizes.device, sizes.torch_dtype).eval()

    def cost(self, sizes: Sizes) -> Cost | None:
        """FLOPs and bytes in closed form; None where there is none: for a peer."""
        if self.kind == "peer":
            return None
        itemsize = sizes.torch_dtype.itemsize
        if sizes.dim is None:
            shape = Shape.square(
                sizes.batch, sizes.heads, sizes.tokens, sizes.head_dim, itemsize=itemsize
            )
            return self.attention(sizes).cost(shape, causal=sizes.causal)
        with torch.random.fork_rng(devices=[]):  # weights are drawn, and not looked at
            layer = self.layer(sizes)
        return layer.cost(sizes.batch, sizes.tokens, causal=sizes.causal, itemsize=itemsize)


def _operator(module: Attention, sizes: Sizes) -> Run:
    def run(x: Tensor) -> Tensor:
        q, k, v = sizes.split(x)
        out: Tensor = module(q, k, v, causal=sizes.causal, **gates(module, k))
        return out

    return run


def gates(module: Attention, k: Tensor) -> dict[str, Tensor]:
    """Gates for an attention that takes them, as functions of k; without them it is another."""
    found = {}
    if module.capability.log_decay != "none":
        gate = k if module.capability.log_decay == "channel" else k.mean(-1)
        found["log_decay"] = F.logsigmoid(gate.detach() + 3.0)
    if module.capability.in_gate:
        found["in_gate"] = k.detach().mean(-1)
    return found


@dataclass(frozen=True)
class Peer:
    """An implementation of others, used where it is installed.

    Args:
        package: its name as a distribution.
        what: class and options.
        causal: whether it has a causal form.
        build: from sizes to a function of x.
    """

    package: str
    what: str
    causal: bool
    build: Callable[[Sizes], Run]

    def method(self, name: str) -> Method | None:
        """The row of this peer, or None where the package is not installed."""
        try:
            found = version(self.package)
        except PackageNotFoundError:
            return None
        return Method(f"{self.package}, {self.what}", "peer", name, found)


def _ready(module: nn.Module, sizes: Sizes) -> nn.Module:
    return module.to(sizes.device, sizes.torch_dtype).eval()


def _nystrom(sizes: Sizes) -> Run:
    from nystrom_attention import NystromAttention

    width = sizes.dim or sizes.heads * sizes.head_dim
    module = NystromAttention(width, sizes.head_dim, sizes.heads, num_landmarks=64, residual=False)
    if sizes.dim is None:  # x is what its projection would give
        module.to_qkv, module.to_out = nn.Identity(), nn.Identity()
    module = _ready(module, sizes)
    return lambda x: module(x)


def _performer(sizes: Sizes) -> Run:
    from performer_pytorch import FastAttention, SelfAttention

    if sizes.dim is not None:
        layer = SelfAttention(
            sizes.dim,
            heads=sizes.heads,
            dim_head=sizes.head_dim,
            nb_features=266,
            causal=sizes.causal,
            no_projection=False,
        )
        layer = _ready(layer, sizes)
        return lambda x: layer(x)
    core = _ready(FastAttention(sizes.head_dim, nb_features=266, causal=sizes.causal), sizes)
    return lambda x: core(*sizes.split(x))


def _kornia(sizes: Sizes) -> Run:
    from kornia.feature.loftr.loftr_module.linear_attention import LinearAttention

    core = LinearAttention()
    return _around(lambda q, k, v: core(*(t.transpose(1, 2) for t in (q, k, v))), sizes)


def _timm(sizes: Sizes) -> Run:
    from timm.models.xcit import XCA

    if sizes.dim is not None:
        layer = _ready(XCA(sizes.dim, num_heads=sizes.heads, qkv_bias=True), sizes)
        return lambda x: layer(x)
    width = sizes.heads * sizes.head_dim
    given = _Given()
    bare: Any = XCA(width, num_heads=sizes.heads)
    bare.qkv, bare.proj = given, nn.Identity()
    module = _ready(bare, sizes)

    def run(x: Tensor) -> Tensor:
        given.qkv = x
        out: Tensor = module(x[..., :width])  # only its shape is looked at
        return out

    return run


class _Given(nn.Module):
    """Stands for a projection whose output is there already."""

    qkv: Tensor

    def forward(self, x: Tensor) -> Tensor:
        return self.qkv


def _around(core: Callable[[Tensor, Tensor, Tensor], Tensor], sizes: Sizes) -> Run:
    """An operator on token-major output, by itself or between two projections."""
    if sizes.dim is None:
        return lambda x: core(*sizes.split(x))
    width = sizes.heads * sizes.head_dim
    outer = nn.ModuleList([nn.Linear(sizes.dim, 3 * width), nn.Linear(width, sizes.dim)])
    outer = outer.to(sizes.device, sizes.torch_dtype)
    return lambda x: outer[1](core(*sizes.split(outer[0](x))).flatten(2))


PEERS: dict[str, Peer] = {
    "nystrom-attention": Peer("nystrom-attention", "64 landmarks", False, _nystrom),
    "performer-pytorch": Peer("performer-pytorch", "266 features", True, _performer),
    "timm": Peer("timm", "XCA", False, _timm),
    "kornia": Peer("kornia", "LinearAttention", False, _kornia),
}
"""By the name of the distribution."""
