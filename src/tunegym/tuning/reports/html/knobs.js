// One plot per knob and env_param, and how much of the reward's variance each explains.

function knobPlot(trials, parameter, open) {
  const draw = (plot) => {
    const range = trials.range(trials.measuredRows, (row) => trials.reward(row)) || [0, 1];
    const others = trials.otherRows.filter((row) => parameter.has(row));
    const [top, bottom] = [20, plot.height - 20 - (others.length ? 22 : 0)];
    const y = linear(padded(range, 0.06), [bottom, top]);
    const left = Math.ceil(plot.widest(y.ticks(5).map((tick) => tick.text))) + 12;
    const right = plot.width - 8;
    const x = parameterScale(parameter, [left + 4, right - 4]);
    plot.axes({ left, top, right, bottom, x, y, yTitle: "reward" });
    const spread = parameter.list ? Math.min(0.7 * x.band, 60) : 0;
    const place = (row) => (parameter.has(row) ? x.at(parameter.place(row)) + spread * jitter(row) : null);
    if (others.length) {
      stripLine(plot, left, right, bottom + 18);
      strip(plot, trials, others, place, bottom + 18);
    }
    cloud(plot, trials, trials.measuredRows, place, (row) => y.at(trials.reward(row)));
    if (parameter.list) means(plot, trials, parameter, x, y);
    for (const row of trials.bestRows) plot.star(place(row), y.at(trials.reward(row)));
  };
  const plot = new Plot({ height: 210, label: `Reward by ${parameter.name}`, draw, tip: (row) => trials.tip(row), open });
  const log = parameter.column.log ? el("span", { class: "tag" }, "log") : null;
  const kind = parameter.drawn ? el("span", { class: "tag" }, "drawn") : null;
  return el("figure", {}, el("figcaption", {}, visible(parameter.name), kind, log), plot.node);
}

// A short line at each candidate's mean.
function means(plot, trials, parameter, x, y) {
  const sums = parameter.labels.map(() => [0, 0]);
  for (const row of trials.measuredRows) {
    if (!parameter.has(row) || trials.table.cached_from[row] !== null) continue;
    const sum = sums[parameter.place(row)];
    sum[0] += trials.reward(row);
    sum[1] += 1;
  }
  plot.context.strokeStyle = colour("text");
  plot.context.lineWidth = 2;
  sums.forEach(([total, many], index) => {
    if (!many) return;
    const half = Math.min(0.38 * x.band, 34);
    plot.line(x.at(index) - half, y.at(total / many), x.at(index) + half, y.at(total / many));
  });
}

function knobSection(trials, open) {
  const lists = trials.parameters.some((one) => one.list);
  return section("knobs", "One plot per knob",
    `Every measured trial by the value of one knob; the other knobs vary too.${lists ? " A short line is a value's mean." : ""}`,
    cloudLegend(trials), el("div", { class: "figures" }, ...trials.parameters.map((one) => knobPlot(trials, one, open))));
}

function importanceSection(experiment) {
  const { importance } = experiment;
  const about = "The share of the reward's variance that each explains by itself, corrected for chance. What knobs do only together is not in it.";
  if (importance.note) return section("importance", "Importance", about, empty(`Nothing can be said: ${importance.note}.`));
  const rows = importance.shares.map(({ name, kind, share }) =>
    el("li", {}, el("span", {}, visible(name), kind === "env_param" ? el("span", { class: "tag" }, "drawn") : null),
      share === null ? el("em", {}, "its values come too seldom") : bar(share), el("b", {}, share === null ? "" : percent(share))));
  return section("importance", "Importance", about, el("ul", { class: "bars" }, ...rows),
    el("p", { class: "empty" }, `From ${plural(importance.trials, "measured trial")}, cached ones left out.`));
}
