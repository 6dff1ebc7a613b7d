"""What can be said on the command line, and in which order it counts."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from isoattn.apps.base.arguments import _class_first, _join, _start_from_own_defaults, prepare
from isoattn.apps.base.shipped import shipped
from isoattn.core import attentions

DIGITS = ("--config", "xcit_digits")


@pytest.fixture
def resolved(command):
    """The config a command line resolves to."""

    def resolve(*argv):
        result = command("fit", *argv, "--print_config")
        assert result.code == 0, result.err
        return yaml.safe_load(result.out)

    return resolve


def _attention(config):
    spec = config["model"]["attention"]
    return spec["class_path"].rsplit(".", 1)[-1], spec["init_args"]


def _write(name, content):
    Path(name).write_text(content if isinstance(content, str) else yaml.safe_dump(content))


HOT = {
    "model": {
        "attention": {
            "class_path": "isoattn.core.CrossCovariance",
            "init_args": {"temperature_init": 2.0, "learn_temperature": False},
        }
    }
}


# --- configs ------------------------------------------------------------------------------------


def test_without_a_config_the_default_one_is_used(resolved):
    assert resolved()["data"]["class_path"] == "isoattn.vision.MnistData"


def test_configs_apply_from_left_to_right(resolved):
    _write("a.yaml", {"model": {"optim": {"lr": 0.5, "warmup": 0.3}}})
    _write("b.yaml", {"model": {"optim": {"lr": 0.25}}})
    optim = resolved(*DIGITS, "--config", "a.yaml", "--config=b.yaml")["model"]["optim"]
    assert (optim["lr"], optim["warmup"]) == (0.25, 0.3)
    assert resolved(*DIGITS, "--config=b.yaml", "-c", "a.yaml")["model"]["optim"]["lr"] == 0.5


def test_a_flag_beats_a_config_wherever_it_stands(resolved):
    assert _attention(resolved("--model.attention=Softmax", *DIGITS))[0] == "Softmax"
    config = resolved("--trainer.max_epochs=7", *DIGITS, "--model.optim.lr", "0.5")
    assert (config["trainer"]["max_epochs"], config["model"]["optim"]["lr"]) == (7, 0.5)


def test_group_files_and_inline_json(resolved):
    _write("model.yaml", {"attention": "Softmax", "optim": {"lr": 0.5}})
    _write("data.yaml", {"class_path": "DigitsData", "init_args": {"batch_size": 32}})
    config = resolved(*DIGITS, "--model", "model.yaml", "--data", "data.yaml")
    assert _attention(config) == ("Softmax", {"path": "fused"})
    assert config["model"]["optim"]["lr"] == 0.5
    assert config["data"]["init_args"]["batch_size"] == 32
    inline = json.dumps({"class_path": "Linear", "init_args": {"feature_map": "relu"}})
    name, options = _attention(resolved(*DIGITS, f"--model.attention={inline}"))
    assert (name, options["feature_map"]) == ("Linear", "relu")
    assert resolved(*DIGITS, '--model={"optim": {"lr": 0.125}}')["model"]["optim"]["lr"] == 0.125


@pytest.mark.parametrize("kind", ["name", "suffix", "path", "own"])
def test_preset_by_name_and_by_path(resolved, kind):
    file = shipped("vision", "configs/attention")["cosine_scale10"]
    Path("own.yaml").write_text(file.read_text())
    said = {"name": "cosine_scale10", "suffix": "cosine_scale10.yaml", "path": str(file)}
    name, options = _attention(resolved(*DIGITS, f"--model.attention={said.get(kind, 'own.yaml')}"))
    assert (name, options["temperature_init"]) == ("CosineSoftmax", 10.0)


def test_later_flags_override_a_preset(resolved):
    name, options = _attention(
        resolved(
            *DIGITS, "--model.attention=cosine_scale10", "--model.attention.temperature_init=7"
        )
    )
    assert (name, options["temperature_init"]) == ("CosineSoftmax", 7.0)


def test_options_may_come_before_their_class(resolved):
    """A sweep writes parameters in its own order."""
    name, options = _attention(
        resolved("--model.attention.feature_map=relu", "--model.attention=Linear", *DIGITS)
    )
    assert (name, options["feature_map"]) == ("Linear", "relu")


def test_every_preset_names_its_class_and_resolves(resolved):
    presets = shipped("vision", "configs/attention")
    assert len(presets) >= 5
    for name, file in presets.items():
        assert file.read_text().startswith(f"# isoattn vision fit --model.attention={name}\n")
        chosen, options = _attention(resolved(*DIGITS, f"--model.attention={name}"))
        stated = yaml.safe_load(file.read_text())
        assert stated["class_path"] == f"isoattn.core.{chosen}"
        assert options.items() >= stated["init_args"].items()


def test_every_shipped_config_names_its_command(resolved):
    for name, file in shipped("vision", "configs").items():
        assert file.read_text().startswith(f"# isoattn vision fit --config {name}")


# --- another attention starts from its own defaults ---------------------------------------------

SWITCHES = [
    ("--model.attention=CosineSoftmax",),
    ("--model.attention", "CosineSoftmax"),
    ("--model.attention=isoattn.core.CosineSoftmax",),
    ("--model.attention.class_path=CosineSoftmax",),
    ('--model.attention={"class_path": "CosineSoftmax"}',),
    ("--model=switch_model.yaml",),
    ("--config=switch.yaml",),
    ("--config=switch_mapping.yaml",),
    ("--model.attention=switch_preset.yaml",),
]


@pytest.mark.parametrize("switch", SWITCHES, ids=lambda s: s[0].split("=")[0] + str(len(s[0])))
def test_another_attention_does_not_inherit_options(resolved, switch):
    """jsonargparse alone keeps temperature_init=2.0, which was meant for XCA."""
    _write("hot.yaml", HOT)
    _write("switch.yaml", {"model": {"attention": "CosineSoftmax"}})
    _write("switch_mapping.yaml", {"model": {"attention": {"class_path": "CosineSoftmax"}}})
    _write("switch_model.yaml", {"attention": "CosineSoftmax"})
    _write("switch_preset.yaml", {"class_path": "CosineSoftmax"})
    own = _attention(resolved(*DIGITS, "--model.attention=CosineSoftmax"))
    assert own[1]["learn_temperature"] is True
    assert _attention(resolved(*DIGITS, "--config=hot.yaml", *switch)) == own


def test_a_preset_does_not_leak_into_the_next_attention(resolved):
    own = _attention(resolved(*DIGITS, "--model.attention=CrossCovariance"))
    switched = ("--model.attention=cosine_scale10", "--model.attention=CrossCovariance")
    assert _attention(resolved(*DIGITS, *switched)) == own


def test_naming_the_same_attention_again_keeps_its_options(resolved):
    _write("hot.yaml", HOT)
    options = HOT["model"]["attention"]["init_args"]
    again = resolved(*DIGITS, "--config=hot.yaml", "--model.attention=CrossCovariance")
    assert _attention(again) == ("CrossCovariance", options)
    one = resolved(*DIGITS, "--config=hot.yaml", "--model.attention.temperature_init=3")
    assert _attention(one)[1] == {**options, "temperature_init": 3.0}


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from(sorted(attentions())), min_size=1, max_size=5))
def test_a_chain_of_choices_ends_at_the_last_with_nothing_kept(names):
    tokens, chosen = _start_from_own_defaults([f"--model.attention={n}" for n in names])
    assert chosen == names[-1]
    for before, after in zip(tokens, tokens[1:], strict=False):
        different = before.partition("=")[2] != after.partition("=")[2]
        assert not different or "isoattn.core.Zero" in (
            before.partition("=")[2],
            after.partition("=")[2],
        )


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from(["--a=1", "--model.attention=X", "--model.attention.y=2", "--b"])))
def test_class_first_only_moves_the_choice(tokens):
    moved = _class_first(tokens)
    assert sorted(moved) == sorted(tokens)
    rest = [t for t in tokens if not t.startswith("--model.attention=")]
    assert moved[len(tokens) - len(rest) :] == rest


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from(["--config", "x", "--a", "--b=1", "-c", "--model"])))
def test_joining_keeps_every_word_in_order(tokens):
    assert " ".join(_join(tokens)).replace("=", " ") == " ".join(tokens).replace("=", " ")


def test_abbreviations_are_no_options(command):
    """``--ckpt X`` would otherwise be a way around the checks on ``--ckpt_path``."""
    result = command("fit", *DIGITS, "--ckpt=x.ckpt")
    assert result.code == 2 and "--ckpt" in result.err and "--ckpt_path" in result.err


# --- print_config and help ----------------------------------------------------------------------


def test_print_config_before_and_after(command):
    before = command("fit", "--print_config", *DIGITS)
    after = command("fit", *DIGITS, "--print_config")
    assert before.code == after.code == 0
    assert before.out == after.out and "seed_everything: 0" in before.out
    assert not Path("runs").exists()


def test_print_config_without_defaults_resolves_to_the_same(command, resolved):
    full = resolved(*DIGITS, "--model.attention=cosine_scale10")
    short = command(
        "fit", *DIGITS, "--model.attention=cosine_scale10", "--print_config=skip_default"
    )
    assert short.code == 0 and len(short.out.splitlines()) < 30
    _write("short.yaml", short.out)
    assert resolved("--config", "short.yaml") == full


def test_help_of_command_and_class(command):
    result = command("fit", "--help")
    assert result.code == 0 and "--model.attention" in result.out and "--run.name" in result.out
    for form in (("--model.attention.help", "Linear"), ("--model.attention.help=Linear",)):
        result = command("fit", *form)
        assert result.code == 0 and "--model.attention.feature_map" in result.out
    result = command("fit", "--model.network.help", "XCiT")
    assert result.code == 0 and "--model.network.depth" in result.out


@pytest.mark.parametrize("argv", [["vision"], ["vision", "--help"], ["--version"]])
def test_usage_imports_nothing_heavy(argv, tmp_path):
    code = (
        "import sys; from isoattn.apps.main import main; code = main(sys.argv[1:]); "
        "heavy = {'torch', 'lightning', 'jsonargparse', 'wandb', 'timm'} & set(sys.modules); "
        "sys.exit(code or (f'imported {heavy}' if heavy else 0))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *argv], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "isoattn" in done.stdout


# --- presets as values of a sweep ---------------------------------------------------------------


def test_preset_as_value_of_a_sweep(resolved):
    """W&B's sweep worker writes ``--model.attention=VALUE`` and ``--seed_everything=VALUE``."""
    seen = set()
    for preset in ("softmax", "cosine_scale10", "identity"):
        config = resolved(f"--model.attention={preset}", "--seed_everything=3", *DIGITS)
        assert config["seed_everything"] == 3
        seen.add(_attention(config)[0])
    assert seen == {"Softmax", "CosineSoftmax", "Identity"}


