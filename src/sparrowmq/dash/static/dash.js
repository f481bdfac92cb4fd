// Keeps a page fresh: hears of news by server-sent events, fetches the same URL again, and changes
// what is different, so that focus, scrolling and open findings stay. And the keyboard.
"use strict";

const body = document.body;
const PAUSE_MS = 350; // Between two fetches.
const SILENCE_MS = 25000; // The server says something every 10 s.

// Times in the reader's own zone.
const pageLanguage = document.documentElement.lang;
const language = navigator.language.slice(0, 2) === pageLanguage.slice(0, 2) ? navigator.language : pageLanguage;
function writeTimes(root) {
  for (const time of root.querySelectorAll("time[data-ms]")) {
    const at = new Date(Number(time.dataset.ms));
    const isToday = at.toDateString() === new Date().toDateString();
    time.textContent = isToday ? at.toLocaleTimeString(language) : at.toLocaleString(language);
    time.title = at.toISOString();
  }
}

// Makes `now` what `wanted` is, and touches only what differs.
function morph(now, wanted) {
  if (now.nodeType !== wanted.nodeType || now.nodeName !== wanted.nodeName) {
    now.replaceWith(wanted);
    return;
  }
  if (now.nodeType !== Node.ELEMENT_NODE) {
    if (now.nodeValue !== wanted.nodeValue) now.nodeValue = wanted.nodeValue;
    return;
  }
  // A finding that has become another kind is as the page would open it.
  if (now.nodeName === "DETAILS" && now.className !== wanted.className) now.open = wanted.open;
  const isEdited = now === document.activeElement && "value" in now;
  for (const { name } of [...now.attributes]) {
    // Whether a finding is open is the reader's, and so is the chosen row.
    if (!wanted.hasAttribute(name) && name !== "open" && name !== "data-chosen") now.removeAttribute(name);
  }
  for (const { name, value } of wanted.attributes) {
    if (name === "open" && now.nodeName === "DETAILS") continue;
    if (name === "value" && isEdited) continue;
    if (now.getAttribute(name) !== value) now.setAttribute(name, value);
  }
  if (!isEdited) morphChildren(now, wanted);
}

// An element with an id, such as a finding, stays the same wherever it goes; others become the next of
// their kind.
function morphChildren(now, wanted) {
  const theirs = [...wanted.childNodes];
  const named = new Map([...now.childNodes].filter((node) => node.id).map((node) => [node.id, node]));
  const others = [...now.childNodes].filter((node) => !node.id);
  let place = now.firstChild;
  for (const next of theirs) {
    const at = others.findIndex((node) => node.nodeName === next.nodeName);
    const ours = next.id ? named.get(next.id) : at < 0 ? null : others.splice(at, 1)[0];
    named.delete(next.id);
    if (ours && ours === place) place = place.nextSibling;
    else now.insertBefore(ours || next, place);
    if (ours) morph(ours, next);
  }
  while (place) {
    const after = place.nextSibling;
    place.remove();
    place = after;
  }
}

const lost = document.getElementById("lost");
function showLost(isLost) {
  lost.hidden = !isLost;
  lost.textContent = isLost ? body.dataset.lost : "";
}

let fetching = false, again = false;
async function refresh() {
  if (fetching) { again = true; return; }
  fetching = true;
  try {
    const signal = AbortSignal.timeout(SILENCE_MS);
    const response = await fetch(location.href, { headers: { "X-Live": "1" }, cache: "no-store", signal });
    if (response.status === 401) {
      location.href = body.dataset.root + "/login?next=" + encodeURIComponent(location.pathname + location.search);
      return;
    }
    const page = new DOMParser().parseFromString(await response.text(), "text/html");
    const fresh = page.getElementById("live");
    if (fresh) {
      writeTimes(fresh);
      const focused = document.activeElement;
      morph(document.getElementById("live"), fresh);
      // An element that went elsewhere has lost it.
      if (focused !== document.activeElement && focused.isConnected) focused.focus({ preventScroll: true });
    }
    showLost(!fresh);
  } catch {
    showLost(true);
  } finally {
    setTimeout(() => {
      fetching = false;
      if (again) { again = false; refresh(); }
    }, PAUSE_MS);
  }
}

