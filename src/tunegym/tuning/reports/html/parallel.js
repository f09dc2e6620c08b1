// Parallel coordinates: one line per measured trial through all its values. Drag on an axis to keep a part of it.

const AXIS = 104;
const LINES = 4000; // more of them only make a fog

function parallelSection(trials, open) {
  const reach = rewardReach(trials);
  const axes = [
    ...trials.parameters.map((one) => ({ title: one.name, has: (row) => one.has(row), place: (row) => one.place(row), text: (row) => one.text(row), scale: (pixels) => parameterScale(one, pixels), spread: one.list })),
    { title: trials.scoreTitle, has: () => true, place: (row) => trials.score(row), text: (row) => number(trials.score(row)), scale: (pixels) => reach.scale(pixels), spread: false },
  ];
  const kept = new Map(); // axis -> [from, to] in pixels
  const every = Math.ceil(trials.measuredRows.length / LINES);
  const order = trials.measuredRows.slice().sort((a, b) => trials.score(a) - trials.score(b)) // the best on top
    .filter((_, rank, all) => (all.length - 1 - rank) % every === 0 || rank >= all.length - LINES / 20);
  let scales = [];
  const at = (plot, index) => 34 + (index * (plot.width - 90)) / Math.max(1, axes.length - 1);
  const position = (index, row) => {
    const band = axes[index].spread ? Math.min(0.5 * scales[index].band, 26) * jitter(row) : 0;
    return scales[index].at(axes[index].place(row)) + band;
  };
  const inside = (row) => [...kept].every(([index, [from, to]]) => {
    const pixel = position(index, row);
    return pixel >= from && pixel <= to;
  });
  const farEnd = ({ context, width }, row) => {
    const far = scales[axes.length - 1].far(trials.score(row));
    context.fillStyle = colour("muted");
    context.globalAlpha = 0.8;
    if (far) farMark(context, at({ width }, axes.length - 1), position(axes.length - 1, row), far, 3.4);
  };
  const draw = (plot) => {
    const { context } = plot;
    const [top, bottom] = [34, plot.height - 14];
    scales = axes.map((axis) => axis.scale([bottom, top]));
    const [low, high] = [colour("low"), colour("high")];
    let shown = 0;
    context.lineWidth = order.length > 2000 ? 0.6 : 1.1;
    order.forEach((row, rank) => {
      const on = inside(row);
      if (on) shown += 1;
      context.globalAlpha = on ? Math.max(0.08, Math.min(0.8, 150 / order.length)) : 0.05;
      context.strokeStyle = mixed(low, high, order.length > 1 ? rank / (order.length - 1) : 1);
      context.beginPath();
      axes.forEach((axis, index) => {
        if (!axis.has(row)) return;
        context.lineTo(at(plot, index), position(index, row));
        if (on) plot.hit(at(plot, index), position(index, row), row);
      });
      context.stroke();
      if (on) farEnd(plot, row);
    });
    context.globalAlpha = 1;
    if (trials.bestRow !== undefined && trials.measured(trials.bestRow) && inside(trials.bestRow)) {
      context.strokeStyle = colour("best");
      context.lineWidth = 2.5;
      context.beginPath();
      axes.forEach((_, index) => context.lineTo(at(plot, index), position(index, trials.bestRow)));
      context.stroke();
    }
    axes.forEach((axis, index) => drawAxis(plot, axis, scales[index], at(plot, index), top, bottom, index));
    for (const [index, [from, to]] of kept) {
      context.fillStyle = colour("accent");
      context.globalAlpha = 0.25;
      context.fillRect(at(plot, index) - 7, from, 14, to - from);
      context.globalAlpha = 1;
    }
    const lines = every > 1 ? `${count(order.length)} of ${plural(trials.measuredRows.length, "trial")} are drawn, the best ones among them. ` : "";
    told.textContent = lines + (kept.size ? `${count(shown)} of ${plural(order.length, "line")} kept; double-click to keep all.` : "Drag on an axis to keep a part of it.");
    far.textContent = reach.told("measured trial");
  };
  const drawAxis = (plot, axis, scale, x, top, bottom, index) => {
    const { context } = plot;
    context.strokeStyle = colour("muted");
    context.lineWidth = 1;
    plot.line(x, top, x, bottom);
    context.textAlign = "left";
    context.textBaseline = "middle";
    context.lineWidth = 3;
    context.strokeStyle = colour("card");
    for (const tick of scale.ticks(axis.spread ? 14 : 6)) {
      const text = plot.fitted(tick.text, 66);
      context.strokeText(text, x + 6, tick.at);
      context.fillStyle = colour("muted");
      context.fillText(text, x + 6, tick.at);
    }
    context.textAlign = index === 0 ? "left" : "center";
    context.fillStyle = colour("text");
    context.fillText(plot.fitted(visible(axis.title), AXIS - 14), index === 0 ? 2 : x, 12);
  };
  const plot = new Plot({ height: 340, label: "Parallel coordinates of all measured trials", draw, tip: (row) => trials.tip(row), open, minWidth: 70 + axes.length * AXIS });
  const told = el("p", { class: "empty" });
  const far = el("p", { class: "told", role: "status" });
  const range = rangeChoice([reach], () => {
    kept.delete(axes.length - 1); // what was kept are other rewards now
    plot.redraw();
  });
  brushes(plot, axes, at, kept);
  return section("parallel", "Parallel coordinates", "One line per measured trial, from its values to its reward. The stronger its colour, the better; the best is drawn thick.",
    range ? el("div", { class: "bar-row" }, far, range) : null, el("div", { class: "scroll" }, plot.node), told);
}

function brushes(plot, axes, at, kept) {
  let grip = null;
  const pointer = (event) => {
    const area = plot.canvas.getBoundingClientRect();
    return [event.clientX - area.left, event.clientY - area.top];
  };
  plot.canvas.addEventListener("pointerdown", (event) => {
    const [x, y] = pointer(event);
    const index = axes.findIndex((_, one) => Math.abs(at(plot, one) - x) < 12);
    if (index >= 0) grip = { index, from: y };
  });
  plot.canvas.addEventListener("pointermove", (event) => {
    if (!grip) return;
    const [, y] = pointer(event);
    if (Math.abs(y - grip.from) < 4) return;
    plot.canvas.setPointerCapture(event.pointerId);
    plot.dragged = true;
    kept.set(grip.index, [Math.min(y, grip.from), Math.max(y, grip.from)]);
    plot.redraw();
  });
  for (const end of ["pointerup", "pointercancel"]) plot.canvas.addEventListener(end, () => { grip = null; });
  plot.canvas.addEventListener("dblclick", () => {
    kept.clear();
    plot.redraw();
  });
}

// Between two colours "r g b", as CSS.
function mixed(low, high, share) {
  const [a, b] = [low, high].map((one) => one.split(" ").map(Number));
  return `rgb(${a.map((value, index) => Math.round(value + (b[index] - value) * share)).join(" ")})`;
}
