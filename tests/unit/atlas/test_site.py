"""The pages of the site, made from the data of small releases."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from backend_caps.atlas.build import AtlasError, ReleaseStore, build
from backend_caps.atlas.site import meanings, write_site
from backend_caps.capability.vocabulary import CAPABILITIES
from tests.unit.atlas.wheels import releases_in, write_plugin, write_vllm


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Write the site of three releases of vLLM and a plugin."""
    wheels = tmp_path / "wheels"
    write_vllm(wheels, "0.29.0", sinks=None)
    write_vllm(wheels, "0.30.0")
    write_vllm(wheels, "0.31.0", sinks=False, has_slow=False)
    write_plugin(wheels, "0.31.0")
    data = ReleaseStore(tmp_path / "data")
    build(data, ("vllm", "acme"), releases_in(wheels), workers=1, progress=lambda *_: None)
    write_site(data, tmp_path / "site", "1.0")
    return tmp_path / "site"


def _text(page: Path) -> str:
    """Return what a page says, its cells parted by bars."""
    text = re.sub(r"<br>", " at ", re.sub(r"</t[dh]>", " | ", page.read_text("utf-8")))
    return " ".join(re.sub(r"<[^>]+>", "", text).split())


def test_every_link_leads_to_a_page(site: Path) -> None:
    """The site opens from disk, so that an address is a file; one in a script is too."""
    for page in site.rglob("*.html"):
        text = page.read_text("utf-8")
        for address in re.findall(r'(?:href|src)="([^"#]+)', text):
            if not address.endswith(".json"):
                assert (page.parent / address).is_file(), (page, address)
    assert (site / "tables" / "vllm-0.30.0.js").read_text().startswith("atlas.keep({")


def test_page_of_a_backend_says_what_changed(site: Path) -> None:
    """Its values have their lines, and those of the root stand beside them."""
    text = _text(site / "backends" / "vllm" / "FastBackend.html")

    assert "vllm 0.31.0, since 0.29.0" in text
    assert "Server flags call it FAST." in text
    assert "The engine chooses it on cuda." in text
    assert (
        "0.31.0 | attention_sinks | yes | no | 0.30.0 | attention_sinks | not stated | yes" in text
    )
    assert "supported_dtypes = [torch.bfloat16] at vllm/fast.py:5" in text
    assert "as the class states none, from AttentionBackend" in text


def test_page_of_a_backend_that_is_gone_stays(site: Path) -> None:
    """It says since when."""
    text = _text(site / "backends" / "vllm" / "SlowBackend.html")

    assert "vllm 0.30.0 (gone since 0.31.0)" in text
    assert "Nothing, in the releases here: 0.29.0 to 0.30.0." in text
    assert "yes where is_new()" in text


def test_page_of_a_plugin_names_the_engine_that_it_was_read_with(site: Path) -> None:
    """Plugins come behind the engines."""
    text = _text(site / "backends" / "acme" / "AcmeBackend.html")

    assert "read with vllm 0.31.0" in text
    assert "What the attention backends of vllm and acme can do" in _text(site / "index.html")


def test_page_of_a_capability_lists_who_states_it(site: Path) -> None:
    """With the value of the root for the others."""
    text = _text(site / "capabilities" / "attention_sinks.html")

    assert "FastBackend | no | 0.31.0 | vllm/fast.py:" in text
    assert "No class states it." in text


def test_every_capability_has_a_meaning() -> None:
    """They are the docstrings of the vocabulary."""
    assert meanings().keys() >= CAPABILITIES.keys()


def test_pages_of_an_older_site_go(site: Path, tmp_path: Path) -> None:
    """A page that no release has any more is not left behind."""
    stale = site / "backends" / "vllm" / "Old.html"
    stale.write_text("")

    num_pages = write_site(ReleaseStore(tmp_path / "data"), site, "1.0")

    assert not stale.exists()
    assert num_pages == len([*site.rglob("*.html")])


def test_folder_without_data_is_an_error(tmp_path: Path) -> None:
    """The error says how to build some."""
    with pytest.raises(AtlasError, match="backend-caps atlas build FOLDER") as raised:
        write_site(ReleaseStore(tmp_path), tmp_path / "site", "1.0")

    assert raised.value.code == "atlas-empty"


@pytest.mark.usefixtures("site")
def test_site_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    """What stands in the way is named."""
    (tmp_path / "file").write_text("")

    with pytest.raises(AtlasError, match="cannot be written") as raised:
        write_site(ReleaseStore(tmp_path / "data"), tmp_path / "file", "1.0")

    assert raised.value.code == "atlas-not-written"
