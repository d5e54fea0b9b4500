/* What the pages do beyond HTML. Every act works without this file: it only makes them
   quicker. All handlers hang on `document`, so no swap can drop one. */

const $ = (selector, root = document) => root.querySelector(selector);
const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];
const plural = (n, noun) =>
  `${n.toLocaleString("en")} ${n === 1 ? noun : `${noun.replace(/(?<![aeiou])y$/, "ie")}s`}`;

/* ---- Notices --------------------------------------------------------------------- */

function element(tag, attributes = {}, ...children) {
  const node = Object.assign(document.createElement(tag), attributes);
  node.append(...children);
  return node;
}

function say(text) {
  const toast = element("div", { className: "toast" }, element("span", { textContent: text }));
  $("#toasts").append(toast);
  expire(toast);
}

/** Remove a toast after ten seconds, but not while it has the pointer or the focus. */
function expire(toast) {
  setTimeout(() => (toast.matches(":hover, :focus-within") ? expire(toast) : toast.remove()), 10_000);
}

const failed = { at: new Date(), retry: null };

function showFailure(text, requestId) {
  const asOf = failed.at.toLocaleTimeString("en-GB");
  const paragraph = element("p", { textContent: `${text} What you see is as of ${asOf}.` });
  if (requestId) paragraph.append(" Request ", element("code", { textContent: requestId }));
  const retry = element("button", { type: "button", className: "button", textContent: "Retry" });
  retry.dataset.retry = "";
  const alert = element("div", { className: "alert danger" }, paragraph, retry);
  alert.setAttribute("role", "alert");
  $("#alerts").replaceChildren(alert);
}

function clearFailure() {
  failed.at = new Date();
  $("#alerts")?.replaceChildren();
}

/* ---- Selection: a set of keys, not the state of boxes ----------------------------- */

const selection = {
  keys: new Set(),
  anchor: null,

  get form() { return $("form.selectable"); },
  get rows() { return $$("tbody tr[data-key]", this.form ?? document.body); },
  get everything() { return this.form && $("input[name=everything]", this.form); },
  get empty() { return !this.everything && this.keys.size === 0; },

  restore() {
    const entry = JSON.parse(sessionStorage.getItem("pw.selection") ?? "null");
    if ($("[data-clears-selection]")) sessionStorage.removeItem("pw.selection");
    if (!this.form) return;
    if (entry?.scope === this.form.dataset.scope) this.keys = new Set(entry.keys);
    else if (entry?.keys.length && entry.path === location.pathname) {
      say(`Selection of ${entry.keys.length} cleared: the filter changed.`);
    }
    this.show();
  },

  show() {
    if (!this.form) return;
    const boxes = this.rows.map((row) => $("input[name=ids]", row));
    const isSelected = (box) => Boolean(this.everything) || this.keys.has(box.value);
    for (const box of boxes) box.checked = isSelected(box);
    const checked = boxes.filter((box) => box.checked).length;
    const head = $("[data-all]", this.form);
    if (head) {
      head.checked = boxes.length > 0 && checked === boxes.length;
      head.indeterminate = checked > 0 && checked < boxes.length;
    }
    this.form.toggleAttribute("data-chosen", !this.empty);
    this.describe(checked);
    this.keep();
  },

  describe(onPage) {
    const label = $("[data-chosen-count]", this.form);
    if (!label || this.everything) return;
    const elsewhere = this.keys.size - onPage;
    const text = `${plural(this.keys.size, this.form.dataset.noun)} selected`;
    label.textContent = elsewhere > 0 ? `${text} · ${elsewhere} not on this page` : text;
  },

  keep() {
    const { scope } = this.form.dataset;
    const entry = { scope, path: location.pathname, keys: [...this.keys] };
    sessionStorage.setItem("pw.selection", JSON.stringify(entry));
  },

  /** Select or deselect one row, or all rows from the last one to it. */
  mark(row, on, ranged) {
    if (!this.form) return;
    if (this.everything) this.narrow();
    const { rows } = this;
    const here = rows.indexOf(row);
    const there = ranged ? rows.findIndex((other) => other.dataset.key === this.anchor) : here;
    const [low, high] = there < 0 ? [here, here] : [Math.min(here, there), Math.max(here, there)];
    for (const each of rows.slice(low, high + 1)) {
      if (on) this.keys.add(each.dataset.key);
      else this.keys.delete(each.dataset.key);
    }
    this.anchor = row.dataset.key;
    this.show();
  },

  /** Replace "everything that matches" by the visible rows once one is changed. */
  narrow() {
    this.everything.remove();
    this.keys = new Set(this.rows.map((row) => row.dataset.key));
  },

  markPage(on) {
    if (this.everything) this.narrow();
    for (const row of this.rows) {
      if (on) this.keys.add(row.dataset.key);
      else this.keys.delete(row.dataset.key);
    }
    this.show();
  },

  clear() {
    this.everything?.remove();
    this.keys.clear();
    this.show();
  },

  /** After a full refresh: deselect rows that are gone. */
  forget(keysBefore) {
    const here = new Set(this.rows.map((row) => row.dataset.key));
    const lost = keysBefore.filter((key) => this.keys.has(key) && !here.has(key));
    for (const key of lost) this.keys.delete(key);
    if (lost.length) say(`${plural(lost.length, `selected ${this.form.dataset.noun}`)} left this page.`);
  },
};

