// Ranks against steps. With many ranks the highest have rows that can be read; the others share the rest, each line
// with the highest value of the ranks that it stands for.
page.heat = data => {
  const root = document.getElementById("heat"); if (!root || !data) return;
  const canvas = root.querySelector("canvas"), tip = root.querySelector(".tip"), said = root.querySelector(".said"), choice = root.querySelector("[name=measure]"), order = root.querySelector("[name=order]");
  const LEFT = 74, RIGHT = 12, AXIS = 22, READ = 40, REST = 220;
  for (const [i, m] of data.measures.entries()) choice.append(page.make("option", { value: i, textContent: m.title }));
  let measure, rows, height, rest, high, low, cursor = null;
  const w = () => canvas.clientWidth, top = row => Math.max(...row.filter(v => v !== null), -Infinity);
  const mean = row => { const k = row.filter(v => v !== null); return k.length ? k.reduce((a, b) => a + b, 0) / k.length : -Infinity; };
  function layout() {
    measure = data.measures[+choice.value || 0];
    const by = measure.ms.map((row, i) => i), many = by.length > READ + 8;
    const value = order.value === "mean" ? mean : top, values = measure.ms.map(value);
    if (order.value !== "rank") by.sort((a, b) => values[b] - values[a]);
    const all = measure.ms.flat().filter(v => v !== null).sort((a, b) => a - b);
    high = all[Math.min(all.length - 1, Math.floor(all.length * .995))] ?? 1; low = measure.key === "step" || measure.key === "plain" ? all[0] ?? 0 : 0; if (high <= low) high = low + 1;
    const tall = by.length <= 12 ? 22 : by.length <= READ + 8 ? 15 : 13;
    rows = (many && order.value !== "rank" ? by.slice(0, READ) : many ? [] : by).map((row, i) => ({ row, y: i * tall, high: tall }));
    rest = many ? by.slice(rows.length) : []; rest.y = rows.length * tall + (rows.length ? 6 : 0); rest.high = rest.length ? Math.min(REST * (rows.length ? 1 : 2), rest.length) : 0;
    height = (rest.length ? rest.y + rest.high : rows.length * tall) + AXIS; draw();
  }
  const shade = v => { if (v === null) return page.colour("panel"); const s = Math.max(0, Math.min(1, (v - low) / (high - low))), from = page.dark ? [32, 35, 42] : [243, 243, 243], to = page.dark ? [255, 120, 60] : [176, 0, 32]; return `rgb(${from.map((f, i) => Math.round(f + (to[i] - f) * s)).join(",")})`; };
  const column = i => LEFT + i / measure.steps.length * (w() - LEFT - RIGHT);
  function draw() {
    const pen = page.pen(canvas, height), n = measure.steps.length; pen.font = "11px system-ui, sans-serif"; pen.textBaseline = "middle";
    const line = (values, y, tall) => { for (let i = 0; i < n; i++) { const a = Math.floor(column(i)), b = Math.floor(column(i + 1)); pen.fillStyle = shade(values[i]); pen.fillRect(a, y, Math.max(1, b - a - (b - a > 6 ? 1 : 0)), tall - (tall > 6 ? 1 : 0)); } };
    for (const r of rows) { line(measure.ms[r.row], r.y, r.high); pen.textAlign = "right"; pen.fillStyle = page.colour("ink"); pen.fillText("rank " + measure.ranks[r.row], LEFT - 6, r.y + r.high / 2); }
    if (rest.length) {
      for (let y = 0; y < rest.high; y++) { const part = rest.slice(Math.floor(y * rest.length / rest.high), Math.max(Math.floor(y * rest.length / rest.high) + 1, Math.floor((y + 1) * rest.length / rest.high))); line(measure.steps.map((_, i) => part.reduce((m, r) => measure.ms[r][i] !== null && (m === null || measure.ms[r][i] > m) ? measure.ms[r][i] : m, null)), rest.y + y, 1); }
      pen.textAlign = "right"; pen.fillStyle = page.colour("ink"); pen.fillText(rows.length ? rest.length + " others" : rest.length + " ranks", LEFT - 6, rest.y + rest.high / 2);
    }
    pen.textAlign = "center"; pen.textBaseline = "top"; pen.fillStyle = page.colour("muted"); const every = Math.max(1, Math.ceil(n / ((w() - LEFT) / 60)));
    for (let i = 0; i < n; i += every) pen.fillText(measure.steps[i] + (measure.judged && !measure.judged.includes(measure.steps[i]) ? "*" : ""), (column(i) + column(i + 1)) / 2, height - AXIS + 5);
    if (cursor) { pen.strokeStyle = page.colour("link"); pen.lineWidth = 2; pen.strokeRect(Math.floor(column(cursor.i)) + 1, cursor.y, Math.max(2, column(cursor.i + 1) - column(cursor.i) - 2), cursor.high); }
  }
  function find(px, py) {
    const i = Math.floor((px - LEFT) / (w() - LEFT - RIGHT) * measure.steps.length); if (i < 0 || i >= measure.steps.length) return null;
    const r = rows.find(k => py >= k.y && py < k.y + k.high); if (r) return { i, row: r.row, y: r.y, high: r.high };
    if (!rest.length || py < rest.y || py >= rest.y + rest.high) return null;
    const row = rest[Math.floor((py - rest.y) / rest.high * rest.length)]; return { i, row, y: py - 2, high: 4 };
  }
  const words = c => `rank ${measure.ranks[c.row]}, step ${measure.steps[c.i]}: ${measure.title.toLowerCase()} ${page.ms(measure.ms[c.row][c.i])}`;
  const choose = c => { if (!c) return; cursor = c; said.textContent = words(c); draw(); };
  canvas.addEventListener("pointermove", e => { const c = find(e.offsetX, e.offsetY); tip.hidden = !c; if (c) { tip.textContent = words(c); page.place(tip, root, canvas.offsetLeft + e.offsetX, canvas.offsetTop + e.offsetY); } });
  canvas.addEventListener("pointerleave", () => tip.hidden = true);
  canvas.addEventListener("click", e => { const c = find(e.offsetX, e.offsetY); choose(c); if (c && measure.traced && page.toRank) page.toRank(measure.ranks[c.row]); if (c && !measure.traced && page.showStep) page.showStep(measure.steps[c.i]); });
  const move = (dx, dy) => { const list = [...rows.map(r => r.row), ...rest], at = cursor ? list.indexOf(cursor.row) : 0, k = Math.max(0, Math.min(list.length - 1, at + dy)), i = Math.max(0, Math.min(measure.steps.length - 1, (cursor ? cursor.i : 0) + dx)); const r = rows.find(q => q.row === list[k]); choose(r ? { i, row: r.row, y: r.y, high: r.high } : { i, row: list[k], y: rest.y + (k - rows.length) / rest.length * rest.high - 2, high: 4 }); };
  const keys = { ArrowLeft: () => move(-1, 0), ArrowRight: () => move(1, 0), ArrowUp: () => move(0, -1), ArrowDown: () => move(0, 1) };
  canvas.addEventListener("keydown", e => { if (!keys[e.key] || e.ctrlKey || e.metaKey || e.altKey) return; e.preventDefault(); keys[e.key](); });
  for (const part of [choice, order]) part.addEventListener("change", () => { cursor = null; layout(); });
  page.onTheme.push(draw); layout(); new ResizeObserver(draw).observe(canvas); root.dataset.ready = "yes";
};
