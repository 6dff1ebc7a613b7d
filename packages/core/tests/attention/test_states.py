"""What the states of the attentions without gates hold, beyond the laws."""

import pytest
import torch

from isoattn.core import CosineSoftmax, Identity, Linear, Mean, Softmax, UnsupportedAttention, Zero


def token():
    return [torch.randn(1, 2, 1, 3) for _ in range(3)]


@pytest.mark.parametrize("cls", [Linear, Softmax, CosineSoftmax, Mean])
def test_a_state_does_not_share_memory_with_the_inputs(cls):
    q, k, v = token()
    _, state = cls(2, 3).extend(q, k, v)
    kept = {name: x.clone() for name, x in state.items()}
    k.fill_(7.0)
    v.fill_(7.0)
    assert all(torch.equal(x, kept[name]) for name, x in state.items())


def test_a_key_mask_enters_the_cache_when_it_is_first_given():
    module = Softmax(2, 3)
    _, state = module.extend(*token())
    assert set(state) == {"k", "v"}
    _, state = module.extend(*token(), state, key_mask=torch.tensor([[False]]))
    _, state = module.extend(*token(), state)
    assert state["key_mask"].tolist() == [[True, False, True]]


def test_what_remembers_nothing_has_an_empty_state():
    for cls in (Identity, Zero):
        assert cls(2, 3).extend(*token())[1] == {}


def test_a_map_shifted_by_the_future_has_no_state():
    with pytest.raises(UnsupportedAttention, match="Linear has no state to continue: .*the future"):
        Linear(2, 3, feature_map="exp").extend(*token())
