"""`pytest --backend-caps NAME`: run each case of each check of a backend as a test.

`pytest --backend-caps-fits ENGINE` compares the plugin in pytest's root folder with releases of an
engine, as `backend-caps fits` does: a test an ENGINE, named `backend-caps::fits::ENGINE`.

pytest loads this module in every run where backend-caps is installed, so expensive imports are
inside the functions that need them. A test is named `backend-caps::NAME::CHECK::CASE`.

The tests run in the order of the checks, as in `backend-caps check`, whatever shuffles the suite's
other tests. A check's tests are skipped once a check of its `after` has failed. Under pytest-xdist
each worker sees failures of its own tests only, so such tests still run. A check none of whose
cases has an answer fails the session; the process that starts workers decides it, from all reports.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from functools import partial
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from _pytest._code.code import TerminalRepr

    from backend_caps.kit import Case, Check, Effort, Finding, Subject

_GROUP = "backend-caps"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Selection:
    """Backends, checks and effort that the options select."""

    subjects: Sequence[Subject]
    checks: Sequence[Check]
    effort: Effort


_SELECTION: pytest.StashKey[_Selection] = pytest.StashKey()
_FAILED: pytest.StashKey[set[tuple[str, str]]] = pytest.StashKey()
"""Backend and check of each test that failed in this process."""
_BLOCKED = "backend-caps-blocked"
"""The test property that holds why a case has no answer."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options that select backends and checks."""
    group = parser.getgroup(_GROUP, "what an attention backend declares")
    group.addoption(
        "--backend-caps",
        action="append",
        metavar="NAME",
        help="check what this backend declares, a test for each case; repeatable",
    )
    group.addoption(
        "--backend-caps-only", action="append", metavar="CHECK", help="run this check; repeatable"
    )
    group.addoption(
        "--backend-caps-device",
        default="sim",
        choices=["sim", "cpu", "cuda"],
        help="where backends are checked: sim unless given",
    )
    group.addoption(
        "--backend-caps-seeds",
        type=int,
        metavar="N",
        help="how often each scenario is drawn: 4 unless given",
    )
    group.addoption("--backend-caps-quick", action="store_true", help="try a little of everything")
    group.addoption(
        "--backend-caps-fits",
        action="append",
        default=[],
        metavar="ENGINE",
        help="test that the plugin in the root folder fits this engine or range, such as "
        "vllm@0.33.0, vllm@latest or 'vllm>=0.30'; repeatable",
    )
    parser.addini(
        "backend_caps", "backends to check where the command line names no tests", type="args"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Take the backends from the settings where the command line names neither them nor tests."""
    names_tests = config.args_source is pytest.Config.ArgsSource.ARGS
    if not config.option.backend_caps and not names_tests:
        config.option.backend_caps = config.getini("backend_caps")


def pytest_report_header(config: pytest.Config) -> str | None:
    """Name the checked backends and the device."""
    names, device = config.option.backend_caps, config.option.backend_caps_device
    return f"backend-caps: checks {', '.join(names)} on {device}" if names else None


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Find backends and checks before pytest-xdist starts workers, which find them too.

    Raises:
        UsageError: there is no such backend, check, device or engine, or it cannot be built.
    """
    _require_engines(session.config.option.backend_caps_fits)
    if session.config.option.backend_caps:
        session.config.stash[_SELECTION] = _selected(session.config)
        session.config.stash[_FAILED] = set()
        session.config.pluginmanager.register(_Answers(), _BLOCKED)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(
    session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
) -> Generator[None, None, None]:
    """Append the tests of backends, before other plugins select among all tests.

    Afterwards sort them back into the order of the checks, which plugins may have shuffled.
    """
    selection = config.stash.get(_SELECTION, None)
    tests: list[pytest.Item] = list(_fits_items(session))
    tests += () if selection is None else _items(session, selection)
    items += tests
    yield
    places = {item: place for place, item in enumerate(tests)}
    items.sort(key=lambda item: places.get(item, -1))


class _Answers:
    """Records which checks have an answer, and which have only blocked cases."""

    def __init__(self) -> None:
        self._answered: set[str] = set()
        self._blocked: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record the outcome of a test."""
        check = report.nodeid.rpartition("::")[0]
        if report.when != "call" or not check.startswith(f"{_GROUP}::"):
            return
        if report.outcome != "skipped":
            self._answered.add(check)
        for name, reason in report.user_properties:
            if name == _BLOCKED:
                self._blocked.setdefault(check, str(reason))

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Fail a session that passed although a check has no answer."""
        if exitstatus == pytest.ExitCode.OK and self._unanswered():
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Name the checks without an answer."""
        for check, reason in self._unanswered().items():
            terminalreporter.write_line(f"ERROR {check}: no case has an answer: {reason}", red=True)

    def _unanswered(self) -> dict[str, str]:
        return {check: why for check, why in self._blocked.items() if check not in self._answered}


def _selected(config: pytest.Config) -> _Selection:
    from backend_caps.discovery.registry import discover  # noqa: PLC0415 - loads pydantic
    from backend_caps.errors import BackendCapsError  # noqa: PLC0415 - loads pydantic
    from backend_caps.extras import require_extra  # noqa: PLC0415 - loads pydantic
    from backend_caps.report.check_catalog import checks_named  # noqa: PLC0415 - loads pydantic

    try:
        require_extra("kit", "pytest --backend-caps")
    except BackendCapsError as error:
        raise pytest.UsageError(f"{error}") from error
    from backend_caps import kit  # noqa: PLC0415 - loads torch
    from backend_caps.kit.checks import CHECKS  # noqa: PLC0415 - loads torch

    given, device = config.option, config.option.backend_caps_device
    effort = kit.Effort.quick() if given.backend_caps_quick else kit.Effort()
    if given.backend_caps_seeds is not None:
        effort = replace(effort, seeds=range(given.backend_caps_seeds))
    try:
        kit.require_device(device)
        checks, registry = checks_named(CHECKS, given.backend_caps_only or ()), discover()
        subjects = [kit.subject_named(registry, name) for name in given.backend_caps]
    except BackendCapsError as error:
        raise pytest.UsageError(f"--backend-caps: {error}") from error
    return _Selection(subjects=subjects, checks=checks, effort=effort)


def _items(session: pytest.Session, selection: _Selection) -> Iterator[pytest.Item]:
    """Build the tests of backends; a check that does not apply becomes one skipped test."""
    from backend_caps.kit import cases_on  # noqa: PLC0415 - loads torch

    device = session.config.option.backend_caps_device
    group = Group.from_parent(session, name=_GROUP, nodeid=_GROUP)
    for subject in selection.subjects:
        backend_group = Group.from_parent(group, name=subject.name)
        for check in selection.checks:
            parent = Group.from_parent(backend_group, name=check.code)
            make_test = partial(CaseTest.from_parent, parent, subject=subject, check=check)
            if (reason := check.unfit(device) or check.excuse(subject)) is not None:
                item = make_test(name="not-checked", case=None)
                item.add_marker(pytest.mark.skip(reason=reason))
                yield item
                continue
            for case in cases_on(device, check, subject, selection.effort):
                yield make_test(name=case.name.partition("/")[2], case=case)


def _require_engines(words: Sequence[str]) -> None:
    if words:
        from backend_caps.compatibility.sources import is_engine  # noqa: PLC0415 - loads pydantic

        for word in words:
            if not is_engine(word):
                raise pytest.UsageError(
                    f"--backend-caps-fits {word!r} names no engine; expected such as "
                    "vllm@0.33.0, vllm@latest, sglang@PATH or 'vllm>=0.30'."
                )


def _fits_items(session: pytest.Session) -> Iterator[pytest.Item]:
    """Build a test for each engine that the plugin has to fit."""
    if engines := session.config.option.backend_caps_fits:
        root = Group.from_parent(session, name=_GROUP, nodeid=_GROUP)
        group = Group.from_parent(root, name="fits")
        for engine in engines:
            yield FitsTest.from_parent(group, name=engine)


class CaseFailedError(Exception):
    """A case found faults; the message describes all of them."""


def _text(finding: Finding, device: str) -> str:
    """Describe a finding: the claims, the fault, its line, and the command that replays it."""
    claims, site = ", ".join(finding.claims), finding.fault.site
    options = "" if device == "sim" else f" --device {device}"
    lines = [f"does not hold: {claims or 'what every backend owes the engine'}", finding.fault.what]
    lines += [] if site is None else [f"at {site}"]
    return "\n".join([*lines, f"replay: {finding.replay}{options}"])


class Group(pytest.Collector):
    """The tests of a backend, or of one of its checks."""

    def collect(self) -> Iterator[pytest.Item | pytest.Collector]:
        """List nothing: `pytest_collection_modifyitems` adds the tests."""
        return iter(())


class CaseTest(pytest.Item):
    """One case of a check, at the line of the declaration.

    Args:
        name: the case's name, without the check.
        parent: the check's group.
        subject: the backend.
        check: the case's check.
        case: the case to run; None where the test is marked as skipped.
    """

    def __init__(
        self, name: str, parent: Group, *, subject: Subject, check: Check, case: Case | None
    ) -> None:
        super().__init__(name, parent)
        self._subject, self._check, self._case = subject, check, case

    def reportinfo(self) -> tuple[Path, int, str]:
        """Return the declaration's file and line, from 0, and the test's name."""
        file, _, line = (self._subject.source.declared_at or "").rpartition(":")
        if line.isdecimal():
            return Path(file), int(line) - 1, self.nodeid
        return self._subject.root, 0, self.nodeid

    def runtest(self) -> None:
        """Run the case; skip it where its baseline run failed.

        Skip it, too, where a check of its check's `after` has failed.
        """
        from backend_caps import kit  # noqa: PLC0415 - loads torch

        assert self._case is not None, "a test without a case is marked as skipped"
        check, device = self._check, self.config.option.backend_caps_device
        failed, name = self.config.stash[_FAILED], self._subject.name
        if failed_before := [code for code in check.after if (name, code) in failed]:
            pytest.skip(f"not checked: {', '.join(failed_before)} failed")
        with kit.single_threaded(), kit.muffled() as printed:
            result = kit.run_case(self._subject, check, self._case, device=device)
        for line, count in printed.lines.items():
            print(line if count == 1 else f"{line} ({count} times)")  # noqa: T201 - pytest keeps it
        if result.findings:
            failed.add((name, check.code))
            raise CaseFailedError("\n\n".join(_text(found, device) for found in result.findings))
        if not result.cases:
            self.user_properties.append((_BLOCKED, result.reason))
            pytest.skip(result.reason)

    def repr_failure(
        self, excinfo: pytest.ExceptionInfo[BaseException], style: object = None
    ) -> str | TerminalRepr:
        """Return the faults, their lines, and the commands that replay them."""
        del style  # it formats tracebacks, and a finding has none
        if isinstance(excinfo.value, CaseFailedError):
            return str(excinfo.value)
        return super().repr_failure(excinfo)


class UnfitError(Exception):
    """A plugin breaks with an engine, or it cannot be said; the message is what `fits` prints."""


class FitsTest(pytest.Item):
    """Whether the plugin in the root folder fits the engine that is the test's name."""

    def reportinfo(self) -> tuple[Path, None, str]:
        """Return the plugin's folder, and a title in which pytest takes no dot for a separator."""
        return self.config.rootpath, None, f"fits {self.name}"

    def runtest(self) -> None:
        """Compare the plugin with the engine, or with each release of a range."""
        # Each loads pydantic.
        from backend_caps.compatibility.releases import PYPI, Releases, cache_folder  # noqa: PLC0415
        from backend_caps.errors import BackendCapsError  # noqa: PLC0415
        from backend_caps.report import terminal  # noqa: PLC0415
        from backend_caps.report.fits import Question, fits_of  # noqa: PLC0415
        from backend_caps.report.fits_views import fits_view  # noqa: PLC0415

        index_url = os.environ.get("PIP_INDEX_URL", PYPI)
        releases = Releases(folders=(), cache=cache_folder(os.environ), index_url=index_url)
        plugins, engines = [str(self.config.rootpath)], [self.name]
        try:
            found = fits_of(Question(plugins=plugins, engines=engines, releases=releases))
        except BackendCapsError as error:
            raise UnfitError(f"{error}") from error
        if found.status != "holds":
            text = StringIO()
            terminal.show(fits_view(found), text)
            raise UnfitError(text.getvalue().strip("\n"))

    def repr_failure(
        self, excinfo: pytest.ExceptionInfo[BaseException], style: object = None
    ) -> str | TerminalRepr:
        """Return what breaks, and both lines."""
        del style  # it formats tracebacks, and a finding has none
        if isinstance(excinfo.value, UnfitError):
            return str(excinfo.value)
        return super().repr_failure(excinfo)
