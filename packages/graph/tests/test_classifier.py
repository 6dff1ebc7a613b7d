"""The node classifier: loss, counts, checkpoints, predictions."""

from dataclasses import replace
from functools import partial

import lightning.pytorch as L
import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader

from isoattn.core import GumbelFavor, GumbelSoftmax, Mean
from isoattn.graph.classifier import LossOptions, NodeClassifier, OptimOptions
from isoattn.graph.graph import Graph, tidy_edges
from isoattn.graph.models import GCN, NodeFormer
from isoattn.graph.task import NodeBatch

NETWORK = partial(NodeFormer, hidden=8, heads=2, relational_order=1)


def batch(nodes=20, *, labels=None, seed=0, target=None):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(nodes, 6, generator=generator)
    edges = tidy_edges(torch.randint(0, nodes, (2, 30), generator=generator), nodes)[0]
    y = (x[:, 0] > 0).long() + (x[:, 1] > 0).long() if labels is None else labels
    target = torch.ones(nodes, dtype=torch.bool) if target is None else target
    return NodeBatch(Graph(x, edges), y, target)


def loader(*batches):
    return DataLoader(
        list(batches), batch_size=1, collate_fn=lambda b: b[0], generator=torch.Generator()
    )


def trainer(tmp_path, **options):
    return L.Trainer(
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
        log_every_n_steps=1,
        **options,
    )


# Lightning's own remarks; none is about the classifier.
quiet = pytest.mark.filterwarnings(
    "ignore:.*does not have many workers", "ignore:.*LeafSpec", "ignore:.*logging interval"
)


def build(**options):
    torch.manual_seed(0)
    return NodeClassifier(3, 6, **{"network": NETWORK, **options})


@quiet
@pytest.mark.parametrize("attention", [GumbelFavor, GumbelSoftmax, Mean])
def test_it_learns(tmp_path, attention):
    model = build(
        attention=attention,
        optim=OptimOptions(lr=1e-2, weight_decay=0.0),
        loss=LossOptions(edge_reg=0.01),
    )
    data = batch()
    with torch.no_grad():
        before = model.node_loss(model.eval()(data.graph).logits, data.y)
    model.train()
    trainer(tmp_path, max_epochs=30, num_sanity_val_steps=0).fit(model, loader(data), loader(data))
    with torch.no_grad():
        after = model.node_loss(model.eval()(data.graph).logits, data.y)
    assert after < 0.5 * before


@quiet
def test_metrics_are_counts_over_unequal_batches(tmp_path):
    model = build()
    first = batch(1, labels=torch.tensor([0]))
    second = batch(3, seed=1, labels=torch.tensor([0, 0, 0]))
    answers = iter([torch.tensor([[9.0, 0, 0]]), torch.tensor([[0, 9.0, 0]] * 3)])
    model.network.forward = lambda graph, *, return_extras=False: replace(
        real(graph), logits=next(answers)
    )
    real = type(model.network).forward.__get__(model.network)
    (result,) = trainer(tmp_path).test(model, loader(first, second), verbose=False)
    assert result["test/accuracy"] == 0.25


def test_the_loss_counts_target_nodes_with_a_label_and_the_edges():
    target = torch.arange(20) < 10
    data = batch(target=target)
    data.y[:5] = -1
    model = build(loss=LossOptions(edge_reg=0.7), attention=partial(GumbelFavor, draws=0))
    model.log = lambda *_, **__: None
    out = model(data.graph, return_extras=True)
    want = F.cross_entropy(out.logits[5:10], data.y[5:10]) - 0.7 * out.edge_loss
    torch.testing.assert_close(model.training_step(data, 0), want)
    assert model.train_sums[2] == 5


def test_without_weight_the_edge_loss_is_not_computed(monkeypatch):
    model = build()
    model.log = lambda *_, **__: None
    monkeypatch.setattr(
        "isoattn.graph.models.nodeformer.edge_loss", lambda *_: pytest.fail("computed")
    )
    assert model.training_step(batch(), 0).isfinite()


def test_a_batch_without_labels_gives_no_nan():
    model = build()
    model.log = lambda *_, **__: None
    loss = model.training_step(batch(target=torch.zeros(20, dtype=torch.bool)), 0)
    loss.backward()
    assert loss == 0
    assert all(p.grad is None or not p.grad.any() for p in model.parameters())


