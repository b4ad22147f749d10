"""What is raised where a module of an extra is not installed."""

from __future__ import annotations

import pytest

from backend_caps import extras
from backend_caps.extras import EXTRAS, MissingExtraError, require_extra


def test_missing_extra_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is an ImportError, and says what needs which modules of which extra."""
    monkeypatch.setattr(extras, "find_spec", lambda _name: None)

    with pytest.raises(ImportError) as raised:
        require_extra("relay", "backend_caps.relay")

    assert isinstance(raised.value, MissingExtraError)
    assert str(raised.value) == (
        "backend_caps.relay needs what is not installed here (torch, numpy): "
        "pip install 'backend-caps[relay]'"
    )


@pytest.mark.parametrize("extra", EXTRAS)
def test_installed_extra_is_no_error(extra: str) -> None:
    """Everything that an extra brings is installed here."""
    require_extra(extra, "a test")
