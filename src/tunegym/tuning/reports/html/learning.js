// Reward over trials in each context by itself: whether the agent improves there over time.

const MOST_FOLDED = 36; // beyond these, contexts are only counted
const MOST_POINTS = 1500; // in one plot

// Contexts that come often enough for their own plot.
function recurringContexts(trials) {
  return trials.contexts.length > 1 && trials.measuredRows.length >= 3 * trials.contexts.length;
}

// The mean of the last rewards at each of them; they are divided first, so that large ones don't overflow.
function runningMean(rewards, window) {
  let mean = 0;
  return rewards.map((_, index) => {
    const from = Math.max(0, index + 1 - window);
    if (index < window) mean = rewards.slice(0, index + 1).reduce((sum, one) => sum + one / (index + 1), 0);
    else mean += rewards[index] / window - rewards[from - 1] / window;
    return mean;
  });
}

function learningPlot(trials, one, end, open) {
  const { rows, others, best, label } = one;
  const rewards = rows.map((row) => trials.reward(row));
  const means = runningMean(rewards, Math.max(5, Math.ceil(rows.length / 20)));
  const every = Math.ceil(rows.length / MOST_POINTS);
  const shown = rows.filter((_, index) => index % every === 0);
  const reach = new Reach(rewards, [...(best === null ? [] : [best]), ...bulk(rewards)]);
  const draw = (plot) => {
    const [top, bottom] = [20, plot.height - 20 - (others.length ? 22 : 0)];
    const y = reach.scale([bottom, top]);
    const left = Math.ceil(plot.widest(y.ticks(5).map((tick) => tick.text))) + 12;
    const right = plot.width - 8;
    const x = linear([1 - end * 0.01, end * 1.01 + 0.5], [left, right], true);
    plot.axes({ left, top, right, bottom, x, y, yTitle: "reward" });
    const place = (row) => x.at(trials.table.number[row]);
    if (others.length) {
      stripLine(plot, left, right, bottom + 18);
      strip(plot, trials, others, place, bottom + 18);
    }
    cloud(plot, trials, shown, place, y, (row) => trials.reward(row));
    const { context } = plot;
    if (best !== null) {
      context.strokeStyle = colour("best");
      context.lineWidth = 1.4;
      context.setLineDash([5, 4]);
      plot.line(left, y.at(best), right, y.at(best));
      context.setLineDash([]);
    }
    context.strokeStyle = colour("text");
    context.lineWidth = 1.8;
    context.beginPath();
    rows.forEach((row, index) => context.lineTo(place(row), y.at(means[index])));
    context.stroke();
  };
  const plot = new Plot({ height: 190, label: `Reward over trials at ${label}`, draw, tip: (row) => trials.tip(row), open });
  return { plot, reach, figure: el("figure", {}, el("figcaption", {}, visible(label), el("span", { class: "tag" }, plural(rows.length + others.length, "trial"))), plot.node) };
}

// The contexts as they first came; where there are too many to look at, the ones with most trials first.
function learningContexts(trials) {
  const found = trials.contexts.map((label) => ({ label, rows: [], others: [], best: null }));
  for (const row of trials.rows) found[trials.context[row]][trials.measured(row) ? "rows" : "others"].push(row);
  for (const setting of trials.experiment.per_context) {
    const row = trials.rowOf.get(setting.trial);
    if (row !== undefined) found[trials.context[row]].best = setting.reward;
  }
  const measured = found.filter((one) => one.rows.length);
  return measured.length <= MOST_CONTEXTS ? measured : measured.sort((a, b) => b.rows.length - a.rows.length);
}

function learningSection(trials, open) {
  const contexts = learningContexts(trials);
  const end = trials.table.number[trials.count - 1];
  const made = contexts.slice(0, MOST_CONTEXTS + MOST_FOLDED).map((one) => learningPlot(trials, one, end, open));
  const figures = (from, to) => el("div", { class: "figures" }, ...made.slice(from, to).map((one) => one.figure));
  const far = () => farther(made.reduce((sum, one) => sum + one.reach.outside, 0), "measured trial");
  const told = el("p", { class: "told", role: "status" }, far());
  const range = rangeChoice(made.map((one) => one.reach), () => {
    told.textContent = far();
    for (const { plot } of made) plot.redraw();
  });
  const items = [{ text: "mean of the last ones", line: true, colour: "text" }];
  if (contexts.some((one) => one.best !== null)) items.push({ text: "best setting there", line: true, dash: [5, 4], colour: "best" });
  const left = trials.contexts.length - made.length;
  const order = contexts.length > MOST_CONTEXTS ? " Those with most trials come first." : "";
  return section("learning", "Reward by context", `Each context by itself and on its own scale: an agent that learns approaches the best setting there.${order}`,
    el("div", { class: "bar-row" }, legend(items), range), range ? told : null, figures(0, MOST_CONTEXTS),
    made.length > MOST_CONTEXTS ? folded(`show ${plural(made.length - MOST_CONTEXTS, "more context")}`, figures(MOST_CONTEXTS)) : null,
    left ? empty(`${plural(left, "more context")} ${left === 1 ? "is" : "are"} not shown.`) : null);
}
