// Runs the script of the live page without a browser, over as much of a document as the script takes: what it shows of a
// sample, and where it asks for the next. check.py does the same in a real browser, where there is one.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import vm from "node:vm";

const file = new URL("../../watchcore-http/src/page/page.html", import.meta.url);
const script = readFileSync(file, "utf8").match(/<script>(.*)<\/script>/s)[1];

// A node of a document. It has no way from text to markup: a script that looks for one fails.
class Node {
  static TEXT_NODE = 3;
  constructor(nodeName, data) {
    Object.assign(this, { nodeName, nodeType: data === undefined ? 1 : 3, data, childNodes: [], named: new Map() });
  }
  get attributes() { return [...this.named].map(([name, value]) => ({ name, value })); }
  getAttribute(name) { return this.named.get(name) ?? null; }
  setAttribute(name, value) { this.named.set(name, String(value)); }
  remove() { this.parent.childNodes = this.parent.childNodes.filter((child) => child !== this); }
  replaceWith(node) {
    if (node.parent) node.remove();
    node.parent = this.parent;
    this.parent.childNodes = this.parent.childNodes.map((child) => (child === this ? node : child));
  }
  append(...nodes) {
    for (const node of nodes.map((node) => (typeof node === "string" ? new Node("#text", node) : node))) {
      if (node.parent) node.remove();
      node.parent = this;
      this.childNodes.push(node);
    }
  }
  get textContent() { return this.data ?? this.childNodes.map((child) => child.textContent).join(""); }
  set textContent(text) { this.childNodes = []; this.append(String(text)); }
  all(name) { return this.childNodes.flatMap((child) => [...(child.nodeName === name ? [child] : []), ...child.all(name)]); }
}

// The page at a path: what it shows, the streams that it opened, and the timers that wait.
const open = (pathname) => {
  const [main, live, streams, timers] = [new Node("main"), new Node("p"), [], new Map()];
  class EventSource {
    constructor(address) { streams.push(Object.assign(this, { address })); }
    close() { this.closed = true; }
  }
  vm.runInNewContext(script, {
    Node, EventSource, location: { pathname },
    document: { getElementById: (id) => ({ numbers: main, live })[id], createElement: (name) => new Node(name) },
    setTimeout: (run, after) => { const id = {}; timers.set(id, { run, after }); return id; },
    clearTimeout: (id) => timers.delete(id),
  });
  return { main, live, streams, timers, send: (sample) => streams.at(-1).onmessage({ data: JSON.stringify(sample) }) };
};

const name = "<script>alert('1')</script>&\u202e\u009b\n";
const watcher = (id, of) => ({ id, name, state: "Live", revision: 7, lag_events: 0, lag_seconds: 0, handed_out: 3, lagged: 1, last_poll_seconds: null, ...of });
const sample = (of) => ({
  server: { watches: 1234567, connections: 0, events: 999, bytes: 3 * 2 ** 40, refused: 1000 },
  caches: [{
    name, prefix: "/a/", state: "Stale", revision: 1235, oldest: 2, window_seconds: 7200, window_bytes: 209715200, objects: 0, bytes: 1023,
    events: 5, events_per_second: null, resyncs: 2, resyncs_by_reason: { compacted: 1, forced: 1 }, reconnects: 0, endpoint: "",
    last_error: "<b>", watchers: [watcher(1, { lag_events: 40, lag_seconds: 0.0001 }), watcher(2, { name: "", last_poll_seconds: 119 })], more_watchers: 3, ...of,
  }],
  resources: [{ name: "pods/v1", prefix: "/a/", requests: 17, frames_made: 1, frames_found: 2, left_out: 3 }],
  more_resources: 150,
});

const page = open("/");
page.send(sample({}));
const number = (wanted) => page.main.all("div").find((pair) => pair.childNodes[0].textContent === wanted)?.childNodes[1].textContent;
for (const [wanted, shown] of Object.entries({
  watches: "1,234,567", connections: undefined, "events sent": "999", "bytes sent": "3.0 TiB", "watches refused": "1,000",
  window: "1,234 revisions, 2 h, 200 MiB", memory: "1023 B", "events/s": "not known yet", resyncs: "2 · 1 compacted · 1 forced", source: undefined,
})) assert.equal(number(wanted), shown, wanted);
const rows = () => page.main.all("tr").map((row) => row.childNodes.map((cell) => cell.textContent));
const plain = "<script>alert('1')</script>&\ufffd\ufffd\ufffd";
assert.deepEqual(rows()[1], [`${plain} #1`, "Live", "40", "40", "1 ms", "7", "3", "never", "1"]);
assert.deepEqual(rows()[2], ["without a name #2", "Live", "0", "0", "0 s", "7", "3", "119 s ago", "1"]);
assert.deepEqual(rows()[4], ["pods/v1", "/a/", "17", "1", "2", "3"]);
assert.equal(page.main.all("meter")[0].getAttribute("max"), "1234");
assert.match(page.main.all("h2")[1].textContent, /^Cache <script>/);
assert.deepEqual(page.main.all("p").map((p) => p.textContent), ["last error: <b>", "and 3 more with no more lag", "and 150 more with no more requests"]);
assert.deepEqual([page.live.textContent, page.main.all("script").length], ["live", 0]);

// What is the same stays the same element, so that a selection stays; what differs follows, and what is gone goes.
const kept = page.main.all("tr")[1];
page.send(sample({ state: "Ready", watchers: [watcher(1, { last_poll_seconds: 200000 })], more_watchers: 0, events_per_second: 1.6, window_seconds: 120 }));
assert.deepEqual([page.main.all("tr")[1] === kept, rows()[1][7], rows()[1][2]], [true, "2 d ago", "0"]);
assert.deepEqual([number("events/s"), number("window")], ["2", "1,234 revisions, 2 min, 200 MiB"]);
assert.equal(page.main.all("span")[1].getAttribute("class"), "state good");
page.send(sample({ last_error: null }));
assert.deepEqual([rows().length, page.main.all("p").length], [5, 2]);
page.send(sample({ watchers: [], last_error: null }));
assert.equal(page.main.all("p")[0].textContent, "Nobody watches it.");

// A stream that fails or says nothing is given up for another, and one timer waits at a time.
page.streams[0].onerror();
assert.equal(page.live.textContent, "the server is out of reach; trying again");
const [waiting] = [...page.timers.values()];
assert.deepEqual([page.timers.size, waiting.after], [1, 10000]);
page.timers.clear();
waiting.run();
assert.deepEqual([page.streams.length, page.streams[0].closed, page.timers.size], [2, true, 1]);

for (const [path, events] of [["/", "/events"], ["/cache", "/cache/events"], ["/a/cache/", "/a/cache/events"], ["/a/b:c", "/a/b:c/events"], ["//evil.example", "//evil.example/events"]]) {
  const asked = new URL(open(path).streams[0].address, `http://server${path}`);
  assert.deepEqual([asked.host, asked.pathname], ["server", events], path);
}
console.log("the script of the live page shows what it should");
