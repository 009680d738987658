
"use strict";
(() => {
  const main = document.getElementById("figures");
  const live = document.getElementById("live");
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
  const events = new EventSource(main.dataset.events);
  events.onmessage = (event) => {
    const parsed = new DOMParser().parseFromString(JSON.parse(event.data).markup, "text/html");
    children(main, parsed.body);
    live.textContent = "live";
    live.className = "good";
  };
  events.onerror = () => {
    live.textContent = "the server is out of reach; trying again";
    live.className = "warn";
  };
})();
