"use strict";
// Zooms the timeline and filters lists. The page shows everything without it.
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  all("[data-needs-script]").forEach((one) => { one.hidden = false; });

  const chart = document.querySelector(".chart");
  const axes = chart ? all(".axis", chart) : [];
  if (axes.length) zoomable(chart, axes);

  function zoomable(region, groups) {
    const size = Number(groups[0].dataset.width), start = Number(groups[0].dataset.start), span = Number(groups[0].dataset.span);
    const most = Math.max(1, span / 0.01);
    let scale = 1, moved = 0;

    function steps(length) {
      const rough = length / 6, power = 10 ** Math.floor(Math.log10(rough));
      return [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough);
    }
    function text(x, y, words) {
      const made = document.createElementNS("http:" + "//www.w3.org/2000/svg", "text");
      made.setAttribute("x", x); made.setAttribute("y", y); made.setAttribute("class", "tick"); made.setAttribute("text-anchor", "middle");
      made.textContent = words;
      return made;
    }
    function draw() {
      scale = Math.min(Math.max(scale, 1), most);
      moved = Math.min(Math.max(moved, size - size * scale), 0);
      all(".zx", region).forEach((one) => one.setAttribute("transform", `matrix(${scale} 0 0 1 ${moved} 0)`));
      all(".zm", region).forEach((one) => {
        one.setAttribute("transform", `translate(${Number(one.dataset.x) * scale + moved} ${one.dataset.y})`);
        if (one.dataset.room) one.classList.toggle("off", Number(one.dataset.room) * scale < 7 * one.textContent.length + 4);
      });
      const from = start - moved / scale * span / size, length = span / scale, step = steps(length);
      const digits = Math.max(0, -Math.floor(Math.log10(step)));
      groups.forEach((axis) => {
        axis.replaceChildren();
        for (let at = Math.ceil(from / step) * step; at <= from + length; at += step) {
          const words = `${at.toFixed(digits)} s`, room = 3.5 * words.length;
          axis.append(text(Math.min(Math.max((at - from) / length * size, room), size - room), Number(axis.dataset.height) + 18, words));
        }
      });
    }
    function zoom(factor, x = size / 2) {
      const next = Math.min(Math.max(scale * factor, 1), most);
      moved = x - (x - moved) * next / scale;
      scale = next;
      draw();
    }
    const actions = {
      in: () => zoom(1.6), out: () => zoom(1 / 1.6), left: () => { moved += size / 4; draw(); }, right: () => { moved -= size / 4; draw(); },
      all: () => { scale = 1; moved = 0; draw(); },
    };
    const keys = { "+": "in", "=": "in", "-": "out", ArrowLeft: "left", ArrowRight: "right", "0": "all" };
    all("[data-zoom]").forEach((button) => button.addEventListener("click", actions[button.dataset.zoom]));
    region.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || !keys[event.key]) return;
      if (event.key.startsWith("Arrow") && scale === 1) return;
      event.preventDefault();
      actions[keys[event.key]]();
    });
    function place(event) {
      const box = region.querySelector(".clip").getBoundingClientRect(), whole = region.querySelector(".time").getBoundingClientRect();
      const unit = whole.width / region.querySelector(".time").viewBox.baseVal.width;
      return { x: (event.clientX - whole.left) / unit - (region.querySelector(".time").viewBox.baseVal.width - size - 10), unit, box };
    }
    region.addEventListener("wheel", (event) => {
      if (!event.ctrlKey) return;
      event.preventDefault();
      zoom(event.deltaY < 0 ? 1.25 : 0.8, place(event).x);
    }, { passive: false });
    let held = null, dragged = false;
    region.addEventListener("pointerdown", (event) => { if (scale > 1 && event.pointerType === "mouse") { held = event.clientX; dragged = false; } });
    window.addEventListener("pointerup", () => { held = null; });
    region.addEventListener("click", (event) => { if (dragged) event.preventDefault(); dragged = false; }, true);
    const cursor = document.getElementById("cursor");
    region.addEventListener("pointermove", (event) => {
      const { x, unit } = place(event);
      if (held !== null) {
        dragged = dragged || Math.abs(event.clientX - held) > 3;
        moved += (event.clientX - held) / unit; held = event.clientX; draw();
      }
      if (cursor && x >= 0 && x <= size) {
        const title = event.target.querySelector ? event.target.querySelector("title") : null;
        const at = start + (x - moved) / scale * span / size;
        cursor.textContent = `${at.toFixed(2)} s${title ? `: ${title.textContent}` : ""}`;
      }
    });
    region.addEventListener("dragstart", (event) => event.preventDefault());
    draw();
  }

  const flow = document.querySelector(".flowbox");
  if (flow) followable(flow);

  // The picture of the message flow: one event is current, and one message can be followed; the others are then faint.
  function followable(region) {
    const events = all(".event", region), drawings = all(".flow", region), width = drawings[0].viewBox.baseVal.width;
    const now = document.getElementById("flow-now"), choice = document.getElementById("flow-message");
    const said = (event) => event.querySelector("title").textContent;
    let current = -1, followed = "", scale = 1;

    [...new Set(events.map((event) => event.dataset.message))].filter(Boolean)
      .sort((one, other) => one.slice(1) - other.slice(1))
      .forEach((message) => choice.add(new Option(message, message)));

    function emphasise(message) {
      region.classList.toggle("following", message !== "");
      all("[data-message]", region).forEach((one) => one.classList.toggle("followed", one.dataset.message === message));
    }
    function follow(message) {
      followed = message; choice.value = message; emphasise(message);
    }
    function select(number) {
      if (events[current]) events[current].classList.remove("current");
      current = number;
      const event = events[number];
      now.textContent = event ? said(event) : "No event is selected.";
      if (event) event.classList.add("current");
    }
    function shift(from, to, least, most) {
      return from < least ? from - least : to > most ? Math.min(to - most, from - least) : 0;
    }
    function reveal() {
      const view = region.getBoundingClientRect(), row = events[current].querySelector(".band").getBoundingClientRect();
      const marks = all("line, text", events[current]).map((one) => one.getBoundingClientRect());
      // The names of the lanes cover the top of the region.
      region.scrollTop += shift(row.top, row.bottom, region.querySelector(".flowhead").getBoundingClientRect().bottom + 4, view.bottom - 20);
      region.scrollLeft += shift(Math.min(...marks.map((one) => one.left)) - 8, Math.max(...marks.map((one) => one.right)) + 8, view.left, view.right);
    }
    function step(way) {
      const fits = (event) => event && (followed === "" || event.dataset.message === followed);
      let next = current < 0 && way < 0 ? events.length - 1 : current + way;
      while (events[next] && !fits(events[next])) next += way;
      if (events[next]) { select(next); reveal(); }
    }
    function zoom(wanted, x = region.clientWidth / 2, y = region.clientHeight / 2) {
      const next = Math.min(Math.max(wanted, 0.25), 3), grown = next / scale, left = region.scrollLeft + x, top = region.scrollTop + y;
      scale = next;
      drawings.forEach((one) => {
        one.setAttribute("width", width * scale); one.setAttribute("height", one.viewBox.baseVal.height * scale);
      });
      region.scrollLeft = left * grown - x; region.scrollTop = top * grown - y;
    }
    const actions = {
      up: () => step(-1), down: () => step(1), first: () => { select(-1); step(1); }, last: () => { select(-1); step(-1); },
      pin: () => { const event = events[current]; if (event) follow(followed === event.dataset.message ? "" : event.dataset.message); },
      clear: () => { follow(""); select(-1); }, in: () => zoom(scale * 1.25), out: () => zoom(scale / 1.25), fit: () => zoom(region.clientWidth / width), all: () => zoom(1),
    };
    const keys = { ArrowUp: "up", ArrowDown: "down", Home: "first", End: "last", Enter: "pin", Escape: "clear", "+": "in", "=": "in", "-": "out", "0": "all" };
    all("[data-flow]").forEach((button) => button.addEventListener("click", actions[button.dataset.flow]));
    choice.addEventListener("change", () => { follow(choice.value); select(-1); if (choice.value) step(1); });
    region.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || !keys[event.key]) return;
      event.preventDefault();
      actions[keys[event.key]]();
    });
    region.addEventListener("wheel", (event) => {
      if (!event.ctrlKey) return;
      event.preventDefault();
      const box = region.getBoundingClientRect();
      zoom(event.deltaY < 0 ? scale * 1.1 : scale / 1.1, event.clientX - box.left, event.clientY - box.top);
    }, { passive: false });
    const under = (event) => events.indexOf(event.target.closest(".event"));
    region.addEventListener("pointerover", (event) => {
      const one = event.target.closest("[data-message]");
      if (event.pointerType !== "mouse" || !one) return;
      if (one.classList.contains("event")) now.textContent = said(one);
      if (!followed) emphasise(one.dataset.message);
    });
    region.addEventListener("pointerleave", () => {
      now.textContent = events[current] ? said(events[current]) : "No event is selected.";
      if (!followed) emphasise("");
    });
    region.addEventListener("click", (event) => {
      const number = under(event);
      if (number < 0) return;
      event.preventDefault();
      if (number === current) actions.pin(); else select(number);
    });
  }

  // A link to something folded opens it.
  function unfold() {
    const one = document.getElementById(window.location.hash.slice(1)), folded = one && one.closest("details");
    if (folded) { folded.open = true; one.scrollIntoView(); }
  }
  window.addEventListener("hashchange", unfold);
  unfold();

  const search = document.getElementById("search");
  if (search) {
    const items = all(".witness");
    search.addEventListener("input", () => {
      const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      items.forEach((item) => {
        const fits = words.every((word) => item.textContent.toLowerCase().includes(word));
        item.classList.toggle("filtered", !fits);
        if (fits) shown += 1;
      });
      document.getElementById("matches").textContent = words.length ? `${shown} of ${items.length} shown rows match` : "";
    });
  }

  const filter = document.getElementById("filter");
  if (filter) {
    filter.addEventListener("change", () => {
      all("[data-result]").forEach((one) => one.classList.toggle("filtered", filter.value !== "" && one.dataset.result !== filter.value));
    });
  }
})();