def test_prepare_reports_the_attention(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    argv = ["fit", "--model.attention=cosine_scale10"]
    assert prepare("vision", argv, default_config="xcit_digits").attention == "CosineSoftmax"
    argv = ["fit", *DIGITS]
    assert prepare("vision", argv, default_config="xcit_digits").attention == "CrossCovariance"


# --- a user's own attention ---------------------------------------------------------------------

MINE = """
from isoattn.core import Softmax

class MyOwnSoftmax(Softmax):
    '''My own.'''
"""


def test_own_attention_from_the_working_directory(command, monkeypatch):
    Path("mymod_ok.py").write_text(MINE)
    monkeypatch.setattr(sys, "path", list(sys.path))
    argv = ("fit", *DIGITS, "--trainer.max_epochs=1", "--trainer.limit_train_batches=1")
    result = command(
        *argv, "--import", "mymod_ok", "--model.attention=MyOwnSoftmax", "--run.name=mine"
    )
    assert result.code == 0, result.err
    saved = yaml.safe_load(Path("runs/vision/mine/config.yaml").read_text())
    assert saved["model"]["attention"]["class_path"] == "mymod_ok.MyOwnSoftmax"
    assert json.loads(Path("runs/vision/mine/result.json").read_text())["attention"] == {
        "class_path": "mymod_ok.MyOwnSoftmax",
        "init_args": {"path": "fused"},
    }
    test = command("test", "--ckpt_path=runs/vision/mine/checkpoints/best.ckpt")
    assert test.code == 0, test.err


def test_import_of_nothing_is_a_short_error(command):
    for argv in (("--import", "no_such_module_x"), ("--import=",), ("--import",)):
        result = command("fit", *DIGITS, *argv)
        assert result.code == 2 and result.short, result.err