document.addEventListener("click", (event) => {
  const box = event.target.closest?.("form.selectable input[type=checkbox]");
  if (!box) return;
  if (box.matches("[data-all]")) selection.markPage(box.checked);
  else selection.mark(box.closest("tr"), box.checked, event.shiftKey);
});

// Submit selected rows of other pages, which have no check box here.
document.addEventListener("formdata", (event) => {
  if (!event.target.matches("form.selectable") || selection.everything) return;
  event.formData.delete("ids");
  for (const key of selection.keys) event.formData.append("ids", key);
});

/* ---- Live updates: poll, unless the person is using the list ----------------------- */

const live = {
  due: 0,
  stopped: false,
  whole: false,
  movedAt: 0,
  rowsBefore: [],

  get region() { return $("[data-live]"); },
  get every() { return Number(this.region?.dataset.live || 0) * 1000; },

  busy() {
    const field = document.activeElement?.matches("textarea, select, input:not([type=checkbox])");
    return this.stopped || !selection.empty || document.hidden || field || this.aimed()
      || Boolean($("dialog[open], details.menu[open]")) || !getSelection().isCollapsed;
  },

  /** Do not reorder a list while the pointer is over its rows. */
  aimed() {
    return Boolean($("[data-steady]:hover")) && Date.now() - this.movedAt < 3000;
  },

  tick() {
    if (!this.region) return;
    const paused = this.every === 0 || this.busy();
    this.announce(paused);
    if (paused || Date.now() < this.due) return;
    this.ask();
  },

  /** Request current rows; `whole` also inserts new ones, in order. */
  ask(whole = false) {
    this.due = Date.now() + Math.max(this.every, 1000);
    this.rowsBefore = selection.rows.map((row) => row.dataset.key);
    this.region?.dispatchEvent(new CustomEvent("pw:refresh", { detail: { whole } }));
  },

  announce(paused) {
    const button = $("[data-live-toggle]");
    if (!button) return;
    const text = paused ? "Updates paused" : `Live · ${this.every / 1000} s`;
    if (button.textContent !== text) button.textContent = text;
    button.setAttribute("aria-pressed", String(!paused));
  },

  /** Update cells in place and count new rows: no row moves under the pointer. */
  merge(fragment) {
    const rowsAfter = new Map($$("tr[data-key]", fragment).map((row) => [row.dataset.key, row]));
    const rowsHere = new Map(selection.rows.map((row) => [row.dataset.key, row]));
    for (const [key, row] of rowsHere) {
      if (rowsAfter.has(key)) this.mergeRow(row, rowsAfter.get(key));
    }
    for (const part of $$("[data-fresh][id]", fragment)) {
      $(`#${part.id}`)?.replaceChildren(...part.childNodes);
    }
    const arrivals = [...rowsAfter.keys()].filter((key) => !rowsHere.has(key)).length;
    const departures = [...rowsHere.keys()].filter((key) => !rowsAfter.has(key)).length;
    this.offer(arrivals, departures);
  },

  mergeRow(row, rowAfter) {
    [...row.cells].forEach((cell, at) => {
      const next = rowAfter.cells[at];
      const touched = cell.contains(document.activeElement) || $("input", cell);
      if (!touched && next && cell.innerHTML !== next.innerHTML) cell.replaceChildren(...next.childNodes);
    });
  },

  offer(arrivals, departures) {
    const button = $("[data-live-show]");
    if (!button) return;
    button.hidden = !arrivals && !departures;
    button.textContent = arrivals ? `${arrivals} new · Show` : `${departures} left the list · Show`;
  },
};

