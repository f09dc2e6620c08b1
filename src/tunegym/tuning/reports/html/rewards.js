// Reward over trials or time with the best so far, and intermediate values.

const PALETTE = ["c1", "c2", "c3", "c4", "c5", "c6"];

// Marks for trials without a measurement lie on a strip below the plot: they have no reward.
function strip(plot, trials, rows, x, y) {
  const many = rows.length > 500;
  plot.context.globalAlpha = many ? 0.35 : 1;
  for (const status of new Set(rows.map((row) => trials.status(row)))) {
    for (const row of rows) {
      if (trials.status(row) !== status) continue;
      const at = x(row);
      if (at === null) continue;
      statusMark(plot.context, status, at, y, many ? 2.4 : 3.2);
      plot.hit(at, y, row);
    }
  }
  plot.context.globalAlpha = 1;
}

function stripLine(plot, left, right, y) {
  plot.context.strokeStyle = colour("line");
  plot.context.setLineDash([2, 3]);
  plot.line(left, y - 10, right, y - 10);
  plot.context.setLineDash([]);
}

// Measured trials; contexts have colours and shapes where they are few, cached ones are hollow, far ones triangles.
function cloud(plot, trials, rows, x, y, value = (row) => trials.score(row)) {
  const { context } = plot;
  const many = rows.length > 3000;
  const size = many ? 1.5 : rows.length > 600 ? 2.4 : 3.4;
  context.globalAlpha = many ? 0.45 : rows.length > 600 ? 0.6 : 0.8;
  context.lineWidth = 1.2;
  for (const row of rows) {
    const [px, py, far] = [x(row), y.at(value(row)), y.far(value(row))];
    if (px === null) continue;
    const kind = trials.fewContexts ? trials.context[row] : 0;
    context.fillStyle = context.strokeStyle = colour(trials.fewContexts ? PALETTE[kind] : "accent");
    if (far) farMark(context, px, py, far, Math.max(size, 3));
    else if (many) context.fillRect(px - size, py - size, 2 * size, 2 * size);
    else if (trials.table.cached_from[row] !== null) mark(context, "ring", px, py, size - 0.6);
    else mark(context, trials.fewContexts ? SHAPES[kind] : "circle", px, py, size);
    plot.hit(px, py, row);
  }
  context.globalAlpha = 1;
}

function stars(plot, trials, x, y) {
  for (const row of trials.bestRows) {
    if (x(row) !== null && !y.far(trials.score(row))) plot.star(x(row), y.at(trials.score(row)));
  }
}

function cloudLegend(trials, extra = []) {
  const items = [...extra];
  if (trials.bestRows.length) items.push({ text: "best setting", shape: "star", colour: "best" });
  if (trials.fewContexts) trials.contexts.forEach((text, index) => items.push({ text, shape: SHAPES[index], colour: PALETTE[index] }));
  else if (trials.measuredRows.length) items.push({ text: "measured", shape: "circle", colour: "accent" });
  if (trials.measuredRows.length <= 3000 && trials.measuredRows.some((row) => trials.table.cached_from[row] !== null)) {
    items.push({ text: "cached", shape: "ring", colour: trials.fewContexts ? "muted" : "accent" });
  }
  for (const status of new Set(trials.otherRows.map((row) => trials.status(row)))) {
    items.push({ text: statusTitle(status), shape: STATUS_SHAPE[status] || "ring", colour: status });
  }
  return legend(items);
}

// Where the best so far rises: [x, reward] by the given order.
function bestSoFar(rows, x, reward) {
  const steps = [];
  for (const row of rows) {
    if (!steps.length || reward(row) > steps[steps.length - 1][1]) steps.push([x(row), reward(row)]);
  }
  return steps;
}

function drawSteps(plot, steps, end, x, y) {
  const { context } = plot;
  context.beginPath();
  steps.forEach(([at, value], index) => {
    if (index) context.lineTo(x.at(at), y.at(steps[index - 1][1]));
    context.lineTo(x.at(at), y.at(value));
  });
  if (steps.length) context.lineTo(x.at(end), y.at(steps[steps.length - 1][1]));
  context.stroke();
}

