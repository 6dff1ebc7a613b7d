"""What a user sees after a mistake: the key, what was got, a near name; short, status 2."""

import random
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from isoattn.apps.base.errors import near
from isoattn.apps.base.parser import shorten
from isoattn.apps.main import main

DIGITS = ("--config", "xcit_digits")

# arguments, and what the error has to say
MISTAKES = [
    (("--model.attention=Favr",), ["model.attention", "Favr", "Favor"]),
    (("--model.attention=Softmx",), ["model.attention", "Softmx", "Did you mean Softmax"]),
    (("--model.attention", "cosine_scale11"), ["cosine_scale11", "cosine_scale10"]),
    (("--model.attention=gone/preset.yaml",), ["model.attention", "gone/preset.yaml"]),
    (("--model.attention={",), ["model.attention", "{"]),
    (("--model.attention.lernable=1",), ["model.attention.lernable", "learn_temperature"]),
    (
        ("--model.attention=Linear", "--model.attention.featuremap=elu1"),
        ["model.attention.featuremap", "Did you mean feature_map"],
    ),
    (
        ("--model.attention=Zero", "--model.attention.eps=1"),
        ["model.attention.eps", "Zero has no options"],
    ),
    (
        ("--model.attention=Linear", "--model.attention.feature_map=elu2"),
        ["model.attention.feature_map", "elu2", "'elu1', 'relu'", "elu1"],
    ),
    (("--modl.lr=3",), ["--modl.lr", "--model.optim.lr"]),
    (("--model.optim.lrr=3",), ["--model.optim.lrr", "--model.optim.lr"]),
    (("--model.optim.lr=abc",), ["model.optim.lr", "abc", "expected float"]),
    (("--model.optim.lr=-1",), ["lr must be above 0", "-1"]),
    (("--model.optim.betas=[1,2,3]",), ["model.optim.betas", "tuple with 2"]),
    (("--model.loss.smoothing=1",), ["smoothing", "[0, 1)"]),
    (("--trainer.max_epochs=abc",), ["trainer.max_epochs", "abc", "int or null"]),
    (("--trainer.max_epochs=-5",), ["max_epochs", "-5"]),
    (("--trainer.precision=17",), ["trainer.precision", "17", "bf16"]),
    (("--trainer.accelerator=foo",), ["accelerator", "foo", "cpu"]),
    (("--trainer.logger=foo",), ["trainer.logger", "foo", "CSVLogger"]),
    (("--model.loss.name=cee",), ["model.loss.name", "cee", "Did you mean", "bce"]),
    (("--tracker=wand",), ["tracker", "wand", "Did you mean wandb"]),
    (("--data=Digits",), ["data", "Digits", "Did you mean DigitsData"]),
    (("--data.batchsize=3",), ["data.batchsize", "Did you mean batch_size"]),
    (("--data.batch_size=0",), ["batch_size must be at least 1"]),
    (("--data=ImageFolderData",), ["data", "root is required"]),
    (("--data=ImageFolderData", "--data.root=/gone"), ["/gone is not a folder"]),
    (("--model.network=XCT",), ["model.network", "XCT", "Did you mean XCiT"]),
    (('--model.network={"depht": 3}',), ["model.network.depht", "Did you mean depth"]),
    (("--model.network.depht=3",), ["model.network.depht", "Did you mean depth"]),
    (("--model.network.heads=3",), ["heads=3", "dim=32"]),
    (("--seed_everything=abc",), ["seed_everything", "abc", "expected int"]),
    (("--seed_everything=null",), ["seed_everything", "null", "expected int"]),
    (("--model.attention",), ["--model.attention", "expected one argument"]),
    (("stray",), ["stray"]),
    (("--checkpoint.monitor=val/acuracy",), ["val/acuracy", "Did you mean val/accuracy"]),
    (("--ckpt_path=gone.ckpt",), ["gone.ckpt", "No such file"]),
    (("--init_from=gone.ckpt",), ["gone.ckpt", "No such file"]),
    (("--model.attention.help=Lineer",), ["model.attention", "Did you mean Linear"]),
]