document.addEventListener("pointermove", () => { live.movedAt = Date.now(); });

document.addEventListener("visibilitychange", () => {
  if (!document.hidden) live.due = 0;
});

/* ---- What htmx brings back -------------------------------------------------------- */

document.addEventListener("htmx:before:swap", (event) => {
  const { ctx, tasks } = event.detail;
  const { raw, status, headers } = ctx.response;
  const source = ctx.sourceElement;
  if (raw.redirected && new URL(raw.url).pathname.startsWith("/sign-in")) {
    event.preventDefault();
    location.reload(); // signed out elsewhere: the server brings us back here after sign-in
  } else if (status >= 400 && status !== 422) {
    event.preventDefault();
    failed.retry = source;
    const what = status >= 500 ? "The server could not do this." : "This is not here any more.";
    showFailure(what, headers.get("X-Request-Id"));
  } else {
    clearFailure();
    if (source.matches("[data-list]")) mergeInstead(ctx, tasks);
  }
});

/** A poll of a list changes its cells; only a refresh by hand reloads the list. */
function mergeInstead(ctx, tasks) {
  const at = tasks.findIndex((task) => task.type === "main");
  live.whole = ctx.sourceEvent.detail?.whole || !selection.rows.length
    || !$("tr[data-key]", tasks[at].fragment);
  if (live.whole) return;
  const [main] = tasks.splice(at, 1);
  live.merge(main.fragment);
}

document.addEventListener("htmx:after:swap", () => {
  if (selection.form && live.whole) selection.forget(live.rowsBefore);
  revealScripted();
  selection.show();
  tellTimes();
});

/** Show the elements that need this script: at the start, and after every swap. */
function revealScripted() {
  for (const hidden of $$("[data-needs-script]")) hidden.hidden = false;
}

document.addEventListener("htmx:error", (event) => {
  if (!event.detail.ctx) return;
  failed.retry = event.detail.ctx.sourceElement;
  showFailure(navigator.onLine ? "The server does not answer." : "You are offline.");
});

function retry() {
  const source = failed.retry;
  clearFailure();
  if (source?.matches("form")) source.requestSubmit();
  else live.ask(true);
}

/* ---- Times, copying, preferences -------------------------------------------------- */

const UNITS = [["d", 86_400], ["h", 3600], ["m", 60]];

function relative(seconds) {
  const unit = UNITS.find(([, size]) => seconds >= size);
  return unit ? `${Math.floor(seconds / unit[1])}${unit[0]}` : "now";
}

const inWords = (age) => (age === "now" ? "just now" : `${age} ago`);

function tellTimes() {
  for (const time of $$("time[datetime]")) {
    const moment = new Date(time.dateTime);
    const utc = `${time.dateTime.slice(0, 19).replace("T", " ")} UTC`;
    const local = moment.toLocaleString("sv-SE", { timeZoneName: "short" });
    if (time.hasAttribute("data-relative")) {
      time.removeAttribute("title"); // the tip tells it, and to the keyboard, too
      time.dataset.absolute = `${utc}\n${local}`;
      time.tabIndex = 0;
      const age = relative((Date.now() - moment) / 1000);
      time.textContent = time.dataset.relative === "said" ? inWords(age) : age;
    } else {
      time.title = `${utc}\n${local}`;
      if (document.documentElement.dataset.times === "local") time.textContent = local;
    }
  }
}

