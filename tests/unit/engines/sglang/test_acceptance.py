"""What SGLang's server takes with each backend and setting, found of a small engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from backend_caps.capability.gpu import gpus
from backend_caps.engines.read import read_acceptances
from backend_caps.engines.reading import Acceptance, Acceptances
from backend_caps.engines.sglang import acceptance
from backend_caps.engines.sglang.arguments import Follower
from backend_caps.engines.sglang.server_trials import (
    MLA,
    NO_PAGE,
    OPTIONS,
    PLUGIN,
    Place,
    Server,
    reason_of,
)
from backend_caps.resolution.launch import Launch, Refusal, Rewrite, Warned
from tests.unit.engines.sglang.building import ARGS, REGISTRY, index_of
from tests.unit.engines.source.trees import write_folder
from tests.unit.engines.tables import data

_FILES: Mapping[str, str] = {**data("sglang_launch")["declares"], **data("sglang_acceptance")}
_NAMES = [PLUGIN, "dense", "fresh", "latent", "on_cpu", "tile"]
_LLAMA = "llama-3.1-8b"
_OWN_CHOICE = "the server's own choice where no backend is named"


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Acceptances:
    """All that the small engine's server decides."""
    return read_acceptances("sglang", write_folder(tmp_path_factory.mktemp("engine"), _FILES))


def _line(words: str, path: str = ARGS) -> str:
    """Return the place of the only line of a file that has these words."""
    [line] = [at for at, each in enumerate(_FILES[path].splitlines(), 1) if words in each]
    return f"{path}:{line}"


def _classes(each: Acceptance) -> set[str]:
    return {path.rpartition(".")[2] for path in each.paths}


def _of(found: Acceptances, name: str, capability: str) -> Iterator[Acceptance]:
    """List what was decided of a backend with a value of one capability alone."""
    for each in found.found:
        if each.name == name and {*each.settings} == {capability}:
            yield each


def _values(
    found: Acceptances, name: str, capability: str, *, is_accepted: bool
) -> list[tuple[object, str]]:
    """List the values of a capability with a backend, in order, and the words for each."""
    return [
        (each.settings[capability], each.message)
        for each in _of(found, name, capability)
        if each.is_accepted is is_accepted
    ]


def test_backend_is_refused_on_old_machines(found: Acceptances) -> None:
    """A refusal has the engine's words and line, the class and where the server was followed."""
    [refused] = [e for e in _of(found, "tile", "compute_capability") if not e.is_accepted]

    assert refused == Acceptance(
        name="tile",
        paths=frozenset({"sglang.srt.layers.attention.plain_backends.TileBackend"}),
        settings={"compute_capability": "7.5"},
        is_accepted=False,
        message="tile is for SM 8 and newer",
        at=_line("tile is for SM 8", REGISTRY),
        launch=f"T4, {_LLAMA}",
    )


def test_backend_that_looks_at_the_machine_is_tried_on_all(found: Acceptances) -> None:
    """One refusal among the first machines leads to the others; ROCm is asked of as a platform."""
    words = "fresh is for Blackwell"

    refused = _values(found, "fresh", "compute_capability", is_accepted=False)

    assert refused == [("9.0", words), ("7.5", words), ("8.0", words)]
    assert _values(found, "fresh", "platform", is_accepted=False) == [("rocm", words)]


def test_check_of_the_machine_that_lets_a_backend_through_is_no_promise(found: Acceptances) -> None:
    """Of the machines only those are listed as taken that the server chooses the backend on."""
    taken = _values(found, "fresh", "compute_capability", is_accepted=True)
    assert {*taken} == {("10.0", _OWN_CHOICE), ("12.0", _OWN_CHOICE)}
    assert _values(found, "latent", "compute_capability", is_accepted=True) == []


def test_kind_of_model_is_taken_by_the_rule_that_refuses_others(found: Acceptances) -> None:
    """A backend for MLA alone, and one for all but MLA, have the words of the refusal for both."""
    alone, dense = "latent runs MLA alone", "dense does not run MLA"

    latent = _values(found, "latent", "attention_arch", is_accepted=False)

    assert latent == [("mha", alone), ("ssm", alone)]
    assert _values(found, "latent", "attention_arch", is_accepted=True) == [("mla", alone)]
    assert _values(found, "dense", "attention_arch", is_accepted=False) == [("mla", dense)]
    assert ("mha", dense) in _values(found, "dense", "attention_arch", is_accepted=True)


