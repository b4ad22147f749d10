"""What large pages cost a browser: bytes, and the time of their scripts in Chromium.

`python benchmarks/pages.py [--json PATH]` opens the page of 200 backends from disk, and filters
and sorts it; and asks the atlas' table of 5,000 backends some questions. Times are those of the
page's script, by `performance.now()` around it: the median of some rounds, each with a page of its
own. The atlas' time holds the layout of the rows that are shown too, and its rounds have one page.
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

from backend_caps.atlas.build import ReleaseStore
from backend_caps.atlas.site import write_site
from backend_caps.capability.vocabulary import CAPABILITIES
from backend_caps.report.html.page import page
from benchmarks.recorded import Count, Ratio, Record, keep, path_asked
from tests.browser.chromium import MISSING, executable, started
from tests.unit.atlas.releases import many
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

QUESTIONS = ("fp8 kv, sliding window, gqa, full graphs, on B200", "sinks", "head size 80", "class4")
NUM_ROWS = 5000
NUM_QUESTIONS = 50
ASKED = """async (questions) => {
  const input = document.getElementById("question");
  const times = [];
  for (const question of questions) {
    await new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)));
    input.value = question;
    const start = performance.now();
    await atlas.update();
    void document.body.offsetHeight;
    times.push(performance.now() - start);
  }
  return times;
}"""

GOAL_MS = 200
FRAME_MS = 16

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
        asked = _asked(browser)
    print(f"pages: script time in Chromium, ms; {len(CAPABILITIES)} capabilities")
    print(f"{'backends':>10} {'bytes':>10} {'open':>8} {'filter':>8} {'sort':>8}")
    for number, (num_bytes, times) in results.items():
        medians = " ".join(f"{median(times[step]):8.1f}" for step in STEPS)
        print(f"{number:>10} {num_bytes:10,} {medians}")
    print(f"{NUM_ROWS:>10} {median(asked):28.1f}  (atlas)")
    record = Record(
        compares=f"script time in Chromium / the {GOAL_MS} ms that it may take, and for the atlas "
        f"the {FRAME_MS} ms of a frame",
        ratios=(
            *(
                _ratio(f"{number} backends, {step}", times[step])
                for number, (_, times) in results.items()
                for step in STEPS
            ),
            _ratio(f"atlas of {NUM_ROWS} backends, filter", asked, FRAME_MS),
        ),
        counts=tuple(
            Count(what=f"page of {number} backends: bytes", ours=num_bytes)
            for number, (num_bytes, _) in results.items()
        ),
    )
    keep(record, "pages", path)


def _ratio(what: str, times_ms: list[float], goal_ms: float = GOAL_MS) -> Ratio:
    low, middle, high = quantiles(times_ms, n=4, method="inclusive")
    return Ratio(
        what=what,
        ratio=middle / goal_ms,
        low=low / goal_ms,
        high=high / goal_ms,
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


def _asked(browser: Browser) -> list[float]:
    """Ask a table of the atlas, and return milliseconds for each question."""
    with TemporaryDirectory() as folder:
        data, site = ReleaseStore(Path(folder) / "data"), Path(folder) / "site"
        data.store(many(NUM_ROWS))
        write_site(data, site, "bench")
        opened = browser.new_page(viewport={"width": 1280, "height": 900})
        opened.goto((site / "index.html").as_uri())
        opened.locator("#count", has_text=f"{NUM_ROWS} backends").wait_for()
        questions = [QUESTIONS[at % len(QUESTIONS)] for at in range(NUM_QUESTIONS + len(QUESTIONS))]
        times: list[float] = opened.evaluate(ASKED, questions)
        opened.close()
        return times[len(QUESTIONS) :]


if __name__ == "__main__":
    main()
