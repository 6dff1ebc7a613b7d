"""Any network of timm as an encoder: its own weights, those of the hub, or a file.

Shape suffixes: B tiles, H, W pixels, C channels, N tokens, D features.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from isoattn.core.training.checkpoint import CheckpointError, read_checkpoint
from isoattn.wsi.features.encoder import Encoder, EncoderError, Prepare
from isoattn.wsi.features.presets import Preset

Precision = Literal["float32", "bfloat16", "float16"]
SHOWN = 5


class TimmEncoder(Encoder):
    """A network of timm, without its classifier.

    Args:
        name: what users call it.
        preset: how it is built.
        checkpoint: a local file of weights (safetensors, or torch with ``weights_only``); ``None``:
            timm fetches the weights, or finds them in its cache.
        input_size: overrides the preset's.
        precision: of the forward pass, by autocast; features are float32 always.

    Raises:
        EncoderError: weights that cannot be fetched, read or fitted; says what to do.
    """

    network: Any

    def __init__(
        self,
        name: str,
        preset: Preset,
        *,
        checkpoint: str | None = None,
        input_size: int | None = None,
        precision: Precision = "float32",
    ) -> None:
        network = _network(name, preset, checkpoint)
        super().__init__(name, preset.dim or _channels(network, preset.out_index))
        self.network = network
        self.precision = precision
        self.pool = preset.pool
        self.cut = preset.out_index is not None
        self.first_patch = int(getattr(network, "num_prefix_tokens", 0))
        self.prepare = _prepare(network, preset, input_size)
        self.eval().requires_grad_(False)

    def encode(self, tiles_BHW3: Tensor) -> Tensor:
        """(B, D)."""
        images = self.prepare(tiles_BHW3)
        dtype = getattr(torch, self.precision)
        enabled = self.precision != "float32"
        with torch.autocast(images.device.type, dtype=dtype if enabled else None, enabled=enabled):
            features = self._pooled(images)
        if features.shape[1:] != (self.dim,):
            raise EncoderError(
                f"{self.name} gives features of shape {tuple(features.shape[1:])}, expected "
                f"({self.dim},). The weights or arguments are not those of the preset."
            )
        return features

    def _pooled(self, images_BCHW: Tensor) -> Tensor:
        if self.cut:
            return _mean_of_map(self.network(images_BCHW)[0], self.dim)
        if self.pool == "model":
            features: Tensor = self.network(images_BCHW)
            return features
        tokens_BND: Tensor = self.network.forward_features(images_BCHW)
        if self.pool == "class":
            return tokens_BND[:, 0]
        return torch.cat([tokens_BND[:, 0], tokens_BND[:, self.first_patch :].mean(1)], 1)

    def facts(self) -> dict[str, Any]:
        """With pooling, precision and input; the digest stands for the weights' origin."""
        own = {"pool": self.pool, "precision": self.precision}
        return super().facts() | own | self.prepare.facts()


def _mean_of_map(map_: Tensor, channels: int) -> Tensor:
    """Mean over the pixels of (B, C, H, W) or, as some transformers give it, (B, H, W, C)."""
    return map_.mean((2, 3) if map_.shape[1] == channels else (1, 2))


def _build(
    name: str, preset: Preset, arguments: Mapping[str, Any], *, pretrained: bool
) -> nn.Module:
    """The network of timm; its random numbers leave torch's global generator as it was."""
    options = {key: _resolved(value) for key, value in arguments.items()}
    if preset.out_index is None:
        options["num_classes"] = 0
    else:
        options |= {"features_only": True, "out_indices": (preset.out_index,)}
    import timm  # takes seconds, which training on finished features need not spend

    with torch.random.fork_rng(devices=[]):
        network: nn.Module = timm.create_model(name, pretrained=pretrained, **options)
    return network


def _resolved(value: Any) -> Any:
    """Classes that a preset names."""
    from timm.layers.mlp import SwiGLUPacked

    known = {"SwiGLUPacked": SwiGLUPacked, "SiLU": nn.SiLU}
    return known.get(value, value) if isinstance(value, str) else value