def test_two_settings_are_listed_where_only_both_are_refused(found: Acceptances) -> None:
    """What a server refuses of one of them alone is not listed again with the other."""
    both = [(e.name, e.settings) for e in found.found if len(e.settings) > 1 and not e.is_accepted]
    assert both == [("tile", {"compute_capability": "10.0", "attention_arch": "ssm"})]


def test_sizes_of_pages_are_those_of_an_allow_list(found: Acceptances) -> None:
    """Sizes that a server replaces have its warning, and those that it keeps the one for 2."""
    words = "latent has pages of 32 or 64 tokens, not {}."

    refused = _values(found, "latent", "page_sizes", is_accepted=False)
    taken = [*_of(found, "latent", "page_sizes")][-2:]

    assert refused == [(size, words.format(size)) for size in (2, 1, 16, 128)]
    assert [(e.settings["page_sizes"], e.is_accepted) for e in taken] == [(32, True), (64, True)]
    assert {(e.message, e.at) for e in taken} == {
        (words.format(2), _line("latent has pages of %d or %d"))
    }


def test_size_that_is_replaced_in_silence_has_the_new_one(found: Acceptances) -> None:
    """Without a warning the words are ours, and the line is that which returned the value."""
    refused = [e for e in _of(found, "fresh", "page_sizes") if not e.is_accepted]

    assert [each.settings["page_sizes"] for each in refused] == [2, 1]
    assert {(each.message, each.at) for each in refused} == {
        ("page_size becomes 16", _line('{"page_size": 16}'))
    }


def test_backend_of_any_size_has_none_listed(found: Acceptances) -> None:
    """Where a server takes a size that no kernel asks for, it does not look at sizes."""
    assert [*_of(found, "dense", "page_sizes"), *_of(found, "tile", "page_sizes")] == []


def test_setting_that_makes_a_server_take_another_backend_is_refused(found: Acceptances) -> None:
    """A dtype of the cache is no setting of a backend that gives way to another one with it."""
    [refused] = _of(found, "dense", "kv_cache_dtypes")

    assert (refused.settings["kv_cache_dtypes"], refused.is_accepted) == ("fp8_e5m2", False)
    assert refused.message == "dense keeps no fp8_e5m2, tile does."
    assert refused.at == _line("dense keeps no fp8_e5m2")


def test_values_are_tried_that_a_release_knows_and_a_machine_takes(found: Acceptances) -> None:
    """A dtype of newer GPUs is tried on one; neither an unknown one nor one that no GPU takes."""
    assert {name: {*values} for name, values in found.tried.items()} == {
        "attention_arch": {"mha", "mla", "sparse", "ssm"},
        "attention_sinks": {True},
        "compute_capability": {"7.5", "8.0", "9.0", "10.0", "12.0"},
        "deterministic": {True},
        "kv_cache_dtypes": {"fp8_e4m3", "fp8_e5m2", "nvfp4"},
        "max_speculative_topk": {4},
        "page_sizes": {1, 2, 16, 32, 64, 128},
        "platform": {"rocm"},
    }
    assert all(len({*values}) == len(values) for values in found.tried.values())


def test_allow_list_that_refuses_a_plugin_tells_of_those_it_has(found: Acceptances) -> None:
    """Each class of a backend is taken by the rule, whose set is written in one order."""
    words = "only {'fresh', 'tile'} are deterministic"

    own = [e for name in _NAMES for e in _of(found, name, "deterministic")]

    assert [(e.name, *sorted(_classes(e)), e.is_accepted) for e in own] == [
        ("dense", "DenseBackend", False),
        ("latent", "LatentBackend", False),
        ("tile", "TileMlaBackend", True),
        ("tile", "TileBackend", True),
    ]
    assert {(each.message, each.at) for each in own} == {(words, _line("only {DETERMINISTIC}"))}


