// One plot per knob and env_param, and how much each knob matters.

const MOST_PLOTS = 12; // the others are folded

function knobPlot(trials, parameter, reach, open) {
  const draw = (plot) => {
    const others = trials.otherRows.filter((row) => parameter.has(row));
    const [top, bottom] = [20, plot.height - 20 - (others.length ? 22 : 0)];
    const y = reach.scale([bottom, top]);
    const left = Math.ceil(plot.widest(y.ticks(5).map((tick) => tick.text))) + 12;
    const right = plot.width - 8;
    const x = parameterScale(parameter, [left + 4, right - 4]);
    plot.axes({ left, top, right, bottom, x, y, yTitle: trials.scoreTitle });
    const spread = parameter.list ? Math.min(0.7 * x.band, 60) : 0;
    const place = (row) => (parameter.has(row) ? x.at(parameter.place(row)) + spread * jitter(row) : null);
    if (others.length) {
      stripLine(plot, left, right, bottom + 18);
      strip(plot, trials, others, place, bottom + 18);
    }
    cloud(plot, trials, trials.measuredRows, place, y);
    if (parameter.list) medians(plot, trials, parameter, x, y);
    stars(plot, trials, place, y);
  };
  const plot = new Plot({ height: 210, label: `Reward by ${parameter.name}`, draw, tip: (row) => trials.tip(row), open });
  const log = parameter.column.log ? el("span", { class: "tag" }, "log") : null;
  const kind = parameter.drawn ? el("span", { class: "tag" }, "drawn") : null;
  return { plot, figure: el("figure", {}, el("figcaption", {}, visible(parameter.name), kind, log), plot.node) };
}

// A short line at each candidate's median, which far rewards don't move as they would a mean.
function medians(plot, trials, parameter, x, y) {
  const rewards = parameter.labels.map(() => []);
  for (const row of trials.measuredRows) {
    if (parameter.has(row) && trials.table.cached_from[row] === null) rewards[parameter.place(row)].push(trials.score(row));
  }
  plot.context.strokeStyle = colour("text");
  plot.context.lineWidth = 2;
  rewards.forEach((found, index) => {
    if (!found.length) return;
    const [middle, half] = [median(found), Math.min(0.38 * x.band, 34)];
    if (!y.far(middle)) plot.line(x.at(index) - half, y.at(middle), x.at(index) + half, y.at(middle));
  });
}

// As they were declared; where there are too many to look at, the ones that matter most first.
function plotOrder(trials) {
  if (trials.parameters.length <= MOST_PLOTS) return trials.parameters;
  const share = knobShares(trials.experiment);
  return trials.parameters.slice().sort((a, b) => (share.get(b.name) ?? -1) - (share.get(a.name) ?? -1));
}

function knobSection(trials, open) {
  const lists = trials.parameters.some((one) => one.list);
  const reach = rewardReach(trials);
  const made = plotOrder(trials).map((one) => knobPlot(trials, one, reach, open));
  const figures = (from, to) => el("div", { class: "figures" }, ...made.slice(from, to).map((one) => one.figure));
  const told = el("p", { class: "told", role: "status" }, reach.told("measured trial"));
  const range = rangeChoice([reach], () => {
    told.textContent = reach.told("measured trial");
    for (const { plot } of made) plot.redraw();
  });
  const first = made.length > MOST_PLOTS && trials.experiment.importance.knobs.length ? " Those that matter most come first." : "";
  return section("knobs", "One plot per knob",
    `Every measured trial by the value of one knob; the other knobs vary too.${lists ? " A short line is a value's median." : ""}${first}`,
    el("div", { class: "bar-row" }, cloudLegend(trials), range), range ? told : null, figures(0, MOST_PLOTS),
    made.length > MOST_PLOTS ? folded(`show all ${count(made.length)} plots`, figures(MOST_PLOTS)) : null);
}

function knobShares({ importance }) {
  return new Map(importance.knobs.map(({ names, share }) => [names[0], share]));
}

function importanceSection({ importance }) {
  const { measured, knobs, pairs, failures } = importance;
  const about = "How much of the spread of costs within contexts each knob explains by the model, with its 95 % interval; a pair, what its values do beyond those of each. The rest is what more knobs do together.";
  const rows = [...knobs, ...pairs].map(({ names, share, low, high }) =>
    el("li", {}, el("span", {}, names.map(visible).join(" and ")), bar(share), el("b", {}, `${percent(share)} (${percent(low)} to ${percent(high)})`)));
  const failing = failures.map(({ name, value, trials, kinds }) => {
    const shares = Object.entries(kinds).map(([kind, times]) => `${times === trials ? "all" : `${count(times)} of`} ${count(trials)} ${kind.replace("_", " ")}`);
    return el("li", {}, visible(`${name} = ${value}: ${shares.join(", ")}`));
  });
  return section("importance", "Importance", about,
    rows.length ? el("ul", { class: "bars" }, ...rows) : empty(`No estimate: ${plural(measured, "measured trial")} can't tell.`),
    failing.length ? el("ul", {}, ...failing) : null);
}
