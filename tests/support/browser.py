"""A real browser, without a window."""

from pathlib import Path

from selenium.webdriver import Chrome, ChromeOptions, ChromeService

from support.programs import found

_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)


def chrome(profile: Path, *, width: int, height: int) -> Chrome:
    """Debian's Chromium with a profile of its own; ``quit`` ends it."""
    options = ChromeOptions()
    options.binary_location = found("chromium")
    for flag in (*_FLAGS, f"--window-size={width},{height}", f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return Chrome(options=options, service=ChromeService(found("chromedriver")))
