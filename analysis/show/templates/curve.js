// The steps as curves: one line a rank, below it clocks and power. x is the position of a step in its list.
page.curves = data => {
  const root = document.getElementById("curve"); if (!root || !data.length) return;
  const canvas = root.querySelector("canvas"), tip = root.querySelector(".tip"), said = root.querySelector(".said"), zero = root.querySelector("input");
  const LINES = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#8A7F00", "#7A5FC0", "#4E8F4A", "#A05A2C", "#3FA7A0", "#C05080"];
  const LEFT = 62, RIGHT = 12, TOP = 14, HIGH = 210, GAUGE = 64, AXIS = 34;
  const rows = [];  // panels from top to bottom
  data.forEach((curve, run) => {
    rows.push({ run, curve, title: (data.length > 1 ? curve.name + ": " : "") + "step, ms", lines: curve.ms, ranks: curve.ranks, high: HIGH });
    for (const gauge of curve.gauges) rows.push({ run, curve, gauge, title: gauge.title, lines: gauge.values, ranks: gauge.ranks, high: GAUGE });
  });
  let top = TOP; for (const row of rows) { row.top = top; top += row.high + 26; }
  const height = top - 26 + AXIS;
  const longest = () => Math.max(...data.map(curve => curve.steps.length));
  let view = [0, longest() - 1], cursor = null, hidden = new Set(), chosen = null, drag = null;
  const w = () => canvas.clientWidth, x = i => LEFT + (i - view[0] + .5) / (view[1] - view[0] + 1) * (w() - LEFT - RIGHT);
  const index = px => Math.round((px - LEFT) / (w() - LEFT - RIGHT) * (view[1] - view[0] + 1) + view[0] - .5);
  const known = v => v !== null && v !== undefined;

  function bounds(row) {  // several runs share one axis, so that they can be compared
    const all = [], same = row.gauge ? [row] : rows.filter(other => !other.gauge); const take = line => { for (let i = Math.max(0, view[0]); i <= view[1] && i < line.length; i++) if (known(line[i])) all.push(line[i]); };
    for (const { lines, ranks, curve, gauge } of same) {
      lines.forEach((line, k) => { if (!hidden.has(ranks[k])) take(line); });
      if (!gauge && curve.range) { take(curve.range.low); take(curve.range.high); }
    }
    if (!all.length) return [0, 1];
    const low = all.reduce((a, b) => Math.min(a, b)), high = all.reduce((a, b) => Math.max(a, b)), pad = (high - low) * .06 || high * .05 || 1;
    return [!row.gauge && zero.checked ? 0 : Math.max(0, low - pad), high + pad];
  }
  function panel(pen, row) {
    const [low, high] = bounds(row), y = v => row.top + row.high - (v - low) / (high - low) * row.high; row.y = y;
    pen.font = "11px system-ui, sans-serif"; pen.textBaseline = "middle"; pen.textAlign = "right"; pen.lineWidth = 1;
    for (const t of page.ticks(low, high, row.gauge ? 3 : 5)) { pen.strokeStyle = page.colour("grid"); pen.beginPath(); pen.moveTo(LEFT, y(t)); pen.lineTo(w() - RIGHT, y(t)); pen.stroke(); pen.fillStyle = page.colour("muted"); pen.fillText(t, LEFT - 6, y(t)); }
    pen.textAlign = "left"; pen.fillStyle = page.colour("ink"); pen.fillText(row.title, LEFT + 2, row.top - 7);
    pen.save(); pen.beginPath(); pen.rect(LEFT, row.top - 2, w() - LEFT - RIGHT, row.high + 4); pen.clip();
    const { curve } = row, from = Math.max(0, view[0] - 1);
    if (!row.gauge && curve.counted) { pen.fillStyle = page.colour("panel"); const first = curve.steps.findIndex(s => s >= curve.counted[0]); if (first > 0) { pen.fillRect(LEFT, row.top, x(first - .5) - LEFT, row.high); pen.fillStyle = page.colour("muted"); if (x(first - .5) - LEFT > 52) pen.fillText("warm-up", Math.max(LEFT, x(0)) + 3, row.top + 8); } }
    if (!row.gauge && curve.range) {
      pen.fillStyle = page.dark ? "rgba(140,186,255,.22)" : "rgba(0,74,159,.15)"; pen.beginPath();
      const { low: lo, high: hi } = curve.range; hi.forEach((v, i) => pen.lineTo(x(i), y(v))); for (let i = lo.length - 1; i >= 0; i--) pen.lineTo(x(i), y(lo[i])); pen.fill();
    }
    row.lines.forEach((line, k) => {
      if (hidden.has(row.ranks[k])) return;
      pen.strokeStyle = LINES[k % LINES.length]; pen.lineWidth = chosen === row.ranks[k] ? 3 : 1.3; pen.beginPath(); let pause = true;
      for (let i = from; i < line.length && i <= view[1] + 1; i++) { if (!known(line[i])) { pause = true; continue; } if (pause) pen.moveTo(x(i), y(line[i])); else pen.lineTo(x(i), y(line[i])); pause = false; }
      pen.stroke();
      if (view[1] - view[0] < 60) { pen.fillStyle = LINES[k % LINES.length]; for (let i = Math.max(0, view[0]); i < line.length && i <= view[1]; i++) if (known(line[i])) { pen.beginPath(); pen.arc(x(i), y(line[i]), 2.2, 0, 7); pen.fill(); } }
    });
    if (!row.gauge) {
      pen.setLineDash([5, 4]); pen.lineWidth = 1;
      const beside = { p95: 0, mean: 90 };  // side by side: their lines may be close
      for (const [name, value] of Object.entries(curve.marks)) if (known(value) && name in beside) { pen.strokeStyle = page.colour("ink"); pen.beginPath(); pen.moveTo(LEFT, y(value)); pen.lineTo(w() - RIGHT, y(value)); pen.stroke(); pen.fillStyle = page.colour("ink"); pen.textAlign = "right"; pen.fillText(`${name} ${value.toFixed(2)}`, w() - RIGHT - 2 - beside[name], y(value) + (y(value) < row.top + 14 ? 8 : -7)); pen.textAlign = "left"; }
      pen.setLineDash([]); pen.fillStyle = page.colour("bad");
      for (const step of curve.slow) { const i = curve.steps.findLastIndex(s => s <= step); if (i < view[0] || i > view[1]) continue; pen.beginPath(); pen.moveTo(x(i), row.top + 9); pen.lineTo(x(i) - 5, row.top); pen.lineTo(x(i) + 5, row.top); pen.fill(); }
    }
    pen.restore();
  }
  function draw() {
    const pen = page.pen(canvas, height); rows.forEach(row => panel(pen, row));
    const curve = data[0], y = height - AXIS + 6;
    pen.textAlign = "center"; pen.textBaseline = "top"; pen.fillStyle = page.colour("muted");
    for (const t of page.ticks(view[0], view[1], w() / 110)) if (Number.isInteger(t) && known(curve.steps[t])) pen.fillText(curve.steps[t], x(t), y);
    pen.fillText(curve.grouped ? "step (each point: the longest of several steps)" : "step", LEFT + (w() - LEFT - RIGHT) / 2, y + 14);
    if (cursor !== null) { pen.strokeStyle = page.colour("ink"); pen.lineWidth = 1; pen.beginPath(); pen.moveTo(x(cursor), TOP); pen.lineTo(x(cursor), height - AXIS); pen.stroke(); }
    if (drag && drag.moved) { pen.fillStyle = "rgba(0,114,178,.2)"; pen.fillRect(Math.min(drag.x, drag.now), TOP, Math.abs(drag.now - drag.x), height - AXIS - TOP); }
    root.dataset.from = view[0]; root.dataset.to = view[1];
  }
  function words(i) {
    return rows.filter(row => known(row.curve.steps[i])).map(row => {
      const parts = row.ranks.map((rank, k) => [rank, row.lines[k][i]]).filter(([rank, v]) => known(v) && !hidden.has(rank)).sort((a, b) => b[1] - a[1]).slice(0, 8).map(([rank, v]) => `rank ${rank}: ${row.gauge ? v.toFixed(0) : v.toFixed(2)}`);
      const slow = !row.gauge && row.curve.slow.includes(row.curve.steps[i]) ? ", a slow step" : "", range = !row.gauge && row.curve.range ? `; all ${row.curve.all}: ${row.curve.range.low[i]} to ${row.curve.range.high[i]}` : "";
      return (row.gauge ? row.title : `${data.length > 1 ? row.curve.name + ", " : ""}step ${row.curve.steps[i]}${slow}, ms`) + "\n" + parts.join("   ") + range;
    }).join("\n");
  }
  const clamp = i => Math.max(view[0], Math.min(view[1], i));
  const show = (a, b) => { const last = longest() - 1; a = Math.max(0, Math.round(a)); b = Math.min(last, Math.round(b)); view = b - a < 3 ? [Math.max(0, a - 2), Math.min(last, b + 2)] : [a, b]; draw(); };
  page.showStep = step => { const i = data[0].steps.findLastIndex(s => s <= step); if (i >= 0) { cursor = i; show(i - 30, i + 30); said.textContent = words(i); } };
  const at = i => { cursor = clamp(i); said.textContent = words(cursor); draw(); };
  const keys = { ArrowLeft: () => at((cursor ?? view[0]) - 1), ArrowRight: () => at((cursor ?? view[0] - 1) + 1), Home: () => at(view[0]), End: () => at(view[1]), "+": () => { const c = cursor ?? (view[0] + view[1]) / 2, h = (view[1] - view[0]) / 4; show(c - h, c + h); }, "-": () => { const c = (view[0] + view[1]) / 2, h = view[1] - view[0]; show(c - h, c + h); }, "0": () => show(0, longest() - 1) };
  canvas.addEventListener("keydown", e => { if (e.ctrlKey || e.metaKey || e.altKey || !keys[e.key]) return; e.preventDefault(); keys[e.key](); });
  canvas.addEventListener("pointerdown", e => { drag = { x: e.offsetX, now: e.offsetX, moved: false }; canvas.setPointerCapture(e.pointerId); });
  canvas.addEventListener("pointermove", e => {
    if (drag) { drag.now = e.offsetX; drag.moved ||= Math.abs(drag.now - drag.x) > 4; if (drag.moved) { tip.hidden = true; draw(); return; } }
    const i = index(e.offsetX); if (i < view[0] || i > view[1]) { tip.hidden = true; return; }
    cursor = i; tip.textContent = words(i); tip.hidden = !tip.textContent; page.place(tip, root, canvas.offsetLeft + e.offsetX, canvas.offsetTop + Math.min(e.offsetY, 120)); draw();
  });
  canvas.addEventListener("pointerup", () => { if (drag && drag.moved) { const [a, b] = [index(Math.min(drag.x, drag.now)), index(Math.max(drag.x, drag.now))]; drag = null; show(a, b); } else { drag = null; if (cursor !== null) said.textContent = words(cursor); } });
  canvas.addEventListener("pointercancel", () => drag = null);
  canvas.addEventListener("pointerleave", () => { tip.hidden = true; if (document.activeElement !== canvas) { cursor = null; draw(); } });
  canvas.addEventListener("dblclick", () => show(0, longest() - 1));
  zero.addEventListener("change", draw);
  const legend = root.querySelector(".legend");
  [...new Set(data.flatMap(curve => curve.ranks))].forEach((rank, k) => {
    const button = page.make("button", { type: "button" }, page.make("span", { className: "swatch" }), `rank ${rank}`); button.firstChild.style.background = LINES[k % LINES.length]; button.setAttribute("aria-pressed", "true");
    button.addEventListener("click", () => { if (hidden.has(rank)) hidden.delete(rank); else hidden.add(rank); button.setAttribute("aria-pressed", String(!hidden.has(rank))); button.style.opacity = hidden.has(rank) ? .5 : 1; draw(); });
    button.addEventListener("pointerenter", () => { chosen = rank; draw(); }); button.addEventListener("pointerleave", () => { chosen = null; draw(); });
    legend.append(page.make("li", {}, button));
  });
  page.onTheme.push(draw); new ResizeObserver(draw).observe(canvas); draw(); root.dataset.ready = "yes";
};
