#!/usr/bin/env python3
"""Drives the pages of a running `megatron serve` of a GPT in a headless Chromium.

Usage: check_page.py URL [FOLDER]

The page at / must stream texts in both modes, colour them by their probabilities, show and take
alternatives, stop when asked, copy, keep a history, plot the load, be usable by keyboard and on a
phone, and name what the server refuses; /docs must list the routes and send an example. Neither may
log errors nor ask any other machine. Prints a line for each that holds and ends with an error at
the first that does not; writes pictures to FOLDER. Without a Chromium it says so and ends with 77.
"""
import json
import sys
import time

from browser import HAS_INK, run_checks, say


def ask(browser, text, tokens=24):
    browser.value(f"""
      document.getElementById('prompt').value = {json.dumps(text)};
      document.getElementById('max_tokens').value = {tokens};
      document.getElementById('ask').requestSubmit();
    """)


def wait_for_text(browser):
    browser.wait_for("!document.getElementById('go').disabled && "
                     "document.getElementById('status').textContent.includes('tokens/s')")


def check_texts(browser, url, folder):
    browser.open(url, 1200, 820)
    browser.wait_for("document.getElementById('title').textContent !== 'megatron'")
    say("the page names the model: " + browser.value("document.title"))
    assert browser.value("document.querySelectorAll('#examples button').length") == 3
    assert browser.value("document.activeElement === document.body")
    browser.value("document.getElementById('seed').value = 3")

    browser.value("document.querySelector('[value=completion]').click()")
    ask(browser, "The river")
    wait_for_text(browser)
    assert browser.value("document.getElementById('examples').offsetHeight") == 0
    assert browser.value("document.documentElement.scrollWidth") <= 1200
    pieces = browser.value("document.querySelectorAll('.token').length")
    assert pieces > 4, pieces
    shown = browser.value("[...new Set([...document.querySelectorAll('.token')].map(one => one.className))]")
    assert len(shown) > 1, shown
    say(f"{pieces} pieces in {len(shown)} colours: " + browser.value("document.getElementById('status').textContent"))

    # The keyboard: one token is in the tab order, arrows go on, Enter shows the alternatives.
    browser.value("document.querySelector('.token').focus()")
    browser.key("ArrowRight", 39)
    browser.key("ArrowRight", 39)
    assert browser.value("document.activeElement === document.querySelectorAll('.token')[2]")
    browser.key("Enter", 13, "\r")
    browser.wait_for("!document.getElementById('tip').hidden")
    rows = browser.value("document.getElementById('tip').querySelectorAll('button').length")
    assert rows >= 5, rows
    browser.picture(folder, "serve")
    browser.key("Escape", 27)
    assert browser.value("document.getElementById('tip').hidden")
    assert browser.value("document.activeElement === document.querySelectorAll('.token')[2]")
    begun = browser.value("[...document.querySelectorAll('.token')].slice(0, 2).map(one => one.textContent).join('')")
    browser.value("document.querySelectorAll('.token')[2].click()")
    taken = browser.value("""(() => {
      const button = document.querySelector('#tip button:enabled');
      button.click();
      return button.querySelector('.part').textContent;
    })()""")
    wait_for_text(browser)
    text = browser.value("document.querySelector('.turn.assistant .text').textContent")
    assert text.startswith(begun), (text, begun)
    say(f"a text continues from the alternative {taken!r}")
    browser.value("document.getElementById('again').click()")
    wait_for_text(browser)
    assert browser.value("document.querySelectorAll('.turn').length") == 2
    say("Again draws another text")

    browser.value("document.querySelector('[value=chat]').click()")
    assert browser.value("document.querySelectorAll('.turn').length") == 0
    ask(browser, "Hello <b>you</b>", 8)
    wait_for_text(browser)
    ask(browser, "And again", 8)
    wait_for_text(browser)
    assert browser.value("[...document.querySelectorAll('.turn')].map(one => one.classList[1])") \
        == ["user", "assistant"] * 2
    assert browser.value("document.querySelector('.turn .text').textContent") == "Hello <b>you</b>"
    assert browser.value("document.querySelectorAll('#talk b').length") == 0
    say("a chat has turns, and texts are no markup")
    browser.value("""
      window.copied = '';
      Object.defineProperty(navigator, 'clipboard', {configurable: true,
        value: {writeText: async text => { copied = text; }}});
      document.querySelector('.turn button').click();
    """)
    browser.wait_for("copied === 'Hello <b>you</b>'")
    say("Copy copies a text")

    browser.value("""
      document.getElementById('prompt').value = 'Stop';
      document.getElementById('ask').requestSubmit();
      document.getElementById('halt').click();
    """)
    browser.wait_for("!document.getElementById('go').disabled")
    assert browser.value("document.getElementById('status').textContent") == "stopped"
    say("Stop ends a text")


