"""Put what is installed and declared into SGLang: all of it, or nothing.

SGLang starts its schedulers as processes of `multiprocessing`, and each loads its plugins anew.
The environment variable holds what was registered by process id, and counts for the children of
that process alone: a server that is started from within another is another one.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from multiprocessing import parent_process

from pydantic import TypeAdapter, ValidationError

from backend_caps import Settings
from backend_caps.capability.evidence import CheckEvidence
from backend_caps.capability.provenance import Status
from backend_caps.discovery.evidence import read_standings
from backend_caps.discovery.registry import Registry
from backend_caps_sglang.adapters import Adapter, adapters_of
from backend_caps_sglang.drop_in import decide_needs_cpu_seq_lens, explain_needs_cpu_seq_lens
from backend_caps_sglang.engine import DECISION, Engine, described
from backend_caps_sglang.errors import (
    DecisionTakenError,
    NameTakenError,
    ParentDiffersError,
    RefutedBackendError,
    UnsupportedSGLangError,
    entry_differences,
)
from backend_caps_sglang.hooks import (
    DRAFT_BACKENDS,
    DRAFT_GRAPHS,
    FUTURE_MAP,
    DraftBackends,
    capture_draft_extend,
    drop_unused_copy,
)
from backend_caps_sglang.metrics import publish

_LOG = logging.getLogger("backend_caps_sglang")
VARIABLE = "BACKEND_CAPS_REGISTERED"
"""The environment variable that holds what was registered, by process id."""
_ByProcess = dict[str, dict[str, str]]
_BY_PROCESS = TypeAdapter(_ByProcess)


@dataclass(frozen=True, slots=True)
class Decision:
    """What SGLang calls in place of its function, once in each scheduler.

    It says what was registered: when it was, SGLang had not set up its log. It comes to one answer
    with the other schedulers: only now do they have a process group. And it publishes the plan at
    the server's metrics.
    """

    sglang: str
    """SGLang's version."""
    entries: tuple[tuple[str, str], ...]
    deadline_s: float
    """Seconds to wait for the other schedulers."""

    def __call__(self, attn_backends: Iterable[object]) -> bool:
        """Decide as `decide_needs_cpu_seq_lens` does, and join what all schedulers decide.

        Raises:
            SchedulersDifferError: one of them registered something else.
            LateSchedulerError: the others have agreed before, and this one is not as they are.
        """
        # Loads torch, which a process that only registers does without.
        from backend_caps_sglang.schedulers import Schedulers, joined  # noqa: PLC0415

        backends = tuple(attn_backends)
        listed = "; ".join(f"{name} is {value}" for name, value in self.entries)
        _LOG.info("registered in SGLang %s: %s", self.sglang, listed)
        answer = joined(
            decide_needs_cpu_seq_lens(backends),
            dict(self.entries),
            Schedulers.of_process(),
            deadline_s=self.deadline_s,
        )
        publish(explain_needs_cpu_seq_lens(backends), answer, backends)
        return answer


def register() -> None:
    """Register backends and the decision; SGLang's plugin loader calls it in every process.

    A second call changes nothing. Another version of SGLang, or another shape of what is hooked,
    is one error in the log, and nothing is changed. Any other fault undoes what was done before
    it, and SGLang's loader logs it.

    Raises:
        BackendCapsError: a setting of backend-caps is refused.
        DecisionTakenError: another plugin has replaced the decision function.
        ParentDiffersError: the process that started this one registered something else.
    """
    try:
        engine = Engine.installed()
    except UnsupportedSGLangError as error:
        _LOG.error("%s", error)
        return
    publish_to_workers({}, os.environ)  # holds where the next line raises
    entries = _registered(engine)
    publish_to_workers(entries, os.environ)


def _registered(engine: Engine) -> Mapping[str, str]:
    """Take every step, or undo those that were taken: what is registered, by what it is."""
    settings = Settings.load()
    registry = settings.discover()
    _tell_of_faults(registry)
    refuted = _refuted(registry, settings)
    for error in refuted.values():
        _LOG.error("%s", error)
    with ExitStack() as undo:
        adapters = [own for own in _taken(engine, registry) if own.backend not in refuted]
        for adapter in adapters:
            _put(engine, adapter, undo)
        entries = {f"backend {adapter.backend!r}": str(adapter) for adapter in adapters}
        entries[DECISION] = f"backend-caps {version('backend-caps')}"
        declared = tuple(entries.items())
        _decide(engine, Decision(engine.version, declared, settings.agreement_deadline_s), undo)
        _hook(engine, FUTURE_MAP, drop_unused_copy, engine.after, undo)
        drafts = DraftBackends(engine.backends, partial(_hook_draft_graphs, engine))
        _hook(engine, DRAFT_BACKENDS, drafts, engine.around, undo)
        check_against_parent(entries, os.environ)
        undo.pop_all()
    return entries


