"""What the group of commands does with errors."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from backend_caps.cli.invocation import Invocation
from backend_caps.cli.main import Commands


def test_fault_of_ours_is_not_dressed_up() -> None:
    """A group that holds anything but a user's fault goes on as it came."""

    @click.command()
    def fail() -> None:
        raise ExceptionGroup("several", [ValueError("ours")])

    group = Commands("group", commands=[fail])

    with pytest.raises(ExceptionGroup, match="several"):
        CliRunner().invoke(group, ["fail"], obj=Invocation(), catch_exceptions=False)
