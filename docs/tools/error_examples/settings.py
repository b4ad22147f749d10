"""Errors of what configures backend-caps itself."""

from __future__ import annotations

from backend_caps.resolution.errors import FlagsError
from backend_caps.settings.errors import (
    RepeatedSettingError,
    ServerSettingError,
    SettingsFileError,
    SettingValueError,
    UnknownSettingError,
)
from docs.tools.error_examples.occasion import Occasion

SETTINGS = Occasion(
    title="Settings",
    told="Raised by `Settings.load`, and by every command that takes `--config`.",
    examples=(
        SettingsFileError(path="backend-caps.yaml", cause="No such file or directory"),
        UnknownSettingError(
            place="backend-caps.yaml:3", name="polcy", known=("path", "policy"), meant="policy"
        ),
        SettingValueError(
            place="BACKEND_CAPS_POLICY",
            name="policy",
            value="'strictt'",
            expected="'strict', 'warn' or 'quiet'",
        ),
        RepeatedSettingError(place="backend-caps.yaml:7", name="policy", first_line=3),
        ServerSettingError(
            place="backend-caps.yaml:9",
            fault=FlagsError(
                "unknown-flag",
                "--atention-backend is no flag of this engine, and looks like --attention-backend. "
                "Write --attention-backend, or leave it out.",
            ),
        ),
    ),
)
