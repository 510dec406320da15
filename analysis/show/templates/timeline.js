// Draws the timeline from the columns in #timeline-data. Times are ns; x counts from the start of the chosen step.
(async () => {
  const $ = id => document.getElementById("timeline" + id);
  const root = $(""), canvas = $("-canvas"), pen = canvas.getContext("2d"), tip = $("-tip"), said = $("-said");
  const data = await page.unpack($("-data").textContent);
  const GUTTER = 118, AXIS = 26, HEAD = 20;
  const MS = 1e6;

  // --- tables: starts and ends in order of start --------------------------------------------------------------
  const unpack = t => { let at = 0; t.s = t.s.map(d => at += d); t.e = t.s.map((s, i) => s + t.d[i]); };
  for (const run of data.runs) for (const row of run.rows)
    for (const name of ["parts", "comm", "calls", "ranges", "host", "kernels", "critical"]) unpack(row[name]);
  const firstAfter = (a, x) => { let lo = 0, hi = a.length; while (lo < hi) { const m = (lo + hi) >> 1; if (a[m] <= x) lo = m + 1; else hi = m; } return lo; };
  // Returns the item at x; if several overlap, the one that began last.
  const at = (t, x) => { const last = firstAfter(t.s, x) - 1; for (let i = last; i >= 0 && i > last - 40; i--) if (t.e[i] > x) return i; return -1; };
  const text = (run, code) => code < 0 ? "unknown" : run.words[code];
  const ms = ns => (ns / MS).toFixed(Math.abs(ns) < 0.1 * MS ? 4 : Math.abs(ns) < 10 * MS ? 3 : 2) + " ms";
  const size = b => b < 0 ? "unknown size" : b >= 1e9 ? (b / 1e9).toFixed(2) + " GB" : b >= 1e6 ? (b / 1e6).toFixed(2) + " MB" : b >= 1e3 ? (b / 1e3).toFixed(2) + " kB" : b + " B";

  // --- state ---------------------------------------------------------------------------------------------------
  let index = Math.max(0, data.runs[0].steps.findIndex(s => s.step === data.step));
  let view = { a: 0, b: 1 }, lane = 0, picked = null, hovered = null, chosen = null;  // chosen: times of which sums are shown
  const origin = run => run.steps[index].start;
  const longest = () => Math.max(...data.runs.map(run => run.steps[index].end - run.steps[index].start));
  const count = data.runs.reduce((n, run) => n + run.rows.filter(row => row.shown).length + (run.density ? 1 : 0), 0);
  const tall = count <= 8 ? 86 : count <= 20 ? 44 : 22;
  const LANES = count <= 20 ? [["host", 0.02, 0.15], ["ranges", 0.16, 0.34], ["parts", 0.36, 0.70], ["comm", 0.73, 0.94]]
                            : [["parts", 0.06, 0.62], ["comm", 0.66, 0.94]];
  const NAMES = { host: "ranges on the CPU", ranges: "ranges on the device", parts: "where time goes", comm: "communication" };
  const places = [];  // every shown row with its distance from the top
  let height = 0;
  function layout() {
    places.length = height = 0;
    for (const run of data.runs) {
      run.top = height; height += HEAD;
      for (const row of run.rows) if (row.shown) { places.push({ run, row, top: height }); height += tall; }
      if (run.density) { places.push({ run, row: null, top: height }); height += tall; }
    }
    height += AXIS;
  }
  layout();

  // --- drawing -------------------------------------------------------------------------------------------------
  const stripes = (colour, dark) => {
    const tile = document.createElement("canvas"); tile.width = tile.height = 8;
    const p = tile.getContext("2d"); p.fillStyle = colour; p.fillRect(0, 0, 8, 8);
    p.strokeStyle = dark; p.lineWidth = 1.6; p.beginPath();
    for (const k of [-8, 0, 8]) { p.moveTo(k, 8); p.lineTo(k + 8, 0); } p.stroke();
    return pen.createPattern(tile, "repeat");
  };
  const fills = { parts: data.colours.slice(), comm: data.strip.slice() };
  const { part, exposed, hidden } = data.waits;
  fills.parts[part] = stripes(data.colours[part], "rgba(90,50,0,.55)");
  fills.comm[exposed] = stripes(data.strip[exposed], "rgba(90,50,0,.55)"); fills.comm[hidden] = stripes(data.strip[hidden], "rgba(150,100,20,.45)");
  const width = () => canvas.clientWidth;
  const x = t => GUTTER + (t - view.a) / (view.b - view.a) * (width() - GUTTER - 8);
  const time = px => view.a + (px - GUTTER) / (width() - GUTTER - 8) * (view.b - view.a);

  // Fills complete columns of pixels. If several intervals share a column, each gets its share of the height.
  function band(table, fill, shift, top, bottom) {
    const from = Math.max(0, firstAfter(table.e, view.a + shift) - 1), left = GUTTER, right = width() - 8;
    const sums = new Map(), high = bottom - top;
    const add = (column, code, share) => { if (column < left || column >= right || share <= 0) return; let s = sums.get(column); if (!s) sums.set(column, s = new Float32Array(fill.length)); s[code] += share; };
    for (let i = from; i < table.s.length && table.s[i] - shift < view.b; i++) {
      const a = Math.max(x(table.s[i] - shift), left), b = Math.min(x(table.e[i] - shift), right), code = table.c[i];
      if (b <= a) continue;
      const first = Math.ceil(a), last = Math.floor(b);
      if (last > first) { pen.fillStyle = fill[code]; pen.fillRect(first, top, last - first, high); }
      if (last < first) add(last, code, b - a);
      else { add(first - 1, code, first - a); add(last, code, b - last); }
    }
    for (const [column, s] of sums) {
      let y = bottom;
      for (let code = 0; code < s.length; code++) if (s[code] > 0) { const h = Math.min(1, s[code]) * high; pen.fillStyle = fill[code]; pen.fillRect(column, y - h, 1, h); y -= h; }
    }
  }
  function boxes(run, table, shift, top, bottom, face) {
    pen.font = "11px system-ui, sans-serif"; pen.textAlign = "center"; pen.textBaseline = "middle";
    for (let i = 0; i < table.s.length; i++) {
      const a = Math.max(x(table.s[i] - shift), GUTTER), b = Math.min(x(table.e[i] - shift), width() - 8);
      if (b - a < 0.5) continue;
      pen.fillStyle = face; pen.fillRect(a, top, b - a, bottom - top);
      pen.strokeStyle = page.colour("edge"); pen.lineWidth = 1; pen.strokeRect(a + .5, top + .5, Math.max(0, b - a - 1), bottom - top - 1);
      const name = text(run, table.n[i]);
      if (bottom - top >= 10 && b - a > pen.measureText(name).width + 6) { pen.fillStyle = page.colour("ink"); pen.fillText(name, (a + b) / 2, (top + bottom) / 2 + .5); }
    }
  }
  function kernels(run, table, shift, top, bottom) {
    const from = Math.max(0, firstAfter(table.s, view.a + shift) - 1);
    pen.font = "11px system-ui, sans-serif"; pen.textAlign = "left"; pen.textBaseline = "middle";
    for (let i = from, drawn = 0; i < table.s.length && table.s[i] - shift < view.b && drawn < 2000; i++) {
      const a = x(table.s[i] - shift), b = x(table.e[i] - shift);
      if (b - a < 12 || b < GUTTER) continue;
      drawn++; pen.strokeStyle = "rgba(255,255,255,.4)"; pen.lineWidth = 1;
      pen.strokeRect(Math.max(a, GUTTER) + .5, top + .5, b - Math.max(a, GUTTER) - 1, bottom - top - 1);
      const left = Math.max(a, GUTTER), room = Math.min(b, i + 1 < table.s.length ? x(table.s[i + 1] - shift) : b) - left - 3;  // a nested record has its own name
      if (room > 40) { pen.save(); pen.beginPath(); pen.rect(left, top, room, bottom - top); pen.clip(); pen.fillStyle = "#fff"; pen.fillText(text(run, table.n[i]), left + 4, (top + bottom) / 2); pen.restore(); }
    }
  }
  function joins(run, step) {
    const mine = places.filter(p => p.run === run && p.row), mark = step.mark, comm = LANES[LANES.length - 1];
    const wanted = new Set();
    if (mark) wanted.add(mark.call);
    const strongest = [picked, hovered].filter(p => p && p.lane === "comm" && p.place.run === run).map(p => p.place.row.calls.n[p.item]).filter(n => n >= 0);
    for (const call of strongest) wanted.add(call);
    if (mine.length <= 8) {
      const t = mine[0] && mine[0].row.calls; let seen = [];
      if (t) for (let i = 0; i < t.s.length; i++) if (t.e[i] - step.start > view.a && t.s[i] - step.start < view.b && t.n[i] >= 0) seen.push(t.n[i]);
      if (seen.length <= 60) for (const n of seen) wanted.add(n);
    }
    for (const call of wanted) {
      const strong = (mark && mark.call === call) || strongest.includes(call);
      pen.beginPath(); pen.strokeStyle = strong ? page.colour("ink") : page.dark ? "rgba(255,255,255,.4)" : "rgba(0,0,0,.4)"; pen.lineWidth = strong ? 1.8 : 0.8; let begun = false;
      for (const p of mine) {
        const i = p.row.calls.n.indexOf(call); if (i < 0) continue;
        const px = x(p.row.calls.s[i] - step.start);
        for (const f of [comm[1], comm[2]]) { if (begun) pen.lineTo(px, p.top + f * tall); else pen.moveTo(px, p.top + f * tall); begun = true; }
      }
      pen.stroke();
    }
  }
  function arrow(run, step) {
    const mark = step.mark; if (!mark || !mark.late) return;
    const p = places.find(q => q.run === run && q.row && q.row.rank === mark.rank); if (!p) return;
    const comm = LANES[LANES.length - 1], y = p.top + (comm[1] + comm[2]) / 2 * tall, a = x(mark.others - step.start), b = x(mark.start - step.start);
    pen.strokeStyle = pen.fillStyle = page.colour("bad"); pen.lineWidth = 2; pen.beginPath(); pen.moveTo(a, y); pen.lineTo(b, y); pen.stroke();
    for (const [px, d] of [[a, 6], [b, -6]]) { pen.beginPath(); pen.moveTo(px, y); pen.lineTo(px + d, y - 4); pen.lineTo(px + d, y + 4); pen.fill(); }
    const label = ms(mark.start - mark.others) + " late" + (mark.cause ? ": " + mark.cause : "");
    pen.font = "bold 12px system-ui, sans-serif"; const w = pen.measureText(label).width;
    const px = b - a > w + 30 ? (a + b - w) / 2 : b + w + 12 < width() ? b + 8 : a - w - 8;
    pen.fillStyle = page.colour("bg"); pen.fillRect(px - 3, y - 8, w + 6, 16);
    pen.fillStyle = page.colour("bad"); pen.textAlign = "left"; pen.textBaseline = "middle"; pen.fillText(label, px, y + .5);
  }
  function axis() {
    const y = height - AXIS, span = view.b - view.a, raw = span / Math.max(4, width() / 130), power = 10 ** Math.floor(Math.log10(raw));
    const gap = [1, 2, 5, 10].map(k => k * power).find(k => k >= raw);
    pen.strokeStyle = pen.fillStyle = page.colour("muted"); pen.font = "11px system-ui, sans-serif"; pen.textAlign = "center"; pen.textBaseline = "top"; pen.lineWidth = 1;
    for (let t = Math.ceil(view.a / gap) * gap; t <= view.b; t += gap) { const px = x(t); pen.beginPath(); pen.moveTo(px, y); pen.lineTo(px, y + 4); pen.stroke(); pen.fillText(+(t / MS).toFixed(Math.max(0, 6 - Math.floor(Math.log10(gap)))) + " ms", Math.min(px, width() - 26), y + 7); }
  }
  function draw() {
    const w = width();
    page.pen(canvas, height);
    places.forEach((p, n) => {
      const step = p.run.steps[index], late = p.row && step.mark && step.mark.late && step.mark.rank === p.row.rank;
      if (late) { pen.fillStyle = page.colour("late"); pen.fillRect(0, p.top, w, tall); }
      if (p.row) for (const [name, from, to] of LANES) {
        const top = Math.round(p.top + from * tall), bottom = Math.round(p.top + to * tall);
        if (name === "host" && !p.run.device) continue;  // on a CPU they are the same as the ranges
        if (name === "parts" || name === "comm") band(p.row[name], fills[name], step.start, top, bottom);
        else boxes(p.run, p.row[name], step.start, top, bottom, page.colour(name === "host" ? "bg" : "box"));
        if (name === "parts") kernels(p.run, p.row.kernels, step.start, top, bottom);
      } else density(p, step);
      if (p.row) critical(p, step);
      pen.font = (late ? "bold " : "") + (tall > 30 ? 13 : 11) + "px system-ui, sans-serif"; pen.textAlign = "right"; pen.textBaseline = "middle";
      pen.fillStyle = page.colour(late ? "bad" : "ink");
      pen.fillText(p.row ? "rank " + p.row.rank + (late ? " is late" : "") : p.run.density.ranks + " others", GUTTER - 8, p.top + tall * .5);
    });
    for (const run of data.runs) {
      if (data.runs.length > 1) { pen.fillStyle = page.colour("ink"); pen.font = "bold 13px system-ui, sans-serif"; pen.textAlign = "left"; pen.textBaseline = "middle"; pen.fillText(run.name, 4, run.top + HEAD / 2); }
      const step = run.steps[index];
      pen.save(); pen.beginPath(); pen.rect(GUTTER, 0, w - GUTTER, height); pen.clip(); joins(run, step); arrow(run, step); pen.restore();
    }
    if (chosen) { const a = Math.max(GUTTER, x(chosen[0])), b = Math.min(w - 8, x(chosen[1])); pen.fillStyle = "rgba(0,114,178,.18)"; pen.fillRect(a, 0, b - a, height - AXIS); pen.strokeStyle = page.colour("link"); pen.lineWidth = 1; pen.strokeRect(a + .5, .5, Math.max(1, b - a - 1), height - AXIS - 1); }
    axis(); outline(); overview();
  }
  // The complete step in small, with a frame around what is drawn above.
  function overview() {
    const small = $("-overview"), high = Math.max(18, Math.min(44, places.length * 5)), p = page.pen(small, high), w = small.clientWidth, whole = longest() * 1.005, all = places.filter(q => q.row), tallness = high / Math.max(1, all.length);
    const at = t => GUTTER + t / whole * (w - GUTTER - 8);
    all.forEach((q, n) => {
      const t = q.row.parts, shift = origin(q.run), columns = new Map();
      for (let i = Math.max(0, firstAfter(t.e, shift) - 1); i < t.s.length && t.s[i] - shift < whole; i++) {
        const a = Math.max(GUTTER, at(t.s[i] - shift)), b = at(t.e[i] - shift); if (b <= GUTTER) continue;
        if (b - a >= 1) { p.fillStyle = data.colours[t.c[i]]; p.fillRect(a, n * tallness, b - a, Math.max(1, tallness - 1)); continue; }
        const k = Math.floor(a), sum = columns.get(k) ?? {}; sum[t.c[i]] = (sum[t.c[i]] ?? 0) + b - a; columns.set(k, sum);  // of many short ones, the longest part
      }
      for (const [k, sum] of columns) { p.fillStyle = data.colours[Object.keys(sum).reduce((m, c) => sum[c] > sum[m] ? c : m)]; p.fillRect(k, n * tallness, 1, Math.max(1, tallness - 1)); }
    });
    p.strokeStyle = page.colour("link"); p.lineWidth = 2; p.strokeRect(Math.max(GUTTER, at(view.a)), 1, Math.max(3, at(Math.min(view.b, whole)) - Math.max(GUTTER, at(view.a))), high - 2);
  }
  // A line under the rank whose work decides the length of the step.
  function critical(p, step) {
    const t = p.row.critical, y = Math.round(p.top + .955 * tall), high = Math.max(2, Math.round(.035 * tall)), right = width() - 8;
    pen.fillStyle = page.colour("ink");
    for (let i = 0; i < t.s.length; i++) {
      const a = Math.max(GUTTER, x(t.s[i] - step.start)), b = Math.min(right, x(t.e[i] - step.start));
      if (b > GUTTER && a < right) pen.fillRect(a, y, Math.max(.5, b - a), high);
    }
  }
  function density(p, step) {
    const d = p.run.density.steps[index], n = d.shares.length, top = p.top + .06 * tall, high = .56 * tall;
    d.shares.forEach((s, k) => {
      const a = Math.max(GUTTER, Math.round(x(d.start - step.start + (d.end - d.start) * k / n))), b = Math.round(x(d.start - step.start + (d.end - d.start) * (k + 1) / n)); let y = top + high;
      if (b > a) s.forEach((share, code) => { const h = share / 1000 * high; pen.fillStyle = fills.parts[code]; pen.fillRect(a, y - h, b - a, h); y -= h; });
    });
  }
  function outline() {
    if (document.activeElement !== canvas && !picked) return;
    const p = places[Math.floor(lane / LANES.length)], l = LANES[lane % LANES.length];
    if (document.activeElement === canvas) { pen.strokeStyle = page.colour("link"); pen.lineWidth = 2; pen.setLineDash([4, 3]); pen.strokeRect(GUTTER - 2, p.top + l[1] * tall - 1, width() - GUTTER - 6, (l[2] - l[1]) * tall + 2); pen.setLineDash([]); }
    if (!picked) return;
    const t = tableOf(picked), lanePlace = LANES.find(k => k[0] === picked.lane), a = x(t.s[picked.item] - origin(picked.place.run)), b = x(t.e[picked.item] - origin(picked.place.run));
    pen.strokeStyle = page.colour("ink"); pen.lineWidth = 2.5; pen.strokeRect(Math.max(a, GUTTER), picked.place.top + lanePlace[1] * tall, Math.max(2, b - Math.max(a, GUTTER)), (lanePlace[2] - lanePlace[1]) * tall);
  }

  // --- the text about an item ---------------------------------------------------------------------------------------
  const tableOf = p => p.place.row[p.lane === "comm" ? "calls" : p.kernel ? "kernels" : p.lane];
  function partners(p) {  // the same collective on the other ranks, the last to arrive first
    const call = p.place.row.calls.n[p.item]; if (call < 0) return "";
    const found = p.place.run.rows.map(row => [row, row.calls.n.indexOf(call)]).filter(([, i]) => i >= 0).map(([row, i]) => [row.rank, row.calls.s[i]]).sort((a, b) => b[1] - a[1]);
    if (found.length < 2) return "";
    const first = found[found.length - 1][1], few = found.slice(0, 5).map(([rank, s]) => `rank ${rank} +${ms(s - first)}`);
    return `\narrivals after the first: ${few.join(", ")}${found.length > 5 ? `, ${found.length - 5} earlier ones` : ""}`;
  }
  function words(p) {
    const run = p.place.run, row = p.place.row, t = tableOf(p), i = p.item, begin = ms(t.s[i] - origin(run));
    const head = "rank " + row.rank + (data.runs.length > 1 ? " of " + run.name : "");
    if (p.lane === "comm") {
      const split = t.w[i] < 0 ? "wait and transfer unknown (no partner, or not split)" : "wait " + ms(t.w[i]) + ", transfer " + ms(t.d[i] - t.w[i]);
      const late = t.l[i] === null ? "" : t.l[i] > 0 ? ", arrived " + ms(t.l[i]) + " after the others" : ", arrived " + ms(-t.l[i]) + " before the others";
      return `${text(run, t.k[i])}, ${size(t.b[i])}, group ${text(run, t.g[i])}\n${head}, from ${begin}, ${ms(t.d[i])}: ${split}\nexposed ${ms(t.x[i])}${late}${partners(p)}`;
    }
    if (p.kernel) return `${text(run, t.n[i])}\n${head}, from ${begin}, ${ms(t.d[i])}`;
    if (p.lane === "parts") return `${data.parts[t.c[i]]}: ${ms(t.d[i])}\n${head}, from ${begin}`;
    return `${text(run, t.n[i])} (${p.lane === "host" ? "on the CPU" : "on the device"}): ${ms(t.d[i])}\n${head}, from ${begin}`;
  }
  function hit(px, py) {
    const place = places.find(p => py >= p.top && py < p.top + tall); if (!place || !place.row || px < GUTTER) return null;
    const f = (py - place.top) / tall, l = LANES.find(k => f >= k[1] - .02 && f <= k[2] + .02); if (!l) return null;
    const t = time(px) + origin(place.run);
    if (l[0] === "parts") { const k = at(place.row.kernels, t); if (k >= 0) return { place, lane: "parts", item: k, kernel: true }; }
    const item = at(place.row[l[0] === "comm" ? "calls" : l[0]], t);
    return item < 0 ? null : { place, lane: l[0], item };
  }

  // --- actions ---------------------------------------------------------------------------------------------------
  let waiting = false;
  const redraw = () => { if (!waiting) { waiting = true; requestAnimationFrame(() => { waiting = false; draw(); }); } };
  function show(a, b) {
    const span = Math.max(2000, Math.min(b - a, 20 * longest())); const middle = (a + b) / 2;
    view = { a: middle - span / 2, b: middle + span / 2 };
    root.dataset.from = view.a; root.dataset.to = view.b; redraw();
  }
  const whole = () => show(0, longest() * 1.005);
  const zoom = (factor, about) => { const c = about === undefined ? (view.a + view.b) / 2 : about; show(c - (c - view.a) * factor, c + (view.b - c) * factor); };
  const pan = share => show(view.a + share * (view.b - view.a), view.b + share * (view.b - view.a));
  function toStep(to) {
    index = Math.max(0, Math.min(data.runs[0].steps.length - 1, to)); picked = null; said.textContent = ""; choose(null); search(find.value);
    $("-step").value = data.runs[0].steps[index].step; root.dataset.step = data.runs[0].steps[index].step;
    $("-sentence").textContent = data.runs.map(run => (data.runs.length > 1 ? run.name + ": " : "") + run.steps[index].sentence).join("  ");
    numbers(); whole();
  }
  function numbers() {
    const body = $("-table").tBodies[0]; body.replaceChildren();
    for (const p of places) if (p.row && p.row.windows[index]) {
      const [a, b] = p.row.windows[index], t = p.row.parts, sums = new Array(data.parts.length).fill(0);
      for (let i = Math.max(0, firstAfter(t.s, a - 1)); i < t.s.length && t.s[i] < b; i++) sums[t.c[i]] += t.d[i];
      const tr = body.insertRow(), step = p.run.steps[index];
      if (step.mark && step.mark.late && step.mark.rank === p.row.rank) tr.className = "late";
      const th = document.createElement("th"); th.scope = "row"; th.className = "text"; th.textContent = (data.runs.length > 1 ? p.run.name + ", " : "") + p.row.rank; tr.append(th);
      const late = p.row.lateness[index];
      for (const v of [b - a, ...data.columns.map(c => sums[c]), late]) tr.insertCell().textContent = v === null ? "-" : (v / MS).toFixed(2);
    }
  }
  function pick(p, move) {
    picked = p; said.textContent = p ? words(p) : "";
    if (p && move) { const t = tableOf(p), a = t.s[p.item] - origin(p.place.run), b = t.e[p.item] - origin(p.place.run); if (b < view.a || a > view.b) { const half = (view.b - view.a) / 2; show((a + b) / 2 - half, (a + b) / 2 + half); } }
    redraw();
  }
  function neighbour(by) {
    const place = places[Math.floor(lane / LANES.length)], name = LANES[lane % LANES.length][0]; if (!place.row) return;
    const t = place.row[name === "comm" ? "calls" : name], shift = origin(place.run);
    let item = picked && picked.place === place && picked.lane === name && !picked.kernel ? picked.item + by : by > 0 ? firstAfter(t.s, view.a + shift - 1) : firstAfter(t.s, view.b + shift) - 1;
    if (item >= 0 && item < t.s.length) pick({ place, lane: name, item }, true);
  }
  function toPicked() { if (picked) { const t = tableOf(picked), a = t.s[picked.item] - origin(picked.place.run), d = Math.max(t.d[picked.item], 1000); show(a - d, a + 2 * d); } }
  function toMark() {
    const run = data.runs.find(r => r.steps[index].mark); if (!run) return;
    const mark = run.steps[index].mark, place = places.find(p => p.run === run && p.row && p.row.rank === mark.rank); if (!place) return;
    const item = place.row.calls.n.indexOf(mark.call); lane = places.indexOf(place) * LANES.length + LANES.length - 1;
    const a = mark.others - origin(run), b = mark.start - origin(run), pad = Math.max(b - a, 20000); show(a - pad, b + pad);
    if (item >= 0) pick({ place, lane: "comm", item });
  }
  function toLane(to) {
    lane = Math.max(0, Math.min(places.length * LANES.length - 1, to)); picked = null;
    const p = places[Math.floor(lane / LANES.length)]; said.textContent = (p.row ? "rank " + p.row.rank : "others") + ": " + NAMES[LANES[lane % LANES.length][0]]; redraw();
  }
//= timeline_tools.js
  const deeds = { sums: () => chosen ? choose(null) : choose(view.a, view.b), next: () => nextHit(1), in: () => zoom(.5), out: () => zoom(2), left: () => pan(-.25), right: () => pan(.25), all: whole, mark: toMark };
  const keys = { "+": () => zoom(.5), "=": () => zoom(.5), "-": () => zoom(2), "0": whole, Home: whole, ArrowLeft: () => pan(-.1), ArrowRight: () => pan(.1),
    ArrowUp: () => toLane(lane - 1), ArrowDown: () => toLane(lane + 1), n: () => neighbour(1), p: () => neighbour(-1), Enter: toPicked, Escape: () => pick(null), l: toMark,
    s: () => deeds.sums(), "[": () => toStep(index - 1), "]": () => toStep(index + 1), PageUp: () => toStep(index - 1), PageDown: () => toStep(index + 1) };
  canvas.addEventListener("keydown", e => { if (e.ctrlKey || e.metaKey || e.altKey || !keys[e.key]) return; e.preventDefault(); keys[e.key](); });
  canvas.addEventListener("focus", redraw); canvas.addEventListener("blur", redraw);
  for (const button of root.querySelectorAll("[data-do]")) button.addEventListener("click", () => deeds[button.dataset.do]());
  const find = $("-find");
  find.addEventListener("input", () => search(find.value));
  find.addEventListener("keydown", e => { if (e.key === "Enter") { e.preventDefault(); nextHit(e.shiftKey ? -1 : 1); } });
  $("-ranks").addEventListener("change", e => showRanks(e.target.value));
  let over = false; const moveTo = e => { const t = (e.offsetX - GUTTER) / ($("-overview").clientWidth - GUTTER - 8) * longest() * 1.005, half = (view.b - view.a) / 2; show(t - half, t + half); };
  $("-overview").addEventListener("pointerdown", e => { over = true; e.target.setPointerCapture(e.pointerId); moveTo(e); });
  $("-overview").addEventListener("pointermove", e => { if (over) moveTo(e); });
  for (const end of ["pointerup", "pointercancel"]) $("-overview").addEventListener(end, () => over = false);
  $("-step").addEventListener("change", e => toStep(data.runs[0].steps.findIndex(s => s.step === +e.target.value)));
  canvas.addEventListener("wheel", e => { if (!e.ctrlKey && !e.metaKey && document.activeElement !== canvas) return; e.preventDefault(); if (Math.abs(e.deltaX) > Math.abs(e.deltaY)) pan(e.deltaX / width()); else zoom(Math.exp(e.deltaY * .0015), time(e.offsetX)); }, { passive: false });
  canvas.addEventListener("dblclick", e => zoom(.4, time(e.offsetX)));
  let drag = null;
  canvas.addEventListener("pointerdown", e => { drag = { x: e.offsetX, a: view.a, b: view.b, moved: false, sums: e.shiftKey }; canvas.setPointerCapture(e.pointerId); });
  canvas.addEventListener("pointerup", e => { if (drag && !drag.moved) { const found = hit(e.offsetX, e.offsetY); pick(found); if (found) lane = places.indexOf(found.place) * LANES.length + LANES.findIndex(l => l[0] === found.lane); } drag = null; });
  canvas.addEventListener("pointercancel", () => drag = null);
  canvas.addEventListener("pointermove", e => {
    if (drag) { const moved = e.offsetX - drag.x; if (Math.abs(moved) > 3) drag.moved = true; if (drag.moved && drag.sums) { choose(time(drag.x), time(e.offsetX)); tip.hidden = true; return; } if (drag.moved) { const dt = moved / (width() - GUTTER - 8) * (drag.b - drag.a); show(drag.a - dt, drag.b - dt); tip.hidden = true; return; } }
    const found = hit(e.offsetX, e.offsetY); tip.hidden = !found;
    const before = hovered; hovered = found && found.lane === "comm" ? found : null;
    if ((hovered && hovered.item) !== (before && before.item) || (hovered && hovered.place) !== (before && before.place)) redraw();
    if (!found) return;
    tip.textContent = words(found);
    page.place(tip, root, canvas.offsetLeft + e.offsetX, canvas.offsetTop + e.offsetY);
  });
  canvas.addEventListener("pointerleave", () => { tip.hidden = true; hovered = null; redraw(); });
  new ResizeObserver(redraw).observe(canvas); page.onTheme.push(redraw);
  toStep(index); draw(); root.dataset.ready = "yes";
})();
