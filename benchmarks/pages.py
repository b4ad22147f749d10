"""What a large page costs a browser: bytes, and the time of its script in Chromium.

`python benchmarks/pages.py [--json PATH]` opens the page of 200 backends from disk, and filters
and sorts it. Times are those of the page's script, by `performance.now()` around it: the median of
some rounds, each with a page of its own.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from typing import TypeAlias

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from playwright.sync_api import Browser

from backend_caps.capability.vocabulary import CAPABILITIES
from backend_caps.report.html.page import page
from benchmarks.recorded import Count, Ratio, Record, keep, path_asked
from tests.browser.chromium import MISSING, executable, started
from tests.unit.report.html.pages import large

NUM_BACKENDS = (20, 200)
NUM_ROUNDS = 7
OPENED = "performance.getEntriesByName('open')[0].duration"
FILTERED = """() => {
  const input = document.querySelector("input[type=search]");
  const start = performance.now();
  input.value = "backend_1";
  input.dispatchEvent(new Event("input", { bubbles: true }));
  return performance.now() - start;
}"""
SORTED = """() => {
  const button = document.querySelector("thead th:nth-child(2) button");
  const start = performance.now();
  button.click();
  return performance.now() - start;
}"""
STEPS: Mapping[str, str] = {"open": OPENED, "filter": FILTERED, "sort": SORTED}

GOAL_MS = 200

Times: TypeAlias = dict[str, list[float]]


def main() -> None:
    """Print bytes and milliseconds; write them where asked."""
    path = path_asked(__doc__)
    found = executable()
    if found is None:
        print(f"pages: not measured, for {MISSING}")
        return
    with started(found) as browser:
        results = {number: _measured(browser, number) for number in NUM_BACKENDS}
    print(f"pages: script time in Chromium, ms; {len(CAPABILITIES)} capabilities")
    print(f"{'backends':>10} {'bytes':>10} {'open':>8} {'filter':>8} {'sort':>8}")
    for number, (num_bytes, times) in results.items():
        medians = " ".join(f"{median(times[step]):8.1f}" for step in STEPS)
        print(f"{number:>10} {num_bytes:10,} {medians}")
    record = Record(
        compares=f"script time in Chromium / the {GOAL_MS} ms that it may take",
        ratios=tuple(
            _ratio(f"{number} backends, {step}", times[step])
            for number, (_, times) in results.items()
            for step in STEPS
        ),
        counts=tuple(
            Count(what=f"page of {number} backends: bytes", ours=num_bytes)
            for number, (num_bytes, _) in results.items()
        ),
    )
    keep(record, "pages", path)


def _ratio(what: str, times_ms: list[float]) -> Ratio:
    low, middle, high = quantiles(times_ms, n=4, method="inclusive")
    return Ratio(
        what=what,
        ratio=middle / GOAL_MS,
        low=low / GOAL_MS,
        high=high / GOAL_MS,
        measured=f"{len(times_ms)} rounds",
        told=f"{middle:.1f} ms",
    )


def _measured(browser: Browser, num_backends: int) -> tuple[int, Times]:
    """Open the page some times; return its bytes, and milliseconds by what was done."""
    text = page(large(num_backends), ())
    with TemporaryDirectory() as folder:
        file = Path(folder) / "page.html"
        file.write_text(text, "utf-8")
        rounds = list(_rounds(browser, file))
    return len(text.encode()), {step: [each[step] for each in rounds] for step in STEPS}


def _rounds(browser: Browser, file: Path) -> Iterator[Mapping[str, float]]:
    for _ in range(NUM_ROUNDS):
        opened = browser.new_page()
        opened.goto(file.as_uri())
        yield {step: float(opened.evaluate(script)) for step, script in STEPS.items()}
        opened.close()


if __name__ == "__main__":
    main()
