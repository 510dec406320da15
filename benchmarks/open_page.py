"""Opens pages in headless Chromium: seconds from the click to the drawn page, and size. Median of five.

python benchmarks/open_page.py runs/*/analysis/report.html
"""

import shutil
import statistics
import sys
import time
from pathlib import Path

from playwright.sync_api import sync_playwright


def main() -> None:
    path = next(found for name in ("chromium", "google-chrome") if (found := shutil.which(name)))
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=path, args=["--no-sandbox"])
        for name in sys.argv[1:]:
            seconds = []
            for _ in range(5):
                page = browser.new_page(viewport={"width": 1280, "height": 900})
                began = time.perf_counter()
                page.goto(Path(name).resolve().as_uri())
                page.wait_for_selector("html[data-ready=yes]", state="attached")
                seconds.append(time.perf_counter() - began)
                page.close()
            print(f"{name}: {statistics.median(seconds):.2f} s, {Path(name).stat().st_size / 1e6:.2f} MB")
        browser.close()


if __name__ == "__main__":
    main()