@pytest.mark.parametrize("argv, said", MISTAKES, ids=lambda v: "_".join(v)[:50])
def test_mistake_on_the_command_line(fit, argv, said):
    result = fit("--tracker=none", *argv)
    assert result.code == 2
    assert result.short, result.err
    for words in said:
        assert words in result.err


FILES = {
    "malformed": ("model: {attention: [\n", ["c.yaml", "line 2"]),
    "list": ("- 1\n- 2\n", ["c.yaml", "no mapping"]),
    "empty": ("", ["c.yaml", "no mapping"]),
    "binary": (bytes(range(256)), ["c.yaml", "decode"]),
    "null byte": (b"a: \0b\n", ["c.yaml"]),
    "section": ("modell:\n  attention: Softmax\n", ["modell.attention", "--model.attention"]),
    "option": ("model:\n  atention: Softmax\n", ["model.atention", "--model.attention"]),
    "class": ("model:\n  attention: Softmx\n", ["model.attention", "Softmx", "Softmax"]),
    "class option": (
        "model:\n  attention:\n    class_path: Softmax\n    init_args: {pth: math}\n",
        ["pth", "Did you mean path"],
    ),
    "number for class": ("model:\n  network: 5\n", ["model.network", "5"]),
    "list for class": ("data: [1]\n", ["data", "DigitsData"]),
    "data class": ("data:\n  class_path: MnistDta\n", ["data", "MnistDta", "MnistData"]),
    "literal": ("model: {loss: {name: cee}}\n", ["model.loss.name", "cee", "bce"]),
    "nan": ("model: {optim: {lr: .nan}}\n", ["lr"]),
    "tag": ("model: !!python/object/apply:os.system ['touch pwned']\n", ["c.yaml"]),
}


@pytest.mark.parametrize("kind", FILES)
def test_mistake_in_a_config(fit, kind):
    content, said = FILES[kind]
    Path("c.yaml").write_bytes(content if isinstance(content, bytes) else content.encode())
    result = fit("--config", "c.yaml")
    assert result.code == 2
    assert result.short, result.err
    for words in said:
        assert words in result.err
    assert not Path("pwned").exists()


@pytest.mark.parametrize("kind", ["malformed", "list", "binary", "class option"])
def test_mistake_in_a_preset_file(fit, kind):
    content, _ = FILES[kind]
    if kind == "class option":
        content = "class_path: Softmax\ninit_args: {pth: math}\n"
    Path("p.yaml").write_bytes(content if isinstance(content, bytes) else content.encode())
    result = fit("--model.attention=p.yaml")
    assert result.code == 2 and result.short, result.err
    assert "p.yaml" in result.err or "pth" in result.err


def test_unknown_names_of_files_and_commands(command, capsys):
    result = command("fit", "--config", "xcit_dgts")
    assert result.code == 2 and "Did you mean xcit_digits" in result.err and result.short
    result = command("fitt")
    assert result.code == 2 and "Did you mean fit" in result.err and result.short
    result = command("--print_config")
    assert result.code == 2 and result.short
    assert main(["visio"]) == 2
    assert "Did you mean vision" in capsys.readouterr().err
    for subcommand in ("test", "validate", "predict"):
        result = command(subcommand)
        assert result.code == 2 and "--ckpt_path" in result.err and result.short


def test_mistakes_leave_no_run_behind(fit):
    fit("--model.attention=Favr")
    fit("--model.optim.lr=abc")
    assert not Path("runs").exists()


# --- fuzz ---------------------------------------------------------------------------------------

KEYS = [
    *("model", "model.attention", "model.attention.eps", "model.attention.class_path"),
    *("model.attention.init_args", "model.network", "model.network.depth", "model.optim"),
    *("model.optim.lr", "model.optim.betas", "model.loss.name", "data", "data.batch_size"),
    *("data.shift", "data.init_args.seed", "trainer", "trainer.max_epochs", "trainer.precision"),
    *("trainer.callbacks", "trainer.logger", "trainer.devices", "seed_everything", "run.name"),
    *("run", "tracker", "wandb.tags", "checkpoint.mode", "ckpt_path", "init_from", "nothing"),
]
VALUES = [
    *("", "x", "-1", "[", "{", "{}", "[]", "[1, 2", "{a: b}", "null", "true", "é☃", "\t", ":"),
    *("&x", "*x", "!!python/name:os.system", "1e400", "../..", "a" * 300, "None", "%", "\\"),
    *("class_path", '{"class_path": 5}', '{"class_path": "Softmax", "init_args": [1]}'),
    '{"init_args": {"a": 1}}',
]


