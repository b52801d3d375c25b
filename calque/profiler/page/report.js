"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const $ = (id) => document.getElementById(id);
  const canvas = $("rows"), curve = $("curve"), tip = $("tip"), details = $("details");
  const LEVEL = 20, GAP = 8, AXIS = 24, CURVE = 120;
  const end = Math.max(data.end, 1e-3);
  let from = 0, to = end, needle = "", selected = null, scheduled = false, gutter = 170;

  // ---------------------------------------------------------------------------------------------------------------- helpers
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const dark = () => matchMedia("(prefers-color-scheme: dark)").matches;
  function time(us, step) {
    const unit = Math.abs(us) >= 1e6 || step >= 1e6 ? [1e6, "s"] : Math.abs(us) >= 1e3 || step >= 1e3 ? [1e3, "ms"] : [1, "µs"];
    const digits = step ? Math.max(0, Math.ceil(-Math.log10(step / unit[0]) - 1e-9)) : 3;
    return (us / unit[0]).toFixed(Math.min(digits, 6)) + " " + unit[1];
  }
  function bytes(n) {
    for (const [unit, size] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]) if (n >= size) return (n / size).toFixed(2) + " " + unit;
    return n + " B";
  }
  function hue(text) {
    let h = 2166136261;
    for (let k = 0; k < text.length; k++) h = Math.imul(h ^ text.charCodeAt(k), 16777619);
    return (h >>> 0) % 360;
  }
  const fixed = { recording: 215, ranges: 160, compile: 28, copies: 300, loader: 190 };
  const colours = new Map();
  function colour(row, name) {
    const key = (dark() ? "d" : "l") + row.name + "|" + name;
    let found = colours.get(key);
    if (!found) {
      const quiet = row.name === "recording" && name.startsWith("Python");
      const idle = name.startsWith("wait") || name.startsWith("synchronize");
      const h = row.name in fixed ? fixed[row.name] : hue(name.replace(/[\[\]\d, x]+/g, ""));
      const s = idle ? 8 : quiet ? 25 : 55;
      found = dark() ? `hsl(${h} ${s}% ${idle ? 26 : quiet ? 30 : 38}%)` : `hsl(${h} ${s}% ${idle ? 88 : quiet ? 84 : 74}%)`;
      colours.set(key, found);
    }
    return found;
  }
  function sized(c, height) {
    const ratio = devicePixelRatio || 1, width = c.parentElement.clientWidth;
    c.style.height = height + "px";
    if (c.width !== Math.round(width * ratio) || c.height !== Math.round(height * ratio)) {
      c.width = Math.round(width * ratio);
      c.height = Math.round(height * ratio);
    }
    const g = c.getContext("2d");
    g.setTransform(ratio, 0, 0, ratio, 0, 0);
    g.clearRect(0, 0, width, height);
    g.textBaseline = "middle";
    return [g, width];
  }
  const narrow = () => canvas.parentElement.clientWidth < 620;
  const title = () => (narrow() ? 16 : 0); // on narrow screens a row's name stands above it
  let tops = [];
  function layout() {
    tops = [];
    let y = AXIS;
    for (const row of data.rows) {
      tops.push(y + title());
      y += row.levels * LEVEL + GAP + title();
    }
    return y;
  }
  const toX = (t, width) => gutter + ((t - from) / (to - from)) * (width - gutter);
  const toTime = (x) => from + ((x - gutter) / (canvas.clientWidth - gutter)) * (to - from);
  function ticks(width) {
    const wanted = ((to - from) / Math.max(1, width - gutter)) * 110;
    let step = 10 ** Math.floor(Math.log10(wanted));
    for (const m of [1, 2, 5, 10]) if (step * m >= wanted) { step *= m; break; }
    const found = [];
    for (let t = Math.ceil(from / step) * step; t <= to; t += step) found.push(t);
    return [found, step];
  }

  // ---------------------------------------------------------------------------------------------------------------- drawing
  function draw() {
    scheduled = false;
    gutter = narrow() ? 0 : 170;
    const height = layout();
    const [g, width] = sized(canvas, height);
    const text = css("--text"), faint = css("--faint"), font = getComputedStyle(document.body).fontFamily;
    const [marks, step] = ticks(width);
    g.font = "11.5px " + font;
    for (const t of marks) {
      const x = toX(t, width);
      g.fillStyle = css("--grid");
      g.fillRect(Math.round(x), AXIS - 6, 1, height - AXIS + 6);
      g.fillStyle = faint;
      const label = time(t, step), room = g.measureText(label).width;
      g.fillText(label, Math.max(gutter, Math.min(x + 3, width - room)), AXIS / 2);
    }
    data.rows.forEach((row, k) => {
      const top = tops[k];
      g.fillStyle = text;
      g.font = "12.5px " + font;
      if (gutter) {
        g.fillText(row.name, 0, top + LEVEL / 2 - (row.levels > 1 ? 0 : 4), gutter - 10);
        g.fillStyle = faint;
        g.font = "10.5px " + font;
        g.fillText(row.thread, 0, top + LEVEL / 2 + (row.levels > 1 ? 14 : 8), gutter - 10);
      } else {
        g.fillText(row.name + " · " + row.thread, 0, top - 8, width);
      }
      g.save();
      g.beginPath();
      g.rect(gutter, top, width - gutter, row.levels * LEVEL);
      g.clip();
      g.font = "11.5px " + font;
      const covered = new Array(row.levels).fill(-1); // last pixel drawn on each level: what is thinner than a pixel is drawn once
      for (const event of row.events) {
        const [start, length, name, level] = event;
        if (start > to || start + length < from) continue;
        const x0 = Math.max(gutter - 1, toX(start, width)), x1 = Math.min(width + 1, toX(start + length, width));
        if (x1 <= covered[level]) continue;
        const w = Math.max(1, x1 - x0), y = top + level * LEVEL;
        covered[level] = x0 + w;
        const label = data.names[name], lit = needle === "" || label.toLowerCase().includes(needle);
        g.globalAlpha = lit ? 1 : 0.18;
        g.fillStyle = colour(row, label);
        g.fillRect(x0, y + 1, w > 3 ? w - 0.5 : w, LEVEL - 2);
        if (event === selected) {
          g.strokeStyle = text;
          g.lineWidth = 2;
          g.strokeRect(x0 + 1, y + 2, Math.max(1, w - 2.5), LEVEL - 4);
        }
        if (w > 34) {
          g.fillStyle = text;
          g.save();
          g.beginPath();
          g.rect(x0, y, w - 4, LEVEL);
          g.clip();
          g.fillText(label, x0 + 5, y + LEVEL / 2 + 0.5);
          g.restore();
        }
        g.globalAlpha = 1;
      }
      g.restore();
    });
    if (!data.rows.length) {
      g.fillStyle = faint;
      g.fillText("nothing happened", gutter, AXIS + 10);
    }
    drawCurve(font);
    document.body.dataset.view = from.toFixed(3) + "," + to.toFixed(3);
  }
  function drawCurve(font) {
    const [g, width] = sized(curve, CURVE);
    const most = Math.max(1, ...data.memory.map((m) => m[1])), base = CURVE - 8, scale = (base - 26) / most;
    const at = (n) => base - n * scale;
    g.font = "12.5px " + font;
    g.fillStyle = css("--text");
    g.fillText("memory", 0, gutter ? base - (base - 26) / 2 : 10);
    g.save();
    g.beginPath();
    g.rect(gutter, 0, width - gutter, CURVE);
    g.clip();
    g.beginPath();
    let last = base;
    g.moveTo(toX(0, width), base);
    for (const [t, n] of data.memory) { // what was in use stays in use until the next sample
      const x = toX(t, width);
      g.lineTo(x, last);
      last = at(n);
      g.lineTo(x, last);
    }
    g.lineTo(toX(end, width), last);
    g.lineTo(toX(end, width), base);
    g.closePath();
    g.fillStyle = css("--area");
    g.globalAlpha = 0.55;
    g.fill();
    g.globalAlpha = 1;
    g.strokeStyle = css("--curve");
    g.lineWidth = 1.25;
    g.stroke();
    if (data.peak && data.peak[0] >= from && data.peak[0] <= to) {
      const x = toX(data.peak[0], width), y = at(data.peak[1]), label = "peak " + bytes(data.peak[1]);
      g.fillStyle = css("--peak");
      g.beginPath();
      g.arc(x, y, 4, 0, 7);
      g.fill();
      const room = g.measureText(label).width;
      g.fillText(label, Math.max(gutter + 2, Math.min(x + 8, width - room - 2)), Math.max(9, y - 12));
    }
    g.restore();
  }
  function redraw() {
    if (!scheduled) {
      scheduled = true;
      requestAnimationFrame(draw);
    }
  }

  // ---------------------------------------------------------------------------------------------------------------- moving
  function look(a, b) {
    const shortest = Math.min(1e-2, end), length = Math.min(Math.max(b - a, shortest), end);
    from = Math.min(Math.max(0, a), end - length);
    to = from + length;
    redraw();
  }
  function zoom(factor, centre) {
    const c = centre === undefined ? (from + to) / 2 : centre;
    look(c - (c - from) * factor, c - (c - from) * factor + (to - from) * factor);
  }
  function eventAt(x, y) {
    for (let k = 0; k < data.rows.length; k++) {
      const level = Math.floor((y - tops[k]) / LEVEL), row = data.rows[k];
      if (y < tops[k] || level >= row.levels || x < gutter) continue;
      const slack = (to - from) / Math.max(1, canvas.clientWidth - gutter), t = toTime(x);
      let found = null;
      for (const event of row.events) {
        if (event[3] === level && event[0] - slack <= t && t <= event[0] + event[1] + slack && (!found || event[1] < found[1])) found = event;
      }
      if (found) return [row, found];
    }
    return null;
  }
  function describe([row, event]) {
    const facts = data.facts[event[4]];
    return `${data.names[event[2]]}\n${row.name} · ${row.thread}\n${time(event[1])}, from ${time(event[0])}` + (facts ? "\n" + facts : "");
  }
  function showTip(text, e) {
    tip.textContent = text;
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    tip.style.left = Math.max(4, Math.min(e.clientX + 14, innerWidth - box.width - 4)) + "px";
    tip.style.top = (e.clientY + 18 + box.height > innerHeight ? Math.max(4, e.clientY - box.height - 10) : e.clientY + 18) + "px";
  }
  let drag = null;
  for (const c of [canvas, curve]) {
    c.addEventListener("pointerdown", (e) => {
      drag = { x: e.clientX, from, to, moved: false };
      c.setPointerCapture(e.pointerId);
    });
    c.addEventListener("pointermove", (e) => {
      if (drag) {
        const dx = e.clientX - drag.x;
        if (Math.abs(dx) > 3) drag.moved = true;
        if (drag.moved) {
          const shift = (dx / Math.max(1, c.clientWidth - gutter)) * (drag.to - drag.from);
          look(drag.from - shift, drag.to - shift);
          tip.hidden = true;
        }
        return;
      }
      const box = c.getBoundingClientRect(), x = e.clientX - box.left, y = e.clientY - box.top;
      if (c === canvas) {
        const found = eventAt(x, y);
        if (found) showTip(describe(found), e);
        else tip.hidden = true;
        c.style.cursor = found ? "pointer" : "grab";
      } else {
        const t = toTime(x);
        let n = 0;
        for (const sample of data.memory) {
          if (sample[0] > t) break;
          n = sample[1];
        }
        if (x >= gutter) showTip(`${bytes(n)} in use at ${time(t)}`, e);
        else tip.hidden = true;
      }
    });
    c.addEventListener("pointerup", (e) => {
      const clicked = drag && !drag.moved;
      drag = null;
      if (!clicked || c !== canvas) return;
      const box = c.getBoundingClientRect(), found = eventAt(e.clientX - box.left, e.clientY - box.top);
      selected = found ? found[1] : null;
      details.hidden = !found;
      if (found) details.textContent = describe(found);
      redraw();
    });
    c.addEventListener("pointercancel", () => { drag = null; });
    c.addEventListener("pointerleave", () => { tip.hidden = true; });
    c.addEventListener("wheel", (e) => {
      if (e.ctrlKey || e.metaKey) {
        e.preventDefault();
        zoom(Math.exp(Math.max(-60, Math.min(60, e.deltaY)) * 0.006), toTime(e.clientX - c.getBoundingClientRect().left));
      } else if (Math.abs(e.deltaX) > Math.abs(e.deltaY)) {
        e.preventDefault();
        const shift = (e.deltaX / Math.max(1, c.clientWidth - gutter)) * (to - from);
        look(from + shift, to + shift);
      }
    }, { passive: false });
  }
  canvas.addEventListener("dblclick", (e) => {
    const box = canvas.getBoundingClientRect(), found = eventAt(e.clientX - box.left, e.clientY - box.top);
    if (found) look(found[1][0] - found[1][1] * 0.1, found[1][0] + found[1][1] * 1.1);
  });
  addEventListener("keydown", (e) => {
    if (e.target.tagName === "INPUT" || e.ctrlKey || e.metaKey || e.altKey) return;
    const shift = (to - from) * 0.2;
    if (e.key === "w") zoom(0.7);
    else if (e.key === "s") zoom(1 / 0.7);
    else if (e.key === "a") look(from - shift, to - shift);
    else if (e.key === "d") look(from + shift, to + shift);
    else if (e.key === "f") look(0, end);
  });
  $("in").onclick = () => zoom(0.5);
  $("out").onclick = () => zoom(2);
  $("fit").onclick = () => look(0, end);
  $("find").oninput = (e) => { needle = e.target.value.trim().toLowerCase(); redraw(); };
  addEventListener("resize", redraw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  if (data.leftOut) document.querySelector(".hint").textContent += ` ${data.leftOut} short events are left out.`;
  draw();
})();
