"""The laws have teeth: each typical fault is caught by the law that is about it."""

import gc
from functools import partial

import pytest
import torch

from isoattn.core import Attention, Capability, CrossCovariance, Linear, Softmax
from isoattn.core.testing import LAWS, Sizes, check_attention, run_law, variants


@pytest.fixture(autouse=True)
def forget_broken_classes():
    """Classes defined in a test would otherwise be found by name afterwards."""
    yield
    gc.collect()


def elu1(x):
    return torch.nn.functional.elu(x) + 1


def dense():
    """Linear attention written out, right but for its cost; its parts are there to be broken."""

    class Dense(Attention):
        capability = Capability(causal=True, cross=True)

        def _attend(self, q, k, v, key_mask, causal):
            k, v = (x.repeat_interleave(self.heads // x.shape[1], 1) for x in (k, v))
            keep = torch.ones(v.shape[0], 1, v.shape[2], 1, dtype=torch.bool)
            if key_mask is not None:
                keep = key_mask[:, None, :, None]
            weights, v = self.weights(q, k, v, keep)
            weights = self.hide_future(weights) if causal else weights
            return self.normalise(weights) @ v

        def weights(self, q, k, v, keep):
            k, v = (x.masked_fill(~keep, 0.0) for x in (k, v))
            return elu1(q) @ elu1(k).transpose(-2, -1) * keep.transpose(-2, -1), v

        def hide_future(self, weights):
            return weights.tril()

        def normalise(self, weights):
            total = weights.sum(-1, keepdim=True)
            return weights / torch.where(total > 0, total, 1.0)

        def cost(self, shape, *, causal=False):
            return Linear(self.heads, self.head_dim).cost(shape, causal=causal)

        def reference(self, q, k, v, **options):
            return Linear(self.heads, self.head_dim).reference(q, k, v, **options)

    return Dense


def mask_before_the_map(self, q, k, v, keep):
    k, v = (x.masked_fill(~keep, 0.0) for x in (k, v))
    return elu1(q) @ elu1(k).transpose(-2, -1), v


def mask_by_product(self, q, k, v, keep):
    return elu1(q) @ (elu1(k) * keep).transpose(-2, -1), v * keep


def batch_leak(self, q, k, v, keep):
    return dense().weights(self, q / q.abs().amax(), k, v, keep)


def not_linear(self, q, k, v, keep):
    return dense().weights(self, q, k, v.clamp(max=1.0), keep)


def by_position(self, q, k, v, keep):
    ramp = torch.linspace(1.0, 2.0, k.shape[2], dtype=k.dtype)
    weights, v = dense().weights(self, q, k, v, keep)
    return weights * ramp, v


def global_generator(self, q, k, v, keep):
    torch.rand(1)
    return dense().weights(self, q, k, v, keep)


def changes_its_input(self, q, k, v, keep):
    q.data.add_(1e-3)
    return dense().weights(self, q, k, v, keep)


def sees_the_future(self, weights):
    return weights


def competing_eps(self, weights):
    return weights / (weights.sum(-1, keepdim=True) + 1e-3)


def divides_by_zero(self, weights):
    return weights / weights.sum(-1, keepdim=True)


def no_normaliser(self, weights):
    return weights


FAULTS = [
    (mask_before_the_map, "weights", "key_mask"),
    (divides_by_zero, "normalise", "empty_rows"),
    (mask_by_product, "weights", "key_mask"),
    (batch_leak, "weights", "batch_leak"),
    (not_linear, "weights", "linear_in_values"),
    (by_position, "weights", "permutation"),
    (by_position, "weights", "oracle"),
    (global_generator, "weights", "swap"),
    (changes_its_input, "weights", "inputs_unmodified"),
    (sees_the_future, "hide_future", "causal_leak"),
    (competing_eps, "normalise", "row_sums"),
    (no_normaliser, "normalise", "row_sums"),
]


@pytest.mark.parametrize(("fault", "part", "law"), FAULTS)
def test_a_fault_is_caught(fault, part, law):
    broken = type("Broken", (dense(),), {part: fault})
    result = run_law(LAWS[law], broken, Sizes())
    assert not result.passed
    assert result.detail


def test_without_a_fault_only_the_cost_is_wrong():
    wrong = [r for r in check_attention(dense(), 3, 5, 20) if not r.passed]
    assert [r.name for r in wrong] == ["cost"]
    assert "forward FLOPs said" in wrong[0].detail


def test_a_wrong_backward_is_caught():
    class Forgetful(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2.0

        @staticmethod
        def backward(ctx, grad):
            return grad

    class Wrong(Linear):
        def _attend(self, q, k, v, key_mask, causal):
            return super()._attend(q, Forgetful.apply(k) / 2.0, v, key_mask, causal)

    assert not run_law(LAWS["first_derivatives"], Wrong, Sizes()).passed


def test_a_silent_second_derivative_is_caught():
    class Detached(Softmax):
        def _attend(self, q, k, v, key_mask, causal):
            return Once.apply(q, k, v)

    class Once(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *inputs):
            ctx.save_for_backward(*inputs)
            return Softmax(2, 2, path="math")(*inputs)

        @staticmethod
        def backward(ctx, grad):
            inputs = [x.detach().requires_grad_() for x in ctx.saved_tensors]
            with torch.enable_grad():
                out = Softmax(2, 2, path="math")(*inputs)
            return torch.autograd.grad(out, inputs, grad.detach())

    # Detached gradients are refused by autograd itself; a law that expects an error accepts that.
    assert run_law(LAWS["second_derivatives"], Detached, Sizes()).passed
    Detached.capability = Capability(causal=False, cross=True)
    assert not run_law(LAWS["second_derivatives"], Detached, Sizes()).passed


def test_a_signature_out_of_line_is_caught():
    class Positional(Linear):
        def __init__(self, heads, head_dim, eps=0.0):
            super().__init__(heads, head_dim, eps=eps)

    result = run_law(LAWS["signature"], Positional, Sizes())
    assert "not keyword-only" in result.detail


def test_a_missing_reason_is_caught():
    class Silent(CrossCovariance):
        unsupported = {}

    result = run_law(LAWS["refusals"], Silent, Sizes())
    assert "no reason in Silent.unsupported for 'causal'" in result.detail


def leaky(deviations):
    return type("Leaky", (dense(),), {"weights": batch_leak, "deviations": deviations})


def test_a_declared_deviation_is_left_out_with_its_reason():
    released = leaky({"batch_leak": "one maximum for the whole batch"})
    result = run_law(LAWS["batch_leak"], released, Sizes())
    assert result.passed
    assert result.skipped == "broken as released: one maximum for the whole batch"
    assert run_law(LAWS["deviations"], released, Sizes(tokens=9)).passed


@pytest.mark.parametrize(
    ("deviations", "words"),
    [
        ({"row_sums": "a reason"}, "'row_sums' is named as a deviation but holds"),
        ({"steps": "a reason"}, "'steps' is no deviation"),
        ({"sums": "a reason"}, "names ['sums'], which are no laws"),
        ({"deviations": "a reason"}, "names ['deviations'], which are no laws"),
        ({"batch_leak": ""}, "no reason for 'batch_leak'"),
    ],
)
def test_a_deviation_without_need_is_caught(deviations, words):
    result = run_law(LAWS["deviations"], leaky(deviations), Sizes())
    assert not result.passed
    assert words in result.detail


def test_a_float16_sum_is_caught():
    class Half(Linear):
        def _attend(self, q, k, v, key_mask, causal):
            phi_q, phi_k = elu1(q), elu1(k)
            state, total = phi_k.transpose(-2, -1) @ v, phi_k.sum(-2).unsqueeze(-1)
            return (phi_q @ state) / (phi_q @ total)

    sizes = Sizes(heads=2, head_dim=64, tokens=512)
    assert not run_law(LAWS["long_dtypes"], Half, sizes).passed


def test_check_attention_reports_and_leaves_the_process_alone():
    torch.manual_seed(3)
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    with torch.no_grad():
        results = check_attention(partial(CrossCovariance, temperature_init=10.0), 4, 8, 30)
        assert not torch.is_grad_enabled()
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads
    assert [r.name for r in results] == [name for name, law in LAWS.items() if not law.slow]
    assert all(r.passed for r in results), [r for r in results if not r.passed]
    skipped = {r.name: r.skipped for r in results if r.skipped}
    assert skipped["cross"] == "no cross form: q and k are paired token by token"


def test_an_error_counts_as_broken():
    class Crash(Linear):
        def _attend(self, q, k, v, key_mask, causal):
            raise RuntimeError("out of order")

    result = run_law(LAWS["permutation"], Crash, Sizes())
    assert (result.passed, result.detail) == (False, "RuntimeError: out of order")


def test_variants_walk_through_literal_and_bool_options():
    assert list(variants(Softmax)) == ["Softmax", "Softmax(path='math')"]
    assert "CrossCovariance(learn_temperature=False)" in variants(CrossCovariance)
    assert variants(Linear)["Linear(feature_map='relu')"](2, 3).feature_map == "relu"


def test_sizes_and_laws_are_described():
    with pytest.raises(ValueError, match="All sizes must be at least 1"):
        Sizes(heads=0)
    assert all(law.statement.endswith(".") for law in LAWS.values())
    with pytest.raises(TypeError):
        LAWS["new"] = LAWS["cost"]


def test_what_cannot_be_built_is_said_once():
    """An abstract class, an option that does not fit: one line, not one a law."""
    for factory, word in ((Attention, "abstract"), (partial(Linear, feature_map="cube"), "cube")):
        results = check_attention(factory, 2, 4, 10)
        assert [(r.name, r.passed) for r in results] == [("builds", False)]
        assert word in results[0].detail
