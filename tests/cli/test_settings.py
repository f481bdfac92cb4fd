from __future__ import annotations

import inspect

import pytest

from sparrowmq.cli import up
from sparrowmq.config import SETTINGS, find_setting
from sparrowmq.errors import ConfigError


def test_defaults_of_the_command_line_are_those_of_the_table() -> None:
    parameters = inspect.signature(up.up).parameters

    for setting in SETTINGS:
        parameter = parameters.get(setting.name.replace("-", "_"))
        if parameter is not None:
            assert str(setting.default) == str(parameter.default), setting.name


def test_every_setting_has_a_help_and_a_default_of_its_kind() -> None:
    for setting in SETTINGS:
        assert setting.help, setting.name
        assert setting.default is None or isinstance(setting.default, setting.kind), setting.name


def test_unknown_setting_is_an_error() -> None:
    with pytest.raises(ConfigError, match="no setting 'x'"):
        find_setting("x")
