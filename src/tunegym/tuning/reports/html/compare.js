// Several runs in one table and in one plot.

const DASHES = [[], [7, 4], [2, 3], [9, 3, 2, 3]];

function lineStyle(index) {
  return { colour: PALETTE[index % PALETTE.length], dash: DASHES[Math.floor(index / PALETTE.length) % DASHES.length] };
}

function entryName(entry, entries) {
  const runs = new Set(entries.map((one) => one.run));
  const experiments = new Set(entries.map((one) => one.experiment));
  if (runs.size === 1) return visible(entry.experiment);
  return experiments.size === 1 ? visible(entry.run) : `${visible(entry.run)} ${visible(entry.experiment)}`;
}

function curvesPlot(entries, kind) {
  const byTime = kind === "seconds";
  const last = (entry) => (byTime ? entry.curve.last_s : entry.curve.last_trial);
  const draw = (plot) => {
    const shown = entries.filter((entry) => entry.curve[kind].length);
    const rewards = shown.flatMap((entry) => entry.curve[kind].map(([, reward]) => reward));
    const end = Math.max(1e-9, ...shown.map(last));
    const unit = byTime ? timeUnit(end) : { name: "", size: 1 };
    const bottom = plot.height - 36;
    const y = linear(padded(rewards.length ? [Math.min(...rewards), Math.max(...rewards)] : [0, 1], 0.06), [bottom, 20]);
    const left = Math.ceil(plot.widest(y.ticks(8).map((tick) => tick.text))) + 12;
    const x = linear([0, (end / unit.size) * 1.02], [left, plot.width - 8]);
    plot.axes({ left, top: 20, right: plot.width - 8, bottom, x, y, xTitle: byTime ? `time (${unit.name})` : "trial", yTitle: "best reward so far" });
    shown.forEach((entry) => {
      const style = lineStyle(entries.indexOf(entry));
      plot.context.strokeStyle = plot.context.fillStyle = colour(style.colour);
      plot.context.setLineDash(style.dash);
      plot.context.lineWidth = 2;
      drawSteps(plot, entry.curve[kind].map(([at, reward]) => [at / unit.size, reward]), last(entry) / unit.size, x, y);
      plot.context.setLineDash([]);
      for (const [at, reward] of entry.curve[kind]) {
        mark(plot.context, "circle", x.at(at / unit.size), y.at(reward), 2.4);
        plot.hit(x.at(at / unit.size), y.at(reward), [entry, at, reward]);
      }
    });
  };
  const tip = ([entry, at, reward]) => [["run", visible(entry.run)], ["experiment", visible(entry.experiment)], [byTime ? "after" : "trial", byTime ? seconds(at) : String(at)], ["reward", number(reward, 6)]];
  return new Plot({ height: 280, label: byTime ? "Best so far over time" : "Best so far over trials", draw, tip }).node;
}

// The best of each with its spread; a dot and a whisker, since a bar would need a zero that a reward does not have.
function bestPlot(entries) {
  const shown = entries.filter((entry) => entry.best);
  const draw = (plot) => {
    const spread = (entry) => entry.best.reward_spread ?? 0;
    const low = Math.min(...shown.map((entry) => entry.best.reward - spread(entry)));
    const high = Math.max(...shown.map((entry) => entry.best.reward + spread(entry)));
    const names = shown.map((entry) => entryName(entry, entries));
    const left = Math.min(Math.ceil(plot.widest(names)) + 14, plot.width * 0.42);
    const bottom = plot.height - 36;
    const x = linear(padded([low, high], 0.06), [left, plot.width - 14]);
    const y = categorical(names, [8, bottom]);
    plot.axes({ left, top: 8, right: plot.width - 14, bottom, x, y: { ...y, ticks: () => y.ticks(names.length) }, xTitle: "best reward ± spread" });
    shown.forEach((entry, index) => {
      const [px, py, half] = [x.at(entry.best.reward), y.at(index), spread(entry)];
      plot.context.strokeStyle = plot.context.fillStyle = colour(lineStyle(entries.indexOf(entry)).colour);
      plot.context.lineWidth = 2;
      if (half) plot.line(x.at(entry.best.reward - half), py, x.at(entry.best.reward + half), py);
      mark(plot.context, "circle", px, py, 5);
      plot.hit(px, py, entry);
    });
  };
  const tip = (entry) => [["run", visible(entry.run)], ["experiment", visible(entry.experiment)], ["best", plusMinus(entry.best.reward, entry.best.reward_spread)], ["samples", String(entry.best.samples)], ...Object.entries(entry.best.labels).map(([name, text]) => [visible(name), visible(text)])];
  return new Plot({ height: 56 + 30 * shown.length, label: "Best of each with its spread", draw, tip }).node;
}

function compareGroup(title, entries, index) {
  const items = entries.map((entry, one) => ({ text: entryName(entry, entries), line: true, ...lineStyle(one) }));
  if (!entries.some((entry) => entry.best)) return section(`group-${index}`, title, null, empty("Nothing was measured."));
  return section(`group-${index}`, title, null, legend(items),
    el("div", { class: "columns" }, el("div", {}, el("h3", {}, "Best so far, by trial"), curvesPlot(entries, "trials")), el("div", {}, el("h3", {}, "Best so far, by time"), curvesPlot(entries, "seconds"))),
    el("h3", {}, "Best of each"), bestPlot(entries));
}

function comparisonTable(entries) {
  const rows = entries.map((entry) => {
    const { best } = entry;
    return [
      visible(entry.run), visible(entry.experiment), visible(entry.agent || ""), entry.state, right(count(entry.trials)), right(count(entry.measured)),
      right(best ? plusMinus(best.reward, best.reward_spread) : "none"), right(best ? count(best.samples) : "0"),
      { text: best ? pairs(best.labels) : "", class: "value" }, right(best ? seconds(best.found_s) : ""), right(seconds(entry.total_s)),
    ];
  });
  return table(["run", "experiment", "agent", "state", right("trials"), right("measured"), right("best reward"), right("samples"), "best settings", right("time to best"), right("total time")], rows, { label: "runs" });
}

function comparePage(facts) {
  const { entries } = facts;
  const groups = new Map();
  for (const entry of entries) groups.set(entry.experiment, [...(groups.get(entry.experiment) || []), entry]);
  const shared = [...groups.values()].some((group) => group.length > 1);
  const place = el("div");
  const show = (how) => {
    const shown = how === "experiment" ? [...groups] : [["All experiments", entries]];
    place.replaceChildren(...shown.map(([title, group], index) => compareGroup(visible(title), group, index)));
  };
  const options = [["experiment", "by experiment"], ["all", "all together"]];
  if (!shared) options.reverse();
  const runs = new Set(entries.map((entry) => entry.folder)).size;
  const node = el("div", {}, el("header", {}, el("h1", {}, `${plural(runs, "run")} compared`), el("p", {}, instant(facts.written_at))),
    ...facts.warnings.map((text) => box("note", el("strong", {}, "Compare with care"), el("p", {}, visible(text)))),
    section("table", "Runs", null, comparisonTable(entries)),
    groups.size > 1 ? el("div", { class: "bar-row grouping" }, choice("plots", options, show)) : null, place,
    el("footer", {}, "Written by tunegym. This file needs no network."));
  show(options[0][0]);
  return node;
}
