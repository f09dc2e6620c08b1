// The Pareto front: settings of which none is better than another in every respect.

class Front {
  constructor(experiment, trials, open) {
    this.experiment = experiment;
    this.trials = trials;
    this.settings = experiment.pareto;
    this.several = experiment.per_context.length > 1; // their values don't compare
    this.aims = experiment.objectives.filter((one) => one.weight > 0);
    [this.first, this.second] = this.aims;
    this.column = new Map(trials.table.metrics.map((one) => [one.name, one.values]));
    this.reaches = new Map(this.aims.map((one) => [one, this.reach(one)]));
    this.told = el("p", { class: "told", role: "status" });
    this.plot = new Plot({ height: 320, label: "Pareto front", draw: () => this.draw(), tip: (row) => frontTip(trials, this.aims, this.column, row), open });
  }

  value(objective, row) {
    return (this.column.get(objective.metric) || [])[row] ?? null;
  }

  reach(objective) {
    const values = this.trials.measuredRows.map((row) => this.value(objective, row)).filter((found) => found !== null);
    return new Reach(values, [...this.settings.map((one) => one.metrics[objective.metric]), ...bulk(values)]);
  }

  draw() {
    const { plot, first, second, settings } = this;
    const { context } = plot;
    const [top, bottom, right] = [20, plot.height - 36, plot.width - 8];
    const y = this.reaches.get(second).scale([bottom, top]);
    const left = Math.ceil(plot.widest(y.ticks(8).map((tick) => tick.text))) + 12;
    const x = this.reaches.get(first).scale([left, right]);
    const title = (objective) => `${visible(objective.metric)} (${objective.goal === "max" ? "more" : "less"} is better)`;
    plot.axes({ left, top, right, bottom, x, y, xTitle: title(first), yTitle: title(second) });
    limits(plot, first, second, x, y, { left, top, right, bottom });
    this.cloud(x, y);
    const points = settings.map((one) => [one.metrics[first.metric], one.metrics[second.metric], this.trials.rowOf.get(one.trial)]).sort((a, b) => a[0] - b[0]);
    context.strokeStyle = context.fillStyle = colour("accent");
    context.lineWidth = 1.6;
    if (this.aims.length === 2) staircase(context, points, x, y, second);
    for (const [a, b, row] of points) {
      mark(context, "diamond", x.at(a), y.at(b), 4.2);
      if (row !== undefined) plot.hit(x.at(a), y.at(b), row);
    }
    const { best } = this.experiment;
    if (best) plot.star(x.at(best.metrics[first.metric]), y.at(best.metrics[second.metric]));
  }

  // Every measured trial; what lies outside is a triangle at the edge.
  cloud(x, y) {
    const { context } = this.plot;
    const rows = this.trials.measuredRows.filter((row) => this.value(this.first, row) !== null && this.value(this.second, row) !== null);
    const many = rows.length > 600;
    let outside = 0;
    context.fillStyle = colour("muted");
    for (const row of rows) {
      const [across, up] = [this.value(this.first, row), this.value(this.second, row)];
      const [px, py] = [x.at(across), y.at(up)];
      const far = x.far(across) !== 0 || y.far(up) !== 0;
      outside += far;
      context.globalAlpha = far ? 0.8 : many ? 0.3 : 0.5;
      mark(context, far ? "triangle" : "circle", px, py, far ? 3 : many ? 1.8 : 2.6);
      this.plot.hit(px, py, row);
    }
    context.globalAlpha = 1;
    this.told.textContent = farther(outside, "measured trial");
  }

  controls() {
    const names = this.aims.map((one) => [one.metric, visible(one.metric)]);
    const pick = (key) => (name) => {
      this[key] = this.aims.find((one) => one.metric === name);
      this.plot.redraw();
    };
    return [
      ...(this.aims.length > 2 ? [el("label", {}, "across ", select("across", names, this.first.metric, pick("first"))), el("label", {}, "up ", select("up", names, this.second.metric, pick("second")))] : []),
      rangeChoice([...this.reaches.values()], () => this.plot.redraw(), "near the front"),
    ];
  }

  table() {
    const { settings, experiment } = this;
    const knobs = this.trials.knobs.map((one) => one.name);
    const aims = this.several ? [] : this.aims;
    const headings = [...aims.map((one) => right(withGoal(experiment, one.metric))), ...knobs.map(visible), right("gain"), "confirmed", right("samples"), right("trial")];
    const rowAt = (index) => {
      const one = settings[index];
      return [
        ...aims.map(({ metric }) => right(intervalText(one.metrics[metric], one.intervals[metric]))),
        ...knobs.map((name) => ({ text: short(experiment.page.labels.pareto[index].action[name] ?? ""), class: "value" })),
        right(one.better), one.confirmed ? "yes" : "no", right(count(one.samples)), right(String(one.trial)),
      ];
    };
    return pagedTable(headings, settings.length, rowAt, { label: "Pareto front" });
  }
}

function frontSection(experiment, trials, open) {
  const front = new Front(experiment, trials, open);
  const about = `${plural(front.settings.length, "setting")} of which none was better than another in every respect.`;
  if (front.several) return section("front", "Pareto front", about, front.table()); // values of different contexts don't compare
  const items = [["on the front", "diamond", "accent"], ["measured", "circle", "muted"], ["recommended", "star", "best"]].map(([text, shape, name]) => ({ text, shape, colour: name }));
  if (experiment.objectives.some((one) => one.limit !== undefined)) items.push({ text: "limit", line: true, dash: [6, 4], colour: "failed" });
  return section("front", "Pareto front", about, el("div", { class: "bar-row" }, legend(items), ...front.controls()), front.plot.node,
    [...front.reaches.values()].some((one) => one.stretched) ? front.told : null, front.table());
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
  if (across !== undefined && !x.far(across)) plot.line(x.at(across), top, x.at(across), bottom);
  if (up !== undefined && !y.far(up)) plot.line(left, y.at(up), right, y.at(up));
  plot.context.setLineDash([]);
}
