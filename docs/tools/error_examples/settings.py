"""Errors of what configures backend-caps itself."""

from __future__ import annotations

from backend_caps.settings.sources import SettingsError
from docs.tools.error_examples.occasion import Occasion

SETTINGS = Occasion(
    title="Settings",
    told="Raised by `Settings.load`, and by every command that takes `--config`.",
    coded=(SettingsError,),
)
