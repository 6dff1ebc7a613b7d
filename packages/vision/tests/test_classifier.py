"""The classifier carries all that rebuilds it as plain data, however it was made."""

import functools

import lightning.pytorch as L
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from isoattn.core import Attention, CosineSoftmax, CrossCovariance, Linear, Softmax
from isoattn.vision import DigitsData, ViT, XCiT
from isoattn.vision.classifier import ImageClassifier, LossOptions, OptimOptions

TINY = functools.partial(XCiT, embed_dim=16, depth=2, heads=2, patch_size=2, cls_layers=1)

WAYS = {
    "class": (Linear, "Linear", {}),
    "partial": (
        functools.partial(CosineSoftmax, temperature_init=3.0),
        "CosineSoftmax",
        {"temperature_init": 3.0},
    ),
    "name": ("Softmax", "Softmax", {}),
    "path": ("isoattn.core.Mean", "Mean", {}),
    "mapping": (
        {"class_path": "Linear", "init_args": {"feature_map": "relu", "eps": 1e-6}},
        "Linear",
        {"feature_map": "relu", "eps": 1e-6},
    ),
}


def _model(**options):
    return ImageClassifier(**{"num_classes": 10, "network": TINY, "attention": Softmax, **options})


def _trainer(folder, **options):
    return L.Trainer(
        **{
            "max_epochs": 1,
            "limit_train_batches": 2,
            "limit_val_batches": 1,
            "accelerator": "cpu",
            "logger": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "default_root_dir": folder,
            **options,
        }
    )


def _data():
    return DigitsData(batch_size=32, seed=0)


def _loader(batches):
    return DataLoader(batches, batch_size=None)


# Lightning's own remarks; none is about the classifier.
quiet = pytest.mark.filterwarnings(
    "ignore:.*does not have many workers", "ignore:.*LeafSpec", "ignore:.*logging interval"
)


@quiet
@pytest.mark.parametrize("way", WAYS)
def test_plain_trainer_saves_what_loads_safely(tmp_path, way):
    attention, name, options = WAYS[way]
    model = _model(attention=attention)
    trainer = _trainer(tmp_path)
    trainer.fit(model, _data())
    trainer.save_checkpoint(tmp_path / "model.ckpt")
    loaded = ImageClassifier.load_from_checkpoint(tmp_path / "model.ckpt", weights_only=True)
    assert loaded.hparams["attention"] == {
        "class_path": f"isoattn.core.{name}",
        "init_args": options,
    }
    cores = [m for m in loaded.modules() if isinstance(m, Attention)]
    assert len(cores) == 2 and {type(c).__name__ for c in cores} == {name}
    for key, value in options.items():
        assert all(getattr(c, key, value) == value for c in cores)
    for key, tensor in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[key], tensor), key
    image = torch.randn(3, 1, 8, 8)
    assert torch.equal(loaded.eval()(image), model.eval()(image))


def test_hyper_parameters_are_plain_data():
    def plain(value):
        if isinstance(value, dict):
            return all(isinstance(k, str) and plain(v) for k, v in value.items())
        if isinstance(value, list | tuple):
            return all(map(plain, value))
        return value is None or type(value) in (int, float, str, bool)

    model = _model(attention=functools.partial(Linear, eps=1e-6), image_size=(8, 8))
    assert plain(dict(model.hparams))
    rebuilt = ImageClassifier(**model.hparams)
    assert dict(rebuilt.hparams) == dict(model.hparams)
    assert isinstance(rebuilt.optim, OptimOptions) and rebuilt.optim.betas == (0.9, 0.999)


@pytest.mark.parametrize("network", ["ViT", ViT, {"class_path": "isoattn.vision.ViT"}])
def test_network_by_name_class_and_mapping(network):
    spec = {"class_path": "isoattn.vision.ViT", "init_args": {}}
    model = ImageClassifier(10, image_size=(28, 28), network=network, attention=Softmax)
    assert model.hparams["network"] == spec and isinstance(model.network, ViT)


def test_what_cannot_be_written_down_is_refused():
    with pytest.raises(ValueError, match="Cannot write down the attention.*functools.partial"):
        _model(attention=lambda heads, dim: Softmax(heads, dim))
    with pytest.raises(ValueError, match="Cannot write down the network"):
        _model(network=lambda attention, chans, classes: TINY(attention, chans, classes))
    with pytest.raises(ValueError, match="Did you mean Softmax"):
        _model(attention="Softmx")


def test_class_names_must_fit():
    with pytest.raises(ValueError, match="10 classes but 2 class names"):
        _model(class_names=["a", "b"])
    assert _model(num_classes=3).class_names == ["0", "1", "2"]


def test_defaults_are_not_shared():
    first, second = _model(), _model()
    first.optim.lr = 9.0
    assert second.optim.lr == OptimOptions().lr and _model().optim.lr == OptimOptions().lr


@pytest.mark.parametrize(
    "options, words",
    [
        ({"lr": 0.0}, "lr must be above 0"),
        ({"lr": float("nan")}, "lr must be above 0"),
        ({"weight_decay": -0.1}, "weight_decay must be 0 or more"),
        ({"warmup": -1}, "warmup must be 0 or more"),
        ({"min_lr": 2.0}, "min_lr must be a fraction"),
        ({"betas": (0.9, 1.0)}, r"betas must be in \[0, 1\)"),
    ],
)
def test_optimiser_options_are_checked(options, words):
    with pytest.raises(ValueError, match=words):
        OptimOptions(**options)


