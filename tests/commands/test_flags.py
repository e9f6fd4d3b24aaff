"""Flags and configuration fields: one for each, with the fields' defaults."""

from __future__ import annotations

import argparse
from dataclasses import asdict, fields
from typing import Any

import pytest

from espalier.commands.flags import UsageError, add_config_flags, config_from, given_options
from espalier.runtime.config import EngineConfig, SchedulerConfig, ServerConfig
from espalier.runtime.errors import InvalidRequest
from espalier.runtime.options import Option, options_of

OPTIONS = tuple(options_of(ServerConfig))
CLASSES = (ServerConfig, EngineConfig, SchedulerConfig)
NESTED = {"engine", "scheduler"}


def _parse(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_config_flags(parser, ServerConfig)
    return parser.parse_args(arguments)


def _flat(config: ServerConfig) -> dict[str, Any]:
    flat = asdict(config)
    for nested in ("engine", "scheduler"):
        flat |= flat.pop(nested)
    return flat


def test_every_field_is_an_option_and_no_two_share_a_name_or_a_flag() -> None:
    every = [(c, f.name) for c in CLASSES for f in fields(c) if f.name not in NESTED]
    assert [(option.owner, option.name) for option in OPTIONS] == every
    assert len({option.name for option in OPTIONS}) == len(OPTIONS)
    assert len({option.flag for option in OPTIONS}) == len(OPTIONS)


def test_flags_have_the_names_that_sglang_gives_them() -> None:
    flags = {option.name: option.flag for option in OPTIONS}
    assert flags["context_len"] == "--context-length"
    assert flags["kv_pool_tokens"] == "--max-total-tokens"
    assert flags["max_chunk_len"] == "--chunked-prefill-size"
    assert flags["policy"] == "--schedule-policy"
    assert flags["eviction"] == "--radix-eviction-policy"
    assert flags["overlap"] == "--disable-overlap-schedule"
    assert flags["radix_cache"] == "--disable-radix-cache"
    assert flags["watchdog_timeout_s"] == "--watchdog-timeout"
    for name in ("host", "port", "served_model_name", "api_key", "log_level", "model"):
        assert flags[name] == "--" + name.replace("_", "-")
    for name in ("max_running_requests", "max_queued_requests"):
        assert flags[name] == "--" + name.replace("_", "-")


def test_without_flags_the_configuration_is_the_default_one() -> None:
    assert config_from(_parse()) == ServerConfig()


def _value(option: Option) -> list[str]:
    """One that is allowed, and not the default."""
    if option.kind is bool:
        return []
    if option.choices:
        return [option.choices[-1]]
    allowed = {int: "100", float: "1", str: "x=2"}
    return ["ipc://x" if option.name == "kv_events" else allowed[option.kind]]


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.flag)
def test_a_flag_sets_its_field_and_no_other(option: Option) -> None:
    value = _value(option)
    changed = _flat(config_from(_parse(option.flag, *value)))
    default = _flat(ServerConfig())
    assert {name for name in default if changed[name] != default[name]} == {option.name}
    expected = option.kind(value[0]) if value else not option.default
    assert changed[option.name] == expected
    assert type(changed[option.name]) is option.kind


def test_help_has_a_group_for_each_class_and_all_defaults(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "500")  # long words are not broken
    with pytest.raises(SystemExit) as caught:
        _parse("--help")
    assert caught.value.code == 0
    text = capsys.readouterr().out
    for title in ("server", "engine", "scheduler"):
        assert f"\n{title}:\n" in text
    words = " ".join(text.split())
    for option in OPTIONS:
        if option.kind is bool:
            assert f"{option.flag} don't {option.text.help}" in words
        else:
            default = option.text.unset if option.default is None else option.default
            assert f"{option.text.help} (default: {default})" in words
    assert "--max-step-tokens TOKENS budget of one step" in words
    assert "--schedule-policy {lpm,fcfs,priority,program} order of the waiting requests" in words


def test_a_field_may_be_an_argument_instead() -> None:
    parser = argparse.ArgumentParser()
    add_config_flags(parser, EngineConfig, positional="model")
    assert given_options(parser.parse_args([]), EngineConfig) == {}
    assert given_options(parser.parse_args(["a.gguf"]), EngineConfig) == {"model": "a.gguf"}
    with pytest.raises(SystemExit):
        parser.parse_args(["--model", "a.gguf"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--port", "65536"), "--port: port must be an integer from 0 to 65535, not 65536"),
        (("--context-length", "0"), "--context-length: context_len must be"),
        (("--chunked-prefill-size", "-1"), "--chunked-prefill-size: max_chunk_len must be"),
        (("--drain-timeout", "nan"), "--drain-timeout: drain_timeout_s must be"),
        (("--max-step-tokens", "8"), "--max-step-tokens: max_step_tokens \\(8\\) must be at least"),
    ],
    ids=str,
)
def test_values_out_of_range_are_usage_errors_of_their_flags(
    arguments: tuple[str, ...], message: str
) -> None:
    with pytest.raises(UsageError, match=f"^{message}"):
        config_from(_parse(*arguments))


@pytest.mark.parametrize(
    "arguments",
    [("--port", "http"), ("--schedule-policy", "random"), ("--log-level", "loud"), ("--port",)],
    ids=str,
)
def test_values_of_the_wrong_kind_are_refused_by_the_parser(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        _parse(*arguments)
    assert caught.value.code == 2
    assert f"argument {arguments[0]}: " in capsys.readouterr().err


def test_of_takes_the_fields_of_all_three_classes() -> None:
    config = ServerConfig.of(port=0, context_len=100, max_passes=3)
    assert (config.port, config.engine.context_len, config.engine.scheduler.max_passes) == (
        0,
        100,
        3,
    )
    assert config.host == ServerConfig().host
    engine = EngineConfig(model="a.gguf", scheduler=SchedulerConfig(max_passes=3))
    nested = ServerConfig.of(engine=engine, policy="fcfs").engine
    assert nested.model == "a.gguf"
    assert nested.scheduler == SchedulerConfig(max_passes=3, policy="fcfs")


@pytest.mark.parametrize(
    ("config_class", "options", "param"),
    [
        (ServerConfig, {"colour": 1}, "colour"),
        (EngineConfig, {"port": 1}, "port"),
        (ServerConfig, {"max_passes": 0}, "max_passes"),
        (ServerConfig, {"api_key": 5}, "api_key"),
        (ServerConfig, {"engine": "smollm2"}, "engine"),
        (EngineConfig, {"scheduler": None}, "scheduler"),
        (EngineConfig, {"cache_dir": 5}, "cache_dir"),
        (ServerConfig, {"log_level": "loud"}, "log_level"),
        (EngineConfig, {"policy": []}, "policy"),
        (EngineConfig, {"eviction": "random"}, "eviction"),
    ],
    ids=str,
)
def test_of_refuses_by_name(config_class: Any, options: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest, match=param) as caught:
        config_class.of(**options)
    assert caught.value.param == param


@pytest.mark.parametrize("endpoint", ["5557", "http://127.0.0.1:5557", "inproc://here", ""])
def test_events_are_published_at_an_address_or_a_path(endpoint: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        ServerConfig.of(kv_events=endpoint)
    assert caught.value.param == "kv_events"
    assert ServerConfig.of(kv_events="ipc:///run/events").kv_events == "ipc:///run/events"
