"""Command lines: what composes, and the one line that names what is wrong."""

from itertools import pairwise
from typing import get_args

import msgspec
import pytest

from rankscope.conf import ConfigError, RunConfig, parse_config
from rankscope.conf.key_help import KEY_HELP
from rankscope.conf.sections import ModelName, SlurmConfig
from rankscope.launch.configure.compose import compose, keys, option_groups, submission
from rankscope.launch.configure.usage import usage
from rankscope.launch.main import main

MODELS = ", ".join(sorted(get_args(ModelName)))
OPTIONS = [(group, option) for group, options in option_groups().items() for option in options]
NEEDS = {"data=images": ["model=resnet"], "ddp=off": ["world_size=1"], "scenario": ["world_size=2"]}

# override, then what the one line must hold
REFUSED = [
    ("batchsize=8", ("batchsize", "did you mean batch_size")),
    ("model.sice=tiny", ("model.sice", "did you mean model.size")),
    ("+anything=1", ("anything", "unknown key", "--help")),
    ("hydra.verbose=true", ("hydra.verbose", "unknown key")),
    ("model=bert", ("model=bert", MODELS)),
    ("model.size=giant", ("model.size='giant'", "tiny, small, medium, large, xl")),
    ("model={name: gpt}", ("model", MODELS)),
    ("world_size=1,2", ("world_size=1,2", "several values")),
    ("world_size=", ("world_size=''", "whole number")),
    ("model=gpd", ("model=gpd", "did you mean gpt")),
    ("device=gpu", ("device='gpu'", "did you mean cuda")),
    ("passes=[plain,tourch]", ("passes[1]='tourch'", "did you mean torch")),
    ("passes=plain", ("passes='plain'", "a list", "passes=[")),
    ("steps_from=auto", ("steps_from=auto", "script=FILE")),
    ("scenario.rank=first", ("scenario.rank='first'", "all, rotating, a whole number")),
    ("passes=[plain", ("passes=[plain", "key=value")),
    ("world_size", ("world_size", "key=value")),
    ("name=${nowhere}", ("nowhere", "name")),
    ("batch_size=${oc.env:RANKSCOPE_NOT_SET}", ("RANKSCOPE_NOT_SET", "batch_size")),
]


SUBMISSIONS_REFUSED = [
    (["hydra.launcher.partition=main"], ("hydra.launcher.partition", "hydra/launcher=slurm")),
    (["hydra/launcher=slurm", "hydra.launcher.partitio=main"], ("did you mean hydra.launcher.partition",)),
    (["hydra/launcher=lsf"], ("hydra/launcher=lsf", "basic, slurm")),
    (["hydra/launcher=slurm", "hydra.launcher.timeout_min=0"], ("hydra.launcher.timeout_min=0", ">= 1")),
    (["hydra/launcher=slurm", "hydra.launcher.mem_gb=1,2"], ("hydra.launcher.mem_gb", "several values")),
]


def test_how_a_run_is_submitted_is_no_part_of_it() -> None:
    launcher, rest = submission(["hydra/launcher=slurm", "world_size=2", "hydra.launcher.partition=gpu"])
    assert launcher == SlurmConfig(partition="gpu") and rest == ["world_size=2"]
    assert submission(["world_size=2"]) == (None, ["world_size=2"])
    assert submission(["hydra/launcher=basic"]) == (None, [])


@pytest.mark.parametrize(("overrides", "parts"), SUBMISSIONS_REFUSED)
def test_refusal_of_a_submission(overrides: list[str], parts: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as refused:
        submission(overrides)
    message = str(refused.value)
    assert "\n" not in message
    for part in parts:
        assert part in message


def test_no_override_gives_the_defaults_of_the_schema() -> None:
    assert compose([]) == RunConfig()


@pytest.mark.parametrize(("group", "option"), OPTIONS)
def test_every_option_of_every_group_composes(group: str, option: str) -> None:
    needed = NEEDS.get(f"{group}={option}", NEEDS.get(group, []))
    compose([f"{group}={option}", *needed])


@pytest.mark.parametrize(("override", "parts"), REFUSED)
def test_refusal_is_one_line_that_names_the_key(override: str, parts: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as refused:
        compose([override])
    message = str(refused.value)
    assert "\n" not in message
    for part in parts:
        assert part in message


@pytest.mark.parametrize(
    "word", ["batch_size=8", "num_workers=0", "model=gpt", "precision=fp32", "ddp.bucket_cap_mb=25"]
)
def test_a_script_ignores_no_key_in_silence_not_even_a_default(word: str) -> None:
    with pytest.raises(ConfigError, match=r"only applies to the reference model; train.py takes its own settings"):
        compose(["script=train.py", word])


def test_overrides_beat_groups_and_words_like_off_stay_words() -> None:
    config = compose(["scenario=slow_host", "scenario.ms=5", "world_size=2", "compile=off", "passes=[torch]"])
    assert (config.scenario.fault, config.scenario.ms, config.compile, config.passes) == ("host", 5, "off", ["torch"])


def test_a_group_may_be_written_as_if_it_were_added() -> None:
    assert compose(["+scenario=slow_host", "world_size=2"]) == compose(["scenario=slow_host", "world_size=2"])


def test_settings_of_a_scenario_can_be_overridden() -> None:
    config = compose(["scenario=comm_bound", "model.size=tiny"])
    assert (config.model.name, config.model.size, config.batch_size) == ("mlp", "tiny", 1)


def test_what_composes_survives_plain_data() -> None:
    config = compose(["model=resnet", "precision=bf16"])
    assert parse_config(msgspec.to_builtins(config)) == config


def test_help_explains_every_key_within_80_columns() -> None:
    lines = usage().splitlines()
    assert max(map(len, lines)) <= 80
    every = [*keys(), *keys(SlurmConfig, "hydra.launcher.")]
    settable = set(every) - {a for a, b in pairwise(every) if b.startswith(f"{a}.")}
    assert settable == set(KEY_HELP)
    for key in settable:
        at = next(row for row, line in enumerate(lines) if line.startswith(f"  {key}="))
        text = " ".join(" ".join(lines[at + 1 : at + 6]).split())
        assert " ".join(KEY_HELP[key].split()) in text


def test_help_begins_with_your_own_script() -> None:
    assert usage().splitlines()[0] == "usage: rankscope run script=FILE [KEY=VALUE]... [-- ARGUMENT...]"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--world-size=2"], "did you mean world_size=2?"),
        (["--hepl"], "did you mean --help?"),
        (["script=train.py", "--lr", "3"], "an argument of the script comes after -- (script=train.py -- --lr ...)"),
        (["train.py"], "did you mean script=train.py?"),
        (["optimzer=sgd"], "did you mean optimizer?"),
    ],
)
def test_what_a_user_of_other_programs_writes(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert said in capsys.readouterr().err
