
"use strict";
(() => {
  const main = document.getElementById("figures");
  const live = document.getElementById("live");
  // A sample comes each second. After so long without one, in milliseconds, the connection is given up for another.
  const silence = 10000;
  let events;
  let timer;
  // Takes over what differs, so that a selection and a scrolled table stay as they are.
  const follow = (old, now) => {
    if (old.nodeType !== now.nodeType || old.nodeName !== now.nodeName) {
      old.replaceWith(now.cloneNode(true));
      return;
    }
    if (old.nodeType === Node.TEXT_NODE) {
      if (old.data !== now.data) old.data = now.data;
      return;
    }
    for (const { name, value } of now.attributes) {
      if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    }
    children(old, now);
  };
  const children = (old, now) => {
    const [is, will] = [[...old.childNodes], [...now.childNodes]];
    will.forEach((node, at) => at < is.length ? follow(is[at], node) : old.append(node.cloneNode(true)));
    is.slice(will.length).forEach((node) => node.remove());
  };
  const report = (text, name) => {
    live.textContent = text;
    live.className = name;
  };
  const wait = () => {
    clearTimeout(timer);
    timer = setTimeout(connect, silence);
  };
  // A browser comes back by itself where the connection breaks, but neither behind a refusal, such as 429 or a proxy's
  // 502, nor where a machine is gone without a word: then the timer does.
  const connect = () => {
    events?.close();
    wait();
    events = new EventSource(main.dataset.events);
    events.onmessage = (event) => {
      wait();
      const parsed = new DOMParser().parseFromString(JSON.parse(event.data).markup, "text/html");
      children(main, parsed.body);
      report("live", "good");
    };
    events.onerror = () => report("the server is out of reach; trying again", "warn");
  };
  connect();
})();
