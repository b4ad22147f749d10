"""Documents as pages: one file each that a browser opens from disk."""

from backend_caps.extras import require_extra

require_extra("html", __name__)