def test_the_order_of_the_nodes_of_a_batch_does_not_change_the_loss():
    model = build(attention=partial(GumbelFavor, draws=0), loss=LossOptions(edge_reg=0.5)).double()
    model.log = lambda *_, **__: None
    data = batch()
    order = torch.randperm(20, generator=torch.Generator().manual_seed(1))
    place = torch.empty_like(order)
    place[order] = torch.arange(20)
    graph = Graph(data.graph.x[order], place[data.graph.edge_index], node=order)
    other = NodeBatch(graph, data.y[order], data.target[order])
    torch.testing.assert_close(model.training_step(data, 0), model.training_step(other, 0))
    a, b = (model.eval().predict_step(x, 0) for x in (data, other))
    assert torch.equal(b["node"], order)
    torch.testing.assert_close(b["probability"], a["probability"][order])


def test_multilabel_loss_leaves_unknown_labels_out():
    model = build(kind="multilabel", metric="roc_auc")
    labels = torch.tensor([[1.0, 0.0, float("nan")], [float("nan")] * 3])
    logits = torch.tensor([[2.0, -1.0, 5.0], [1.0, 1.0, 1.0]])
    want = F.binary_cross_entropy_with_logits(logits[0, :2], labels[0, :2])
    torch.testing.assert_close(model.node_loss(logits, labels), want)
    torch.testing.assert_close(model.probability(logits), logits.sigmoid())


def test_class_weights():
    weighted = build(loss=LossOptions(class_weight=(1.0, 0.0, 2.0)))
    logits, y = torch.randn(6, 3, generator=torch.Generator().manual_seed(0)), torch.arange(6) % 3
    want = F.cross_entropy(logits, y, weight=torch.tensor([1.0, 0.0, 2.0]))
    torch.testing.assert_close(weighted.node_loss(logits, y), want)


def test_balanced_class_weights():
    model = build(loss=LossOptions(class_weight="balanced"), class_counts=[3, 1, 0])
    assert model.class_weight == pytest.approx((4 / 9, 4 / 3, 0))
    assert NodeClassifier(**model.hparams).class_weight == model.class_weight
    with pytest.raises(ValueError, match="balanced needs class_counts of the 3 classes"):
        build(loss=LossOptions(class_weight="balanced"))
    with pytest.raises(ValueError, match="class_weight must be one of balanced, got 'equal'"):
        LossOptions(class_weight="equal")


@pytest.mark.parametrize("network", [NETWORK, GCN])
def test_it_is_rebuilt_from_plain_data(tmp_path, network):
    model = build(
        network=network,
        attention=partial(GumbelFavor, features=7, tau_eval=1.0),
        optim=OptimOptions(milestones=(3, 5)),
        loss=LossOptions(class_weight=(1.0, 2.0, 3.0)),
    )
    path = tmp_path / "model.ckpt"
    torch.save({"hyper": dict(model.hparams), "state": model.state_dict()}, path)
    stored = torch.load(path, weights_only=True)
    again = NodeClassifier(**stored["hyper"])
    again.load_state_dict(stored["state"])
    graph = batch().graph
    assert torch.equal(again.eval()(graph).logits, model.eval()(graph).logits)
    assert again.optim == model.optim
    assert again.loss == model.loss


def test_layers_and_seeds_draw_their_own():
    model = build()
    torch.manual_seed(1)
    other = NodeClassifier(3, 6, network=NETWORK)
    rows = [layer.core.projection.rows for m in (model, other) for layer in m.network.layers]
    for i, a in enumerate(rows):
        assert not any(torch.equal(a, b) for b in rows[:i])


def test_optimisers():
    plain = build(optim=OptimOptions(lr=0.5, weight_decay=0.1)).configure_optimizers()
    assert isinstance(plain, torch.optim.Adam)
    assert [g["weight_decay"] for g in plain.param_groups] == [0.1]
    options = OptimOptions("adamw", decay="weights", milestones=(1,), gamma=0.25, lr=1.0)
    made = build(optim=options).configure_optimizers()
    optimizer, scheduler = made["optimizer"], made["lr_scheduler"]["scheduler"]
    assert isinstance(optimizer, torch.optim.AdamW)
    assert [g["weight_decay"] for g in optimizer.param_groups] == [5e-3, 0.0]
    optimizer.step()
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.25


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: OptimOptions(lr=0), "lr must be above 0, got 0"),
        (lambda: OptimOptions(name="sgd"), "name must be one of adam, adamw, got 'sgd'"),
        (lambda: OptimOptions(milestones=(5, 3)), "milestones must be rising steps above 0"),
        (lambda: LossOptions(edge_reg=-1), "edge_reg must be 0 or more, got -1"),
        (lambda: build(class_names=["a"]), "3 classes but 1 class names"),
        (lambda: build(kind="ranking"), "kind must be one of multiclass, multilabel"),
        (
            lambda: build(loss=LossOptions(class_weight=(1.0,))),
            "one number for each of the 3 classes of a multiclass task, got 1",
        ),
    ],
)
def test_messages(call, words):
    with pytest.raises(ValueError, match=words):
        call()