def _tell_of_faults(registry: Registry) -> None:
    """Tell of what is installed and cannot be registered: broken, or claimed by two."""
    problems = dict.fromkeys(
        problem
        for entry in registry.entries
        if entry.status in {Status.BROKEN, Status.CONFLICT}
        for problem in entry.problems
    )
    for problem in problems:
        _LOG.warning("%s %s", problem.message, problem.remedy)


def _refuted(registry: Registry, settings: Settings) -> Mapping[str, RefutedBackendError]:
    """Find the backends whose own evidence, of just what is installed, says that a check failed."""
    owners = {adapter.backend: adapter.owner for adapter in adapters_of(registry.values())}
    backends = [entry for entry in registry.values() if entry.name in owners]
    standings = read_standings(backends, path=settings.path, device=settings.facts.device)
    found = {}
    for name, standing in standings.items():
        failed = tuple(map(_told_check, standing.failed_checks))
        if failed and not standing.changes:
            found[name] = RefutedBackendError(name=name, owner=owners[name], checks=failed)
    return found


def _told_check(check: CheckEvidence) -> str:
    about = ", ".join(check.claims) or "what every backend owes"
    return f"{check.code} ({about})"


def _taken(engine: Engine, registry: Registry) -> Iterator[Adapter]:
    """List the adapters whose names are free in SGLang, or are theirs already."""
    for adapter in adapters_of(registry.values()):
        if engine.backends.get(adapter.backend) == adapter:
            yield adapter
            continue
        taken_by = engine.origin(adapter.backend)
        if taken_by is None:
            yield adapter
        else:
            _LOG.warning(
                "%s", NameTakenError(name=adapter.backend, owner=adapter.owner, taken_by=taken_by)
            )


def _put(engine: Engine, adapter: Adapter, undo: ExitStack) -> None:
    """Register a backend, and let the flags take its name."""
    name = adapter.backend
    if name in engine.backends:
        return
    decorate = engine.register_backend(name)
    assert callable(decorate), "its signature was held to what SGLang 0.5.23 decorates with"
    decorate(adapter)
    undo.callback(engine.backends.pop, name)
    lists = (
        (engine.choices, True),
        (engine.deterministic_choices, adapter.is_deterministic),
        (engine.draft_choices, adapter.is_drafting),
    )
    for choices in (own for own, is_taken in lists if is_taken):
        choices.append(name)
        undo.callback(choices.remove, name)


def _decide(engine: Engine, decision: Decision, undo: ExitStack) -> None:
    """Hook the decision; SGLang applies it to every module that imported the function by name."""
    replacements = engine.replacements()
    if any(isinstance(hook, Decision) for _, hook, _ in replacements):
        return
    if replacements or DECISION in engine.patched:
        by = [f"{described(hook)} ({source})" for _, hook, source in replacements]
        raise DecisionTakenError(target=DECISION, taken_by=", ".join(by) or "hooks applied before")
    _hook(engine, DECISION, decision, engine.replace, undo)


def _hook(
    engine: Engine, target: str, hook: Callable[..., object], kind: object, undo: ExitStack
) -> None:
    """Hook a function of SGLang's, once."""
    before = list(engine.hooks.get(target, ()))
    if all(own != hook for _, own, _ in before):
        engine.register_hook(target, hook, kind)
        undo.callback(partial(_unhook, engine, target, before))


def _unhook(engine: Engine, target: str, before: list[tuple[object, object, object]]) -> None:
    if before:
        engine.hooks[target][:] = before
    else:
        del engine.hooks[target]


def _hook_draft_graphs(engine: Engine) -> None:
    """Hook the capture of a draft's graphs, in a process that has a draft worker."""
    _hook(engine, DRAFT_GRAPHS, capture_draft_extend, engine.after, ExitStack())
    engine.apply_hooks()


def check_against_parent(entries: Mapping[str, str], environ: Mapping[str, str]) -> None:
    """Compare with what the parent process registered; without one nothing is compared.

    Args:
        entries: what is registered here, by what it is.
        environ: this process's.

    Raises:
        ParentDiffersError: an entry is another, or is on one side alone.
    """
    parent = parent_process()
    if parent is None or parent.pid is None:
        return
    theirs = _by_process(environ).get(f"{parent.pid}")
    if theirs is None:
        return
    differences = entry_differences(theirs, entries)
    if differences:
        raise ParentDiffersError(parent=parent.pid, differences=differences)


def publish_to_workers(entries: Mapping[str, str], environ: MutableMapping[str, str]) -> None:
    """Write what is registered here for the processes that this one starts.

    What the parent process wrote is kept, for a later call of `check_against_parent`.
    """
    parent = parent_process()
    kept = {} if parent is None else {f"{parent.pid}": _by_process(environ).get(f"{parent.pid}")}
    known = {pid: own for pid, own in kept.items() if own is not None}
    own = dict(sorted(entries.items()))
    environ[VARIABLE] = json.dumps({**known, f"{os.getpid()}": own}, sort_keys=True)


def _by_process(environ: Mapping[str, str]) -> _ByProcess:
    """Read the variable; what is not of its form counts as empty."""
    try:
        return _BY_PROCESS.validate_json(environ.get(VARIABLE, "{}"))
    except ValidationError:
        return {}
