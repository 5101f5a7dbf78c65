// Shows what the stream says, and obeys keys. The server makes and escapes all markup; nothing comes from elsewhere.
"use strict";
const main = document.querySelector("main");
const find = document.getElementById("find");
const state = document.getElementById("state");
const LOST_MS = 3000;
const query = new URLSearchParams(location.search);
let source = null, frozen = false, lost = 0, row = "";

// --- dark ---------------------------------------------------------------------------------------------------

const prefersDark = matchMedia("(prefers-color-scheme: dark)");
function chosen() { try { return localStorage.getItem("theme"); } catch { return null; } }
function paint() { document.documentElement.dataset.theme = chosen() || (prefersDark.matches ? "dark" : "light"); }
function turn() {
  const next = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  try { localStorage.setItem("theme", next); } catch { /* then it holds for now */ }
  document.documentElement.dataset.theme = next;
}
prefersDark.addEventListener("change", paint);
paint();

// --- the stream ---------------------------------------------------------------------------------------------

function open() {
  close();
  if (frozen || document.hidden) return;
  source = new EventSource("/events" + location.pathname + search());
  source.onmessage = (event) => { heard(); show(JSON.parse(event.data)); };
  source.onopen = heard;
  source.onerror = () => {
    if (source && source.readyState === EventSource.CLOSED) setTimeout(open, LOST_MS);
    lost = lost || setTimeout(() => { document.getElementById("lost").hidden = false; old(true); }, LOST_MS);
  };
}

function search() {
  const text = query.toString();
  return text && "?" + text;
}

function close() {
  if (source) source.close();
  source = null;
}

function heard() {
  clearTimeout(lost);
  lost = 0;
  document.getElementById("lost").hidden = true;
}

function old(is) { document.body.classList.toggle("old", is); }

function show(change) {
  if (change.order) {
    const known = [...main.children].map((one) => one.id);
    if (change.order.join() !== known.join()) main.replaceChildren();
  }
  if ("old" in change) old(change.old);
  for (const [name, [skeleton, cells]] of Object.entries(change.whole || {})) {
    const focus = document.activeElement && main.contains(document.activeElement) && document.activeElement.getAttribute("href");
    const section = document.getElementById(name) || added(name);
    section.innerHTML = skeleton;
    cells.forEach((html, i) => { document.getElementById(name + "." + i).innerHTML = html; });
    if (focus) section.querySelector(`a[href="${CSS.escape(focus)}"]`)?.focus({ preventScroll: true });
  }
  for (const [id, html] of Object.entries(change.cells || {})) {
    const cell = document.getElementById(id);
    if (cell) cell.innerHTML = html;
  }
  mark();
}

function added(name) {
  const section = document.createElement("section");
  section.id = name;
  main.append(section);
  return section;
}

document.addEventListener("visibilitychange", open);  // a hidden tab asks for nothing
addEventListener("pagehide", close);
addEventListener("pageshow", (event) => { if (event.persisted) open(); });

// --- keys ---------------------------------------------------------------------------------------------------

function rows() { return [...main.querySelectorAll("tr[data-open]")]; }

function mark() {
  for (const one of rows()) one.classList.toggle("here", one.dataset.open === row);
}

function move(by) {
  const all = rows();
  if (!all.length) return;
  const at = all.findIndex((one) => one.dataset.open === row);
  const next = all[Math.max(0, Math.min(all.length - 1, at < 0 ? (by > 0 ? 0 : all.length - 1) : at + by))];
  row = next.dataset.open;
  next.scrollIntoView({ block: "nearest" });
  mark();
}

function up() {
  const parts = location.pathname.split("/");
  location.assign(parts[1] === "shard" ? "/job/" + parts[2] : "/");
}

const KEYS = {
  "/": () => find.focus(),
  j: () => move(1),
  k: () => move(-1),
  Enter: () => row && location.assign(row),
  u: up,
  p: () => { frozen = !frozen; state.textContent = frozen ? "frozen: p goes on" : ""; open(); },
  d: turn,
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey) return;
  if (event.target === find) {
    if (event.key === "Escape" || event.key === "Enter") find.blur();
    return;
  }
  if (event.key === "Enter" && event.target.closest("a, summary")) return;
  const act = KEYS[event.key];
  if (act) { event.preventDefault(); act(); }
});

main.addEventListener("click", (event) => {
  const sort = event.target.closest("a[data-sort]");
  if (sort) {
    event.preventDefault();
    again("sort", query.get("sort") === sort.dataset.sort ? "" : sort.dataset.sort);
  } else if (!event.target.closest("a, summary, pre") && !String(getSelection())) {
    const line = event.target.closest("tr[data-open]");
    if (line) location.assign(line.dataset.open);
  }
});

function again(name, value) {
  if (value) query.set(name, value); else query.delete(name);
  history.replaceState(null, "", location.pathname + search());
  open();
}

let typed = 0;
find.value = query.get("find") || "";
find.addEventListener("input", () => { clearTimeout(typed); typed = setTimeout(() => again("find", find.value.trim()), 200); });

open();
