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
    BUNDLE,
    GPUS,
    HOMES,
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
    home: Place
    """Where a server takes the backend."""
    place: Place
    """Where it is tried: on another machine, with another model, or there."""
    option: Option | None = None

    @property
    def settings(self) -> dict[str, JsonValue]:
        """What it changes, as it is asked of a backend."""
        if self.option is not None:
            return {self.option.capability: self.option.value}
        machine = self.place.machine if self.place.gpu != self.home.gpu else {}
        asked = MODELS[self.home.model]
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
            at_home = server.launch(self.home, self.name, before)
            if at_home.refusal is not None:
                return None
            kept = () if self.option is None else (*self.option.kept,)
            launch = server.launch(self.place, self.name, self.words)
            message, at = reason_of(launch, at_home, kept)
        return Acceptance(
            name=self.name,
            paths=server.classes(self.place if takes else self.home, self.name),
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
    homes = _homes(server)
    decided = _decided(server, _places(homes))
    decided |= _decided(server, _further(homes, decided))
    decided |= _decided(server, _with_options(server, homes))
    decided |= _decided(server, _pages(decided))
    own = {trial: each for trial, each in decided.items() if trial.name != PLUGIN}
    refused = [each for each in own.values() if not each.is_accepted]
    found = [each for each in refused if not _is_implied(each, refused)]
    for trial, each in own.items():
        if each.is_accepted:
            found += _stated(each, decided.get(trial.as_plugin()), refused)
    for each in _at_home(server, homes):
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


def _homes(server: Server) -> dict[str, list[Place]]:
    """Find a place for each backend where a server takes it, and one for another class of it."""
    homes: dict[str, list[Place]] = {}
    for place in HOMES:
        left = [each for each in server.names if each not in homes]
        server.follow((place, each, ()) for each in left)
        homes |= {each: [place] for each in left if server.takes(place, each)}
    others = {name: Place(place.gpu, MLA) for name, [place] in homes.items()}
    server.follow((place, name, ()) for name, place in others.items())
    for name, place in others.items():
        made = server.classes(homes[name][0], name)
        if server.takes(place, name) and server.classes(place, name) != made:
            homes[name].append(place)
    return homes


def _decided(server: Server, trials: Iterable[_Trial]) -> dict[_Trial, Acceptance]:
    """Follow trials, each beside one of a plugin's backend."""
    every = dict.fromkeys(each for own in trials for each in (own, own.as_plugin()))
    server.follow((each.home, each.name, ()) for each in every)
    server.follow_bundles((each.place, each.name) for each in every if each.option in BUNDLE)
    server.follow(
        (each.place, each.name, each.words) for each in every if each.option not in BUNDLE
    )
    server.follow(
        (each.home, each.name, each.option.before)
        for each in every
        if each.option and server.takes(each.place, each.name, each.option) is False
    )
    return {each: own for each in every if (own := each.decided(server)) is not None}


def _places(homes: Mapping[str, list[Place]]) -> Iterator[_Trial]:
    """List each backend on other machines, with other models, and with a hybrid one on both."""
    for name, (home, *_) in homes.items():
        beside = [Place(gpu, home.model) for gpu in TRIED_FIRST if gpu != home.gpu]
        beside += [Place(home.gpu, each) for each in MODELS if each not in (home.model, SPARSE)]
        beside += [Place(gpu, HYBRID) for gpu in GPUS[:2] if gpu != home.gpu]
        yield from (_Trial(name=name, home=home, place=each) for each in beside)


def _further(
    homes: Mapping[str, list[Place]], decided: Mapping[_Trial, Acceptance]
) -> Iterator[_Trial]:
    """List the other machines for backends that look at it, and sparse MLA for those of MLA."""
    for name, (home, *_) in homes.items():
        tried = (Place(gpu, home.model) for gpu in TRIED_FIRST)
        known = [decided.get(_Trial(name=name, home=home, place=each)) for each in tried]
        if any(each and not each.is_accepted for each in known):
            for gpu in GPUS[len(TRIED_FIRST) :]:
                yield _Trial(name=name, home=home, place=Place(gpu, home.model))
        mla = decided.get(_Trial(name=name, home=home, place=Place(home.gpu, MLA)))
        if mla is None or mla.is_accepted:
            yield _Trial(name=name, home=home, place=Place(home.gpu, SPARSE))


def _with_options(server: Server, homes: Mapping[str, list[Place]]) -> Iterator[_Trial]:
    """List each backend with each option that a release knows, on a machine that takes both."""
    every = [(name, home) for name, places in homes.items() for home in places]
    beside = {home: [home, Place(GPUS[1], home.model)] for _, home in every}
    server.follow((p, "", o.words) for each in beside.values() for p in each for o in OPTIONS)
    server.follow((beside[home][1], name, ()) for name, home in every)
    for name, home in every:
        for option in OPTIONS:
            for place in beside[home]:
                is_taken = server.launch(place, "", option.words).refusal is None
                if is_taken and server.takes(place, name):
                    yield _Trial(name=name, home=place, place=place, option=option)
                    break


def _pages(decided: Mapping[_Trial, Acceptance]) -> Iterator[_Trial]:
    """List sizes of pages for the backends that do not take any size: most do."""
    for trial, each in decided.items():
        if trial.option is NO_PAGE and not each.is_accepted:
            yield from (replace(trial, option=page) for page in PAGES)


def _at_home(server: Server, homes: Mapping[str, list[Place]]) -> Iterator[Acceptance]:
    """List the machines and the kinds of models that backends were found with."""
    for name, places in homes.items():
        for home in places:
            for settings in (home.machine, MODELS[home.model]):
                yield Acceptance(
                    name=name,
                    paths=server.classes(home, name),
                    settings=settings,
                    is_accepted=True,
                    message="",
                    at="",
                    launch=str(home),
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
    place, words = HOMES[0], ("--device", "cpu")
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
