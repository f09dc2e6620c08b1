// The best settings in full.

function tiles(experiment) {
  const { best, trials, time } = experiment;
  const measured = trials.statuses.measured || 0;
  const done = trials.total ? `${count(trials.done)} of ${count(trials.total)}` : count(trials.done);
  const tile = (name, value, about) => el("div", { class: "tile" }, el("span", {}, name), el("strong", {}, value), el("small", {}, about));
  return el("div", { class: "tiles" },
    best ? tile(...bestTile(experiment)) : tile("best", "none", "nothing can be recommended"),
    tile("trials", done, `${count(measured)} measured, ${count(trials.done - measured)} not`),
    tile("time", seconds(time.wall_s), best && best.found_s !== null ? `best found after ${seconds(best.found_s)}` : ""),
    tile("agent", experiment.agent || "plain job", `seed ${experiment.seed}${experiment.repeats > 1 ? `, ${experiment.repeats} repeats` : ""}`));
}

// What the best settings gain and how sure that is; without a baseline, or where it stays, what they reach.
function bestTile({ best, page }) {
  const answer = page.answer.verdicts[0].rows.find((row) => row.role === "answer");
  if (!answer) return [REWARD, intervalText(best.reward, best.interval), ""];
  const [[, better], [, certainty], [title, value]] = Object.entries(answer.cells);
  const [gain, interval] = better.split(" (");
  if (gain) return ["gain on your settings", gain, `${certainty}, ${interval.replace(")", "")}`];
  return [value ? `best ${title}` : "best", value || plural(best.samples, "sample"), answer.baseline ? "your settings: keep them" : certainty];
}

const MOST_ROWS = 20; // of the best settings; the others are folded

function bestSection(experiment) {
  const { best, page } = experiment;
  if (!best) return section("best", "Best settings", null, empty("There is no best setting."));
  const valued = (entries) => entries.map(([name, text]) => [visible(name), { text: visible(text), class: "value" }]);
  const settings = valued(Object.entries(page.labels.best.action));
  const fixed = valued(Object.entries(page.fixed));
  const metrics = Object.entries(best.metrics).map(([name, mean]) => [withGoal(experiment, name), right(intervalText(mean, best.intervals[name]))]);
  return section("best", "Best settings", best.violation > 0 ? "It exceeds a limit: no setting that was measured keeps all of them." : null,
    el("div", { class: "columns" },
      el("div", {}, el("h3", {}, "Settings"), settings.length ? table(["knob", "value"], settings.slice(0, MOST_ROWS), { label: "best settings" }) : empty("There is no knob."),
        settings.length > MOST_ROWS ? folded(plural(settings.length - MOST_ROWS, "more knob"), table(["knob", "value"], settings.slice(MOST_ROWS))) : null,
        fixed.length ? folded(plural(fixed.length, "fixed parameter"), table(["parameter", "value"], fixed)) : null),
      el("div", {}, el("h3", {}, "Measured"),
        best.reward === null ? empty("Values of different contexts don't compare: each has its own above.") :
        table(["", right("mean ± interval")], [[REWARD, right(intervalText(best.reward, best.interval))], ...metrics], { label: "metrics of the best setting" }))));
}
function runSection(run, experiment) {
  const { time } = experiment;
  return section("run", "What was run", null,
    definitions([
      ["scenario", visible(run.scenario)],
      ["experiment", visible(experiment.name)],
      ["folder", visible(run.folder)],
      ["started", instant(time.started_at)],
      ["state", experiment.state + (experiment.code ? ` with exit code ${experiment.code}` : "") + (experiment.ended ? `: ${visible(experiment.ended)}` : "")],
      ["host", time.hosts.map(visible).join(", ")],
      ["slots", time.slots === null ? "" : String(time.slots)],
      ["sessions", String(time.sessions)],
      ["metrics", experiment.metrics.map((one) => withGoal(experiment, one)).join(", ")],
      ["objectives", experiment.objectives.map((one) => `${one.goal} ${visible(one.metric)}${one.limit !== undefined ? ` (limit ${number(one.limit)})` : ""}`).join(", ")],
    ]),
    run.source ? folded("scenario.toml as it was run", el("pre", {}, visible(run.source))) : null);
}