@pytest.mark.parametrize("options", [{"smoothing": 1.0}, {"mixup": -1.0}, {"cutmix": -0.5}])
def test_loss_options_are_checked(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        LossOptions(**options)


@quiet
@pytest.mark.parametrize("attention", [CrossCovariance, CosineSoftmax])
@pytest.mark.parametrize(
    "network",
    [TINY, functools.partial(ViT, image_size=8, embed_dim=16, depth=2, heads=2, patch_size=2)],
)
def test_decay_groups(tmp_path, network, attention):
    """No decay for temperatures, positions, class token, biases and norms; decay for the rest."""
    model = _model(network=network, attention=attention, image_size=(8, 8))
    trainer = _trainer(tmp_path)
    trainer.fit(model, _data())
    groups = {g["name"]: g for g in trainer.optimizers[0].param_groups}
    names = {id(p): n for n, p in model.named_parameters()}
    decayed = {names[id(p)] for p in groups["decay"]["params"]}
    free = {names[id(p)] for p in groups["no_decay"]["params"]}
    assert groups["decay"]["weight_decay"] == 0.05 and groups["no_decay"]["weight_decay"] == 0
    assert decayed | free == set(names.values()) and not decayed & free
    for word in ("temperature", "pos_embed", "cls_token", "bias", "norm"):
        assert not [n for n in decayed if word in n], word
    assert any("temperature" in n for n in free)
    assert any("cls_token" in n for n in free)
    weights = {f"{n}.weight" for n, m in model.named_modules() if isinstance(m, nn.Linear)}
    assert weights <= decayed


class _Rates(L.Callback):
    def __init__(self):
        self.rates = []

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        self.rates.append({g["lr"] for g in optimizer.param_groups})


@quiet
@pytest.mark.parametrize("warmup", [0, 3, 0.25])
def test_rate_reaches_exactly_the_peak_per_step(tmp_path, warmup):
    rates = _Rates()
    model = _model(optim=OptimOptions(lr=0.01, warmup=warmup, min_lr=0.1))
    _trainer(tmp_path, max_epochs=2, limit_train_batches=8, callbacks=[rates]).fit(model, _data())
    assert all(len(r) == 1 for r in rates.rates) and len(rates.rates) == 16
    values = [r.pop() for r in rates.rates]
    steps = int(warmup * 16) if 0 < warmup < 1 else warmup
    peak = max(steps - 1, 0)
    assert values[peak] == 0.01 == max(values)
    assert values[:peak] == pytest.approx([0.01 * (s + 1) / steps for s in range(peak)])
    assert all(a > b for a, b in zip(values[peak:], values[peak + 1 :], strict=False))
    assert values[-1] == pytest.approx(0.001)


@quiet
def test_top1_is_micro_and_balanced_has_its_own_name(tmp_path):
    """Nine images of one class, one of another, all predicted the first: .9, and .5 balanced."""
    model = _model(num_classes=2, network=TINY)
    with torch.no_grad():
        model.network.head.weight.zero_()
        model.network.head.bias.copy_(torch.tensor([1.0, 0.0]))
    label = torch.tensor([0] * 9 + [1])
    batch = {"image": torch.randn(10, 1, 8, 8), "label": label, "index": torch.arange(10)}
    trainer = _trainer(tmp_path)
    (metrics,) = trainer.test(model, _loader([batch]), verbose=False)
    assert metrics["test/accuracy"] == pytest.approx(0.9)
    assert metrics["test/balanced_accuracy"] == pytest.approx(0.5)


@quiet
def test_metrics_are_over_items_not_batches(tmp_path):
    """Batches of 8 and 2: the mean of the batch means would weigh the two items too much."""
    model = _model(num_classes=2)
    with torch.no_grad():
        model.network.head.weight.zero_()
        model.network.head.bias.copy_(torch.tensor([1.0, 0.0]))
    batches = [
        {"image": torch.zeros(n, 1, 8, 8), "label": torch.full((n,), c), "index": torch.arange(n)}
        for n, c in ((8, 0), (2, 1))
    ]
    (metrics,) = _trainer(tmp_path).test(model, _loader(batches), verbose=False)
    assert metrics["test/accuracy"] == pytest.approx(0.8)
    low, high = torch.tensor([1.0, 0.0]).log_softmax(0)
    assert metrics["test/loss"] == pytest.approx(float(-(0.8 * low + 0.2 * high)), abs=1e-6)


@pytest.mark.parametrize("name", ["ce", "bce"])
@pytest.mark.parametrize("mix", [{}, {"mixup": 0.5}, {"cutmix": 0.5}])
def test_every_loss_gives_a_gradient(name, mix):
    model = _model(loss=LossOptions(name=name, smoothing=0.1, **mix))
    model.log = lambda *args, **kwargs: None
    batch = {"image": torch.randn(5, 1, 8, 8), "label": torch.arange(5)}
    loss = model.training_step(batch, 0)
    loss.backward()
    assert torch.isfinite(loss) and model.network.head.weight.grad.abs().sum() > 0


def test_an_attention_of_the_wrong_size_is_named():
    with pytest.raises(ValueError, match="heads must divide"):
        _model(network=functools.partial(XCiT, embed_dim=10, depth=1, heads=3, patch_size=2))
