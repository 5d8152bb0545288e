"""A headless Chromium for the checks of the pages, and what they have in common."""
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


    def key(self, name, code, text=""):
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=name, code=name, windowsVirtualKeyCode=code,
                      text=text if kind == "keyDown" else "")

    def open(self, url, width, height, scheme="light", is_phone=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=1, mobile=is_phone)
        self.call("Emulation.setScrollbarsHidden", hidden=True)
        self.call("Emulation.setEmulatedMedia",
                  features=[{"name": "prefers-color-scheme", "value": scheme}])
        answer = self.call("Page.navigate", url=url)
        assert not answer.get("errorText"), answer
        self.wait_for("document.readyState === 'complete'")

    def picture(self, folder, name):
        if folder is None:
            return
        data = self.call("Page.captureScreenshot", format="webp", quality=80)["data"]
        with open(os.path.join(folder, name + ".webp"), "wb") as file:
            file.write(base64.b64decode(data))


HAS_INK = """((id) => {
  const canvas = document.getElementById(id);
  return canvas.width > 0 && canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height)
    .data.some(value => value > 0);
})"""


def run_checks(check, arguments):
    """Calls check(browser, url, folder) for the arguments URL [FOLDER]; without a Chromium it says so and ends with 77."""
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        print("there is no chromium on this machine: not run")
        sys.exit(77)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = Browser(program, profile)
        try:
            check(browser, arguments[0], arguments[1] if len(arguments) > 1 else None)
        finally:
            browser.close()
