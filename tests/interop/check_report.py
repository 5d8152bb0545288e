#!/usr/bin/env python3
"""Looks at a page of `megatron report`, or at the dashboard of a run, in a headless Chromium.

Usage: check_report.py URL [FOLDER]

URL is file:///PATH/report.html, or http://127.0.0.1:PORT/ of a run with --dashboard-port that goes
on. The charts must have curves, in light and dark colours and at the width of a phone; switches must work;
the dashboard must show new points. The page may neither log errors nor ask any other machine. Prints a
line for each that holds and ends with an error at the first that does not; writes pictures to
FOLDER. Without a Chromium it says so and ends with 77.
"""
import re
import sys

from browser import HAS_INK, run_checks, say

FIRST_CHART = """(() => {
  const canvas = document.querySelector('#charts canvas');
  if (canvas) canvas.id = 'first';
  return !!canvas;
})()"""


def iteration(browser):
    shown = browser.value("document.getElementById('live').textContent")
    return int(re.match(r"iteration (\d+)", shown).group(1))


def check(browser, url, folder):
    is_live = url.startswith("http")
    name = "dashboard" if is_live else "report"
    for scheme, width, height, is_phone in (
            ("light", 1200, 800, False), ("dark", 1200, 800, False), ("light", 390, 780, True)):
        browser.open(url, width, height, scheme, is_phone)
        browser.wait_for(FIRST_CHART)
        browser.wait_for(HAS_INK + "('first')")
        wide = browser.value("document.documentElement.scrollWidth")
        assert wide <= width, (wide, width)
        count = browser.value("document.querySelectorAll('#charts canvas').length")
        browser.picture(folder, name + ("-phone" if is_phone else "" if scheme == "light" else "-dark"))
        say(f"{count} charts, {scheme}, {width} wide")
    browser.value("document.getElementById('log').click()")
    browser.value("""
      document.getElementById('smooth').value = 0.9;
      document.getElementById('smooth').dispatchEvent(new Event('input'));
    """)
    assert browser.value("document.getElementById('smoothness').textContent") == "0.9"
    assert browser.value("document.querySelectorAll('#tables table').length") > 0
    say("switches work; tables have rows: "
        + str(browser.value("document.querySelectorAll('#tables tr').length")))
    if is_live:
        before = iteration(browser)
        browser.wait_for(f"!document.getElementById('live').textContent.startsWith('iteration {before} ')")
        say(f"iteration {before} becomes {iteration(browser)}")
    assert not browser.errors(), browser.errors()
    others = [one for one in browser.urls() if not one.startswith((url, "data:", "about:"))]
    assert not others, others
    say(f"{len(browser.urls())} requests, none of another machine; no errors")


if __name__ == "__main__":
    run_checks(check, sys.argv[1:])
