// A part of timeline.js, in the same function: uses its tables, its view and its drawing.
  // --- sums of a stretch of time, search, ranks ---------------------------------------------------------------------
  function choose(a, b) {
    const body = $("-sums"); chosen = a === null || a === b ? null : [Math.min(a, b), Math.max(a, b)]; body.hidden = !chosen; redraw();
    if (!chosen) return;
    const names = data.columns.map(c => data.parts[c]), lines = places.filter(p => p.row).map(p => {
      const t = p.row.parts, shift = origin(p.run), sums = new Array(data.parts.length).fill(0);
      for (let i = Math.max(0, firstAfter(t.e, chosen[0] + shift) - 1); i < t.s.length && t.s[i] - shift < chosen[1]; i++) sums[t.c[i]] += Math.max(0, Math.min(t.e[i] - shift, chosen[1]) - Math.max(t.s[i] - shift, chosen[0]));
      return `${data.runs.length > 1 ? p.run.name + ", " : ""}rank ${p.row.rank}: ` + data.columns.map((c, k) => [sums[c], names[k]]).filter(([v]) => v > 0).sort((u, v) => v[0] - u[0]).map(([v, name]) => `${name} ${ms(v)}`).join(", ");
    });
    body.textContent = `${ms(chosen[1] - chosen[0])} chosen, from ${ms(chosen[0])}\n` + lines.slice(0, 16).join("\n") + (lines.length > 16 ? `\n... and ${lines.length - 16} more ranks` : "");
  }
  let hits = [], hitAt = -1;
  function search(wanted) {
    hits = []; hitAt = -1; wanted = wanted.toLowerCase();
    if (wanted) for (const place of places) if (place.row) for (const [lane, name, kernel] of [["ranges", "ranges"], ["parts", "kernels", true], ["host", "host"], ["comm", "calls"]]) {
      const t = place.row[name], codes = name === "calls" ? t.k : t.n, shift = origin(place.run), good = place.run.words.map(word => word.toLowerCase().includes(wanted));
      if (lane === "host" && !place.run.device || !LANES.some(l => l[0] === lane)) continue;
      for (let item = 0; item < t.s.length; item++) if (good[codes[item]] && t.e[item] > shift && t.s[item] - shift < longest()) hits.push({ place, lane, item, kernel });
    }
    hits.sort((p, q) => tableOf(p).s[p.item] - origin(p.place.run) - tableOf(q).s[q.item] + origin(q.place.run));
    $("-found").textContent = wanted ? `${hits.length} found` : "";
  }
  function nextHit(by) {
    if (!hits.length) return;
    hitAt = (hitAt + by + hits.length) % hits.length; const p = hits[hitAt], t = tableOf(p), a = t.s[p.item] - origin(p.place.run), d = Math.max(t.d[p.item], 2000);
    if (view.b - view.a > 40 * d || a < view.a || a + d > view.b) show(a - 8 * d, a + 9 * d);
    pick(p); $("-found").textContent = `${hitAt + 1} of ${hits.length}`;
  }
  function showRanks(wanted) {  // "0, 3, 8-11"; empty: those that the page chose
    const found = new Set();
    for (const part of wanted.split(/[\s,]+/)) { const m = /^(\d+)(?:-(\d+))?$/.exec(part); if (m) for (let r = +m[1]; r <= Math.min(+(m[2] ?? m[1]), +m[1] + 4096); r++) found.add(r); }
    for (const run of data.runs) for (const row of run.rows) { row.usual ??= row.shown; row.shown = found.size ? found.has(row.rank) : row.usual; }
    if (!data.runs.some(run => run.rows.some(row => row.shown))) { for (const run of data.runs) for (const row of run.rows) row.shown = row.usual; said.textContent = "The page has no such rank."; }
    picked = hovered = null; lane = 0; layout(); numbers(); redraw();
  }
  const longestPart = (place, code) => { const t = place.row.parts, shift = origin(place.run); let best = -1; for (let i = 0; i < t.s.length; i++) if (t.c[i] === code && t.e[i] > shift && t.s[i] - shift < longest() && (best < 0 || t.d[i] > t.d[best])) best = i; return best; };
  function present(p) { lane = places.indexOf(p.place) * LANES.length + LANES.findIndex(l => l[0] === p.lane); const t = tableOf(p), a = t.s[p.item] - origin(p.place.run), d = Math.max(t.d[p.item], 2000); show(a - 2 * d, a + 3 * d); pick(p); }
  const focus = () => { root.scrollIntoView({ block: "center" }); canvas.focus({ preventScroll: true }); };
  page.toRank = rank => { const run = data.runs[0], row = run.rows.find(r => r.rank === rank); focus(); if (!row) { said.textContent = `The page has no timeline of rank ${rank}; rankscope timeline --ranks ${rank} draws it.`; return; } if (!row.shown) { row.shown = true; layout(); } lane = places.findIndex(p => p.row === row) * LANES.length; whole(); said.textContent = `rank ${rank}`; };
  page.toPart = (name, ranks) => {  // the latest rank, or the longest piece of a part on these ranks
    focus(); if (name === "late rank") { toMark(); return; }
    const codes = [data.keys.indexOf(name), data.keys.indexOf("communication")], those = places.filter(p => p.row && ranks.includes(p.row.rank)), all = those.length ? those : places.filter(p => p.row);
    for (const code of codes) { const found = all.map(place => ({ place, lane: "parts", item: longestPart(place, code) })).filter(p => p.item >= 0); if (found.length) { present(found.reduce((m, p) => tableOf(p).d[p.item] > tableOf(m).d[m.item] ? p : m)); return; } }
    said.textContent = "This step has none of it; rankscope timeline draws the other steps.";
  };