def test_number_of_branches_is_refused_where_one_branch_is_taken(found: Acceptances) -> None:
    """A backend that does not draft at all says nothing of branches."""
    every = [e for name in _NAMES for e in _of(found, name, "max_speculative_topk")]

    assert {(e.name, e.is_accepted, e.settings["max_speculative_topk"]) for e in every} == {
        ("tile", False, 4)
    }
    assert {e.message for e in every} == {"tile drafts with one branch"}


def test_own_choice_of_a_server_is_taken(found: Acceptances) -> None:
    """Listed are backends of the command line with which the server that chooses them starts."""
    chosen = [e for e in found.found if e.message == _OWN_CHOICE]

    by_machine = {
        (each.name, *each.settings.items())
        for each in chosen
        if {*each.settings} in ({"platform"}, {"compute_capability"})
    }
    assert by_machine == {
        ("dense", ("platform", "rocm")),
        ("fresh", ("compute_capability", "10.0")),
        ("fresh", ("compute_capability", "12.0")),
        ("tile", ("compute_capability", "9.0")),
        # With an option for whose sake it is chosen there.
        ("tile", ("compute_capability", "10.0")),
        ("tile", ("compute_capability", "12.0")),
    }
    assert {e.at for e in chosen if e.name == "fresh"} == {_line('"attention_backend": "fresh"')}


def test_own_choice_for_the_sake_of_an_option_is_of_the_machine_too(found: Acceptances) -> None:
    """Where the server chooses the same without the option, the machine is not listed with it."""
    both = [e for e in found.found if len(e.settings) > 1 and e.is_accepted]

    assert [(e.name, e.settings, e.launch) for e in both] == [
        ("tile", {"deterministic": True, "compute_capability": cc}, f"{gpu}, {_LLAMA}")
        for cc, gpu in (("10.0", "B200"), ("12.0", "RTX5090"))
    ]


def test_choice_on_a_cpu_is_taken(found: Acceptances) -> None:
    """It is found although no GPU's server starts with the backend."""
    [own] = [each for each in found.found if each.name == "on_cpu"]

    assert (own.settings, own.is_accepted, own.launch) == (
        {"platform": "cpu"},
        True,
        f"CPU, {_LLAMA}",
    )
    assert own.at == _line('"attention_backend": "on_cpu"')


def test_nothing_is_listed_twice(found: Acceptances) -> None:
    """What several places decide alike of the same classes is listed once."""
    keys = [
        (each.name, each.paths, each.is_accepted, *each.settings.items()) for each in found.found
    ]
    assert len({*keys}) == len(keys)


def test_engine_without_choices_decides_nothing() -> None:
    """Where no list of backends is read, no command line is followed."""
    index = index_of({ARGS: "CHOICES = []\n"})

    assert acceptance.read_acceptances(index) == Acceptances(found=(), tried={})


def test_other_engine_has_no_server_that_is_followed(tmp_path: Path) -> None:
    """The backends of vLLM say themselves what they take."""
    assert read_acceptances("vllm", tmp_path) == Acceptances(found=(), tried={})


_H100, _B200 = Place("H100", _LLAMA), Place("B200", _LLAMA)
_DETERMINISTIC = next(each for each in OPTIONS if each.capability == "deterministic")


def test_setting_that_cannot_be_followed_is_not_decided() -> None:
    """A package that may be missing, and a value that is not known, are neither yes nor no."""
    unknown = _FILES[ARGS].replace('{"page_size": 16}', '{"page_size": torch.somewhere()}')
    server = Server(index_of({**_FILES, ARGS: unknown}), _NAMES)
    server.follow(
        [(_B200, "fresh", each) for each in ((), NO_PAGE.words, _DETERMINISTIC.words)]
        + [(_H100, "fresh", ())]
    )

    assert server.takes(_B200, "fresh") is True
    assert server.takes(_H100, "fresh") is False
    assert server.takes(_B200, "fresh", NO_PAGE) is None
    assert server.takes(_B200, "fresh", _DETERMINISTIC) is None


def test_source_without_functions_is_not_decided() -> None:
    """A plugin finds no registry there, and a server neither refuses nor takes its backend."""
    server = Server(index_of({ARGS: "", REGISTRY: ""}), [PLUGIN])
    server.follow([(_H100, PLUGIN, ())])

    assert server.takes(_H100, PLUGIN) is None


