// What the pages do in the browser themselves. Texts only ever become text nodes: nothing in them is read as markup.
"use strict";

const pageFunctions = {};

// Call a function once the element whose id is its first value is there.
function whenReady(name, values, tries = 300) {
  const element = document.getElementById(values[0]);
  if (element && pageFunctions[name]) pageFunctions[name](element, ...values.slice(1));
  else if (tries > 0) requestAnimationFrame(() => whenReady(name, values, tries - 1));
}
window.whenReady = whenReady;

function made(name, classes, text) {
  const element = document.createElement(name);
  if (classes) element.className = classes;
  if (text) element.textContent = text;
  return element;
}

// A waterfall: a tree of spans that the arrow keys walk through. What has the focus, or the mouse over it, is told in
// full beside it.
pageFunctions.waterfall = (box, bars, words) => {
  const list = made("div", "w-list");
  list.setAttribute("role", "tree");
  list.setAttribute("aria-label", words.label);
  const details = made("div", "w-details");
  details.setAttribute("role", "region");
  details.setAttribute("aria-label", words.details);
  const rows = bars.map((bar) => {
    const row = made("div", bar.error ? "w-row w-error" : "w-row");
    row.setAttribute("role", "treeitem");
    row.setAttribute("aria-level", bar.depth + 1);
    row.setAttribute("aria-label", [bar.name, bar.service, bar.time, ...bar.facts.map((fact) => fact[0]),
      bar.error && words.error + ": " + bar.error].filter(Boolean).join(", "));
    row.tabIndex = -1;
    const name = made("span", "w-name");
    name.style.paddingLeft = Math.min(bar.depth, 12) * 13 + "px";
    if (bar.error) name.append(made("span", "w-mark", "!"));
    name.append(made("b", "", bar.name), made("span", "w-service", bar.service));
    const lane = made("span", "w-lane");
    const filled = made("span", "w-bar");
    filled.style.left = bar.left * 100 + "%";
    filled.style.width = Math.max(bar.width * 100, 0.25) + "%";
    filled.dataset.service = bar.service;
    lane.append(filled);
    row.append(name, lane, made("span", "w-time", bar.time));
    return row;
  });
  let chosen = -1;
  const show = (index) => {
    if (index === chosen) return;
    if (chosen >= 0) rows[chosen].classList.remove("w-chosen"), rows[chosen].setAttribute("aria-selected", "false");
    chosen = index;
    const bar = bars[index];
    rows[index].classList.add("w-chosen");
    rows[index].setAttribute("aria-selected", "true");
    details.replaceChildren(made("h3", "d-h2", bar.name), made("p", "d-muted", `${bar.service} · ${bar.time} · +${bar.at}`));
    if (bar.error) details.append(made("p", "d-problem", bar.error));
    const facts = made("p", "w-facts");
    for (const [text, tone] of bar.facts) facts.append(made("span", "w-fact w-" + tone, text));
    const named = made("dl", "p-facts");
    for (const [key, value] of bar.details) {
      const pair = made("div");
      pair.append(made("dt", "", key), made("dd", "d-wrap d-mono", value));
      named.append(pair);
    }
    details.append(facts, named);
  };
  const go = (index) => {
    const at = Math.max(0, Math.min(rows.length - 1, index));
    rows.forEach((row) => { row.tabIndex = -1; });
    rows[at].tabIndex = 0;
    rows[at].focus();
    show(at);
  };
  list.addEventListener("keydown", (event) => {
    const at = rows.indexOf(document.activeElement);
    const parent = () => { for (let i = at - 1; i >= 0; i--) if (bars[i].depth < bars[at].depth) return i; return at; };
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: rows.length - 1, PageDown: at + 20, PageUp: at - 20,
      ArrowRight: at + 1, ArrowLeft: parent() }[event.key];
    if (at >= 0 && to !== undefined) { event.preventDefault(); go(to); }
  });
  list.addEventListener("pointerover", (event) => {
    const at = rows.indexOf(event.target.closest(".w-row"));
    if (at >= 0) show(at);
  });
  list.addEventListener("focusin", (event) => { const at = rows.indexOf(event.target); if (at >= 0) show(at); });
  list.addEventListener("click", (event) => { const at = rows.indexOf(event.target.closest(".w-row")); if (at >= 0) go(at); });
  list.append(...rows);
  box.replaceChildren(list, details);
  if (rows.length) { rows[0].tabIndex = 0; show(0); }
};

// A log: the newest lines, never more than `most` of them; it follows the end unless the reader has scrolled away.
pageFunctions.lines = (box, fresh, most, clear) => {
  const atEnd = box.scrollHeight - box.scrollTop - box.clientHeight < 40;
  if (clear) box.replaceChildren();
  const added = document.createDocumentFragment();
  for (const [level, source, text] of fresh.slice(-most)) {
    const line = made("div", "l-line l-" + level);
    if (source) line.append(made("span", "l-source", source));
    line.append(made("span", "l-text", text));
    added.append(line);
  }
  box.append(added);
  while (box.childElementCount > most) box.firstElementChild.remove();
  if (atEnd || clear) box.scrollTop = box.scrollHeight;
};

pageFunctions.toEnd = (box) => { box.scrollTop = box.scrollHeight; };

// Tells the server which of the cards in the box are on the screen: only those are looked at.
pageFunctions.watchCards = (box) => {
  if (box.cardWatcher) return;
  const seen = new Set();
  let waiting = 0;
  const tell = () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => emitEvent("cards_seen", document.hidden ? [] : [...seen]), 150);
  };
  const watcher = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (entry.isIntersecting) seen.add(entry.target.dataset.card); else seen.delete(entry.target.dataset.card);
    }
    tell();
  });
  const cards = () => {
    const there = [...box.querySelectorAll("[data-card]")];
    const names = new Set(there.map((card) => card.dataset.card));
    for (const name of [...seen]) if (!names.has(name)) seen.delete(name);
    there.forEach((card) => { if (!card.watched) { card.watched = true; watcher.observe(card); } });
    tell();
  };
  box.cardWatcher = new MutationObserver(cards);
  box.cardWatcher.observe(box, { childList: true });
  document.addEventListener("visibilitychange", tell);
  cards();
};

// Fields that say nothing stay out of the address that a form leads to.
document.addEventListener("formdata", (event) => {
  if (!event.target.classList.contains("p-form")) return;
  for (const [name, value] of [...event.formData]) if (value === "") event.formData.delete(name);
});

// Where a part of the page is made anew, what has the focus stays what has it, by its kind, its text and where it leads.
const sameAs = (element) => [element.tagName, element.getAttribute("href"), element.getAttribute("aria-label"),
  element.name, element.textContent.slice(0, 200)].join("\n");
let focused = null, focusedAs = "";
document.addEventListener("focusin", (event) => { focused = event.target; focusedAs = sameAs(focused); });
document.addEventListener("focusout", (event) => { if (event.target.isConnected && event.relatedTarget) focused = null; });
new MutationObserver(() => {
  if (!focused || focused.isConnected || document.activeElement !== document.body) return;
  const again = [...document.querySelectorAll("main " + focused.tagName)].find((other) => sameAs(other) === focusedAs);
  if (again) again.focus({ preventScroll: true });
}).observe(document.body, { childList: true, subtree: true });