let source = null, heard = 0;
function follow() {
  if (source || document.hidden || body.dataset.live !== "yes") return;
  source = new EventSource(body.dataset.events);
  heard = Date.now();
  source.addEventListener("open", () => { heard = Date.now(); if (!lost.hidden) refresh(); });
  source.addEventListener("beat", () => { heard = Date.now(); });
  source.addEventListener("news", () => { heard = Date.now(); refresh(); });
  source.addEventListener("over", refresh);
  source.addEventListener("error", () => {
    // A stream that was refused is not opened again by the browser.
    if (source && source.readyState === EventSource.CLOSED) leave();
    refresh();
  });
}
function leave() {
  if (source) source.close();
  source = null;
}
document.addEventListener("visibilitychange", () => { if (document.hidden) leave(); else { follow(); if (body.dataset.live === "yes") refresh(); } });
setInterval(() => {
  if (source && Date.now() - heard > SILENCE_MS) leave();
  if (!source && !document.hidden && body.dataset.live === "yes") { follow(); refresh(); }
}, 3000);

// A time without a zone is one of the reader's zone, as the times shown are.
document.addEventListener("submit", (event) => {
  for (const field of event.target.querySelectorAll("input[data-moment]")) {
    const [, date, clock] = /^(\d{4}-\d\d-\d\d)?[T ]?(\d\d:\d\d(?::\d\d)?)?$/.exec(field.value.trim()) || [];
    if (!date && !clock) continue;
    const minutes = -(date ? new Date(`${date}T${clock || "00:00"}`) : new Date()).getTimezoneOffset();
    if (Number.isNaN(minutes)) continue;
    const [hours, rest] = [Math.floor(Math.abs(minutes) / 60), Math.abs(minutes) % 60].map((n) => String(n).padStart(2, "0"));
    field.value = `${date ? `${date}T` : ""}${clock || "00:00"}${minutes < 0 ? "-" : "+"}${hours}:${rest}`;
  }
});

// The keyboard.
const PAGES = { o: "/", t: "/topics", m: "/messages", d: "/dead-letters", b: "/brokers", r: "/doctor", a: "/accounts", s: "/simulator", l: "/lab" };
let goes = 0;
function choose(step) {
  const rows = [...document.querySelectorAll('table[data-keys="yes"] tbody tr:not(.topic)')];
  if (!rows.length) return;
  const at = rows.findIndex((row) => "chosen" in row.dataset);
  const next = rows[Math.min(rows.length - 1, Math.max(0, at + step))];
  for (const row of rows) row.toggleAttribute("data-chosen", row === next);
  const link = next.querySelector("a");
  if (link) link.focus({ preventScroll: true });
  next.scrollIntoView({ block: "nearest" });
}
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const isTyping = /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.nodeName);
  if (event.key === "Escape" && isTyping) { event.target.blur(); return; }
  if (isTyping) return;
  if (Date.now() - goes < 1500 && PAGES[event.key]) {
    // A page that is not offered here would be an error.
    const wanted = body.dataset.root + PAGES[event.key];
    [...document.querySelectorAll("nav a")].find((link) => link.getAttribute("href") === wanted)?.click();
    return;
  }
  if (Date.now() - goes < 1500 && event.key === "c") { location.href = "/"; return; }
  goes = event.key === "g" ? Date.now() : 0;
  if (event.key === "/") {
    const search = document.querySelector('input[type="search"]');
    if (search) { event.preventDefault(); search.focus(); search.select(); }
  } else if (event.key === "j" || event.key === "k") {
    event.preventDefault();
    choose(event.key === "j" ? 1 : -1);
  }
});

writeTimes(document);
follow();
