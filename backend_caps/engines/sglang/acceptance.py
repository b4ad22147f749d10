"""Which settings SGLang's server takes with each backend, by command lines that differ in one.

A setting that a server refuses, or replaces, is none that the backend has there. One that it takes
says something only where the server looks at the backend: where it refuses the same setting for a
backend that a plugin registers, or another size of pages or kind of models for the same backend. A
check of the machine that lets a backend through is no promise that its kernels run there: only the
server's own choice is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain

from pydantic import JsonValue

from backend_caps.engines.reading import Acceptance, Acceptances
from backend_caps.engines.sglang.command_line import read_engine_options
from backend_caps.engines.sglang.server_trials import (
    ARGUMENT,
    BASELINES,
    BUNDLE,
    GPUS,
    HYBRID,
    MLA,
    MODELS,
    NO_PAGE,
    OPTIONS,
    PAGES,
    PLUGIN,
    SPARSE,
    TRIED_FIRST,
    Option,
    Place,
    Server,
    chosen_with,
    reason_of,
)
from backend_caps.engines.source.index import Index

_PHASES = (f"prefill_{ARGUMENT}", f"decode_{ARGUMENT}", ARGUMENT)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trial:
    """A backend with one thing changed that a server takes it with."""

    name: str
    baseline: Place
    """Where a server takes the backend."""
    place: Place
    """Where it is tried: on another machine, with another model, or there."""
    option: Option | None = None

    @property
    def settings(self) -> dict[str, JsonValue]:
        """What it changes, as it is asked of a backend."""
        if self.option is not None:
            return {self.option.capability: self.option.value}
        machine = self.place.machine if self.place.gpu != self.baseline.gpu else {}
        asked = MODELS[self.baseline.model]
        return machine | {
            name: value
            for name, value in MODELS[self.place.model].items()
            if asked.get(name) != value
        }

    @property
    def words(self) -> tuple[str, ...]:
        """The words that it adds to the command line."""
        return () if self.option is None else self.option.words

    def decided(self, server: Server) -> Acceptance | None:
        """Return what a server decides; None where that is not known, or is not of the setting."""
        takes = server.takes(self.place, self.name, self.option)
        if takes is None:
            return None
        message, at = "", ""
        if not takes:
            before = () if self.option is None else self.option.before
            at_baseline = server.launch(self.baseline, self.name, before)
            if at_baseline.refusal is not None:
                return None
            kept = () if self.option is None else (*self.option.kept,)
            launch = server.launch(self.place, self.name, self.words)
            message, at = reason_of(launch, at_baseline, kept)
        return Acceptance(
            name=self.name,
            paths=server.classes(self.place if takes else self.baseline, self.name),
            settings=self.settings,
            is_accepted=takes,
            message=message,
            at=at,
            launch=str(self.place),
        )

    def as_plugin(self) -> _Trial:
        """Return the same with a backend that SGLang does not know."""
        return replace(self, name=PLUGIN)


def read_acceptances(index: Index) -> Acceptances:
    """Follow the command lines of all backends and settings, in a minute on two cores."""
    names = sorted(read_engine_options(index).attention_backends)
    if not names:
        return Acceptances(found=(), tried={})
    server = Server(index, [PLUGIN, *names])
    baselines = _baselines(server)
    decided = _decided(server, _places(baselines))
    decided |= _decided(server, _further(baselines, decided))
    decided |= _decided(server, _with_options(server, baselines))
    decided |= _decided(server, _pages(decided))
    own = {trial: each for trial, each in decided.items() if trial.name != PLUGIN}
    refused = [each for each in own.values() if not each.is_accepted]
    found = [each for each in refused if not _is_implied(each, refused)]
    for trial, each in own.items():
        if each.is_accepted:
            found += _stated(each, decided.get(trial.as_plugin()), refused)
    for each in _at_baselines(server, baselines):
        found += _stated(each, None, refused)
    tried: dict[str, list[object]] = {}
    for each in own.values():
        for capability, value in each.settings.items():
            if value not in tried.setdefault(capability, []):
                tried[capability].append(value)
    found += [*_chosen(server), *_on_cpu(server)]
    return Acceptances(found=_once(found), tried=tried)


def _once(found: Iterable[Acceptance]) -> list[Acceptance]:
    """Leave out what was decided of the same classes before."""
    kept = {(e.name, e.paths, e.is_accepted, *e.settings.items()): e for e in reversed([*found])}
    return [*reversed(kept.values())]


def _stated(
    own: Acceptance, rule: Acceptance | None, refused: Collection[Acceptance]
) -> Iterator[Acceptance]:
    """Yield a setting that is taken, with the words of the rule that refuses others."""
    if rule is None or rule.is_accepted:
        rule = _rule_of(refused, own)
    if rule is not None:
        yield replace(own, message=rule.message, at=rule.at)


def _rule_of(refused: Iterable[Acceptance], own: Acceptance) -> Acceptance | None:
    """Return a refusal of another value for the same backend, which a server looks at so."""
    for each in refused:
        if each.name != own.name or len(each.settings) > 1:
            continue
        match [*own.settings.items(), *each.settings.items()]:
            case [("page_sizes", _), ("page_sizes", value)] if value == NO_PAGE.value:
                return each
            case [("attention_arch", "mha"), ("attention_arch", "mla")]:
                return each
            case [("attention_arch", "mla"), ("attention_arch", "mha")]:
                return each
    return None


def _is_implied(own: Acceptance, refused: Iterable[Acceptance]) -> bool:
    """Return whether a server refuses one of several settings alone."""
    return any(
        each.name == own.name
        and each.settings != own.settings
        and each.settings.items() <= own.settings.items()
        for each in refused
    )


def _baselines(server: Server) -> dict[str, list[Place]]:
    """Find a place for each backend where a server takes it, and one for another class of it."""
    baselines: dict[str, list[Place]] = {}
    for place in BASELINES:
        left = [each for each in server.names if each not in baselines]
        server.follow((place, each, ()) for each in left)
        baselines |= {each: [place] for each in left if server.takes(place, each)}
    others = {name: Place(place.gpu, MLA) for name, [place] in baselines.items()}
    server.follow((place, name, ()) for name, place in others.items())
    for name, place in others.items():
        made = server.classes(baselines[name][0], name)
        if server.takes(place, name) and server.classes(place, name) != made:
            baselines[name].append(place)
    return baselines


def _decided(server: Server, trials: Iterable[_Trial]) -> dict[_Trial, Acceptance]:
    """Follow trials, each beside one of a plugin's backend."""
    every = dict.fromkeys(each for own in trials for each in (own, own.as_plugin()))
    server.follow((each.baseline, each.name, ()) for each in every)
    server.follow_bundles((each.place, each.name) for each in every if each.option in BUNDLE)
    server.follow(
        (each.place, each.name, each.words) for each in every if each.option not in BUNDLE
    )
    server.follow(
        (each.baseline, each.name, each.option.before)
        for each in every
        if each.option and server.takes(each.place, each.name, each.option) is False
    )
    return {each: own for each in every if (own := each.decided(server)) is not None}


