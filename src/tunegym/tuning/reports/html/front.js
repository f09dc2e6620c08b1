// The Pareto front: settings of which none is better than another in every respect.

function frontSection(experiment, trials, open) {
  const aims = experiment.objectives.filter((one) => one.weight > 0);
  const column = new Map(trials.table.metrics.map((one) => [one.name, one.values]));
  const settings = experiment.pareto;
  let [first, second] = aims;
  const value = (objective, row) => (column.get(objective.metric) || [])[row] ?? null;
  const axis = (objective, pixels) => {
    const found = trials.range(trials.measuredRows, (row) => value(objective, row)) || [0, 1];
    return linear(padded(found, 0.06), pixels);
  };
  const title = (objective) => `${visible(objective.metric)} (${objective.goal === "max" ? "more" : "less"} is better)`;
  const draw = (plot) => {
    const { context } = plot;
    const [top, bottom, right] = [20, plot.height - 36, plot.width - 8];
    const y = axis(second, [bottom, top]);
    const left = Math.ceil(plot.widest(y.ticks(8).map((tick) => tick.text))) + 12;
    const x = axis(first, [left, right]);
    plot.axes({ left, top, right, bottom, x, y, xTitle: title(first), yTitle: title(second) });
    limits(plot, first, second, x, y, { left, top, right, bottom });
    const rows = trials.measuredRows.filter((row) => value(first, row) !== null && value(second, row) !== null);
    context.globalAlpha = rows.length > 600 ? 0.3 : 0.5;
    context.fillStyle = colour("muted");
    for (const row of rows) {
      const [px, py] = [x.at(value(first, row)), y.at(value(second, row))];
      mark(context, "circle", px, py, rows.length > 600 ? 1.8 : 2.6);
      plot.hit(px, py, row);
    }
    context.globalAlpha = 1;
    const points = settings.map((one) => [one.metrics[first.metric], one.metrics[second.metric], trials.rowOf.get(one.trial)]).sort((a, b) => a[0] - b[0]);
    context.strokeStyle = context.fillStyle = colour("accent");
    context.lineWidth = 1.6;
    if (aims.length === 2) staircase(context, points, x, y, second);
    for (const [a, b, row] of points) {
      mark(context, "diamond", x.at(a), y.at(b), 4.2);
      if (row !== undefined) plot.hit(x.at(a), y.at(b), row);
    }
    const best = experiment.best;
    if (best) plot.star(x.at(best.metrics[first.metric]), y.at(best.metrics[second.metric]));
  };
  const plot = new Plot({ height: 320, label: "Pareto front", draw, tip: (row) => frontTip(trials, aims, column, row), open });
  const names = aims.map((one) => [one.metric, visible(one.metric)]);
  const pick = (name) => aims.find((one) => one.metric === name);
  const selects = aims.length > 2 ? el("div", { class: "bar-row" },
    el("label", {}, "across ", select("across", names, first.metric, (name) => { first = pick(name); plot.redraw(); })),
    el("label", {}, "up ", select("up", names, second.metric, (name) => { second = pick(name); plot.redraw(); }))) : null;
  const knobs = trials.knobs.map((one) => one.name);
  const rows = settings.map((one, index) => [
    ...aims.map((objective) => right(plusMinus(one.metrics[objective.metric], one.spread[objective.metric]))),
    ...knobs.map((name) => ({ text: short(experiment.page.labels.pareto[index].action[name] ?? ""), class: "value" })),
    right(number(one.reward)), right(count(one.samples)), right(String(one.trial)),
  ]);
  const headings = [...aims.map((one) => right(visible(one.metric))), ...knobs.map(visible), right("reward"), right("samples"), right("trial")];
  return section("front", "Pareto front", `${plural(settings.length, "setting")} of which none is better than another in every respect.`,
    el("div", { class: "bar-row" }, legend([
      { text: "on the front", shape: "diamond", colour: "accent" }, { text: "measured", shape: "circle", colour: "muted" },
      { text: "highest reward", shape: "star", colour: "best" },
      ...(experiment.objectives.some((one) => one.limit !== undefined) ? [{ text: "limit", line: true, dash: [6, 4], colour: "failed" }] : []),
    ]), selects), plot.node, table(headings, rows, { label: "Pareto front" }));
}

function frontTip(trials, aims, column, row) {
  const told = aims.map((one) => [visible(one.metric), number((column.get(one.metric) || [])[row], 6)]);
  return [...trials.tip(row).slice(0, 2), ...told, ...trials.knobs.map((one) => [one.name, one.exact(row)])];
}

function staircase(context, points, x, y, second) {
  context.beginPath();
  points.forEach(([a, b], index) => {
    if (index) {
      const before = points[index - 1];
      // The corner lies on the side that is not better.
      const corner = second.goal === "max" ? Math.min(before[1], b) : Math.max(before[1], b);
      if (corner === before[1]) context.lineTo(x.at(a), y.at(before[1]));
      else context.lineTo(x.at(before[0]), y.at(b));
    }
    context.lineTo(x.at(a), y.at(b));
  });
  context.stroke();
}

function limits(plot, first, second, x, y, { left, top, right, bottom }) {
  plot.context.strokeStyle = colour("failed");
  plot.context.lineWidth = 1.4;
  plot.context.setLineDash([6, 4]);
  const [across, up] = [first.limit, second.limit];
  if (across !== undefined && x.at(across) >= left && x.at(across) <= right) plot.line(x.at(across), top, x.at(across), bottom);
  if (up !== undefined && y.at(up) >= top && y.at(up) <= bottom) plot.line(left, y.at(up), right, y.at(up));
  plot.context.setLineDash([]);
}