/** The moment behind a relative time, shown while the pointer or the focus is on it. */
const tip = element("div", { id: "tip", className: "tip", hidden: true });
tip.setAttribute("role", "tooltip");
document.body.append(tip);

function showTip(time) {
  tip.textContent = time.dataset.absolute;
  tip.hidden = false;
  const box = time.getBoundingClientRect();
  const room = innerWidth - tip.offsetWidth - 4;
  tip.style.left = `${Math.max(4, Math.min(box.left, room))}px`;
  tip.style.top = `${box.top < tip.offsetHeight ? box.bottom : box.top - tip.offsetHeight}px`;
}

function followTip(event) {
  if (tip.contains(event.target)) return;
  const time = event.target.closest?.("time[data-absolute]");
  if (time) showTip(time);
  else tip.hidden = true;
}

document.addEventListener("pointerover", followTip);
document.addEventListener("focusin", followTip);
document.addEventListener("focusout", () => { tip.hidden = true; });
document.addEventListener("scroll", () => { tip.hidden = true; }, true);

/** Copies what `data-copy` holds as JSON, in which HTML changes no character. */
async function copy(button) {
  const { copy: json, copyFrom } = button.dataset;
  const text = json ? JSON.parse(json) : $(copyFrom).textContent;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    copyByHand(text); // plain http has no clipboard API
  }
  const label = button.textContent;
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = label; }, 1500);
}

function copyByHand(text) {
  const area = element("textarea", { value: text });
  const give = (event) => {
    event.clipboardData.setData("text/plain", text); // the area has other line ends
    event.preventDefault();
  };
  document.body.append(area);
  area.select();
  document.addEventListener("copy", give);
  document.execCommand("copy");
  document.removeEventListener("copy", give);
  area.remove();
}

/** Preferences are cookies that the server renders as data-* of <html>. */
function prefer(name, value) {
  document.documentElement.dataset[name] = value;
  const secure = location.protocol === "https:" ? "; secure" : "";
  document.cookie = `pw_${name}=${value}; path=/; max-age=31536000; samesite=lax${secure}`;
  for (const button of $$(`.segments button[name=${name}]`)) {
    button.setAttribute("aria-pressed", String(button.value === value));
  }
  if (name === "refresh" && live.region) live.region.dataset.live = value;
  if (name === "times") location.reload();
}

function nextTheme() {
  const buttons = $$(".segments button[name=theme]");
  const at = buttons.findIndex((button) => button.getAttribute("aria-pressed") === "true");
  prefer("theme", buttons[(at + 1) % buttons.length].value);
}

/* ---- Clicks, submits, keys -------------------------------------------------------- */

const PRESSES = {
  "[data-copy], [data-copy-from]": copy,
  "[data-live-toggle]": () => { live.stopped = !live.stopped; live.tick(); },
  "[data-live-show]": (button) => { button.hidden = true; live.ask(true); },
  "[data-refresh]": () => live.ask(true),
  "[data-retry]": retry,
  "[data-next-theme]": nextTheme,
  "[data-show-keys]": showKeys,
  "[data-close]": (button) => button.closest("dialog").close(),
  "[data-clear-selection]": () => selection.clear(),
};

document.addEventListener("click", (event) => {
  for (const menu of $$("details.menu[open]")) {
    if (!menu.contains(event.target)) menu.open = false;
  }
  for (const [selector, act] of Object.entries(PRESSES)) {
    const pressed = event.target.closest?.(selector);
    if (pressed) act(pressed);
  }
});

document.addEventListener("submit", (event) => {
  const { target: form, submitter } = event;
  if (form.matches("[data-preferences]") && submitter) {
    event.preventDefault();
    prefer(submitter.name, submitter.value);
  } else if (form.method === "post" && !form.matches("[hx-post]")) {
    if (form.dataset.sent) event.preventDefault(); // a double click is one decision
    form.dataset.sent = "yes";
  }
});

