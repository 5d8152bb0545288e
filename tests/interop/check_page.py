#!/usr/bin/env python3
"""Drives the page at / of a running `megatron serve` in a headless Chromium.

Usage: check_page.py URL [SCREENSHOT.png]

The page must stream a text, show probabilities, stop when asked, plot the load, name what the server
refuses, and neither log errors nor ask any other machine. Tokens must come one after another, so
take a model that needs some milliseconds for each. Prints a line for each that holds and ends with
an error at the first that does not. Without a Chromium it says so and ends with 77.
"""
import base64
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time

PATIENCE_S = 60


def say(text):
    print(f"ok: {text}", flush=True)


class Browser:
    """A page, over the DevTools protocol through pipes."""

    def __init__(self, program, folder):
        to_read, self.write_end = os.pipe()
        self.read_end, to_write = os.pipe()
        os.set_inheritable(to_read, True)
        os.set_inheritable(to_write, True)
        # The browser reads from descriptor 3 and writes to 4.
        command = (f'exec "$0" "$@" 3<&{to_read} 4>&{to_write}')
        self.process = subprocess.Popen(
            ["bash", "-c", command, program, "--headless=new", "--no-sandbox", "--disable-gpu",
             "--no-first-run", "--disable-background-networking", "--remote-debugging-pipe",
             f"--user-data-dir={folder}", "about:blank"],
            close_fds=False, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        os.close(to_read)
        os.close(to_write)
        self.rest = b""
        self.number = 0
        self.events = []
        self.session = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target,
                                 flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def receive(self, deadline):
        while b"\0" not in self.rest:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.read_end], [], [], left)[0]:
                raise TimeoutError("the browser does not answer")
            more = os.read(self.read_end, 1 << 16)
            if not more:
                raise EOFError("the browser has ended")
            self.rest += more
        message, self.rest = self.rest.split(b"\0", 1)
        return json.loads(message)

    def call(self, method, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.write_end, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + PATIENCE_S
        while True:
            answer = self.receive(deadline)
            if answer.get("id") == self.number:
                assert "error" not in answer, answer
                return answer["result"]
            self.events.append(answer)

    def value(self, expression):
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def wait_for(self, expression):
        deadline = time.monotonic() + PATIENCE_S
        while not self.value(expression):
            assert time.monotonic() < deadline, f"never true: {expression}"
            time.sleep(0.05)

    def close(self):
        self.process.kill()
        self.process.wait()

    def urls(self):
        return [event["params"]["request"]["url"] for event in self.events
                if event.get("method") == "Network.requestWillBeSent"]

    def errors(self):
        found = []
        for event in self.events:
            method, params = event.get("method"), event.get("params", {})
            if method == "Runtime.exceptionThrown":
                found.append(params["exceptionDetails"])
            elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
                found.append(params["args"])
            elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
                found.append(params["entry"])
        return found


def check(browser, url, screenshot):
    answer = browser.call("Page.navigate", url=url)
    assert not answer.get("errorText"), answer
    browser.wait_for("document.readyState === 'complete' && "
                     "document.getElementById('title').textContent !== 'megatron'")
    say("the page names the model: "
        + browser.value("document.getElementById('title').textContent"))

    # When each token came.
    browser.value("""
      window.times = [];
      new MutationObserver(all => all.forEach(one => one.addedNodes.forEach(node => {
        if (node.className === 'token') times.push(performance.now());
      }))).observe(document.getElementById('output'), {childList: true});
      document.getElementById('prompt').value = 'The river';
      document.getElementById('max_tokens').value = 16;
      document.getElementById('seed').value = 3;
      document.getElementById('go').click();
    """)
    browser.wait_for("document.getElementById('status').textContent.includes('tokens/s')")
    times = browser.value("times")
    assert len(times) > 4 and times[-1] > times[0], times
    say(f"{len(times)} pieces over {times[-1] - times[0]:.1f} ms: "
        + browser.value("document.getElementById('status').textContent"))
    title = browser.value("document.querySelector('#output .token').title")
    assert title.count(" %") >= 5, title
    say("a token shows its probability and the best others: " + title.splitlines()[0])

    browser.wait_for("""(() => {
      const canvas = document.getElementById('load');
      return canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height)
        .data.some(value => value > 0);
    })()""")
    browser.wait_for("document.getElementById('status2').textContent.includes('running')")
    say("the load is plotted: " + browser.value("document.getElementById('status2').textContent"))
    if screenshot:
        picture = browser.call("Page.captureScreenshot", format="png",
                               captureBeyondViewport=True)["data"]
        with open(screenshot, "wb") as file:
            file.write(base64.b64decode(picture))

    browser.value("document.getElementById('go').click(); document.getElementById('halt').click()")
    browser.wait_for("document.getElementById('status').textContent === 'stopped'")
    say("Stop ends a text")
    assert not browser.errors(), browser.errors()

    others = [one for one in browser.urls() if not one.startswith((url, "data:", "about:"))]
    assert not others, others
    say(f"{len(browser.urls())} requests, none of another machine; no errors")

    # The browser logs a refused request as an error of its own.
    browser.value("""
      document.getElementById('max_tokens').value = 100000;
      document.getElementById('go').click();
    """)
    browser.wait_for("document.getElementById('status').textContent.includes('maximum context')")
    say("a refusal is shown: " + browser.value("document.getElementById('status').textContent"))


def main():
    url = sys.argv[1].rstrip("/") + "/"
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        print("there is no chromium on this machine: not run")
        sys.exit(77)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        browser = Browser(program, folder)
        try:
            check(browser, url, sys.argv[2] if len(sys.argv) > 2 else None)
        finally:
            browser.close()


if __name__ == "__main__":
    main()