def _places(baselines: Mapping[str, list[Place]]) -> Iterator[_Trial]:
    """List each backend on other machines, with other models, and with a hybrid one on both."""
    for name, (baseline, *_) in baselines.items():
        beside = [Place(gpu, baseline.model) for gpu in TRIED_FIRST if gpu != baseline.gpu]
        beside += [
            Place(baseline.gpu, each) for each in MODELS if each not in (baseline.model, SPARSE)
        ]
        beside += [Place(gpu, HYBRID) for gpu in GPUS[:2] if gpu != baseline.gpu]
        yield from (_Trial(name=name, baseline=baseline, place=each) for each in beside)


def _further(
    baselines: Mapping[str, list[Place]], decided: Mapping[_Trial, Acceptance]
) -> Iterator[_Trial]:
    """List the other machines for backends that look at it, and sparse MLA for those of MLA."""
    for name, (baseline, *_) in baselines.items():
        tried = (Place(gpu, baseline.model) for gpu in TRIED_FIRST)
        known = [decided.get(_Trial(name=name, baseline=baseline, place=each)) for each in tried]
        if any(each and not each.is_accepted for each in known):
            for gpu in GPUS[len(TRIED_FIRST) :]:
                yield _Trial(name=name, baseline=baseline, place=Place(gpu, baseline.model))
        mla = decided.get(_Trial(name=name, baseline=baseline, place=Place(baseline.gpu, MLA)))
        if mla is None or mla.is_accepted:
            yield _Trial(name=name, baseline=baseline, place=Place(baseline.gpu, SPARSE))