def _harmless(outcome):
    return outcome.code == 2 and outcome.short


def _mangle(rng):
    key = rng.choice(KEYS)
    style = rng.randrange(5)
    if style == 0:  # a letter too many, too few or another
        at = rng.randrange(len(key))
        key = key[:at] + rng.choice(["", "x", key[at] * 2]) + key[at + 1 :]
    value = rng.choice(VALUES)
    return [f"--{key}={value}"] if style < 4 else [f"--{key}", value]


FUZZED = [pytest.param(40), pytest.param(300, marks=pytest.mark.slow)]


@pytest.mark.parametrize("times", FUZZED)
def test_malformed_flags_fuzzed(fit, times):
    """Seeded; whatever is accepted by accident ends at an unknown option behind it."""
    rng = random.Random(times)
    for _ in range(times):
        argv = _mangle(rng)
        result = fit(*argv, "--no.such.option=1")
        assert _harmless(result), (argv, result)
        key = argv[0].partition("=")[0]
        named = [key.rsplit(".", 1)[-1].strip("-"), key.split(".")[0].strip("-"), *argv]
        assert any(n in result.err for n in [*named, "no.such.option"]), (argv, result)
    assert not Path("runs").exists()


@pytest.mark.parametrize("times", FUZZED)
def test_malformed_configs_fuzzed(fit, times):
    rng = random.Random(times)
    base = yaml.safe_load(
        "model: {attention: {class_path: Softmax, init_args: {path: math}}, optim: {lr: 0.1}}\n"
        "data: {class_path: DigitsData, init_args: {batch_size: 3}}\ntrainer: {max_epochs: 1}\n"
    )
    junk = [None, -1, "x", [], [1], {}, {"a": 1}, {"class_path": 5}, True, 1e300, "../x", "☃"]
    for _ in range(times):
        config = yaml.safe_load(yaml.safe_dump(base))
        place = config
        while True:
            key = rng.choice(list(place))
            if isinstance(place[key], dict) and rng.random() < 0.7:
                place = place[key]
                continue
            place[key if rng.random() < 0.5 else f"{key}x"] = rng.choice(junk)
            break
        text = yaml.safe_dump(config, allow_unicode=True)
        if rng.random() < 0.2:
            at = rng.randrange(len(text))
            text = text[:at] + rng.choice(list("{}[]:&*!%@`\t")) + text[at:]
        Path("f.yaml").write_text(text)
        result = fit("--config=f.yaml", "--no.such.option=1")
        assert _harmless(result), (text, result)
    assert not Path("runs").exists()


# --- the pieces ---------------------------------------------------------------------------------


def test_near_names_or_the_list():
    assert near("Sofmax", ["Softmax", "Linear"]) == "Did you mean Softmax?"
    assert near("zzz", ["b", "a"]) == "There are: a, b."
    assert near("zzz", []) == ""


def test_shorten_never_exceeds_its_lines():
    message = 'Parser key "a.b":\n' + "\n".join(f"  - reason {i}" for i in range(50))
    short = shorten(message, [])
    assert short.startswith("--a.b: reason 0") and len(short.splitlines()) < 10


def test_debug_shows_the_traceback(fit, monkeypatch):
    monkeypatch.setenv("ISOATTN_DEBUG", "1")
    with pytest.raises(ValueError, match="batch_size"):
        fit("--tracker=none", "--data.batch_size=0")


@pytest.mark.slow
def test_ending_early_of_a_reader_is_no_error(tmp_path):
    """``isoattn vision fit --help | head`` ends quietly."""
    done = subprocess.run(
        f"{sys.executable} -m isoattn.apps.main vision fit --help | head -n 1",
        shell=True,
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.stdout.startswith("usage") and done.stderr == ""