function rewardSection(trials, open) {
  if (!trials.measuredRows.length) return section("rewards", "Reward over trials", null, empty("Nothing was measured, so there is no reward to show."));
  let byTime = false;
  const reach = rewardReach(trials);
  const { table: columns } = trials;
  const timed = trials.rows.filter((row) => columns.closed_s[row] !== null);
  const draw = (plot) => {
    const unit = timeUnit(Math.max(1e-9, ...(trials.range(timed, (row) => columns.closed_s[row]) || [1])));
    const value = (row) => (byTime ? (columns.closed_s[row] === null ? null : columns.closed_s[row] / unit.size) : columns.number[row]);
    const marks = trials.otherRows.length > 0;
    const [top, bottom] = [20, plot.height - 36 - (marks ? 22 : 0)];
    const y = reach.scale([bottom, top]);
    const left = Math.ceil(plot.widest(y.ticks(8).map((tick) => tick.text))) + 12;
    const end = Math.max(...(trials.range(trials.rows, value) || [0, 1]));
    const x = linear(byTime ? [0, end * 1.02 || 1] : [1 - end * 0.01, end * 1.01 + 0.5], [left, plot.width - 8], !byTime);
    plot.axes({ left, top, right: plot.width - 8, bottom, x, y, xTitle: byTime ? `time (${unit.name})` : "trial", yTitle: trials.scoreTitle });
    const place = (row) => (value(row) === null ? null : x.at(value(row)));
    if (marks) {
      stripLine(plot, left, plot.width - 8, bottom + 18);
      strip(plot, trials, trials.otherRows, place, bottom + 18);
    }
    cloud(plot, trials, trials.measuredRows, place, y);
    plot.context.strokeStyle = colour("text");
    plot.context.lineWidth = 1.6;
    const order = byTime ? timed.slice().sort((a, b) => columns.closed_s[a] - columns.closed_s[b]) : trials.rows;
    drawSteps(plot, bestSoFar(order.filter((row) => trials.measured(row) && trials.phase(row) === "search"), value, (row) => trials.score(row)), end, x, y);
    stars(plot, trials, place, y);
    told.textContent = reach.told("measured trial");
  };
  const told = el("p", { class: "told", role: "status" });
  const plot = new Plot({ height: 320, label: "Reward over trials with the best so far", draw, tip: (row) => trials.tip(row), open });
  const items = [{ text: "best so far", line: true, colour: "text" }];
  return section("rewards", "Reward over trials", "Trials without a measurement have no reward: their marks are on the strip below.",
    el("div", { class: "bar-row" }, cloudLegend(trials, items), el("div", { class: "choices" },
      choice("horizontal axis", [["trial", "by trial"], ["time", "by time"]], (chosen) => {
        byTime = chosen === "time";
        plot.redraw();
      }), rangeChoice([reach], () => plot.redraw()))),
    plot.node, reach.stretched ? told : null);
}

function curveSection(trials, open) {
  const curves = trials.table.curves.slice().sort(([a], [b]) => (a === trials.bestRow) - (b === trials.bestRow)); // the best on top
  const draw = (plot) => {
    let [lowX, highX, low, high] = [Infinity, -Infinity, Infinity, -Infinity];
    for (const [, points] of curves) {
      for (const [step, value] of points) {
        lowX = Math.min(lowX, step);
        highX = Math.max(highX, step);
        low = Math.min(low, value);
        high = Math.max(high, value);
      }
    }
    const bottom = plot.height - 36;
    const y = linear(padded([low, high], 0.06), [bottom, 20]);
    const left = Math.ceil(plot.widest(y.ticks(8).map((tick) => tick.text))) + 12;
    const x = linear(padded([lowX, highX], 0.02), [left, plot.width - 8], true);
    plot.axes({ left, top: 20, right: plot.width - 8, bottom, x, y, xTitle: "step", yTitle: "reported value" });
    const { context } = plot;
    for (const [row, points] of curves) {
      const pruned = trials.status(row) === "pruned";
      const best = row === trials.bestRow;
      context.strokeStyle = colour(best ? "best" : trials.measured(row) ? "accent" : trials.status(row));
      context.globalAlpha = best ? 1 : curves.length > 100 ? 0.3 : 0.6;
      context.lineWidth = best ? 2.5 : 1.2;
      context.setLineDash(pruned ? [4, 3] : []);
      context.beginPath();
      for (const [step, value] of points) context.lineTo(x.at(step), y.at(value));
      context.stroke();
      context.setLineDash([]);
      const [step, value] = points[points.length - 1];
      if (!trials.measured(row)) statusMark(context, trials.status(row), x.at(step), y.at(value));
      else if (points.length === 1) mark(context, "circle", x.at(step), y.at(value), 2);
      for (const [one, reported] of points) plot.hit(x.at(one), y.at(reported), row);
    }
    context.globalAlpha = 1;
  };
  const plot = new Plot({ height: 280, label: "Intermediate values of trials", draw, tip: (row) => trials.tip(row), open });
  const items = [{ text: "measured", line: true, colour: "accent" }];
  if (curves.some(([row]) => trials.status(row) === "pruned")) items.push({ text: "pruned", line: true, dash: [4, 3], colour: "pruned" });
  if (curves.some(([row]) => row === trials.bestRow)) items.push({ text: "best", line: true, colour: "best" });
  return section("curves", "Intermediate values", "The values that trials reported while they ran. Pruned trials end where they were stopped.", legend(items), plot.node);
}