def _with_options(server: Server, baselines: Mapping[str, list[Place]]) -> Iterator[_Trial]:
    """List each backend with each option that a release knows, on a machine that takes both."""
    every = [(name, baseline) for name, places in baselines.items() for baseline in places]
    beside = {baseline: [baseline, Place(GPUS[1], baseline.model)] for _, baseline in every}
    server.follow((p, "", o.words) for each in beside.values() for p in each for o in OPTIONS)
    server.follow((beside[baseline][1], name, ()) for name, baseline in every)
    for name, baseline in every:
        for option in OPTIONS:
            for place in beside[baseline]:
                is_taken = server.launch(place, "", option.words).refusal is None
                if is_taken and server.takes(place, name):
                    yield _Trial(name=name, baseline=place, place=place, option=option)
                    break


def _pages(decided: Mapping[_Trial, Acceptance]) -> Iterator[_Trial]:
    """List sizes of pages for the backends that do not take any size: most do."""
    for trial, each in decided.items():
        if trial.option is NO_PAGE and not each.is_accepted:
            yield from (replace(trial, option=page) for page in PAGES)


def _at_baselines(server: Server, baselines: Mapping[str, list[Place]]) -> Iterator[Acceptance]:
    """List the machines and the kinds of models that backends were found with."""
    for name, places in baselines.items():
        for baseline in places:
            for settings in (baseline.machine, MODELS[baseline.model]):
                yield Acceptance(
                    name=name,
                    paths=server.classes(baseline, name),
                    settings=settings,
                    is_accepted=True,
                    message="",
                    at="",
                    launch=str(baseline),
                )


def _chosen(server: Server) -> Iterator[Acceptance]:
    """List the backends that a server takes itself, where none is named.

    With an option they are those that it takes for the option's sake.
    """
    asked = [(place, own) for own in (None, *OPTIONS) for place in chosen_with(own)]
    server.follow((place, "", own.words if own else ()) for place, own in asked)
    server.follow((place, "", own.before if own else ()) for place, own in asked)
    for place, option in asked:
        launch = server.launch(place, "", option.words if option else ())
        before = server.launch(place, "", option.before if option else ())
        names = [launch.values.get(each) for each in _PHASES]
        is_left = option and names == [before.values.get(each) for each in _PHASES]
        if launch.refusal is not None or launch.unchecked or is_left:
            continue
        made = frozenset(chain.from_iterable(launch.classes.values()))
        for name in dict.fromkeys(names):
            if not isinstance(name, str) or name not in server.names:
                continue
            at = next((e.at for e in launch.rewrites if e.name in _PHASES and e.after == name), "")
            for settings in _settings_of(place, option):
                yield Acceptance(
                    name=name,
                    paths=made,
                    settings=settings,
                    is_accepted=True,
                    message="the server's own choice where no backend is named",
                    at=at,
                    launch=str(place),
                )


def _on_cpu(server: Server) -> Iterator[Acceptance]:
    """List the backends that a server takes on a CPU, also those for CPUs that have more."""
    place, words = BASELINES[0], ("--device", "cpu")
    server.follow([(place, "", words)])
    for each in server.launch(place, "", words).rewrites:
        if each.name == ARGUMENT and each.after in server.names:
            yield Acceptance(
                name=str(each.after),
                paths=frozenset(),
                settings={"platform": "cpu"},
                is_accepted=True,
                message="the server's own choice on a CPU",
                at=each.at,
                launch=f"CPU, {place.model}",
            )


def _settings_of(place: Place, option: Option | None) -> Iterator[dict[str, JsonValue]]:
    """List what a server's own choice at a place says something of."""
    yield place.machine
    if option is None:
        yield from ({name: value} for name, value in MODELS[place.model].items())
    else:
        own = {option.capability: option.value}
        yield from (own, own | place.machine)
