#!/usr/bin/env python3
"""Looks at the live page in a real browser: Chromium without a window, told what to do over a pair of pipes.

Usage: check.py [--screenshot FILE]

It starts the example `live_page` of watchcore-http (built before by the caller, see check.sh), which keeps a cache busy,
opens its page, and fails where the page shows no live numbers, says anything on its console, runs what is a watcher's
name, does not fit a small screen, says nothing without script, or does not come back behind a refusal. With --screenshot it leaves a picture of the page.
"""

import base64
import json
import os
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time

# How long anything may take. Nothing waits for this time to pass.
BOUND = 30.0
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class Browser:
    """One page of a browser, by the DevTools protocol: messages of JSON, each ended by a zero byte."""

    def __init__(self, program, profile):
        commands, self.write = os.pipe()
        self.read, answers = os.pipe()

        def take_pipes():
            # The browser reads from 3 and writes to 4. Copies out of the way first: either may be the other's number.
            spare = [os.dup2(commands, 20), os.dup2(answers, 21)]
            os.dup2(spare[0], 3)
            os.dup2(spare[1], 4)

        arguments = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-pipe"]
        self.process = subprocess.Popen(
            [program, *arguments, f"--user-data-dir={profile}", "about:blank"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=take_pipes,
            close_fds=False,
        )
        os.close(commands)
        os.close(answers)
        self.unread, self.number, self.session, self.said = b"", 0, None, []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def message(self):
        while b"\0" not in self.unread:
            if not select.select([self.read], [], [], BOUND)[0]:
                raise SystemExit(f"the browser says nothing for {BOUND} s")
            read = os.read(self.read, 1 << 16)
            if not read:
                raise SystemExit("the browser has gone")
            self.unread += read
        message, self.unread = self.unread.split(b"\0", 1)
        return json.loads(message)

    def ask(self, method, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.message()
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise SystemExit(f"{method}: {answer['error']}")
                return answer["result"]
            self.note(answer)

    def note(self, event):
        """Keeps what a person would find on the console."""
        params = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            self.said.append(json.dumps(params["exceptionDetails"]))
        elif event.get("method") == "Runtime.consoleAPICalled":
            self.said.append(json.dumps(params["args"]))
        elif event.get("method") == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.said.append(params["entry"]["text"])
        elif event.get("method") == "Page.javascriptDialogOpening":
            raise SystemExit(f"a dialog opens: {params['message']!r}")

    def value(self, expression):
        answer = self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in answer:
            raise SystemExit(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def until(self, what, expression):
        end = time.monotonic() + BOUND
        while time.monotonic() < end:
            value = self.value(expression)
            if value:
                return value
            time.sleep(0.05)
        raise SystemExit(f"{what}: not within {BOUND} s. The page: {self.value('document.body.innerText')}")

    def end(self):
        os.write(self.write, b'{"id":0,"method":"Browser.close"}\0')
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def number(name):
    """The expression for a number of the page, by its name."""
    return f"[...document.querySelectorAll('dt')].find(dt => dt.textContent === '{name}')?.nextElementSibling.textContent"


def require(truth, what):
    if not truth:
        raise SystemExit(f"FAILED: {what}")
    print(f"  {what}")


def look(browser, url, screenshot):
    browser.ask("Emulation.setDeviceMetricsOverride", width=1100, height=680, deviceScaleFactor=1, mobile=False)
    browser.ask("Page.navigate", url=url)
    browser.until("the page lives", "document.getElementById('live')?.textContent === 'live'")
    revision = browser.value(number("revision"))
    browser.until("the revision moves", f"{number('revision')} !== '{revision}'")
    browser.until("a rate is shown", f"parseInt({number('events/s')}) > 0")
    require(True, "numbers are live: the revision moves, and there is a rate")
    browser.until("a bar of lag is shown", "[...document.querySelectorAll('meter')].some(meter => meter.value > 0)")
    lags = browser.value("[...document.querySelectorAll('meter')].map(meter => meter.value)")
    require(len(lags) >= 3 and lags == sorted(lags, reverse=True), f"watchers are sorted by lag: {lags}")
    names = browser.value("document.querySelector('main').innerText")
    require("<script>alert(1)</script>" in names, "a name that is markup is shown as it is")
    require(browser.value("document.scripts.length") == 1, "nothing but the page's own script is there")
    require(browser.value("document.querySelectorAll('[style], [onclick], [onload]').length") == 0, "nothing is inline")
    loaded = browser.value("performance.getEntriesByType('resource').map(entry => entry.name)")
    require(all(name.endswith("/events") for name in loaded), f"nothing is loaded but events: {loaded}")
    if screenshot:
        picture = browser.ask("Page.captureScreenshot", format="png")["data"]
        with open(screenshot, "wb") as file:
            file.write(base64.b64decode(picture))
    background = "getComputedStyle(document.body).backgroundColor"
    light = browser.value(background)
    browser.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    require(browser.value(background) != light, f"dark differs from light, {light}")
    browser.ask("Emulation.setDeviceMetricsOverride", width=360, height=640, deviceScaleFactor=1, mobile=True)
    width = browser.value("document.documentElement.scrollWidth")
    require(width <= 360, f"it fits a screen of 360 pixels: {width}")
    require(not browser.said, f"the console is empty: {browser.said}")
    markup = browser.value("try { document.body.innerHTML = '<b>x</b>'; 'taken' } catch (error) { error.name }")
    require(markup == "TypeError", "no text becomes markup, whatever script tries")
    browser.ask("Emulation.setScriptExecutionDisabled", value=True)
    browser.ask("Page.navigate", url=url)
    end = time.monotonic() + BOUND
    while True:
        document = browser.ask("DOM.getDocument", depth=-1)["root"]["nodeId"]
        try:
            markup = browser.ask("DOM.getOuterHTML", nodeId=document)["outerHTML"]
        except SystemExit:
            # The page before was replaced between the two.
            markup = ""
        if "</main>" in markup or time.monotonic() > end:
            break
        time.sleep(0.05)
    sentence = re.search("<noscript>(.*?)</noscript>", markup, re.DOTALL)
    require("/metrics" in sentence[1] and "/readyz?verbose" in sentence[1], "without script it says where metrics are")


# Turns the first stream that the page opens away, as a server does that has no place for it.
REFUSE_FIRST = """
const Real = EventSource;
let refused = false;
window.EventSource = class extends Real {
  constructor(url) {
    super(refused ? url : "/nothing");
    refused = true;
  }
};
"""


def come_back(browser, url):
    """Behind a refusal a browser does not ask again by itself."""
    browser.ask("Emulation.setScriptExecutionDisabled", value=False)
    added = browser.ask("Page.addScriptToEvaluateOnNewDocument", source=REFUSE_FIRST)["identifier"]
    browser.ask("Page.navigate", url=url)
    said = "document.getElementById('live')?.textContent"
    browser.until("the refusal is said", f"{said} === 'the server is out of reach; trying again'")
    browser.until("the page lives all the same", f"{said} === 'live'")
    require(True, "the page comes back behind a refusal")
    browser.ask("Page.removeScriptToEvaluateOnNewDocument", identifier=added)


def main():
    screenshot = sys.argv[2] if sys.argv[1:2] == ["--screenshot"] else None
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not program:
        print("skipped: there is no Chromium here; install one to look at the live page")
        return
    target = os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target"))
    server = subprocess.Popen(
        [os.path.join(target, "debug/examples/live_page"), "127.0.0.1:0"], stdout=subprocess.PIPE, text=True
    )
    try:
        url = server.stdout.readline().strip()
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
            browser = Browser(program, profile)
            try:
                look(browser, url, screenshot)
                come_back(browser, url)
            finally:
                browser.end()
    finally:
        server.kill()
        server.wait()
    print("the live page is as it should be")


main()