def _network(name: str, preset: Preset, checkpoint: str | None) -> nn.Module:
    try:
        if checkpoint is None:
            return _build(preset.hub, preset, preset.hub_arguments, pretrained=True)
        network = _build(preset.architecture, preset, preset.arguments, pretrained=False)
    except Exception as error:  # the hub's client raises a dozen types
        raise EncoderError(
            f"The encoder {name} ({preset.hub}) cannot be built: {_first_line(error)}\n"
            f"Licence of its weights: {preset.licence}. Without a network, hand over a downloaded "
            "file as checkpoint, or use an encoder that needs no weights: hed_statistics, "
            "random_mobilenetv3_small_050. A gated model needs its terms accepted and a login "
            "(hf auth login)."
        ) from error
    load_network(network, Path(checkpoint), cut=preset.out_index is not None)
    return network


def _channels(network: nn.Module, out_index: int | None) -> int:
    if out_index is None:
        return int(network.num_features)  # type: ignore[arg-type]
    return int(network.feature_info.channels()[-1])  # type: ignore[union-attr,operator]


def _prepare(network: nn.Module, preset: Preset, input_size: int | None) -> Prepare:
    from timm.data.config import resolve_model_data_config

    own: dict[str, Any] = resolve_model_data_config(network)  # type: ignore[no-untyped-call]
    size = input_size or preset.input_size
    if size == "network":
        size = int(own["input_size"][-1])
    return Prepare(
        None if size == "tile" else int(size),
        preset.mean or own["mean"],
        preset.std or own["std"],
        resize=preset.resize if input_size is None else None,
    )


def _first_line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:200] if text else 'no reason given'}"


def load_network(network: nn.Module, path: Path, *, cut: bool) -> None:
    """Load a file of weights into a network without classifier.

    Args:
        network: of timm.
        path: safetensors, or a torch archive of plain tensors.
        cut: the network ends before its last stages; what the file has beyond is left out.

    Raises:
        EncoderError: unreadable, or keys and shapes that do not fit; names them.
    """
    weights = read_weights(path)
    target = network.state_dict()
    missing = [k for k in target if k not in weights and not k.endswith("num_batches_tracked")]
    classifier = getattr(network, "default_cfg", {}).get("classifier") or ("head", "fc")
    heads = tuple([classifier] if isinstance(classifier, str) else classifier)
    left_over = [k for k in weights if k not in target and k.split(".")[0] not in heads]
    shapes = [
        f"{k} {tuple(weights[k].shape)} for {tuple(target[k].shape)}"
        for k in target
        if k in weights and weights[k].shape != target[k].shape
    ]
    if missing or shapes or (left_over and not cut):
        raise EncoderError(
            f"The weights of {path} do not fit the network: missing {_some(missing)}, left over "
            f"{_some(left_over)}, other shapes {_some(shapes)}. Choose the encoder that the file "
            "was saved from."
        )
    network.load_state_dict({k: weights[k] for k in target if k in weights}, strict=False)


def read_weights(path: Path) -> dict[str, Tensor]:
    """Tensors of a file by name; nothing in it is executed.

    Raises:
        EncoderError: missing, damaged, or not a flat dictionary of tensors.
    """
    if not path.is_file():
        raise EncoderError(f"There is no file of weights {path}. Check the path of checkpoint.")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        content = read_checkpoint(path, require_checksum=False)
    except (SafetensorError, CheckpointError, OSError) as error:
        raise EncoderError(f"The weights of {path} cannot be read: {error}") from error
    for key in ("state_dict", "model"):
        if isinstance(content.get(key), Mapping):
            content = content[key]
    weights = {str(k): v for k, v in content.items() if isinstance(v, Tensor)}
    if not weights:
        raise EncoderError(f"{path} holds no tensors by name, but {_some(list(content))}.")
    return weights


def _some(names: list[str]) -> str:
    if not names:
        return "nothing"
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" * (len(names) > SHOWN))
