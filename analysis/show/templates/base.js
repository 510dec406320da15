"use strict";
// What every page shares: the theme, the contents, tables that sort, filter and copy, and packed data.
const page = {};
page.unpack = async text => {
  const packed = Uint8Array.from(atob(text), c => c.charCodeAt(0));
  return new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
};
page.colour = name => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
page.make = (tag, values = {}, ...children) => { const made = Object.assign(document.createElement(tag), values); made.append(...children); return made; };
page.onTheme = [];  // drawings that follow the theme

// --- theme: the system's, until the reader chooses --------------------------------------------------------------
(() => {
  const root = document.documentElement, system = matchMedia("(prefers-color-scheme: dark)");
  const stored = () => { try { return localStorage.getItem("rankscope-theme"); } catch { return null; } };
  const apply = () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : system.matches;
    root.toggleAttribute("data-dark", dark); page.dark = dark;
    for (const draw of page.onTheme) draw();
  };
  if (["dark", "light"].includes(stored())) root.dataset.theme = stored();
  page.toggleTheme = () => { root.dataset.theme = page.dark ? "light" : "dark"; try { localStorage.setItem("rankscope-theme", root.dataset.theme); } catch { /* a page opened from a file may not store */ } apply(); };
  system.addEventListener("change", apply);
  let before = null;  // paper is white
  addEventListener("beforeprint", () => { before = root.dataset.theme ?? ""; root.dataset.theme = "light"; for (const part of document.querySelectorAll("details.printed")) part.open = true; apply(); });
  addEventListener("afterprint", () => { if (before) root.dataset.theme = before; else delete root.dataset.theme; apply(); });
  apply();
})();

// --- contents at the side ---------------------------------------------------------------------------------------
(() => {
  const heads = [...document.querySelectorAll("main h2")], list = document.querySelector("nav.contents ul");
  if (!list) return;
  for (const head of heads) {
    head.id ||= head.textContent.trim().toLowerCase().replace(/[^a-z0-9]+/g, "-");
    list.append(page.make("li", {}, page.make("a", { href: "#" + head.id, textContent: head.textContent })));
  }
  const details = list.closest("details"); details.open = matchMedia("(min-width: 76rem)").matches;
  document.querySelector("nav.contents button").addEventListener("click", page.toggleTheme);
  const seen = new IntersectionObserver(() => {
    const current = heads.filter(head => head.getBoundingClientRect().top < innerHeight / 3).pop();
    for (const link of list.querySelectorAll("a")) { if (current && link.hash === "#" + current.id) link.setAttribute("aria-current", "true"); else link.removeAttribute("aria-current"); }
  }, { rootMargin: "0px 0px -66% 0px" });
  heads.forEach(head => seen.observe(head));
})();

// --- tables: sort by a column, keep rows with a word, copy as CSV -------------------------------------------------
(() => {
  const value = cell => { const text = cell ? cell.dataset.value ?? cell.textContent.trim() : ""; const number = parseFloat(text); return Number.isNaN(number) ? text : number; };
  const compare = (a, b) => typeof a === "number" && typeof b === "number" ? a - b : typeof a === "number" ? -1 : typeof b === "number" ? 1 : a.localeCompare(b);
  function sort(table, column, head) {
    const down = head.getAttribute("aria-sort") === "descending" ? false : head.getAttribute("aria-sort") === "ascending" ? true : !head.classList.contains("text");
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const rows = [...table.tBodies[0].rows].sort((a, b) => (down ? -1 : 1) * compare(value(a.cells[column]), value(b.cells[column])));
    table.tBodies[0].append(...rows);
  }
  const quoted = text => { const safe = /^[=+\-@\t\r]/.test(text) && Number.isNaN(Number(text)) ? "'" + text : text; return /[",\n]/.test(safe) ? '"' + safe.replaceAll('"', '""') + '"' : safe; };
  const shown = cell => cell.title || cell.textContent.trim();
  page.csv = table => [table.tHead.rows[0], ...[...table.tBodies[0].rows].filter(row => !row.hidden)].map(row => [...row.cells].map(cell => quoted(shown(cell))).join(",")).join("\n") + "\n";
  async function copy(text) {
    try { await navigator.clipboard.writeText(text); return true; } catch { /* not allowed for this page */ }
    const area = page.make("textarea", { value: text }); document.body.append(area); area.select();
    const done = document.execCommand("copy"); area.remove(); return done;
  }
  for (const table of document.querySelectorAll("table.data")) {
    const name = table.closest("[aria-label]")?.getAttribute("aria-label") ?? "table", tools = page.make("div", { className: "tools" });
    [...table.tHead.rows[0].cells].forEach((head, column) => {
      const button = page.make("button", { type: "button" }, ...head.childNodes); head.replaceChildren(button);
      button.addEventListener("click", () => sort(table, column, head));
    });
    if (table.tBodies[0].rows.length > 8) {
      const find = page.make("input", { type: "search", placeholder: "keep rows with ..." }); find.setAttribute("aria-label", `Keep rows of ${name} with`);
      find.addEventListener("input", () => { const wanted = find.value.toLowerCase(); for (const row of table.tBodies[0].rows) row.hidden = ![...row.cells].some(cell => shown(cell).toLowerCase().includes(wanted)); });
      tools.append(find);
    }
    const button = page.make("button", { type: "button", textContent: "Copy as CSV" }); button.setAttribute("aria-label", `Copy ${name} as CSV`);
    button.addEventListener("click", async () => { button.textContent = await copy(page.csv(table)) ? "Copied" : "The browser did not allow it"; setTimeout(() => button.textContent = "Copy as CSV", 1500); });
    tools.append(button); (table.closest(".scroll") ?? table).before(tools);
  }
})();

// --- drawing ----------------------------------------------------------------------------------------------------
page.pen = (canvas, height) => {  // sized for the screen's pixels, with the background of the theme
  const ratio = devicePixelRatio || 1, w = canvas.clientWidth, pen = canvas.getContext("2d");
  canvas.style.height = height + "px";
  if (canvas.width !== Math.round(w * ratio) || canvas.height !== Math.round(height * ratio)) { canvas.width = Math.round(w * ratio); canvas.height = Math.round(height * ratio); }
  pen.setTransform(ratio, 0, 0, ratio, 0, 0); pen.fillStyle = page.colour("bg"); pen.fillRect(0, 0, w, height);
  return pen;
};
page.ticks = (low, high, count) => {
  const raw = (high - low) / Math.max(1, count) || 1, power = 10 ** Math.floor(Math.log10(raw)), gap = [1, 2, 5, 10].map(k => k * power).find(k => k >= raw), found = [];
  for (let t = Math.ceil(low / gap - 1e-9) * gap; t <= high + gap * 1e-9; t += gap) found.push(+t.toPrecision(12));
  return found;
};
page.ms = value => value === null || value === undefined || Number.isNaN(value) ? "unknown" : value.toFixed(Math.abs(value) < 1 ? 3 : 2) + " ms";
page.place = (tip, box, x, y) => { tip.style.left = Math.max(4, Math.min(x + 14, box.clientWidth - tip.offsetWidth - 6)) + "px"; tip.style.top = y + 18 + "px"; };