function closeMenu(menu) {
  const inside = menu.contains(document.activeElement);
  menu.open = false;
  if (inside) $("summary", menu).focus();
}

addEventListener("pageshow", () => {
  for (const form of $$("form[data-sent]")) delete form.dataset.sent;
  selection.show();
});

function showKeys() {
  const list = $("[data-keys-here]");
  const items = $$("[aria-keyshortcuts], [data-go]").filter((each) => each.checkVisibility?.() ?? true);
  const onPage = items.map((each) => {
    const key = each.ariaKeyShortcuts ?? each.getAttribute("aria-keyshortcuts") ?? `g ${each.dataset.go}`;
    const what = each.dataset.key ?? each.getAttribute("aria-label") ?? each.textContent.replace(/\s+\S$/, "");
    return [what.trim(), key];
  });
  const inRows = selection.rows.length ? ROW_KEYS_SAID : [];
  list.replaceChildren(...[...inRows, ...onPage].map(([what, key]) =>
    element("div", {}, element("span", { textContent: what }), element("kbd", { textContent: key }))));
  $("#keys").showModal();
}

let wentAt = 0;

function rowAt(step) {
  const { rows } = selection;
  const at = rows.findIndex((row) => row.contains(document.activeElement));
  return rows[at < 0 ? 0 : Math.min(Math.max(at + step, 0), rows.length - 1)];
}

const ROW_KEYS = {
  j: () => focusRow(rowAt(1)),
  k: () => focusRow(rowAt(-1)),
  x: () => toggleRow(rowAt(0)),
  "Shift+J": () => extendTo(1),
  "Shift+K": () => extendTo(-1),
};

const ROW_KEYS_SAID = [
  ["Next row, row before", "j k"],
  ["Open the row", "Enter"],
  ["Select the row", "x"],
  ["Select on, or back, to the next row", "Shift+J K"],
  ["With rows selected: requeue, drop", "r d"],
];

function focusRow(row) {
  $("td.what a", row)?.focus();
}

function toggleRow(row) {
  if (row) selection.mark(row, !selection.keys.has(row.dataset.key), false);
}

function extendTo(step) {
  const from = rowAt(0);
  const to = rowAt(step);
  selection.mark(from, true, false);
  selection.mark(to, true, true);
  focusRow(to);
}

function escape() {
  const menu = $("details.menu[open]");
  if (!tip.hidden) tip.hidden = true;
  else if (menu) closeMenu(menu);
  else if (!selection.empty) selection.clear();
}

document.addEventListener("keydown", (event) => {
  const typing = event.target.matches?.("input:not([type=checkbox]), textarea, select");
  if (event.key === "Escape" && !$("dialog[open]")) {
    if (typing) event.target.blur();
    else escape();
  }
  const off = document.documentElement.dataset.keys === "off";
  if (off || typing || event.ctrlKey || event.metaKey || event.altKey || $("dialog[open]")) return;
  const letter = /^[a-z]$/i.test(event.key);
  const key = letter && event.shiftKey ? `Shift+${event.key.toUpperCase()}` : event.key;
  if (press(key)) event.preventDefault();
});

/** Run the action of a key; every key except row keys has a visible button or link. */
function press(key) {
  const going = Date.now() - wentAt < 1200;
  wentAt = key === "g" ? Date.now() : 0;
  const target = going ? $(`[data-go="${CSS.escape(key)}"]`) : $(`[aria-keyshortcuts="${CSS.escape(key)}"]`);
  if (target) return follow(target);
  if (!ROW_KEYS[key] || !selection.rows.length) return false;
  ROW_KEYS[key]();
  return true;
}

function follow(target) {
  if (target.matches("[aria-disabled=true], :disabled")) return false;
  if (target.matches("input:not([type=checkbox])")) target.select();
  else target.click();
  return true;
}

/* ---- Start ------------------------------------------------------------------------ */

revealScripted();
live.due = Date.now() + live.every;
selection.restore();
tellTimes();
setInterval(() => live.tick(), 1000);
setInterval(tellTimes, 30_000);
live.tick();