def check_rest(browser, url, folder):
    browser.open(url, 1200, 820, "dark")
    entries = browser.value("document.querySelectorAll('#list li').length")
    assert entries == 2, entries
    browser.value("document.querySelectorAll('#list .open')[1].click()")
    assert browser.value("document.querySelector('[value=completion]').checked")
    assert browser.value("document.querySelectorAll('.turn').length") == 2
    say(f"the history has {entries} conversations after a reload")
    ask(browser, "The king", 48)
    browser.wait_for(HAS_INK + "('rates') && " + HAS_INK + "('requests')")
    browser.wait_for("document.getElementById('loaded').textContent.includes('running')")
    label = browser.value("document.getElementById('requests').getAttribute('aria-label')")
    assert "waiting" in label, label
    wait_for_text(browser)
    time.sleep(3)  # the load after the text
    say("the load is plotted: " + label)
    browser.picture(folder, "serve-dark")
    browser.value("document.querySelector('#list li button:last-child').click()")
    browser.value("document.getElementById('clear').click()")
    assert browser.value("localStorage.getItem('megatron.history')") == "[]"
    say("the history can be cleared")

    browser.open(url, 390, 780, is_phone=True)
    assert browser.value("!document.getElementById('settings').open")
    ask(browser, "To be", 24)
    wait_for_text(browser)
    wide = browser.value("document.documentElement.scrollWidth")
    assert wide <= 390, wide
    small = browser.value("""[...document.querySelectorAll('main .row button')]
      .filter(one => one.getBoundingClientRect().height < 38).length""")
    assert small == 0, small
    browser.picture(folder, "serve-phone")
    say("the page fits a phone")

    browser.open(url + "docs", 390, 780, is_phone=True)
    browser.wait_for("document.querySelectorAll('details').length > 8")
    assert browser.value("document.documentElement.scrollWidth") <= 390
    browser.value("""
      const own = [...document.querySelectorAll('details')].find(one => one.textContent.includes('/tokenize'));
      own.open = true;
      own.querySelector('button').click();
    """)
    browser.wait_for("document.querySelector('details[open] pre').textContent.startsWith('200')")
    say("/docs lists the routes and sends an example")
    assert not browser.errors(), browser.errors()
    others = [one for one in browser.urls() if not one.startswith((url, "data:", "about:"))]
    assert not others, others
    say(f"{len(browser.urls())} requests, none of another machine; no errors")

    # The browser logs a refused request as an error of its own.
    browser.open(url, 1200, 820)
    ask(browser, "Too long", 100000)
    browser.wait_for("document.getElementById('status').textContent.includes('maximum context')")
    say("a refusal is shown: " + browser.value("document.getElementById('status').textContent"))


def check(browser, url, folder):
    url = url.rstrip("/") + "/"
    check_texts(browser, url, folder)
    check_rest(browser, url, folder)


if __name__ == "__main__":
    run_checks(check, sys.argv[1:])
