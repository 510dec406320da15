"""The configuration: what is refused and in which words, and that what is written is read back."""

from pathlib import Path
from typing import Any, get_args

import pytest

from rankscope.conf import ConfigError, RunConfig, load_config, parse_config, save_config
from rankscope.conf.sections import ModelName

# data, then what the one line must hold: the key with its value, and what is allowed
REFUSED: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({"world_size": 0}, ("world_size=0", ">= 1")),
    ({"world_size": "two"}, ("world_size='two'", "whole number")),
    ({"steps": 2.5}, ("steps=2.5", "whole number")),
    ({"batchsize": 8}, ("batchsize", "unknown key", "batch_size")),
    ({"model": {"nam": "gpt"}}, ("model.nam", "unknown key", "name")),
    ({"model": {"name": "bert"}}, ("model.name='bert'", ", ".join(get_args(ModelName)))),
    ({"compile": "fast"}, ("compile='fast'", "off, default, reduce-overhead, max-autotune")),
    ({"passes": ["plain", "nsight"]}, ("passes", "nsight", "plain, timed")),
    ({"passes": []}, ("passes=[]", "at least one")),
    ({"passes": ["torch", "torch"]}, ("passes", "once")),
    ({"batch_size": 4, "global_batch_size": 8}, ("batch_size=4", "global_batch_size=8", "exactly one")),
    ({"batch_size": None}, ("batch_size=None", "global_batch_size=None", "exactly one")),
    (
        {"batch_size": None, "global_batch_size": 10, "world_size": 2, "gradient_accumulation": 2},
        ("global_batch_size=10", "multiple", "4"),
    ),
    ({"world_size": 2, "ddp": {"enabled": False}}, ("ddp.enabled=false", "world_size=2", "world_size=1")),
    ({"world_size": 3, "launch": {"nnodes": 2}}, ("world_size=3", "launch.nnodes=2")),
    ({"world_size": 2, "launch": {"nnodes": 2, "turn": "lock"}}, ("launch.turn=lock", "launch.nnodes=2")),
    ({"script": "train.py", "batch_size": 4}, ("batch_size", "reference model", "train.py", "after --")),
    ({"script": "train.py", "profile": {"modules": ["a"]}}, ("profile.modules", "record_function")),
    ({"script_args": ["--a"]}, ("script_args", "script=FILE")),
    ({"script_args": [["--a"]], "script": "train.py"}, ("script_args",)),
    ({"backend": "nccl", "device": "cpu"}, ("backend=nccl", "device=cpu", "gloo")),
    ({"precision": {"name": "fp16"}, "device": "cpu"}, ("precision=fp16", "device=cpu", "bf16")),
    ({"world_size": 2, "scenario": {"fault": "raise", "rank": 2}}, ("scenario.rank=2", "0 to 1")),
    ({"mode": "eval", "gradient_accumulation": 2}, ("gradient_accumulation=2", "mode=eval", "use 1")),
    ({"mode": "inference", "world_size": 2, "warmup_steps": 50}, ("world_size=2", "mode=inference", "one rank")),
    ({"mode": "inference", "warmup_steps": 50}, ("ddp.enabled=true", "mode=inference")),
    (
        {"mode": "inference", "warmup_steps": 49, "ddp": {"enabled": False}},
        ("warmup_steps=49", "mode=inference", "at least 50"),
    ),
    ({"world_size": 2, "scenario": {"more": [{"fault": "data", "rank": 2}]}}, ("scenario.rank=2", "0 to 1", "all")),
    ({"scenario": {"fault": "copy"}, "device": "cpu"}, ("scenario.fault=copy", "device=cpu", "GPU")),
    ({"name": "a/b"}, ("name='a/b'", "folder name")),
    ({"data": {"name": "images"}}, ("data=images", "gpt", "tokens")),
    ({"model": {"channels_last": True}}, ("model.channels_last=true", "resnet")),
    ({"data": {"persistent_workers": True}}, ("data.persistent_workers=true", "num_workers=0")),
    ({"world_size": 4, "batch_size": 8, "data": {"samples": 31}}, ("data.samples=31", "all ranks", "32")),
    ({"profile": {"device_only": True}, "device": "cpu"}, ("profile.device_only=true", "device=cpu")),
    ({"profile": {"device_only": True, "record_shapes": True}}, ("profile.device_only=true", "record_shapes")),
    ({"profile": {"modules": ["head"]}, "compile": "default"}, ("profile.modules", "compile=default")),
    ({"profile": {"active": 0}}, ("profile.active=0", ">= 1")),
    ({"profile": {"wait": -1}}, ("profile.wait=-1", ">= 0")),
    ({"optimizer": {"lr": 0}}, ("optimizer.lr=0", "> 0")),
]


@pytest.mark.parametrize(("data", "parts"), REFUSED, ids=lambda value: str(value)[:60])
def test_refusal_names_key_value_and_what_is_allowed(data: dict[str, Any], parts: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_config(data)
    message = str(refused.value)
    assert "\n" not in message
    for part in parts:
        assert part in message


def test_an_empty_config_is_the_defaults() -> None:
    assert parse_config({}) == RunConfig()


def test_a_config_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    config = parse_config(
        {"world_size": 4, "batch_size": None, "global_batch_size": 16, "compile": "off", "model": {"size": "small"}}
    )
    save_config(config, tmp_path / "config.yaml")
    assert load_config(tmp_path / "config.yaml") == config


def test_a_config_of_another_version_is_read(tmp_path: Path) -> None:
    """A key that is gone is left out. What fitted together with the defaults of its time is not checked again."""
    path = tmp_path / "config.yaml"
    path.write_text("script: a.py\nmodel: {size: small, gone: 1}\ngone: {a: 1}\nworld_size: 3\n")
    found = load_config(path)
    assert (found.script, found.model.size, found.world_size) == ("a.py", "small", 3)


@pytest.mark.parametrize("text", ["", "- 1\n", "a: [", "3", "name: &a [x]\nruns_dir: *a\n"])
def test_a_broken_config_file_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"config\.yaml"):
        load_config(path)


def test_batch_sizes() -> None:
    per_rank = parse_config({"world_size": 4, "batch_size": 8, "gradient_accumulation": 2})
    whole = parse_config({"world_size": 4, "batch_size": None, "global_batch_size": 64, "gradient_accumulation": 2})
    assert per_rank.samples_per_step == whole.samples_per_step == 64
    assert per_rank.rank_batch_size == whole.rank_batch_size == 8


def test_the_profiled_pass_lasts_as_long_as_its_schedule() -> None:
    config = parse_config({"steps": 1, "profile": {"wait": 3, "warmup": 2, "active": 5, "repeat": 2}})
    assert config.profile.steps == 20


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("world_size: 1000000000000", "world_size"),
        ("a: [" + "x," * 200_000 + "]", "bytes are more than"),
        ("[" * 5000, "cannot be read"),
        ("a: &a [x, x]\nname: *a", "aliases"),
    ],
)
def test_settings_of_a_recording_cost_nothing(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(text)
    for _ in range(2):  # the second time from memory
        with pytest.raises(ConfigError, match=rf"config\.yaml: .*{says}"):
            load_config(tmp_path / "config.yaml")
