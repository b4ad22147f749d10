from __future__ import annotations

import logging
import sys
import warnings

import pytest

from backend_caps.kit.muffling import Said, muffled


def test_each_line_is_kept_once() -> None:
    """Lines that differ in numbers alone are one, shown as it was first said, with a count."""
    said = Said()

    said.write("took 3 ms\nslow")
    said.write("ly\n\n  took 14 ms  \n")
    said.write("unended")

    assert said.writable()
    assert said.lines == {"took 3 ms": 2, "slowly": 1, "unended": 1}


def test_what_is_printed_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    """Standard output and error are silent within the block, and as before behind it."""
    with muffled() as said:
        sys.stdout.write("to output\n")
        sys.stderr.write("to error\n")
    sys.stdout.write("behind\n")

    assert said.lines == {"to output": 1, "to error": 1}
    assert capsys.readouterr() == ("behind\n", "")


def test_warning_is_kept_and_is_no_error() -> None:
    """Where warnings are errors, one within the block is a line with its place."""
    with muffled() as said:
        warnings.warn("slow path", stacklevel=1)

    (line,) = said.lines
    assert line.endswith(": UserWarning: slow path")
    assert line.startswith(__file__)


def test_log_to_standard_error_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    """A handler that writes to standard error already is led away, and back."""
    log, handler = logging.getLogger("muffled.child"), logging.StreamHandler(sys.stderr)
    log.addHandler(handler)

    with muffled() as said:
        log.warning("within")
    log.warning("behind")

    log.removeHandler(handler)
    assert said.lines == {"within": 1}
    assert capsys.readouterr().err == "behind\n"


def test_log_elsewhere_is_left_alone() -> None:
    """A handler that writes to a stream of its own still does."""
    elsewhere = Said()
    log, handler = logging.getLogger("muffled.elsewhere"), logging.StreamHandler(elsewhere)
    log.addHandler(handler)

    with muffled() as said:
        log.warning("within")

    log.removeHandler(handler)
    assert (elsewhere.lines, said.lines) == ({"within": 1}, {})