def test_command_line_is_followed_once() -> None:
    """A server keeps what became of a command line, also of one that is listed twice."""
    server = Server(index_of(_FILES), _NAMES)
    server.follow([(_H100, "tile", ()), (_H100, "tile", ())])
    before = server.launch(_H100, "tile")

    server.follow([(_H100, "tile", ()), (_H100, "dense", ())])

    assert server.launch(_H100, "tile") is before
    assert server.classes(_H100, "dense") == {
        "sglang.srt.layers.attention.plain_backends.DenseBackend"
    }


def test_options_that_are_taken_together_are_not_followed_alone() -> None:
    """Two options take one command line where a server keeps both, and one each where not."""
    server = Server(index_of(_FILES), _NAMES)
    mla = Place("H100", MLA)

    server.follow_bundles([(mla, "tile"), (mla, "latent")])

    assert [server.takes(mla, name, NO_PAGE) for name in ("tile", "latent")] == [True, False]
    assert server.launch(mla, "latent", NO_PAGE.words).warnings != ()
    with pytest.raises(KeyError):
        server.launch(mla, "tile", NO_PAGE.words)


def _follower(gpu: str = "H100", imported: Sequence[str] = ()) -> Follower:
    return Follower(index_of(_FILES), gpus()[gpu], 1, plugin=PLUGIN, imported=imported)


def test_lines_that_share_imports_and_parser_become_what_each_does_alone() -> None:
    """A line after others on the same machine, or after another machine's, has the same answer."""
    lines = [
        ["--attention-backend", name, "--page-size", "2", "--model-path", model]
        for name, model in ((PLUGIN, _LLAMA), ("latent", MLA), ("of_no_one", _LLAMA))
    ]
    alone = [launch for line in lines for launch in _follower().follow([line])]
    follower = _follower()

    together = [*follower.follow(lines[:2]), *follower.follow(lines[2:])]

    assert together == alone
    assert _follower(imported=follower.imported).follow(lines) == alone
    assert [each.warnings for each in together] == [each.warnings for each in alone]
    assert [each.starts for each in alone] == [True, True, False]
    assert alone[0].classes == {"prefill": (PLUGIN,), "decode": (PLUGIN,)}


def _launch(
    *warnings: str, refusal: str = "", rewrites: Sequence[tuple[str, object]] = ()
) -> Launch:
    return Launch(
        engine="sglang-9.0",
        machine="H100",
        model=_LLAMA,
        refusal=Refusal(message=refusal, at="refuses") if refusal else None,
        warnings=tuple(Warned(message=each, at="warns") for each in warnings),
        rewrites=tuple(
            Rewrite(name=name, before=None, after=after, at="rewrites") for name, after in rewrites
        ),
    )


_SIZE = (("device", "cpu"), ("page_size", 64), ("attention_backend", "other"))


@pytest.mark.parametrize(
    ("launch", "reason"),
    [
        pytest.param(
            _launch("a warning", refusal="not {'b', 'a'} of {}"),
            ("not {'a', 'b'} of {}", "refuses"),
            id="a refusal goes before warnings",
        ),
        pytest.param(
            _launch("at baseline", "of page_size", "a new one", rewrites=_SIZE),
            ("a new one", "warns"),
            id="a warning that is not there without the setting",
        ),
        pytest.param(
            _launch("at baseline", "of page_size", rewrites=_SIZE),
            ("of page_size", "warns"),
            id="a warning that names the argument",
        ),
        pytest.param(
            _launch("at baseline", rewrites=_SIZE),
            ("page_size becomes 64", "rewrites"),
            id="the first value of one of the arguments",
        ),
        pytest.param(_launch("at baseline", rewrites=_SIZE[:1]), ("", ""), id="nothing of it"),
    ],
)
def test_reason_is_what_the_setting_brings(launch: Launch, reason: tuple[str, str]) -> None:
    """A refusal, then a warning, then a value that is rewritten tells why."""
    at_baseline = _launch("at baseline", "of page_size")

    assert reason_of(launch, at_baseline, ["page_size"]) == reason
