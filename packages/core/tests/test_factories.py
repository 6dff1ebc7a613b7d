"""Name, plain data and factory: each from the other, nothing imported on the way."""

import functools
import json
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isoattn.core import (
    Attention,
    CrossCovariance,
    Linear,
    Softmax,
    attention_factory,
    attention_spec,
    attentions,
    find_attention,
)
from isoattn.core.factories import build_factory, class_path, concrete, describe_factory, find

NAMES = sorted(attentions())


@pytest.mark.parametrize("name", NAMES)
def test_every_attention_by_name_and_path(name):
    cls = attentions()[name]
    for spelling in (name, class_path(cls), f"{cls.__module__}.{cls.__qualname__}"):
        assert find_attention(spelling) is cls
        assert attention_factory(spelling) is cls
    assert attention_spec(cls) == {"class_path": class_path(cls), "init_args": {}}


def test_paths_are_the_public_ones():
    assert class_path(Softmax) == "isoattn.core.Softmax"
    ours = [c for c in attentions().values() if c.__module__.startswith("isoattn.")]
    assert all(class_path(c) == f"isoattn.core.{c.__name__}" for c in ours)


FORMS = [
    Linear,
    "Linear",
    "isoattn.core.Linear",
    {"class_path": "Linear"},
    {"class_path": "isoattn.core.Linear", "init_args": {}},
    {"class_path": "isoattn.core.Linear", "init_args": None},
    functools.partial(Linear),
]


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_every_form_builds_the_same(form):
    core = attention_factory(form)(2, 3)
    assert type(core) is Linear and (core.heads, core.head_dim) == (2, 3)
    assert attention_spec(form) == {"class_path": "isoattn.core.Linear", "init_args": {}}


@given(st.sampled_from(["elu1", "relu", "softplus"]), st.sampled_from([0.0, 1e-6]))
def test_options_survive_the_round_trip(feature_map, eps):
    options = {"feature_map": feature_map, "eps": eps}
    spec = attention_spec(functools.partial(Linear, **options))
    assert spec == {"class_path": "isoattn.core.Linear", "init_args": options}
    plain = json.loads(json.dumps(spec))
    assert attention_spec(attention_factory(plain)) == spec
    assert attention_factory(plain)(2, 3).eps == eps


def test_outer_partial_wins():
    inner = functools.partial(CrossCovariance, temperature_init=2.0, learn_temperature=False)
    outer = functools.partial(inner, temperature_init=3.0)
    assert attention_spec(outer)["init_args"] == {
        "temperature_init": 3.0,
        "learn_temperature": False,
    }


def test_form_of_the_parser_is_read():
    """jsonargparse gives partial(instantiate, ..., cls, **options)."""

    def instantiate(cls, *args, **kwargs):
        return cls(*args, **kwargs)

    spec = attention_spec(functools.partial(instantiate, Linear, eps=1e-6))
    assert spec == {"class_path": "isoattn.core.Linear", "init_args": {"eps": 1e-6}}


@pytest.mark.parametrize("bad", [lambda heads, dim: Softmax(heads, dim), int, print, 5])
def test_what_cannot_be_written_down(bad):
    with pytest.raises(ValueError, match="Cannot write down the attention.*functools.partial"):
        attention_spec(bad)


def test_partial_with_positional_arguments_is_refused():
    """It would fix heads, which the caller supplies, and be lost in the description."""
    with pytest.raises(ValueError, match="Cannot write down"):
        attention_spec(functools.partial(Softmax, 4))


def test_unknown_names():
    with pytest.raises(ValueError, match=r"no attention named 'Softmx'. Did you mean Softmax"):
        attention_factory("Softmx")
    with pytest.raises(ValueError, match=r"no attention named 'evil.module.X'"):
        attention_factory("evil.module.X")
    with pytest.raises(ValueError, match="Known: .*Softmax"):
        attention_factory("zzz9")


def test_unknown_options():
    with pytest.raises(ValueError, match=r"Linear has no option 'epz'. Did you mean 'eps'"):
        attention_factory({"class_path": "Linear", "init_args": {"epz": 1}})
    with pytest.raises(ValueError, match=r"Zero has no option 'q'. It has no options"):
        attention_factory({"class_path": "Zero", "init_args": {"q": 1}})
    with pytest.raises(ValueError, match="no option 'heads'"):
        attention_factory({"class_path": "Linear", "init_args": {"heads": 1}})


@pytest.mark.parametrize("bad", [{}, {"init_args": {}}, {"class_path": "Linear", "init_arg": {}}])
def test_mapping_without_its_keys(bad):
    with pytest.raises(ValueError, match="class_path"):
        attention_factory(bad)


def test_nothing_is_imported(tmp_path, monkeypatch):
    (tmp_path / "evil_core_module.py").write_text("raise SystemExit('ran')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ValueError, match="no attention"):
        attention_factory("evil_core_module.X")
    assert "evil_core_module" not in sys.modules


class _Own(Softmax):
    """An attention of the user's."""


def test_own_class_is_found_once_defined():
    assert find("_Own", Attention, "attention") is _Own
    assert attention_spec(_Own)["class_path"] == f"{__name__}._Own"
    assert attention_factory(attention_spec(_Own)) is _Own


def test_abstract_classes_have_no_name():
    assert "Attention" not in attentions()
    assert list(concrete(Attention)) == sorted(concrete(Attention))


def test_base_is_checked():
    with pytest.raises(ValueError, match="Cannot write down the network"):
        describe_factory(Softmax, int, "network")
    assert build_factory("Linear", Attention, "attention", positional=2) is Linear
